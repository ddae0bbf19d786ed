"""A board trains on the noise of the experiment, and refuses other noise than the coordinator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedquilt_client.context import BoardRun, TaskContext
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.messages import RunMessage
from fedquilt_server.lab.workbench import Workbench

NOISE: dict[str, Any] = {"label_noise": {"ratio": 0.3}, "sensor_noise": {"std": 0.2}}


def experiment(algorithm: str = "fedavg", **data: Any) -> Experiment:
    raw = {"name": "x", "seed": 3, "data": {"set": "digits", "clients": 4, **data},
           "model": {"name": "mlp"}, "algorithm": {"name": algorithm}}  # fmt: skip
    return Experiment.model_validate(raw)


def context(given: Experiment, client: int, coordinator: Experiment) -> TaskContext:
    digest = Workbench(coordinator).partition_digest()
    board = BoardRun(RunMessage(run="x", experiment={}, partition=digest), given, ())
    return TaskContext(board, client, 1, 0, None, lambda: 0, lambda part: None, lambda need: None)


def test_a_client_trains_on_noisy_samples() -> None:
    noisy, clean = (context(chosen, 1, chosen).data for chosen in (experiment(**NOISE), experiment()))
    assert 0.2 < (noisy.y != clean.y).mean() < 0.4
    assert 0 < np.abs(noisy.x - clean.x).mean() < 0.2
    again = context(experiment(**NOISE), 1, experiment(**NOISE)).data
    assert (again.x.tobytes(), again.y.tobytes()) == (noisy.x.tobytes(), noisy.y.tobytes())


def test_a_client_tests_on_clean_samples() -> None:
    noisy, clean = (context(chosen, 1, chosen) for chosen in (experiment("fedper", **NOISE), experiment("fedper")))
    assert len(noisy.test) > 50
    assert (noisy.test.x.tobytes(), noisy.test.y.tobytes()) == (clean.test.x.tobytes(), clean.test.y.tobytes())


def test_other_noise_than_the_coordinators_is_refused() -> None:
    with pytest.raises(DataUnavailableError, match="its partition, differs from the coordinator's"):
        _ = context(experiment(**NOISE), 1, experiment()).data
