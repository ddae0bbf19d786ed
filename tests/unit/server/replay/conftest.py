"""A recorded run of three clients without training, whose replies are kept, and a quick way to replay it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.support.warm import forking

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.replay.engine import OnRound
from fedquilt_server.replay.recording import Recording
from fedquilt_server.replay.replay import ReplaySettings, replay_run
from fedquilt_server.replay.report import ReplayReport
from fedquilt_server.runs.reply_files import ReplyFiles, ReplyPlace
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.runs.run_folder import RunFolder
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.tools.bench import bench_experiment

ROUNDS = 3


@dataclass(frozen=True)
class Kit:
    """A copy of the recorded run that a test may damage, and an empty work folder."""

    run: Path
    work: Path

    @property
    def replies(self) -> list[ReplyPlace]:
        """The kept replies, by round and client."""
        places = ReplyFiles(self.run / "blobs" / "replies")._places
        return [places[name] for name in sorted(places, key=lambda name: (places[name].path.name, name))]

    def replay(self, settings: ReplaySettings | None = None, on_round: OnRound = lambda _: None) -> ReplayReport:
        return replay_run(self.run, self.work, settings or ReplaySettings(), _ignore_start, on_round)


def overwrite(place: ReplyPlace, at: int, content: bytes) -> None:
    """Overwrite a part of the file of a reply, ``at`` bytes after the reply's start."""
    with place.path.open("r+b") as file:
        file.seek(place.start + at)
        file.write(content)


def _ignore_start(_recording: Recording, _done: int) -> None:
    """Show nothing."""


def _record(experiment: Experiment, folder: Path) -> Path:
    with forking():
        assert run_simulation(replace(make_plan(experiment, folder), keep_replies=True), lambda _: None) is not None
    shutil.rmtree(folder / "agents")
    return folder


@pytest.fixture(autouse=True)
def _warm_workers() -> Iterator[None]:
    """Training processes are forked from this process, which has loaded what they need."""
    with forking():
        yield


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _record(bench_experiment(2, 3, 0.012, ROUNDS), tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture
def kit(recorded: Path, tmp_path: Path) -> Kit:
    return Kit(Path(shutil.copytree(recorded, tmp_path / "run")), tmp_path / "work")


@pytest.fixture
def old_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A run that an earlier version has begun, which had SHA-256 for all digests."""
    experiment, folder = bench_experiment(1, 2, 0.001, ROUNDS), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_find_digest_kind", lambda _: "sha256")
        ActiveRun(experiment, folder, resume=False).folder.release()
    return Kit(_record(experiment, folder), tmp_path / "work")


@pytest.fixture
def half_kit(tmp_path: Path) -> Kit:
    """A run whose patches travel in half precision."""
    experiment = bench_experiment(1, 2, 0.001, ROUNDS)
    wire = experiment.wire.model_copy(update={"down": "fp16"})
    return Kit(_record(experiment.model_copy(update={"wire": wire}), tmp_path / "run"), tmp_path / "work")
