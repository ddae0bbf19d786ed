"""Classes for a partition: quantile bins of targets, clusters of inputs."""

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
from fedquilt_common.datasets.clusters import cluster_inputs, extract_pca
from fedquilt_common.datasets.pseudo_classes import quantile_bins
from fedquilt_common.datasets.shares import shares
from fedquilt_common.errors import DataUnavailableError, ExperimentError, ForbiddenImportError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Dataset, Examples

VECTORS = json.loads((Path(__file__).parents[1] / "golden/vectors/g_fedaiot.json").read_text(encoding="utf-8"))
BINS = VECTORS["quantile_bins"]


def regression(count: int = 200) -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    examples = Examples(x, x[:, :1] * 3 + rng.normal(size=(count, 1)).astype(np.float32))
    return Dataset("power", examples, examples.take(np.arange(10)), 0)


def experiment(**partition: Any) -> Experiment:
    raw = {"name": "x", "seed": 3, "data": {"set": "digits", "clients": 5, "partition": partition},
           "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}  # fmt: skip
    return Experiment.model_validate(raw)


@pytest.mark.parametrize("bins", [4, 10])
def test_bins_of_the_golden_targets(bins: int) -> None:
    expected = BINS[str(bins)]["own_bin_per_sample(searchsorted right)"]
    assert quantile_bins(np.array(BINS["y"]), bins).tolist() == expected


def test_equal_targets_share_a_bin() -> None:
    expected = BINS["ties"]["own_searchsorted_right"]
    assert quantile_bins(np.array(BINS["ties"]["y"])[:, None], 4).tolist() == expected


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=0, max_size=200, unique=True), st.integers(2, 20))
def test_bins_are_ordered_and_equal(targets: list[float], bins: int) -> None:
    y = np.array(targets, dtype=np.float32)
    found = quantile_bins(y, bins)
    assert (np.diff(found[np.argsort(y)]) >= 0).all()
    sizes = np.bincount(found, minlength=bins)
    assert sizes.sum() == len(y)
    assert sizes.max() - sizes.min() <= 2


def test_bins_and_the_scheme_use_every_sample_once() -> None:
    data = regression()
    cut = [share.train for share in shares(experiment(scheme="dirichlet", alpha=0.5, bins=10), data)]
    assert sorted(np.concatenate(cut).tolist()) == list(range(200))
    cut = [share.train for share in shares(experiment(scheme="labels-per-client", labels=2, bins=10), data)]
    assert sorted(np.concatenate(cut).tolist()) == list(range(200))
    bins = quantile_bins(data.train.y, 10)
    assert [len(set(bins[index].tolist())) for index in cut] == [2] * 5


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (np.arange(9), ExperimentError, "bins are for regression"),
        (np.zeros((9, 2)), ExperimentError, "have 2 targets"),
        (np.array([1.0, np.nan]), DataUnavailableError, "sample 1 has no finite target"),
    ],
)
def test_targets_without_bins(y: NDArray[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        quantile_bins(y, 3)


def test_regression_without_bins_is_refused_with_advice() -> None:
    with pytest.raises(ExperimentError, match=r"no class for each sample; set data\.partition\.bins, such as 10"):
        shares(experiment(scheme="dirichlet", alpha=1.0), regression())


def blobs(count: int = 300) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    which = np.arange(count) % 3
    centres = 20 * rng.normal(size=(3, 12))
    return (centres[which] + rng.normal(size=(count, 12))).astype(np.float32).reshape(-1, 3, 4), which


def test_clusters_are_those_that_the_inputs_have() -> None:
    x, which = blobs()
    found = cluster_inputs(x, 3, "pca", seed=0)
    assert len({(int(a), int(b)) for a, b in zip(found, which, strict=True)}) == 3


def test_clusters_do_not_depend_on_the_last_bits_of_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors return eigenvectors that differ in sign and in the last bits."""
    x, solve = load_dataset("digits").train.x, np.linalg.eigh
    features, clusters = extract_pca(x), cluster_inputs(x, 10, "pca", seed=4)

    def other(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, vectors = solve(matrix)
        return values, -vectors * (1 + 1e-13 * np.random.default_rng(0).normal(size=vectors.shape))

    monkeypatch.setattr(np.linalg, "eigh", other)
    assert np.array_equal(extract_pca(x), -features)
    assert np.array_equal(cluster_inputs(x, 10, "pca", seed=4), clusters)


def test_the_same_clusters_on_every_machine_and_version() -> None:
    found = cluster_inputs(load_dataset("digits").train.x, 10, "pca", seed=4)
    assert np.bincount(found).min() > 50
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == "8c975cb81e66a4a9"


def test_large_inputs_are_read_a_few_at_a_time() -> None:
    read = list[int]()

    class Stored(np.ndarray[Any, Any]):
        """Images that report how many of them are read."""

        def __getitem__(self, index: Any) -> Any:
            part = np.asarray(self)[index]
            read.append(part.size)
            return part

    images = np.random.default_rng(0).random((6, 3, 640, 640), dtype=np.float32)
    found = cluster_inputs(images.view(Stored), 3, "pca", seed=0)
    assert max(read) <= 1 << 22
    assert np.array_equal(found, cluster_inputs(images, 3, "pca", seed=0))


def test_an_offset_of_all_inputs_changes_no_cluster() -> None:
    x = load_dataset("digits").train.x
    assert np.array_equal(cluster_inputs(16 * x + 2**20, 10, "pca", seed=4), cluster_inputs(x, 10, "pca", seed=4))


@pytest.mark.parametrize("value", [1e5, -1e6])
def test_an_extreme_input_does_not_hide_the_clusters_of_the_others(value: float) -> None:
    x, which = blobs()
    x[7, 1, 2] = value
    found = np.delete(cluster_inputs(x, 4, "pca", seed=0), 7)
    assert len({(int(a), int(b)) for a, b in zip(found, np.delete(which, 7), strict=True)}) == len(set(found)) >= 3


def test_fewer_clusters_than_asked_for_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    x = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    assert len(set(cluster_inputs(x, 3, "pca", seed=0).tolist())) == 3
    assert not caplog.messages
    assert len(set(cluster_inputs(x, 5, "pca", seed=0).tolist())) == 3
    assert caplog.messages == ["data.partition.clusters = 5: the samples have only 3 clusters"]


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_clusters_by_seed(seed: int, clusters: int) -> None:
    x, _ = blobs(40)
    found = cluster_inputs(x, clusters, "pca", seed)
    assert found.shape == (40,)
    assert 0 <= found.min() <= found.max() < clusters
    assert np.array_equal(found, cluster_inputs(x, clusters, "pca", seed))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_inputs_of_every_type_and_constant_ones(dtype: Any) -> None:
    assert set(cluster_inputs(np.full((9, 2, 2), 7, dtype=dtype), 3, "pca", seed=0)) == {0}
    assert set(cluster_inputs(np.zeros((9, 5), dtype=dtype), 3, "pca", seed=0)) == {0}


def test_long_samples_are_shortened() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3, 1000)).astype(np.float32)
    assert extract_pca(x).shape == (30, 16)


def mean_and_size(x: NDArray[Any]) -> NDArray[np.float64]:
    return np.stack([x.mean(axis=(1, 2)), x.std(axis=(1, 2))], axis=1)


def one_number(x: NDArray[Any]) -> float:
    return float(x.mean())


def test_features_of_ones_own() -> None:
    x, _ = blobs()
    own = f"{__name__}:mean_and_size"
    assert len(set(cluster_inputs(x, 3, own, 0, allowed=[__name__.split(".")[0]]).tolist())) == 3
    with pytest.raises(ForbiddenImportError, match="--allow-import"):
        cluster_inputs(x, 3, own, 0)
    with pytest.raises(ExperimentError, match=r"it must return numbers of shape \(300, m\)"):
        cluster_inputs(x, 3, f"{__name__}:one_number", 0, allowed=["*"])


def test_inputs_without_clusters() -> None:
    with pytest.raises(ExperimentError, match="clusters = 9: there are 4 samples"):
        cluster_inputs(np.zeros((4, 2)), 9, "pca", 0)
    with pytest.raises(DataUnavailableError, match="not finite"):
        cluster_inputs(np.array([[1.0], [np.nan]]), 2, "pca", 0)


def test_clusters_and_the_scheme_use_every_sample_once() -> None:
    chosen = experiment(scheme="dirichlet", alpha=0.3, clusters=4, min_samples=20)
    cut = [share.train for share in shares(chosen, regression())]
    assert sorted(np.concatenate(cut).tolist()) == list(range(200))
    assert min(map(len, cut)) >= 20
