"""A client's samples have ``data.normalise``, and the same bits, however they reach the board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.published import idx_files

from fedquilt_client.context import BoardRun, TaskContext
from fedquilt_client.samples import DeliveredSamples
from fedquilt_common import datasets
from fedquilt_common.data_tools.shard_folder import PUBLIC_FILE, TEST_FILE, write_shard_folder
from fedquilt_common.datasets.shard_files import form_of, shard_name
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.stored_samples import as_stored
from fedquilt_common.training_jobs import CheckedFile, JobData
from fedquilt_common.wire.messages import RunMessage
from fedquilt_server.central.central_run import CentralRun
from fedquilt_server.central.plan import plan_central
from fedquilt_server.lab.workbench import Workbench

HALF = {"mean": 0.5, "std": 0.5}


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small Fashion-MNIST, which is stored as bytes."""
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in idx_files(80, 20).items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(folder.parent))


def experiment(algorithm: str = "fedmd", **data: Any) -> Experiment:
    raw = {"name": "x", "seed": 3, "data": {"set": "fashion-mnist", "clients": 2, "normalise": HALF, **data},
           "model": {"name": "mlp"}, "algorithm": {"name": algorithm}}  # fmt: skip
    return Experiment.model_validate(raw)


def tools_of(given: Experiment) -> ExperimentTools:
    return ExperimentTools(given, ())


def delivered(given: Experiment, folder: Path) -> DeliveredSamples:
    """Return a client's samples on a board that receives files."""
    write_shard_folder(tools_of(given), folder)
    shard, public, test = (CheckedFile(folder / name, None) for name in (shard_name(1), PUBLIC_FILE, TEST_FILE))
    data = JobData(shard=shard, public=public, test=test)
    return DeliveredSamples(ExperimentTools(given, (), form_of(tools_of(given).dataset)), 1, data)


def context(given: Experiment, coordinator: Experiment) -> TaskContext:
    digest = Workbench(coordinator).partition_digest()
    board = BoardRun(RunMessage(run="x", experiment={}, partition=digest), given, ())
    return TaskContext(board, 1, 1, 0, None, lambda: 0, lambda part: None, lambda need: None)


@pytest.mark.parametrize("noise", [None, {"std": 0.1, "lost": 0.1}])
def test_a_delivery_gives_the_bits_of_the_boards_own_data_set(noise: Any, tmp_path: Path) -> None:
    given = experiment(public={"samples": 30}, sensor_noise=noise)
    local, received = context(given, given), delivered(given, tmp_path / "shards")
    pairs = [(local.data.x, received.train.x), (local.test.x, received.test.x), (local.public, received.public)]
    for here, there in pairs:
        assert len(here)
        assert np.asarray(here).tobytes() == np.asarray(there).tobytes()
        assert np.asarray(here).min() < -0.9


def test_normalised_samples_stay_bytes_and_are_scaled_once(tmp_path: Path) -> None:
    given = experiment(public={"samples": 30})
    plain = tools_of(experiment(public={"samples": 30}, normalise=None)).training_samples(1).x
    for found in (tools_of(given).training_samples(1).x, delivered(given, tmp_path / "shards").train.x):
        assert as_stored(found).rows.dtype == np.uint8
        expected = (np.asarray(plain) - np.float32(0.5)) / np.float32(0.5)
        assert np.asarray(found).tobytes() == expected.tobytes()


def test_a_boards_own_samples_are_scaled_after_the_check(tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((9, 3), np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(9) % 2)
    form = {"shape": [3], "classes": 2}
    given = experiment("fedavg", set="own", delivery="own", form=form, holdout=0.25)
    tools = tools_of(given)
    own = DeliveredSamples(
        ExperimentTools(given, (), form_of(tools.dataset)), 0, JobData(own=str(tmp_path / "own.npz"))
    )
    found = np.concatenate([own.train.x, own.test.x])
    assert sorted(found[:, 0]) == sorted((x[:, 0] - np.float32(0.5)) / np.float32(0.5))


@pytest.mark.parametrize("mixed", [False, True])
def test_central_training_has_the_clients_samples(mixed: bool, tmp_path: Path) -> None:
    given = experiment("fedper", holdout=0.25, mixed=mixed)
    run = CentralRun(plan_central(given, 0.25, 1), tmp_path / "run")
    try:
        clients = [tools_of(given).training_samples(client).x for client in range(2)]
        assert np.asarray(run._data.x).tobytes() == np.concatenate(clients).tobytes()
        assert np.asarray(run._test.x).min() < -0.9
    finally:
        run.release()


def test_the_partition_does_not_depend_on_the_scale_but_its_digest_does() -> None:
    clusters = {"scheme": "dirichlet", "alpha": 0.5, "clusters": 3, "min_samples": 5}
    scaled, plain = (tools_of(experiment("fedavg", partition=clusters, normalise=n)) for n in (HALF, None))
    assert [share.train.tolist() for share in scaled.shares] == [share.train.tolist() for share in plain.shares]
    assert scaled.samples_digest() != plain.samples_digest()
    with pytest.raises(DataUnavailableError, match="its partition, differs from the coordinator's"):
        _ = context(experiment("fedavg"), experiment("fedavg", normalise=None)).data
