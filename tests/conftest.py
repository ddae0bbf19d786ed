"""What all tests share."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# No test depends on how fast the machine is. Each run draws other examples.
settings.register_profile("fedquilt", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("fedquilt")

# Tests start hundreds of Python processes. Each one would compile all of fedquilt again without the files of byte code.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests run in parallel: with more threads, each process would wait for cores that the others use.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Under nohup, this process ignores SIGHUP, in the background of a script SIGINT, and so would every process of a test.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["FEDQUILT_VALIDATE"] = "1"  # every coordinator that a test starts checks its machine after every event

# Journals and replies are written through to the disk, for which tests would wait a third of their time.
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
ROOM = 4 << 30
if (
    MEMORY_FOLDER.is_dir()
    and os.access(MEMORY_FOLDER, os.W_OK)
    and min(shutil.disk_usage(MEMORY_FOLDER).free, psutil.virtual_memory().available) > ROOM
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))

# All processes of a test run share prepared data sets; none of them touches the cache of the person who runs the tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["FEDQUILT_CACHE"] = tempfile.mkdtemp(
        prefix="fedquilt-cache-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what collection makes to the end: it is large, and would be searched for garbage again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LONG = ("browser", "e2e", "faults")
"""Folders whose tests are long, except those that are marked as quick."""
WAITING = ("browser", "deploy", "e2e", "faults")
"""Folders whose tests mostly wait for processes and messages."""
HEAVIEST = "test_ray.py"
"""The last file: the many processes of Ray take more than twice as long beside other tests."""
LAST_WAIT = 0.8
"""Where the last of them stands among all files, from 0 to 1."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which ``make test`` or ``make test-long`` runs nothing: each worker would import them all."""
    if not is_test_file(collection_path):
        return None
    match config.option.markexpr:
        case "long":
            may_be_selected = folder_of(collection_path) in LONG or names_mark(collection_path, "long")
        case "not long":
            may_be_selected = folder_of(collection_path) not in LONG or names_mark(collection_path, "quick")
        case _:
            return None
    return None if may_be_selected else True


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole runs and of the browser as long, and order the files."""
    for item in items:
        check_mark(item)
        if folder_of(item.path) in LONG and item.get_closest_marker("quick") is None:
            item.add_marker("long")
    spread_waiting(items)


def check_mark(item: pytest.Item) -> None:
    """Refuse a mark that its test's file does not name, because ``pytest_ignore_collect`` would overlook it."""
    for mark in ("long", "quick"):
        if item.get_closest_marker(mark) is not None and not names_mark(item.path, mark):
            raise pytest.UsageError(f"{item.nodeid} has the mark {mark!r}. Write pytest.mark.{mark} in its file.")


@functools.cache
def names_mark(path: Path, mark: str) -> bool:
    """Return whether a file of tests gives one of them this mark."""
    return f"mark.{mark}" in path.read_text()


def is_test_file(path: Path) -> bool:
    """Return whether pytest collects tests from this path."""
    return path.suffix == ".py" and path.name.startswith("test_")


@functools.cache
def folder_of(path: Path) -> str:
    """Return the folder below ``tests``, or the name of a file that is in none."""
    return path.relative_to(Path(__file__).parent).parts[0]


def spread_waiting(items: list[pytest.Item]) -> None:
    """Spread the files whose tests wait among those that compute, so that they run beside each other."""
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [path for path in files if folder_of(path) in WAITING]
    computing = [path for path in files if path not in waiting]
    places = {path: number / len(computing) for number, path in enumerate(computing)}
    places |= {path: LAST_WAIT * number / len(waiting) for number, path in enumerate(waiting)}
    items.sort(key=lambda item: (item.path.name == HEAVIEST, places[item.path]))


def pytest_unconfigure() -> None:
    """Remove the prepared data sets when the last process of the test run ends."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["FEDQUILT_CACHE"], ignore_errors=True)
