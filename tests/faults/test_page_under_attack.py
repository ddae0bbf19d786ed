"""A run goes on while visitors attack its page, in a process that may open few files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.visitors import ATTACKS, attack

from fedquilt_common.process.file_limit import raise_file_limit

FILES = 256
PATIENCE = 60.0
RUN = """
import resource, sys, time
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (64, {files}))

from tests.faults.conftest import Stage
from fedquilt_common.process.file_limit import raise_file_limit
from fedquilt_server.web.connections import connection_limit
from fedquilt_server.web.server import PageServer

stage = Stage(Path(sys.argv[1]), rounds=100_000)


def turn():
    time.sleep(0.03)  # as agents that train
    return stage.turn()


with PageServer(stage.board, connections=connection_limit(raise_file_limit())) as page:
    print(page.url, flush=True)
    stage.play_with(turn)
"""


@dataclass(frozen=True)
class Attacked:
    """A process with a run and its page."""

    process: psutil.Process
    page: httpx.URL

    @property
    def round(self) -> int:
        """The round that is open, asked on a connection of its own."""
        found: dict[str, int] = httpx.get(self.page.join("api/status"), timeout=PATIENCE).json()
        return found["round"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    assert raise_file_limit() >= 2048, "this test opens 1,100 connections: raise the limit of open files (ulimit -n)"
    folder = tmp_path_factory.mktemp("attacked")
    command = [sys.executable, "-c", RUN.format(files=FILES), str(folder)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Attacked(psutil.Process(process.pid), httpx.URL(process.stdout.readline().strip()))
        process.kill()


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, f"no {what} after {PATIENCE} seconds"
        time.sleep(0.02)


@pytest.mark.parametrize("name", ATTACKS)
def test_rounds_go_on_and_the_page_answers(name: str, attacked: Attacked) -> None:
    port = attacked.page.port
    assert port is not None
    wait_for(lambda: attacked.round > 0, "first round")
    before = attacked.round
    with attack(port, name):
        during = attacked.round
        assert httpx.get(attacked.page.join("healthz"), timeout=PATIENCE).status_code == 200
        assert attacked.process.num_fds() < FILES
        wait_for(lambda: attacked.round >= during + 5, "rounds during the attack")
    assert during >= before
    wait_for(lambda: attacked.process.num_fds() < FILES // 4, "return of the descriptors")
