"""Charts as files: PNG images, and SVG text for the inside of a page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Final

from fedquilt_server.report.charts import COLOURS, GRID, INK, PAPER, QUIET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH: Final = 200
VARIABLES: Final = {
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)},
    INK: "var(--text)",
    QUIET: "var(--quiet)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
}
"""Colours of the charts and the page's variables, which have other values in the dark theme."""
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none", "font.family": ["sans-serif"], "axes.unicode_minus": True, "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}  # fmt: skip
_FONT: Final = re.compile(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*")


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG image."""
    return _save(figure, "png", dpi=DOTS_PER_INCH)


def to_svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element for a page.

    Its colours are the page's variables, its texts are texts, and its identifiers begin with ``name``, because a page
    has several charts.
    """
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": name}):
        text = _save(figure, "svg", metadata={"Date": None}).decode()
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', lambda found: f"{found[1]}{name}-", body)
    body = re.sub("|".join(VARIABLES), lambda found: VARIABLES[found[0]], body)
    body = _FONT.sub(r"font: \1\2 var(--sans)", body)
    return re.sub(r'width="[^"]*pt" ', "", re.sub(r'height="[^"]*pt" ', "", body, count=1), count=1)


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(_SETTINGS):
        figure.savefig(buffer, format=kind, facecolor=PAPER, **options)
        figure.set_layout_engine(None)  # keeps the places that the first drawing has computed
    return buffer.getvalue()
