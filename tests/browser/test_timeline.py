"""The timeline of the replies in a real browser: what its canvas shows."""

from __future__ import annotations

from tests.support.visit import Visit

# Keep the texts that the timeline draws from now on.
RECORD_TEXTS = """() => {
  window.texts = [];
  const pen = CanvasRenderingContext2D.prototype;
  const { fillText } = pen;
  pen.fillText = function (text, ...rest) {
    if (this.canvas.id === "timeline-canvas") window.texts.push(text);
    return fillText.call(this, text, ...rest);
  };
}"""


def test_the_first_round_that_is_shown_has_a_label(visit: Visit) -> None:
    """It begins at the left edge of the bars, but for an error of rounding."""
    visit.page.wait_for_selector("#timeline:not([hidden])")
    visit.page.evaluate(RECORD_TEXTS)
    for button in ("timeline-in", "timeline-out"):
        visit.page.click(f"#{button}")
    visit.page.wait_for_function("['round 19', 'round 20', 'round 21'].every((one) => window.texts.includes(one))")
