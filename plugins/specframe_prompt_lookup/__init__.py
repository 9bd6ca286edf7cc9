"""Prompt lookup: propose what followed the last tokens where they stood before, in the context or in given phrases.

Uses the public API of specframe only and needs no model. Imports neither torch, transformers nor numpy, and
pyahocorasick only when phrases are given.
"""

from __future__ import annotations

from typing import Any

import specframe
from specframe_prompt_lookup.drafter import PromptLookup
from specframe_prompt_lookup.options import PromptLookupOptions


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``prompt_lookup``."""
    register("prompt_lookup", PromptLookup, options=PromptLookupOptions, needs=specframe.Needs(cheap=True), api=1)


__all__ = ["PromptLookup", "PromptLookupOptions"]
