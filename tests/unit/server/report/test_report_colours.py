"""Texts and curves of the page are readable in light, dark and grey."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedquilt_server.report import charts, html, svg

CSS = (Path(html.__file__).parent / "templates" / "report.css").read_text()


def theme(number: int) -> Mapping[str, str]:
    """Return the variables of the light (0), dark (1) or printed page (2)."""
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", CSS.split(":root {")[number + 1].split("}")[0]))


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_texts_have_a_contrast_of_at_least_4_5_and_curves_of_3(number: int) -> None:
    colours = theme(number)
    for ground in ("card", "page"):
        for text in ("text", "quiet", "accent", "warn"):
            assert contrast(colours[text], colours[ground]) >= 4.5, text
    for curve in range(len(charts.COLOURS)):
        assert contrast(colours[f"c{curve}"], colours["card"]) >= 3, curve


def test_the_charts_have_the_colours_of_the_light_page() -> None:
    light = {f"var(--{name})": colour for name, colour in theme(0).items()}
    assert {name: colour for colour, name in svg.VARIABLES.items()}.items() <= light.items()
    assert set(theme(1)) == set(theme(0)) == set(theme(2))


def test_32_groups_differ_without_their_colours() -> None:
    looks = {(look["linestyle"], look["marker"]) for look in map(charts.look, range(32))}
    assert len(looks) == 32
