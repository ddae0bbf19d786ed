"""``make fuzz``: fuzz every target for a share of the time, and print how many inputs each had.

Uses atheris if it is installed (``pip install atheris``), else a seeded mutator. Run it from the repository's folder:
``python -m tests.fuzz.fuzz --minutes 10``. An input that fails is saved. ``--replay TARGET FILE`` runs it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS, run_one

SAVE = Path("runs") / "fuzz"
_STARTING = 600
"""Seconds that a process may take beside the fuzzing, on a busy machine."""


@dataclass(frozen=True)
class Outcome:
    """What the fuzzing of one target gave; ``failure`` is a text with the saved input's path, or empty."""

    target: str
    engine: str
    inputs: int
    failure: str


def fuzz(target: str, engine: str, seconds: float, seed: int) -> Outcome:
    """Fuzz one target in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.engine", target, "--engine", engine, "--save", str(SAVE)]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(dir=memory_disk()) as work:
        done = subprocess.run(
            [*command, "--work", work],
            capture_output=True, text=True, check=False, errors="replace", timeout=seconds + _STARTING,
        )  # fmt: skip
    inputs, saved = _read_counts(done.stdout, done.stderr)
    if done.returncode == 0 and saved is None:
        return Outcome(target, engine, inputs, "")
    return Outcome(target, engine, inputs, f"{saved or 'no input'}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _read_counts(out: str, err: str) -> tuple[int, str | None]:
    """Return the number of inputs that one of the two engines printed, and the file of the one that failed."""
    if out.strip().endswith("}"):
        counts = json.loads(out.splitlines()[-1])
        return counts["inputs"], counts["failure"]
    inputs = re.search(r"number_of_executed_units: +(\d+)", err)
    saved = re.findall(r"Test unit written to (\S+)", err)
    return int(inputs[1]) if inputs else 0, saved[-1] if saved else None


def memory_disk() -> str | None:
    """Return a folder in memory, where there is one: files are written for each input."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


def replay(target: str, path: Path) -> None:
    """Run a target on a saved input; a defect shows its traceback."""
    with tempfile.TemporaryDirectory() as folder:
        valid = run_one(target, path.read_bytes(), Path(folder))
    print(f"{target} {'accepts' if valid else 'refuses'} {path}, as it should")


def fuzz_all(targets: Sequence[str], engine: str, minutes: float, seed: int, jobs: int) -> list[Outcome]:
    """Fuzz targets, some at a time, and print a row for each."""
    seconds = max(1.0, minutes * 60 * jobs / len(targets))
    print(
        f"seed {seed}, {seconds:.0f} s a target\n| target | engine | inputs | failures |\n|---|---|---|---|", flush=True
    )
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda target: fuzz(target, engine, seconds, seed), targets):
            outcomes.append(outcome)
            failures = int(bool(outcome.failure))
            print(f"| {outcome.target} | {outcome.engine} | {outcome.inputs:,} | {failures} |", flush=True)
    print(f"| all | | {sum(outcome.inputs for outcome in outcomes):,} | {sum(bool(o.failure) for o in outcomes)} |")
    return outcomes


def main() -> int:
    """Fuzz, or replay an input; returns 1 if an input failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="time for all targets together")
    options.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this target; repeatable")
    options.add_argument("--engine", choices=("atheris", "mutator"), help="default: atheris if it is installed")
    options.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options.add_argument("--jobs", type=int, default=1, help="targets that are fuzzed at a time")
    options.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"))
    given = options.parse_args()
    if given.replay:
        replay(given.replay[0], Path(given.replay[1]))
        return 0
    engine = given.engine or ("atheris" if importlib.util.find_spec("atheris") else "mutator")
    outcomes = fuzz_all(given.target or list(TARGETS), engine, given.minutes, given.seed, given.jobs)
    for outcome in outcomes:
        if outcome.failure:
            saved, _, story = outcome.failure.partition("\n")
            print(f"\n{outcome.target} failed: python -m tests.fuzz.fuzz --replay {outcome.target} {saved}\n{story}")
    return int(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
