"""Texts that are too long for a message are cut, and the cut is marked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.texts import LONGEST_TEXT, shorten_text


def test_advice_does_not_name_half_a_path() -> None:
    """A reader of `delete the folder /runs/a/` would delete the whole run."""
    folder = "/runs/a/agents/pi-3/clients/2"
    text = f"{'x' * (LONGEST_TEXT - 40)} or delete the folder {folder}; then it starts without memory"
    assert shorten_text(text) == f"{'x' * (LONGEST_TEXT - 40)} or delete the folder ..."
    assert len(shorten_text(f"array '{'a/b' * LONGEST_TEXT}'")) == LONGEST_TEXT


@given(st.text(max_size=3 * LONGEST_TEXT) | st.text("ab ", min_size=LONGEST_TEXT - 9, max_size=LONGEST_TEXT + 9))
def test_it_fits_and_begins_as_the_text(text: str) -> None:
    short = shorten_text(text)
    assert len(short) <= LONGEST_TEXT
    assert short == text or (len(text) > LONGEST_TEXT and text.startswith(short.removesuffix(" ...")))
    assert "/" in text or len(short) == min(len(text), LONGEST_TEXT)
