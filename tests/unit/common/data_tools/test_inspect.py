"""``fedquilt data inspect``: data sets, experiments, folders; as text, JSON and figures."""

from __future__ import annotations

import csv
import io
import json
import lzma
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from tests.support.data import data_folder

from fedquilt_common import cli
from fedquilt_common.data_tools import figures
from fedquilt_common.data_tools.client_samples import rebalance_counts
from fedquilt_common.data_tools.figures import write_figure
from fedquilt_common.data_tools.folder_facts import find_sets
from fedquilt_common.data_tools.published import PUBLISHED
from fedquilt_common.data_tools.summaries import TargetGroup, TargetGroups, count_targets, summarise_dataset
from fedquilt_common.data_tools.tables import draw_bars, draw_groups, draw_set
from fedquilt_common.datasets import DATASETS
from fedquilt_common.errors import ExperimentError
from fedquilt_common.stored_samples import RowIndex, as_samples
from fedquilt_common.types import Dataset, Examples

EXPERIMENTS = Path(__file__).parents[4] / "deploy" / "experiments"
PNG = b"\x89PNG\r\n\x1a\n"


def run_json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert cli.run(["data", "inspect", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rendered(*parts: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def small_set(**changes: Any) -> Dataset:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    fields: dict[str, Any] = {
        "name": "small", "train": Examples(x, np.array([0, 0, 1, 2, 2, 2])),
        "test": Examples(x[:2], np.array([1, 0])), "classes": 3, "subjects": np.array([7, 7, 9, 9, 9, 9]), "note": "n",
    }  # fmt: skip
    return Dataset(**{**fields, **changes})


def test_facts_of_a_data_set() -> None:
    summary = summarise_dataset(small_set(), "classification")
    part = summary.parts["train"]
    assert (part.samples, part.shape, part.dtype, part.least, part.greatest) == (6, (2,), "float32", 0.0, 11.0)
    assert [group.counts for group in summary.targets.groups] == [(2, 1, 3), (1, 1, 0)]
    assert summary.natural is not None
    assert [(group.name, group.counts) for group in summary.natural.groups] == [("7", (2, 0, 0)), ("9", (0, 1, 3))]
    text = rendered(*draw_set(summary))
    assert "small: classification, 3 classes" in text
    assert "natural clients: 2, with 2 to 4 samples, median 4" in text


@pytest.mark.parametrize(
    ("x", "expected", "words"),
    [
        ([[0.5, np.nan], [-np.inf, 2.0]], (0.5, 2.0, 2), "float32 from 0.5 to 2; NaN or infinite inputs: 2"),
        ([[np.nan, np.nan], [np.nan, np.inf]], (None, None, 4), "float32; NaN or infinite inputs: 4"),
    ],
)
def test_inputs_that_are_not_finite_are_counted_beside_the_range_of_the_others(
    x: list[list[float]], expected: tuple[float | None, float | None, int], words: str
) -> None:
    train = Examples(np.array(x, np.float32), np.array([0, 1]))
    summary = summarise_dataset(small_set(train=train, subjects=None), "classification")
    part = summary.parts["train"]
    assert (part.least, part.greatest, part.not_finite) == expected
    assert words in rendered(*draw_set(summary))
    assert json.dumps(asdict(summary), allow_nan=False)


def test_texts_of_a_data_set_do_not_control_the_terminal() -> None:
    summary = summarise_dataset(small_set(name="s\x1b[2Jl\n", note="a\x9b2J"), "classification")
    first, *rest = rendered(*draw_set(summary)).splitlines()
    assert first == "s [2Jl : classification, 3 classes"
    assert "  note: a 2J" in rest
    groups = TargetGroups("samples", (TargetGroup("[red]\x1b7", 5),))
    assert "[red] 7  " in rendered(draw_groups(groups, "client"))


class RecordingRows:
    """Bytes in a file, of which only some are read at a time."""

    shape, dtype = (1000, 2), np.dtype(np.uint8)

    def __init__(self) -> None:
        self.most = 0

    def __getitem__(self, index: RowIndex) -> NDArray[Any]:
        found = np.arange(2000, dtype=np.uint8).reshape(self.shape)[index]
        self.most = max(self.most, len(found))
        return found


def test_samples_on_the_disk_are_read_in_blocks() -> None:
    rows = RecordingRows()
    train = Examples(as_samples(rows, 255.0), np.zeros(1000, dtype=np.int64))
    summary = summarise_dataset(small_set(train=train, subjects=None), "classification")
    assert (summary.parts["train"].least, summary.parts["train"].greatest) == (0.0, 1.0)
    assert 0 < rows.most <= 256


def test_targets_of_a_regression_have_quantiles_and_bins() -> None:
    values = np.linspace(0, 16, 161, dtype=np.float32)[:, None]
    unknown = np.full((2, 1), np.nan, np.float32)
    groups = count_targets([("a", values), ("b", values[:1]), ("none", values[:0]), ("nan", unknown)], 0, [3, 0, 0, 0])
    first, second, empty, without = groups.groups
    assert groups.kind == "values"
    assert (groups.edges[0], groups.edges[-1], len(groups.edges)) == (0.0, 16.0, 17)
    assert first.quantiles == pytest.approx((0.0, 0.8, 4.0, 8.0, 12.0, 15.2, 16.0), abs=1e-5)
    assert (sum(first.counts), first.kept, second.counts[0], empty.quantiles) == (161, 3, 1, ())
    assert (without.samples, without.counts, without.quantiles) == (2, (0,) * 16, ())
    assert count_targets([("nan", unknown)], 0, [2]).groups[0].kept == 2
    text = rendered(draw_groups(groups, "client"))
    assert all(word in text for word in ("median", "5%", "test", "0 to 16"))


def test_numbers_that_do_not_fit_are_bars_and_never_cut_off() -> None:
    labels = np.arange(10).repeat(1234)
    groups = count_targets([("0", labels)], 10)
    assert "1,234" in rendered(draw_groups(groups, "client", 120))
    narrow = rendered(draw_groups(groups, "client", 60))
    assert "samples of the classes 0 to 9" in narrow
    assert "12,340" in narrow
    assert "…" not in narrow


def test_other_targets_are_counted_only() -> None:
    groups = count_targets([("a", np.zeros((5, 20), dtype=np.int64))], 1000)
    assert groups == TargetGroups("samples", (TargetGroup("a", 5),))
    assert "5" in rendered(draw_groups(groups, "client"))
    with pytest.raises(ExperimentError, match="neither classes nor numbers"):
        write_figure(Path("x.png"), groups, "client", "t", "bars")


def test_the_boxes_of_a_detection_are_counted() -> None:
    y = np.full((2, 3, 5), -1.0, dtype=np.float32)
    y[0, :2, 0], y[1, 0, 0] = (1, 1), 2
    boxes = count_targets([("a", y)], 4)
    assert boxes.groups == (TargetGroup("a", 2, (0, 2, 1, 0)),)
    assert boxes.counted == "boxes"


def test_many_classes_are_drawn_as_bars_and_many_clients_as_rows() -> None:
    labels = np.arange(62).repeat(3)
    groups = count_targets([(str(client), labels[: client + 1]) for client in range(100)], 62)
    lines = rendered(draw_groups(groups, "client")).splitlines()
    assert len(lines) == 101
    assert "samples of the classes 0 to 61" in lines[0]
    assert lines[1].split()[:3] == ["0", "1", "1"]
    assert lines[-1].split()[:3] == ["99", "100", "34"]


def test_bars_never_hide_a_sample() -> None:
    assert draw_bars((0, 1, 500, 1000), 1000) == " ▁▄█"
    assert len(draw_bars(tuple(range(1000)), 1000)) <= 64


def test_an_experiment_lists_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(str(EXPERIMENTS / "digits-fedavg.yaml"), capsys=capsys)
    clients = found["clients"]["groups"]
    assert [client["name"] for client in clients] == [str(number) for number in range(8)]
    assert sum(client["samples"] for client in clients) == found["sets"][0]["parts"]["train"]["samples"]
    totals = np.sum([client["counts"] for client in clients], axis=0)
    assert totals.tolist() == found["sets"][0]["targets"]["groups"][0]["counts"]


def test_wrong_labels_of_label_noise_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    options = (str(EXPERIMENTS / "digits-fedavg.yaml"),)
    clean = run_json(*options, capsys=capsys)
    noisy = run_json(*options, "--set", "data.label_noise={kind: pairwise, ratio: 1.0}", capsys=capsys)
    for before, after in zip(clean["clients"]["groups"], noisy["clients"]["groups"], strict=True):
        assert np.roll(before["counts"], 1).tolist() == after["counts"]


def test_samples_that_clients_keep_are_not_counted_as_training(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(str(EXPERIMENTS / "digits-ditto.yaml"), capsys=capsys)
    clients = found["clients"]["groups"]
    assert all(client["kept"] > 0 for client in clients)
    total = sum(client["samples"] + client["kept"] for client in clients)
    assert total >= found["sets"][0]["parts"]["train"]["samples"] - len(clients)


def test_rebalanced_data_sets_have_the_threshold_of_each_class() -> None:
    """FedReb thesis, section 3.2.1: the mean of 10, 20 and 60 is 30."""
    clients = TargetGroups("classes", (TargetGroup("0", 90, (10, 20, 0, 60)), TargetGroup("1", 0, (0, 0, 0, 0))))
    mean, empty = rebalance_counts(clients, "mean").groups
    assert (mean.counts, mean.samples, empty.counts) == ((30, 30, 0, 30), 90, (0, 0, 0, 0))
    assert rebalance_counts(clients, "max").groups[0].counts == (60, 60, 0, 60)
    with pytest.raises(ExperimentError, match="has no classes"):
        rebalance_counts(TargetGroups("values", ()), "mean")


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures of few points, which takes half as long."""
    monkeypatch.setattr(figures, "_DOTS_PER_INCH", 20)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("kind", ["bars", "bubbles"])
@pytest.mark.parametrize("classes", [3, 15, 62])
def test_figures_of_classes(tmp_path: Path, kind: figures.FigureKind, classes: int) -> None:
    rng = np.random.default_rng(0)
    groups = count_targets([(f"${client}", rng.integers(0, classes, 50 * client)) for client in range(5)], classes)
    write_figure(tmp_path / "a.png", groups, "client", "title with $", kind)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("coarse")
def test_figure_of_a_regression(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 50)[:, None]
    write_figure(tmp_path / "a.png", count_targets([("0", values), ("1", values[:0])], 0), "client", "t", "bars")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("coarse")
def test_the_command_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, png = str(EXPERIMENTS / "digits-fedreb.yaml"), tmp_path / "a.png"
    options = ["--figure", "bubbles", "--rebalanced", "mean", "--png", str(png)]
    assert cli.run(["data", "inspect", experiment, *options]) == 0
    assert png.read_bytes().startswith(PNG)
    assert "client" in capsys.readouterr().out


def test_every_data_set_has_its_published_files() -> None:
    assert set(PUBLISHED) == set(DATASETS)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing"], 4, "'nothing' is not a data set, and no such file or folder exists"),
        (["fashion-mnits"], 4, "did you mean 'fashion-mnist'?"),
        (["digits", "--set", "data.clients=3"], 4, "need an experiment file, and digits is none"),
        (["digits", "--rebalanced", "mean"], 4, "need an experiment file"),
        (["missing.yaml"], 4, "no such file"),
        (["empty"], 5, "has no files"),
        (["own:factory"], 4, "not allowed here"),
    ],
)
def test_errors_have_documented_codes(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", "inspect", *arguments]) == code
    assert words in capsys.readouterr().err


def make_aep(folder: Path) -> Path:
    """A small file in the published format."""
    header = ["date", "Appliances", "lights", *(f"{kind}{n}" for n in range(1, 10) for kind in ("T", "RH_")),
              "T_out", "Press_mm_hg", "RH_out", "Windspeed", "Visibility", "Tdewpoint", "rv1", "rv2"]  # fmt: skip
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    with (folder / "energydata_complete.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in range(60):
            date = f"2016-01-{11 + row // 24:02} {row % 24:02}:00:00"
            writer.writerow([date, 10 * (1 + row % 7), *rng.uniform(1, 30, len(header) - 2).round(3)])
    return folder


@pytest.mark.parametrize("name", ["aep", "any other name"])
def test_a_folder_is_known_by_its_name_or_by_its_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDQUILT_DATA", raising=False)
    folder = make_aep(tmp_path / name)
    found = run_json(str(folder), capsys=capsys)
    assert [summary["task"] for summary in found["sets"]] == ["regression"]
    assert sum(part["samples"] for part in found["sets"][0]["parts"].values()) == 60
    assert cli.run(["data", "inspect", str(folder)]) == 0
    assert "aep: regression" in capsys.readouterr().out


def test_an_error_names_the_folder_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_aep(tmp_path / "any other name")
    (folder / "energydata_complete.csv").write_text("no header of this data set\n")
    found = run_json(str(folder), capsys=capsys)
    assert found["problems"][0][1].startswith(f"{folder}/energydata_complete.csv, line 1: the header lacks")


def test_a_part_of_a_data_set_is_described_by_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    folder = tmp_path / "aep"
    (folder / "images").mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (20 + number, 10)).save(folder / "images" / f"{number}.jpg")
    rows = "id,class\n" + "1,beep\n" * 3 + "2,click\n"
    (folder / "table.csv.xz").write_bytes(lzma.compress(rows.encode()))
    (folder / "broken.csv.xz").write_bytes(b"no xz")
    (folder / "numbers.txt").write_text("1 2 3\n4 5 6\n")
    with tarfile.open(folder / "rest.tar", "w") as archive:
        archive.add(folder / "numbers.txt", "inside/numbers.txt")
    found = run_json(str(folder), capsys=capsys)
    assert found["sets"] == []
    assert found["problems"][0][0] == "aep"
    assert found["missing"] == [["aep", ["energydata_complete.csv"]]]
    what = {file["path"]: file["what"] for file in found["files"]}
    assert what["images/*.jpg"] == "images of 20 x 10 to 31 x 10"
    assert what["table.csv.xz"] == "4 rows below a header, 2 columns"
    assert what["numbers.txt"] == "2 rows, 3 columns"
    assert what["rest.tar"] == "1 files, such as inside/numbers.txt"
    assert "is damaged" in what["broken.csv.xz"]
    assert {"beep": 3, "click": 1} in [file["classes"] for file in found["files"]]
    assert cli.run(["data", "inspect", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "aep: not there: energydata_complete.csv" in printed
    assert "table.csv.xz: 2 classes: beep 3, click 1" in printed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aep", "aep: regression"),
        ("epic-sounds", "8,035 rows below a header"),
        ("wifi-csi", "ut-har: classification, 7 classes"),
        ("clusterfl-imu", "imu_data_7 is missing"),
        ("visdrone", "visdrone: detection, 12 classes"),
    ],
)
def test_the_real_folders_can_be_inspected(
    name: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_folder() / name
    if not folder.is_dir():
        pytest.skip(f"needs the published files of {name}")
    monkeypatch.delenv("FEDQUILT_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run(["data", "inspect", str(folder)]) == 0
    assert words in capsys.readouterr().out


def test_a_strange_folder_belongs_to_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    assert find_sets(tmp_path) == []
