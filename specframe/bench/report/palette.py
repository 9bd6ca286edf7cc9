"""What figures look like: colours that colour-blind people can tell apart, a shape for each, and matplotlib's settings.

Colours of arms differ in lightness too; the first four are told apart with any kind of colour blindness (a test computes it).
The page turns each into a variable, which has a lighter value in the dark (``page.css``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specframe.bench.plan import Plan, is_judged, is_plain

SURFACE, INK, QUIET, GRID = "#ffffff", "#1c2024", "#5b626a", "#d9dde2"
_ARMS = ("#0067a8", "#e06a00", "#2fa36b", "#7a1f5c", "#a88300", "#3a96d0", "#7a5c3e")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

PAGE_COLOURS: Mapping[str, str] = {
    SURFACE: "var(--surface)",
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    GRID: "var(--grid)",
    **{colour: f"var(--arm-{number})" for number, colour in enumerate(_ARMS, start=1)},
}
"""The variable of the page for each colour of a figure that changes in the dark."""

SETTINGS: Mapping[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Roboto", "Helvetica Neue", "Arial"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.facecolor": SURFACE,
    "axes.facecolor": "none",
    "savefig.facecolor": SURFACE,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text: to be read aloud, searched and copied
}
"""matplotlib's settings."""

WIDTH = 5.6
"""The width of a figure in inches: a phone shows it at about its own size, a screen larger."""


class Look(NamedTuple):
    """How an arm is drawn wherever it is drawn: no two of the first fourteen share colour, marker and dashes."""

    colour: str
    marker: str
    dashes: Any

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a line with markers."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}


def looks(plan: Plan) -> dict[str, Look]:
    """Return the look of each arm by name, the same in all figures of a report.

    Plain decoding is grey, transformers' own arms and controls are dashed, strategies are solid lines.
    """
    found, num_coloured = {}, 0
    for name, arm in plan.arms.items():
        dashes = "solid" if is_judged(arm) or name == plan.baseline else (0, (4, 1.5))
        if is_plain(arm):
            found[name] = Look(QUIET, "o" if name == plan.baseline else "x", dashes)
            continue
        repeats, index = divmod(num_coloured, len(_ARMS))
        found[name] = Look(_ARMS[index], _MARKERS[(index + repeats) % len(_MARKERS)], dashes)
        num_coloured += 1
    return found
