"""Text of models, corpora and plans, made safe to show: what cannot be seen, or changes how its neighbours look, is spelled.

Knows characters only. Markup is escaped by whoever writes markup.
"""

from __future__ import annotations

import unicodedata

_SPELLED = {"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # letters of several scripts, and emoji, are written with them
_EMOJI_TAGS = range(0xE0020, 0xE0080)  # flags of regions are


def visible(text: str, *, keep: str = "") -> str:
    """Return a text that shows all its characters, those in ``keep`` as they are.

    Control, bidirectional and other format characters, unpaired surrogates, and characters that do not exist are spelled, such
    as U+202E in angle brackets.
    """
    return "".join(char if char in keep or not _is_spelled(char) else f"\u27e8U+{ord(char):04X}\u27e9" for char in text)


def short(text: str, width: int = 28) -> str:
    """Return a name as a figure has room for it: visible, and cut in the middle where it is longer than ``width``."""
    text = visible(text)
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[:half]}\u2026{text[-half:]}"


def _is_spelled(char: str) -> bool:
    return unicodedata.category(char) in _SPELLED and char not in _JOINERS and ord(char) not in _EMOJI_TAGS
