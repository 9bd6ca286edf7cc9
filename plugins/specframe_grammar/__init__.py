"""Grammars for constrained generation, and the drafter that proposes what they force.

Languages: ``regex`` and ``choice`` on their own automata, ``json_schema`` and ``lark`` through llguidance (``pip install
'specframe[grammar]'``). Uses the public API of specframe only. Modules with numpy are imported when a grammar is compiled or
a drafter made, so that listing plugins stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import specframe
from specframe_grammar.options import GrammarOptions

if TYPE_CHECKING:
    from specframe import Drafter, Grammar, TargetFacts


@specframe.hookimpl
def specframe_register_grammars(register: Any) -> None:
    """Register ``regex``, ``choice``, ``json_schema`` and ``lark``."""
    register("regex", _compile_regex, api=1)
    register("choice", _compile_choice, api=1)
    register("json_schema", _compile_json_schema, api=1)
    register("lark", _compile_lark, api=1)


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``grammar``."""
    register("grammar", _make_drafter, options=GrammarOptions, needs=specframe.Needs(grammar=True, cheap=True), api=1)


def _compile_regex(source: str, facts: TargetFacts) -> Grammar:
    from specframe_grammar.regex import compile_regex

    return compile_regex(source, facts)


def _compile_choice(source: str, facts: TargetFacts) -> Grammar:
    from specframe_grammar.regex import compile_choice

    return compile_choice(source, facts)


def _compile_json_schema(source: str, facts: TargetFacts) -> Grammar:
    from specframe_grammar.parser import compile_json_schema

    return compile_json_schema(source, facts)


def _compile_lark(source: str, facts: TargetFacts) -> Grammar:
    from specframe_grammar.parser import compile_lark

    return compile_lark(source, facts)


def _make_drafter(options: GrammarOptions, facts: TargetFacts) -> Drafter:
    from specframe_grammar.drafter import GrammarDrafter

    return GrammarDrafter(options, facts)


__all__ = ["GrammarOptions"]
