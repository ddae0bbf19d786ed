"""A supervisor of small programs, whose folder, reports and process ids a test reads."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fedquilt_server.simulate.child_process import FINAL_CODES, ChildSpec, Role
from fedquilt_server.simulate.supervisor import Supervisor


class Stage:
    """A supervisor and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []
        self.supervisor = Supervisor(folder / "pids.json", self.reports.append)
        self.seen: set[int] = set()

    def start(
        self,
        name: str,
        role: Role,
        code: str,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = ("-S",),
        final: frozenset[int] = FINAL_CODES,
    ) -> Path:
        """Start a program; without packages, unless ``options`` of Python are given, because it starts faster."""
        log = self.folder / "logs" / f"{name}.log"
        argv = (sys.executable, *options, "-c", code)
        self.supervisor.start(ChildSpec(name, role, argv, log, env, final_codes=final))
        self.seen.update(self.pids().values())
        return log

    def pids(self) -> dict[str, int]:
        """The process ids of all children, from the file."""
        pids = json.loads((self.folder / "pids.json").read_text())
        return {**pids.pop("agents"), **pids.pop("fork_servers", {}), **pids}

    def agent(self, name: str) -> int:
        return self.pids()[name]

    @property
    def said(self) -> str:
        return "\n".join(self.reports)

    def watch_until(self, done: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"still waiting after {seconds} seconds"
            assert self.supervisor.watch() is False
            self.seen.update(self.pids().values())
            time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
