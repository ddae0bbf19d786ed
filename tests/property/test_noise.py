"""Wrong labels and noisy inputs: exactly as many as asked for, the same everywhere, never in tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.label_noise import ChangedLabels, change_labels, transition_weights
from fedquilt_common.datasets.sensor_noise import add_sensor_noise
from fedquilt_common.datasets.shares import changed_labels, digest_shares, shares
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.data_section import LabelNoise, SensorNoise
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import make_experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_server.lab.workbench import Workbench

VECTORS = json.loads((Path(__file__).parents[1] / "golden/vectors/g_fedaiot.json").read_text(encoding="utf-8"))
NOISE = VECTORS["label_noise"]
seeds = st.integers(0, 2**63 - 1)


def raw(**data: Any) -> dict[str, Any]:
    return {"name": "x", "seed": 3, "data": {"set": "digits", "clients": 4, **data},
            "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}  # fmt: skip


def tools(**data: Any) -> ExperimentTools:
    return ExperimentTools(Experiment.model_validate(raw(**data)), ())


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabelNoise:
    """The golden confusion matrix, in a file."""
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    lines = [",".join(map(str, row)) for row in NOISE["confusion"]]
    (tmp_path / "confusion.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return LabelNoise(kind="matrix", ratio=0.3, file="confusion.csv")


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=300),
    st.sampled_from(["symmetric", "pairwise"]),
    st.floats(0.001, 1),
    st.data(),
    seeds,
)
def test_exactly_as_many_labels_change_as_asked_for(
    y: list[int], kind: Any, ratio: float, data: st.DataObject, seed: int
) -> None:
    labels = np.array(y)
    index = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y))))
    noise = LabelNoise(kind=kind, ratio=ratio)
    changed = change_labels(noise, labels, index, 5, seed)
    everything = np.arange(len(labels))
    after = changed.apply(everything, labels)
    assert (after != labels).sum() == len(changed) == round(ratio * len(index))
    assert set(np.flatnonzero(after != labels)) <= set(index)
    assert set(after.tolist()) <= set(range(5))
    assert kind == "symmetric" or ((after - labels)[changed.index] % 5 == 1).all()
    again = change_labels(noise, labels, index, 5, seed)
    assert (again.index.tobytes(), again.labels.tobytes()) == (changed.index.tobytes(), changed.labels.tobytes())


def test_symmetric_noise_is_even_over_the_other_classes() -> None:
    labels = np.zeros(4000, np.int64)
    counts = np.bincount(change_labels(LabelNoise(ratio=1.0), labels, np.arange(4000), 5, seed=1).labels)
    assert counts[0] == 0
    assert counts[1:].min() > 900


def test_the_matrix_of_the_paper(matrix: LabelNoise) -> None:
    expected = np.array(NOISE["P(new|old,new!=old)_paper"])
    np.testing.assert_allclose(transition_weights(matrix, 4), expected, atol=1e-12)
    labels = np.repeat(np.arange(4), 5000)
    changed = change_labels(matrix.model_copy(update={"ratio": 1.0}), labels, np.arange(20_000), 4, seed=2)
    found = np.zeros((4, 4))
    np.add.at(found, (labels[changed.index], changed.labels), 1 / 5000)
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_a_class_without_mistakes_keeps_its_labels(matrix: LabelNoise, tmp_path: Path) -> None:
    (tmp_path / "confusion.csv").write_text("9,1\n0,5\n", encoding="utf-8")
    labels = np.repeat([0, 1], [40, 60])
    changed = change_labels(matrix, labels, np.arange(100), 2, seed=0)
    assert len(changed) == 30
    assert changed.index.max() < 40
    with pytest.raises(ExperimentError, match=r"41 labels must change, .* only for the classes of 40 samples"):
        change_labels(matrix.model_copy(update={"ratio": 0.41}), labels, np.arange(100), 2, seed=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "confusion.csv:1: holds text"),
        ("1,2\n\n1,2,3\n", "confusion.csv:3: must be 2 numbers"),
        ("1,2\n-1,2\n", "confusion.csv:2: must be 2 numbers of 0 or more"),
        ("1,nan\n1,2\n", "confusion.csv:1: must be 2 numbers"),
        (f'"{"1," * 70_000}\n', "confusion.csv: is not a CSV file"),
        ("1,2\n", "confusion.csv: has 1 lines, the data set has 2 classes"),
    ],
)
def test_matrices_that_are_wrong(matrix: LabelNoise, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "confusion.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataUnavailableError, match=words):
        transition_weights(matrix, 2)


def test_another_matrix_on_a_board_is_refused(matrix: LabelNoise, tmp_path: Path) -> None:
    read = make_experiment(raw(label_noise=matrix.model_dump(exclude_none=True)), "x.yaml").data.label_noise
    assert read is not None
    transition_weights(read, 4)
    (tmp_path / "confusion.csv").write_text("1,1,1,1\n" * 4, encoding="utf-8")
    with pytest.raises(DataUnavailableError, match="copy the coordinator's file here"):
        transition_weights(read, 4)


def test_the_partition_and_all_tests_are_those_of_the_right_labels() -> None:
    noisy, clean = tools(label_noise={"ratio": 0.3}, partition={"scheme": "dirichlet", "alpha": 0.5}), tools(
        partition={"scheme": "dirichlet", "alpha": 0.5}
    )  # fmt: skip
    assert digest_shares(noisy.shares) == digest_shares(clean.shares)
    pairs = [(noisy.training_samples(client), clean.training_samples(client)) for client in range(4)]
    assert all(np.array_equal(one.x, other.x) for one, other in pairs)
    assert sum((one.y != other.y).sum() for one, other in pairs) == round(0.3 * len(load_dataset("digits").train))
    assert all(one.y.dtype == other.y.dtype for one, other in pairs)


def test_samples_that_clients_keep_for_testing_stay_right() -> None:
    chosen, dataset = Experiment.model_validate(raw(label_noise={"ratio": 1.0}, mixed=True)), load_dataset("digits")
    cut = shares(chosen, dataset, 0.25)
    changed = changed_labels(chosen, dataset, cut)
    assert np.array_equal(changed.index, np.sort(np.concatenate([share.train for share in cut])))
    assert not set(changed.index) & set(np.concatenate([share.test for share in cut]))


def test_coordinator_and_boards_compare_the_changed_labels() -> None:
    digests = [tools(**data).samples_digest() for data in (
        {}, {"label_noise": {"ratio": 0.1}}, {"label_noise": {"ratio": 0.1, "kind": "pairwise"}})]  # fmt: skip
    assert len(set(digests)) == 3
    assert digests[0] == digest_shares(tools().shares)


def test_the_same_labels_on_every_machine_and_version() -> None:
    changed = tools(label_noise={"ratio": 0.1}).changed_labels
    both = np.concatenate([changed.index, changed.labels]).astype("<i8").tobytes()
    assert hashlib.sha256(both).hexdigest()[:16] == "a705a4b3b885621c"


@pytest.mark.parametrize(("labels", "classes"), [(np.linspace(0, 1, 9)[:, None], 0), (np.zeros((9, 3), int), 10)])
def test_label_noise_needs_classes(labels: NDArray[Any], classes: int) -> None:
    with pytest.raises(ExperimentError, match="not have one class each that could be wrong"):
        change_labels(LabelNoise(ratio=0.1), labels, np.arange(9), classes, 0)


def test_the_note_reports_the_noise() -> None:
    bench = Workbench(
        Experiment.model_validate(raw(label_noise={"ratio": 0.1}, sensor_noise={"std": 0.5, "lost": 0.02}))
    )
    count = len(load_dataset("digits").train)
    assert f"symmetric label noise changed {round(0.1 * count)} of {count} training labels" in bench.note
    assert "sensor noise of 0.5 standard deviations, 2 % of readings lost" in bench.note


def test_no_changed_labels() -> None:
    assert ChangedLabels().apply(np.arange(3), np.array([1, 2, 3])).tolist() == [1, 2, 3]


def signals(channels_last: bool = False) -> NDArray[np.float32]:
    """Two channels with means 0 and 50 and deviations 1 and 10."""
    x = np.random.default_rng(0).normal(size=(400, 2, 30)).astype(np.float32)
    x = x * np.array([1, 10], np.float32)[:, None] + np.array([0, 50], np.float32)[:, None]
    return x.transpose(0, 2, 1) if channels_last else x


@pytest.mark.parametrize("last", [False, True])
def test_noise_is_relative_to_each_channel(last: bool) -> None:
    x = signals(last)
    added = add_sensor_noise(x, SensorNoise(std=0.5, channels="last" if last else "first"), seed=1) - x
    spread = added.std(axis=(0, 1) if last else (0, 2))
    np.testing.assert_allclose(spread, [0.5, 5.0], rtol=0.03)


@pytest.mark.parametrize(("fill", "values"), [("mean", [0, 50]), ("zero", [0, 0])])
def test_lost_readings_are_filled(fill: Any, values: list[float]) -> None:
    x = signals()
    noisy = add_sensor_noise(x, SensorNoise(lost=0.1, fill=fill), seed=1)
    lost = noisy != x
    assert abs(lost.mean() - 0.1) < 0.01
    for channel, value in enumerate(values):
        assert np.allclose(noisy[:, channel][lost[:, channel]], value, atol=0.3)


@given(st.sampled_from([np.uint8, np.float32, np.float64]), st.integers(0, 5), seeds)
def test_noise_keeps_shape_and_type_and_leaves_the_data_set(dtype: Any, count: int, seed: int) -> None:
    x = (np.arange(count * 12) % 255).reshape(count, 3, 4).astype(dtype)
    x.setflags(write=False)
    noise = SensorNoise(std=0.3, lost=0.2)
    noisy = add_sensor_noise(x, noise, seed)
    assert (noisy.shape, noisy.dtype) == (x.shape, x.dtype)
    assert noisy.tobytes() == add_sensor_noise(x, noise, seed).tobytes()


def test_each_client_has_noise_of_its_own_in_its_training_samples_only() -> None:
    noisy, clean = tools(sensor_noise={"std": 1.0}), tools()
    added = [noisy.training_samples(client).x[:300] - clean.training_samples(client).x[:300] for client in range(2)]
    assert not np.array_equal(added[0], added[1])
    assert np.array_equal(noisy.training_samples(0).x, tools(sensor_noise={"std": 1.0}).training_samples(0).x)
    assert noisy.dataset.test.x is clean.dataset.test.x


def test_words_have_no_noise() -> None:
    with pytest.raises(ExperimentError, match=r"data\.sensor_noise: the inputs are int64, such as words"):
        add_sensor_noise(np.zeros((3, 4), np.int64), SensorNoise(std=1.0), 0)
