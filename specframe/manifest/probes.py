"""Fixed conversations and texts whose token ids show what template, normaliser and boundary rules really do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specframe.manifest.digest import digest
from specframe.manifest.identity import Template

TEXTS = {
    "plain": "Hello, world. It's 12:34 already!",
    "spaces": "  two  spaces\ttab\n\nlines \r\n",
    "combining": "e\u0301 n\u0303 o\u0328\u0304 \u1100\u1161\u11a8 \u00e9",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "right-to-left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u200f(1)\u200e",
    "cjk": "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "byte-fallback": "\U00013000 \u2603 \U000e0041 \ufb01 \ufffd",
}
_ASSISTANT = {"role": "assistant", "content": "Yes?"}
CONVERSATIONS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "user": [{"role": "user", "content": TEXTS["plain"]}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "developer": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "assistant": [{"role": "user", "content": "Hi"}, _ASSISTANT, {"role": "user", "content": TEXTS["combining"]}],
    "unicode": [{"role": "user", "content": "\n".join(list(TEXTS.values())[2:])}],
}
REFUSED = "refused"

# A template that writes today's date would give other ids every day.
_FIXED_DATE = "{%- macro strftime_now(format) -%}2000-01-01{%- endmacro +%}"


def template_identity(tokenizer: Any) -> Template:
    """Return the digest of a tokenizer's chat template and those of every probe."""
    probes = {f"text-{name}": _probe(tokenizer(text)["input_ids"]) for name, text in TEXTS.items()}
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return Template(probes=probes)
    probes |= {f"chat-{name}": _chat(tokenizer, messages) for name, messages in CONVERSATIONS.items()}
    return Template(digest=digest("template-v1", template), probes=probes)


def _chat(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    try:
        template = tokenizer.get_chat_template()
        if "strftime_now" in template:
            template = _FIXED_DATE + template
        text = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False, chat_template=template
        )
    except Exception:  # a template is a program: it may refuse a role, and any way of failing is its answer
        return REFUSED
    return _probe(tokenizer(text, add_special_tokens=False)["input_ids"])


def _probe(ids: Sequence[int]) -> str:
    return digest("probe-v1", list(ids))
