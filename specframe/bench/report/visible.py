"""Text of models and corpora, made safe to show: what cannot be seen, or changes how its neighbours look, is spelled out.

Knows characters only. Markup is escaped by whoever writes markup.
"""

from __future__ import annotations

import unicodedata

_SPELLED = {"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"}
_JOINERS = {"\u200c", "\u200d"}  # letters of several scripts and emoji are written with them
_EMOJI_TAGS = range(0xE0020, 0xE0080)  # flags of regions


def visible(text: str, *, keep: str = "") -> str:
    """Return the text with control, bidirectional and other format characters, unpaired surrogates, and characters that do not
    exist spelled as ``⟨U+202E⟩``; those in ``keep`` stay.
    """  # fmt: skip
    return "".join(
        char if char in keep or not _is_spelled(char) else f"\u27e8U+{ord(char):04X}\u27e9" for char in text
    )


def _is_spelled(char: str) -> bool:
    return (
        unicodedata.category(char) in _SPELLED and char not in _JOINERS and ord(char) not in _EMOJI_TAGS
    )
