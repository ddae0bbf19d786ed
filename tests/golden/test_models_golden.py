"""FedAIoT's models have the sizes of the published code, array by array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.data import golden_vectors

from fedquilt_common.models import build_model
from fedquilt_common.tracing.building import build_on_meta

PUBLISHED: Mapping[str, Any] = golden_vectors("g_fedaiot.json")["models"]
OURS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "wisdm_LSTM_NET": ("wisdm-lstm", (6, 200), 12),
    "ut_har_ResNet18_GN": ("resnet18-gn", (3, 30, 250), 7),
    "widar_ResNet18_GN": ("resnet18-gn", (22, 20, 20), 9),
    "casas_BiLSTM": ("casas-bilstm", (2000,), 12),
    "aep_MLP": ("aep-mlp", (18,), 0),
    "epic_sounds_ResNet18_BN": ("epic-resnet18", (1, 128, 400), 44),
}
"""Our model, the shape of a sample of its data set, and the classes."""


def published(name: str) -> Any:
    """The entry of this name, which in the file has a remark in brackets."""
    (entry,) = [value for key, value in PUBLISHED.items() if key.partition("(")[0] == name]
    return entry


@pytest.mark.parametrize("name", OURS)
def test_sizes_are_the_published_ones(name: str) -> None:
    ours, shape, classes = OURS[name]
    module = build_on_meta(build_model(ours, {}, shape, classes))
    assert sum(parameter.numel() for parameter in module.parameters()) == published(name)["params"]
    shapes = [list(tensor.shape) for tensor in module.state_dict().values()]
    assert sorted(shapes) == sorted(published(name)["shapes"].values())
