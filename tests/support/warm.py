"""Functions and commands in processes of their own, forked from one that has loaded torch: loading it takes seconds.

The processes that a command starts are forked, too. Every process has an id, memory, signals and files of its own, as
one that begins a program has; it only finds the modules loaded. ``running`` forks from a process that has done nothing
yet, ``ForkedProgram`` from the test's own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any
from unittest import mock

PATIENCE = 60.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([
    "fedquilt_client.agent", "fedquilt_client.cli", "fedquilt_client.context", "fedquilt_client.worker",
    "fedquilt_common.training.learner", "fedquilt_server.cli", "fedquilt_server.coordinator.coordinator",
    "fedquilt_server.simulate_cli", "fedquilt_server.web.server",
])  # fmt: skip
_OWN = set[str]()
"""Modules that forks keep. A fork that looked at all of them would copy their memory."""


class WarmCommand:
    """A ``fedquilt`` command that runs."""

    def __init__(self, process: Any, words: Sequence[str], streams: tuple[Path, Path]) -> None:
        self._process, self._words, self._streams = process, words, streams

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid)

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()

    def finish(self, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Wait until it ends; returns its exit code and what it has printed."""
        self._process.join(patience)
        code = self._process.exitcode
        assert code is not None, f"fedquilt {' '.join(self._words)} has not ended after {patience} s"
        return subprocess.CompletedProcess(self._words, code, *(path.read_text() for path in self._streams))


@contextlib.contextmanager
def running(
    *arguments: str,
    where: Path,
    before: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WarmCommand]:
    """Start the command; kills it at the end of the block.

    Args:
        *arguments: the words after ``fedquilt``.
        where: the folder that it runs in.
        before: what its process calls first, such as ``assign``; it must be possible to pickle it.
        environment: variables to set.
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder, "stdout"), Path(folder, "stderr")
        target = partial(_command, arguments, where, before, dict(environment or {}), streams)
        process = PROCESSES.Process(target=target)
        process.start()
        try:
            yield WarmCommand(process, arguments, streams)
        finally:
            process.kill()  # no effect on one that has ended
            process.join()


def fedquilt(
    *arguments: str,
    where: Path,
    before: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, as ``running`` starts it."""
    with running(*arguments, where=where, before=before, environment=environment) as command:
        return command.finish(patience)


def assign(place: str, value: object) -> None:
    """Set an attribute of a module or class, named as ``a.module:attribute`` or ``a.module:Class.attribute``."""
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    setattr(reduce(getattr, owners, importlib.import_module(module)), name, value)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with PROCESSES.Pool(1) as pool:
        return pool.apply(function, arguments)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Let this process start each program as a ``ForkedProgram``."""
    with mock.patch.object(subprocess, "Popen", ForkedProgram):
        yield


class ForkedProgram(subprocess.Popen[Any]):
    """Starts ``python -m MODULE`` by a fork that calls the module's ``main``, and any other program as usual."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], object] | None = None,
        pass_fds: Collection[int] = (),
        **options: Any,
    ) -> None:
        words = [word for word in args if word != "-u"]  # its output has line buffers in any case
        if words[:2] == [sys.executable, "-m"]:
            environment = dict(os.environ if env is None else env)
            preexec_fn = partial(_become, words[2], words[3:], environment, preexec_fn, pass_fds, _foreign_modules())
        super().__init__(args, env=env, preexec_fn=preexec_fn, pass_fds=pass_fds, **options)


def _become(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    before: Callable[[], object] | None,
    kept: Collection[int],
    foreign: Collection[str],
) -> None:
    """Call a module's ``main`` with the state of a new process, instead of beginning a program. Never returns."""
    if before is not None:
        before()
    gc.freeze()  # what this process has of its parent is never finalised
    ends = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for before_it, after_it in itertools.pairwise(ends):  # also the pipe on which Popen waits for the program to begin
        os.closerange(before_it + 1, after_it)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python program does
    streams = (os.fdopen(number, mode, 1, closefd=False) for number, mode in enumerate("rww"))
    sys.stdin, sys.stdout, sys.stderr = streams
    logging.root.handlers.clear()
    warnings.simplefilter("default")
    subprocess.Popen = ForkedProgram  # type: ignore[assignment,misc]
    os.environ.clear()
    for name in foreign:
        sys.modules.pop(name, None)
    os._exit(_run_main(module, arguments, environment))


def _run_main(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the exit code of a module's ``main``."""
    _enter(arguments, environment)
    importlib.invalidate_caches()
    code = 0
    try:
        importlib.import_module(module).main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            stream.flush()
    return code


def _enter(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Set the arguments, the environment and the folders of packages."""
    os.environ.update(environment)
    sys.argv = ["fedquilt", *arguments]
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)]


def _foreign_modules() -> list[str]:
    """Return the modules that are neither installed nor the project's: each test has others of the same name."""
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    files = {name: getattr(sys.modules.get(name), "__dict__", {}).get("__file__") for name in set(sys.modules) - _OWN}
    foreign = [name for name, file in files.items() if not (file or sys.prefix).startswith(places)]
    _OWN.update(files.keys() - foreign)
    return foreign


def _command(
    arguments: tuple[str, ...],
    where: Path,
    before: Callable[[], object] | None,
    environment: Mapping[str, str],
    streams: tuple[Path, Path],
) -> None:
    os.chdir(where)
    for stream, path in enumerate(streams, 1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    warnings.simplefilter("error")
    subprocess.Popen = ForkedProgram  # type: ignore[assignment,misc]
    _enter(arguments, environment)
    if before is not None:
        before()
    from fedquilt_common.cli import main

    main()
