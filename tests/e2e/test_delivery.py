"""Boards that do not have the data set: the coordinator delivers their clients' samples, or they train on their own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.support import warm
from tests.support.file_server import serve_files
from tests.support.live import connection, open_broker, running, wait_for
from tests.support.published import idx_files

from fedquilt_common import datasets
from fedquilt_common.data_tools.publish_data import publish_manifest
from fedquilt_common.data_tools.shard_folder import write_shard_folder
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.wire.messages import RunMessage
from fedquilt_server.coordinator.coordinator import Coordinator
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.snapshot import StatusStore

FEDERATION = "delivery"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with open_broker(tmp_path_factory.mktemp("broker")) as free:
        yield free


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets that the coordinator has, with a small Fashion-MNIST."""
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in idx_files(80, 20).items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(folder.parent))
    return folder.parent


def experiment(delivery: str, **more: Any) -> Experiment:
    scale = {"mean": 0.5, "std": [0.5]}
    data = {"set": "fashion-mnist", "clients": 2, "delivery": delivery, "normalise": scale, **more}
    raw: dict[str, Any] = {
        "name": f"run-{delivery}", "seed": 3, "rounds": 1, "data": {k: v for k, v in data.items() if v is not None},
        "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"},
        "participation": {"per_round": 2, "quorum": 2}, "wire": {"chunk": 4096},
    }  # fmt: skip
    return Experiment.model_validate(raw)


@dataclass
class Session:
    """A coordinator that runs one experiment in a thread."""

    port: int
    folder: Path
    experiment: Experiment
    status: StatusStore = field(default_factory=StatusStore)
    has_loaded: Event = field(default_factory=Event)
    message: RunMessage | None = None
    delivered: int = 0

    def execute(self, should_stop: Callable[[], bool]) -> None:
        run = ActiveRun(self.experiment, self.folder, resume=True)
        try:
            self.message = run.message
            self.has_loaded.set()
            coordinator = Coordinator(run, FEDERATION, connection(self.port, "coordinator"), self.status)
            self._count_samples(coordinator)
            coordinator.execute(should_stop)
        finally:
            run.folder.release()

    def _count_samples(self, coordinator: Coordinator) -> None:
        """Count the bytes of the chunks of samples that the coordinator publishes."""
        transport = coordinator._samples._transport
        publish = transport.publish

        def count(topic: str, payload: bytes, **options: Any) -> bool:
            self.delivered += len(payload) if topic.endswith("/data") else 0
            return publish(topic, payload, **options)

        transport.publish = count  # type: ignore[method-assign]

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "result.json").read_text())["rounds"][-1])

    @property
    def model(self) -> str:
        return hashlib.sha256((self.folder / "global.safetensors").read_bytes()).hexdigest()


def set_data_folder(folder: str | None) -> None:
    """Let this process find data sets in the folder, or in none."""
    os.environ.pop(datasets.FOLDER_VARIABLE, None)
    if folder:
        os.environ[datasets.FOLDER_VARIABLE] = folder


def board(port: int, state: Path, own: Mapping[int, str] | None = None) -> AbstractContextManager[object]:
    """A process with an agent that hosts both clients, in one training process."""
    options = ["--broker", f"mqtt://127.0.0.1:{port}", "--federation", FEDERATION, "--state", str(state / "board")]
    options += [word for client, path in (own or {}).items() for word in ("--data", f"{client}={path}")]
    set_folder = partial(set_data_folder, os.environ.get(datasets.FOLDER_VARIABLE))
    return warm.running("agent", "--id", "board", "--clients", "0-1", *options, where=state, before=set_folder)


def finish(session: Session, start_board: Callable[[], AbstractContextManager[object]]) -> None:
    with running(session.execute) as work:
        assert session.has_loaded.wait(60)
        with start_board():
            work.join(90)
    assert session.status.current.phase == "finished"


def test_delivered_samples_give_the_same_model_and_travel_once_for_two_runs(
    port: int, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_without_data() -> AbstractContextManager[object]:
        monkeypatch.delenv(datasets.FOLDER_VARIABLE)
        return board(port, tmp_path)

    local = Session(port, tmp_path / "local", experiment("local"))
    finish(local, lambda: board(port, tmp_path))
    runs = [Session(port, tmp_path / f"broker-{number}", experiment("broker")) for number in range(2)]
    for session in runs:
        monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(images))
        finish(session, start_without_data)
    message = runs[0].message
    assert message is not None
    assert message.data is not None
    sizes = [file.size for file in message.data.shards]
    assert len(sizes) == 2
    assert [session.delivered for session in runs] == [sum(sizes), 0]
    stored = [path.stat().st_size for path in (tmp_path / "board" / "samples").iterdir()]
    assert sorted(stored) == sorted(sizes)


def test_boards_download_a_bundle(port: int, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shard_folder(ExperimentTools(experiment("local"), ()), tmp_path / "bundle")
    files = {f"/{path.name}": path.read_bytes() for path in (tmp_path / "bundle").iterdir()}

    def start_without_data() -> AbstractContextManager[object]:
        monkeypatch.delenv(datasets.FOLDER_VARIABLE)
        return board(port, tmp_path)

    with serve_files(files) as server:
        session = Session(port, tmp_path / "url", experiment("url", bundle={"url": server.url("/manifest.json")}))
        finish(session, start_without_data)
        monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(images))
        local = Session(port, tmp_path / "local", experiment("local"))
        finish(local, lambda: board(port, tmp_path))
        assert session.model == local.model
        assert session.delivered == 0
        other = experiment("url", bundle={"url": server.url("/manifest.json")}, clients=2, holdout=0.5)
        with pytest.raises(ExperimentError, match="this bundle is of another experiment"):
            ActiveRun(other, tmp_path / "other", resume=True)


def test_files_of_a_bundle_can_have_addresses_of_their_own(
    port: int, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, links = tmp_path / "shards", tmp_path / "links.csv"
    names = write_shard_folder(ExperimentTools(experiment("local"), ()), shards).files

    def start_without_data() -> AbstractContextManager[object]:
        monkeypatch.delenv(datasets.FOLDER_VARIABLE)
        return board(port, tmp_path)

    with serve_files({f"/drive/{number}": (shards / name).read_bytes() for number, name in enumerate(names)}) as server:
        links.write_text("\n".join(f"{name},{server.url(f'/drive/{number}')}" for number, name in enumerate(names)))
        bundle = publish_manifest(shards, links, tmp_path / "manifest.json")
        server.files["/drive/manifest"] = bundle.path.read_bytes()
        address = {"url": server.url("/drive/manifest"), "sha256": bundle.manifest_sha256}
        session = Session(port, tmp_path / "url", experiment("url", bundle=address))
        finish(session, start_without_data)
    assert session.delivered == 0
    assert {path for path, _ in server.requests} == {"/drive/manifest", "/drive/0", "/drive/1"}


def test_boards_train_on_samples_of_their_own(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = (x[:, 0] > 0).astype(np.int64)
    rows = [",".join(map(str, [*sample, label])) for sample, label in zip(x.tolist(), y.tolist(), strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,c,label", *rows]))
    np.savez(tmp_path / "yours.npz", x=x[::-1], y=y[::-1])
    form = {"shape": [3], "classes": 2}
    mine = experiment("own", set=None, form=form, holdout=0.25)
    session = Session(port, tmp_path / "own", mine)
    own = {client: str(tmp_path / name) for client, name in enumerate(("mine.csv", "yours.npz"))}
    finish(session, lambda: board(port, tmp_path, own))
    right = 20 * session.result["accuracy"]  # 10 of the 40 samples of each client are for testing
    assert right == pytest.approx(round(right))
    assert session.delivered == 0


def test_a_board_without_samples_reports_what_to_do(port: int, tmp_path: Path) -> None:
    form = {"shape": [3], "classes": 2}
    session = Session(port, tmp_path / "own", experiment("own", set=None, form=form, holdout=0.25))
    (tmp_path / "wrong.csv").write_text("a,label\n1,0\n2,1\n")
    with running(session.execute), board(port, tmp_path, {1: str(tmp_path / "wrong.csv")}):
        wait_for(lambda: len(session.status.current.rejections) >= 2)
        reasons = sorted(shown.reason for shown in session.status.current.rejections)
    assert "it has no samples: start the agent with --data 0=FILE" in reasons[1]
    assert "has 1 feature column and 1 label column, but the experiment needs 3 features" in reasons[0]
