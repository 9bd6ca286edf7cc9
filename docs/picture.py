"""The picture of README: bars of a stored result as SVG, which follows the reader's light or dark scheme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FILE = DOCS / "img" / "speed.svg"
_RESULT = DOCS / "results" / "core.json"
_KINDS = {"all": "all prompts", "edit": "edits", "quote": "quotes", "json": "JSON", "chat": "chat"}
_ARMS = {
    "library lookup, best": ("other", "transformers' prompt lookup, best setting"),
    "plain": ("bare", "specframe, no drafter"),
    "lookup, best": ("own", "specframe's prompt lookup, best setting"),
}
_LEFT, _WIDTH, _BAR, _GAP, _TOP = 110, 420, 16, 18, 64

_STYLE = """\
    .ink { fill: #1f2933 } .soft { fill: #52606d } .line { stroke: #52606d; stroke-dasharray: 4 3 }
    .own { fill: #2563eb } .other { fill: #9aa5b1 } .bare { fill: #93b4f5 }
    @media (prefers-color-scheme: dark) {
      .ink { fill: #e4e7eb } .soft { fill: #9aa5b1 } .line { stroke: #9aa5b1 }
      .own { fill: #60a5fa } .other { fill: #616e7c } .bare { fill: #2c4a7c }
    }"""


def speed() -> str | None:
    """Return the times of prompt lookup over transformers' plain decoding as SVG; None where they are not stored."""
    if not _RESULT.is_file():
        return None
    over_plain: dict[str, Any] = json.loads(_RESULT.read_text(encoding="utf-8"))["over_library_plain"]
    height = _TOP + len(_KINDS) * (len(_ARMS) * _BAR + _GAP)
    scale = _WIDTH / max(1.0, *(over_plain[arm][kind]["total_over_total"] for arm in _ARMS for kind in _KINDS))
    lines = [_text(_LEFT, 20, "ink", "time over transformers' plain decoding, float32; lower is better")]
    for index, (kind, label) in enumerate(_KINDS.items()):
        top = _TOP + index * (len(_ARMS) * _BAR + _GAP)
        lines.append(_text(_LEFT - 8, top + _BAR + 5, "ink", label, anchor="end"))
        for row, (arm, (style, _)) in enumerate(_ARMS.items()):
            value = over_plain[arm][kind]["total_over_total"]
            y = top + row * _BAR
            lines.append(
                f'<rect x="{_LEFT}" y="{y}" width="{value * scale:.1f}" height="{_BAR - 2}" rx="2" class="{style}"/>'
            )
            lines.append(_text(_LEFT + _WIDTH + 10, y + 12, "soft", f"{value:.2f}"))
    one = f"{_LEFT + scale:.1f}"
    lines.append(f'<path d="M{one} {_TOP - 8} V{height - _GAP + 4}" class="line"/>')
    for index, (style, label) in enumerate(_ARMS.values()):
        x = 10 + index * (_LEFT + _WIDTH + 150) // len(_ARMS)
        lines.append(f'<rect x="{x}" y="32" width="12" height="12" rx="2" class="{style}"/>')
        lines.append(_text(x + 18, 43, "soft", label))
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 160} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">\n'
        f"  <title>Time over transformers' plain decoding</title>\n  <style>\n{_STYLE}\n  </style>\n{body}\n</svg>\n"
    )


def link() -> str:
    """Return the picture of README: the times where they are stored, else a round."""
    if speed() is None:
        return (
            "![One round: drafters propose tokens, the target computes a row for each in one forward, rows are verified,\n"
            "the accepted prefix is committed and the rest rolled back, the new tokens are emitted](docs/img/round.svg)\n"
        )
    return (
        "![Bars: time of transformers' prompt lookup, of specframe without a drafter and of its prompt lookup over\n"
        "transformers' plain decoding, for edits, quotes, JSON and chat](docs/img/speed.svg)\n"
    )


def _text(x: float, y: float, style: str, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{style}" text-anchor="{anchor}">{text}</text>'
