"""What the charts draw, read from matplotlib's own objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.packages import needs
from tests.support.recorded_runs import reply, write_run, write_table

from fedquilt_server.library.recorded_run import read_run
from fedquilt_server.report.charts import MOST_BOARDS, draw_coverage, draw_curves, draw_shares, draw_timeline
from fedquilt_server.report.detail import read_detail
from fedquilt_server.report.groups import CurvePoint, RunGroup
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.status.coverage import Coverage, LayerCoverage

needs("matplotlib", "matplotlib is not installed: use make test")


def timeline(folder: Path, rows: list[dict[str, Any]]) -> Any:
    run = read_run(write_run(folder / "run"))
    write_table(folder / "run" / "replies.csv", rows)
    return draw_timeline(read_detail(RunGroup("fedavg", {}, (run,)), run, []))


def test_training_is_not_hidden_by_the_waiting_of_another_client(tmp_path: Path) -> None:
    figure = timeline(tmp_path, [reply("pi", client, 1) for client in (0, 1)])
    bars = [bar for bar in figure.axes[0].collections if len(bar.get_paths()) == 2]
    colours = ["".join(f"{round(255 * part):02x}" for part in bar.get_facecolor()[0][:3]) for bar in bars]
    assert colours == ["d9dce5", "1f5fbf", "b3540c", "117a55"]


def test_a_timeline_has_a_row_for_each_board_up_to_a_limit(tmp_path: Path) -> None:
    figure = timeline(tmp_path, [reply(f"pi-{number}", number, 1) for number in range(MOST_BOARDS + 5)])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:3] == ["pi-0", "pi-1", "pi-2"]
    assert len(labels) == MOST_BOARDS


def test_without_times_there_is_no_timeline(tmp_path: Path) -> None:
    assert timeline(tmp_path, [reply("pi", 0, 1, began_at="")]) is None


@pytest.mark.parametrize("names", [["fc"], ["layer1.0.conv1.weight", "layer2.0.conv1.weight"]])
@pytest.mark.parametrize("draw", [draw_coverage, draw_shares])
def test_the_label_of_a_colour_bar_fits_a_small_chart(draw: Any, names: list[str]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    layers = [LayerCoverage(name=name, counts=[1, 2], latest=[1, 1], boards={"pi": 1.0}) for name in names]
    figure = draw(Coverage(rounds=1, layers=layers))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    label = figure.axes[1].yaxis.label.get_window_extent(renderer)
    assert 0 <= label.y0 < label.y1 <= figure.bbox.height


def test_curves_against_costs_begin_at_0_and_bands_stay_within_the_possible_values() -> None:
    points = [CurvePoint(n, {"seconds": 5.0 + n, "bytes": None, "joules": None}, MeanDeviation(0.9, 0.3, 2))
              for n in (1, 2)]  # fmt: skip
    figure: Any = draw_curves({"$a$": points}, "seconds", "accuracy")
    axes = figure.axes[0]
    assert axes.get_xlim()[0] == 0
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (min(band), max(band)) == (pytest.approx(60), 100)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [r"\$a\$ (n = 2)"]
    assert draw_curves({"a": points}, "joules", "accuracy") is None
