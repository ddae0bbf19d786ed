"""The supply of samples: its problems reach the clients, and errors of the disk name the folder."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fedquilt_client import data_downloads, sample_supply
from fedquilt_client.sample_supply import SampleSupply
from fedquilt_client.settings import AgentSettings
from fedquilt_common.errors import DownloadError, RunFolderError
from fedquilt_common.wire.data_messages import DataFile, DataMessage
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

SHARD = DataFile(digest="0" * 64, size=10, url="http://127.0.0.1:1/shard.safetensors")


class Board:
    """A supply that downloads from an address; ``work_off`` runs what its thread posts."""

    def __init__(self, folder: Path) -> None:
        self.posted: queue.Queue[Callable[[], None]] = queue.Queue()
        self.planned = 0
        data = DataMessage(name="made", shape=[1], dtype="float32", classes=2, task="", shards=[SHARD])
        self.supply = SampleSupply.for_run(
            cast("RunMessage", SimpleNamespace(run="run", data=data)),
            folder,
            cast("AgentSettings", SimpleNamespace(name="pi", clients=[0], own_data={})),
            cast("Transport", None),
            Topics("lab"),
            self.posted.put,
            self._plan,
        )

    def _plan(self) -> None:
        self.planned += 1

    def work_off(self) -> None:
        self.posted.get(timeout=60)()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DownloadError("the server refuses"), "tries again with the next exchange. the server refuses"),
        (RuntimeError("a defect"), "a defect"),
    ],
)
def test_a_failed_download_is_the_problem_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fedquilt_common.downloads.fetch.fetch", fail)
    board = Board(tmp_path)
    board.work_off()
    assert text in board.supply.problem(0)
    assert board.planned == 1  # so that the agent reports it


def test_a_broken_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="file"):
        Board(tmp_path / "file" / "samples")
    monkeypatch.setattr(sample_supply, "_fetch_file", lambda *_: "out of reach")
    board = Board(tmp_path)
    board.work_off()

    def measure(folder: str) -> None:
        raise OSError(5, "Input/output error", folder)

    monkeypatch.setattr(data_downloads, "psutil", SimpleNamespace(disk_usage=measure))
    with pytest.raises(RunFolderError, match="Input/output error"):
        board.supply.retry()
