"""Clusters by VGG19's features, with small channels and random weights."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.datasets import vgg19
from fedquilt_common.datasets.clusters import cluster_inputs
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.stored_samples import as_samples

POOL = 0
TORCHVISION = (64, 64, POOL, 128, 128, POOL, *[256] * 4, POOL, *[512] * 4, POOL, *[512] * 4, POOL)


def published(factor: int) -> nn.Module:
    """Build torchvision's ``features`` with random weights and ``factor`` times fewer channels."""
    layers, inputs = list[nn.Module](), 3
    for item in TORCHVISION:
        if item == POOL:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        else:
            layers += [nn.Conv2d(inputs, item // factor, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
            inputs = item // factor
    return nn.Sequential(OrderedDict([("features", nn.Sequential(*layers))]))


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[Any]]:
    """Weights of a narrow network in its file; tests change them and write them again."""
    torch.manual_seed(0)
    monkeypatch.setattr(vgg19, "STAGES", [[n // 32 for n in stage] for stage in vgg19.STAGES])
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    arrays = {name: 2 * value.numpy() for name, value in published(32).state_dict().items()}
    write(tmp_path, arrays)
    return arrays


def write(folder: Path, arrays: dict[str, NDArray[Any]]) -> None:
    (folder / "weights").mkdir(exist_ok=True)
    safetensors.numpy.save_file(arrays, folder / vgg19.FILE)


def images(channels: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return 12 images as stored bytes, dark or bright, with noise; and which they are."""
    which = np.arange(12) % 2
    pixels = np.random.default_rng(0).integers(0, 60, (12, channels, 20, 30), dtype=np.uint8)
    return as_samples(pixels + 190 * which[:, None, None, None].astype(np.uint8), 255.0), which


@pytest.mark.parametrize("channels", [1, 3])
def test_two_kinds_of_images_are_two_clusters(weights: dict[str, NDArray[Any]], channels: int) -> None:
    x, which = images(channels)
    found = cluster_inputs(x, 2, "vgg19", seed=0)
    assert len({(int(a), int(b)) for a, b in zip(found, which, strict=True)}) == 2
    assert np.array_equal(found, cluster_inputs(x, 2, "vgg19", seed=0))


def test_the_network_is_torchvisions(weights: dict[str, NDArray[Any]]) -> None:
    network = published(32).double()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    x = np.random.default_rng(1).random((2, 3, 224, 224))
    normal = (torch.from_numpy(x) - torch.tensor(vgg19.MEAN)[:, None, None]) / torch.tensor(vgg19.STD)[:, None, None]
    with torch.inference_mode():
        expected = network(normal).mean(dim=(2, 3)).numpy()
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(vgg19.extract_features(x), expected, atol=1e-6)


def test_the_whole_network_has_torchvisions_arrays() -> None:
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in published(1).state_dict().items()}
    asked = dict[str, tuple[int, ...]]()

    class Asked(dict[str, NDArray[Any]]):
        """Arrays of the shapes that are asked for."""

        def __contains__(self, name: object) -> bool:
            return str(name) in expected

        def shape(self, name: str) -> tuple[int, ...]:
            asked[name] = expected[name]
            return expected[name]

        def __getitem__(self, name: str) -> NDArray[Any]:
            return np.zeros((1,), np.float32)

    assert len(list(vgg19._take_convolutions(Path("x"), Asked()))) == 16  # type: ignore[arg-type]
    assert asked == expected


@pytest.mark.parametrize("thread_count", [1, 3])
def test_the_clusters_do_not_depend_on_the_number_of_threads(
    weights: dict[str, NDArray[Any]], thread_count: int
) -> None:
    x, _ = images(3)
    before, expected = torch.get_num_threads(), cluster_inputs(x, 4, "vgg19", seed=0)
    torch.set_num_threads(thread_count)
    try:
        assert np.array_equal(cluster_inputs(x, 4, "vgg19", seed=0), expected)
    finally:
        torch.set_num_threads(before)


def test_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = images(3)
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    with pytest.raises(DataUnavailableError, match=re.escape(str(tmp_path / vgg19.FILE)) + ".*choose 'pca'"):
        cluster_inputs(x, 2, "vgg19", seed=0)
    monkeypatch.delenv("FEDQUILT_DATA")
    with pytest.raises(DataUnavailableError, match=r"set FEDQUILT_DATA .* weights/vgg19\.safetensors; .*'pca'"):
        cluster_inputs(x, 2, "vgg19", seed=0)


def test_with_other_weights(weights: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    x, _ = images(3)
    last = weights["features.34.bias"]
    for change, reason in (
        ({"features.34.bias": last[:3]}, r"features.34.bias has the shape \(3,\), but VGG19's is \(16,\)"),
        ({"features.34.bias": last * np.nan}, "features.34.bias has numbers that are not finite"),
    ):
        write(tmp_path, {**weights, **change})
        with pytest.raises(DataUnavailableError, match=reason):
            cluster_inputs(x, 2, "vgg19", seed=0)
    write(tmp_path, {name: value for name, value in weights.items() if name != "features.34.bias"})
    with pytest.raises(DataUnavailableError, match=r"has no array features\.34\.bias, so it is not VGG19's"):
        cluster_inputs(x, 2, "vgg19", seed=0)
    (tmp_path / vgg19.FILE).write_bytes(b"weights")
    with pytest.raises(DataUnavailableError, match=r"cannot be read .*; docs/experiments\.md has the command"):
        cluster_inputs(x, 2, "vgg19", seed=0)


def test_samples_that_are_no_images(weights: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(ExperimentError, match=r"samples of shape \(6, 200\) are no images of 1 or 3 channels"):
        cluster_inputs(np.zeros((4, 6, 200), np.float32), 2, "vgg19", seed=0)
    x = np.zeros((4, 3, 9, 9), np.float32)
    x[0, 0, 0, 0] = 255
    with pytest.raises(ExperimentError, match="values from 0 to 255, but they must be from 0 to 1"):
        cluster_inputs(x, 2, "vgg19", seed=0)
