"""Long texts for prompts, made from short paragraphs: as many words as are asked for, the same for the same seed.

The paragraphs were written for specframe; Apache-2.0, as the code. Names, places and numbers change from use to use, so that
a long text is no copy of its beginning.
"""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files

_NAMES = (
    "Aino Berg", "Tomas Vale", "Ida Korhonen", "Mr. Pell", "Ruth Amari", "Old Janek", "Sister Odile", "Captain Rhys",
    "Marta Sorel", "Dr. Okoye", "Lev Aronson", "Bridget Shaw", "Yusuf Kaya", "Nell Carver", "Pavel Hruska", "Ines Duarte",
)  # fmt: skip
_PLACES = (
    "Skarvik", "Oberlangen", "Port Averil", "Dunmore", "Vadso", "Saltby", "Grenna", "Castelmar", "Tolmin", "Eastwick",
    "Harrow Quay", "Lindau Mill", "Noss", "Ardbeg Cross", "Varna Heights", "Kilbride",
)  # fmt: skip
_MOST_WORDS = 1_000_000
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def make_text(words: int, seed: int, insert: str | None = None, at: float = 0.5) -> str:
    """Return a text of ``words`` words in paragraphs; ``insert`` becomes a paragraph of its own at the share ``at`` of it.

    Raises ``TypeError`` and ``ValueError`` for arguments that are none.
    """
    if isinstance(words, bool) or not isinstance(words, int) or not 1 <= words <= _MOST_WORDS:
        raise ValueError(f"'words' must be an integer from 1 to {_MOST_WORDS} (got {words!r})")
    if not 0 <= at <= 1:
        raise ValueError(f"'at' must be in [0, 1] (got {at!r})")
    source = random.Random(seed)
    paragraphs: list[str] = []
    num_left = words
    order: list[str] = []
    while num_left > 0:
        if not order:
            order = sorted(_templates(), key=lambda template: source.random())
        paragraph = _fill(order.pop(), source).split()[:num_left]
        num_left -= len(paragraph)
        paragraphs.append(" ".join(paragraph))
    if insert is not None:
        paragraphs.insert(round(at * len(paragraphs)), insert)
    return "\n\n".join(paragraphs)


def _fill(template: str, source: random.Random) -> str:
    def one_of(values: tuple[str, ...]) -> str:
        return values[int(source.random() * len(values))]

    number = str(3 + int(source.random() * 900))
    return template.format(name=one_of(_NAMES), place=one_of(_PLACES), month=one_of(_MONTHS), number=number)


@cache
def _templates() -> tuple[str, ...]:
    text = files("specframe.bench").joinpath("workloads/paragraphs.txt").read_text(encoding="utf-8")
    return tuple(text.strip().split("\n\n"))
