"""A session of the soak test: scenario after scenario until the time is over, counted by class of fault."""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from tests.soak.evidence import Evidence
from tests.soak.oracle import judge
from tests.soak.play import Play, play, play_undisturbed
from tests.soak.scenario import Scenario, plan

REPLAY: Final = "make soak SEED={seed}"


@dataclass(frozen=True)
class Verdict:
    """A scenario, and what was wrong with it."""

    played: Play
    problems: tuple[str, ...]

    @property
    def seed(self) -> int:
        """The scenario's seed."""
        return self.played.scenario.seed


@dataclass
class References:
    """The undisturbed run of each experiment, made when it is first needed."""

    folder: Path
    _found: dict[str, Evidence] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, name: str) -> Evidence:
        """Return what the undisturbed run of an experiment leaves.

        Raises:
            RuntimeError: it fails without any fault.
        """
        with self._lock:
            if name not in self._found:
                self._found[name] = self._make(name)
            return self._found[name]

    def _make(self, name: str) -> Evidence:
        place = self.folder / f"undisturbed-{name}"
        made = play_undisturbed(name, place)
        if made.codes != (0,):
            raise RuntimeError(f"the experiment {name} fails without any fault, see {place}: {made.message[-2000:]}")
        shutil.rmtree(place)
        return made


def examine(scenario: Scenario, references: References, folder: Path) -> Verdict:
    """Play and judge one scenario. Its folder is kept if something is wrong."""
    place = folder / str(scenario.seed)
    shutil.rmtree(place, ignore_errors=True)
    undisturbed = references.find(scenario.experiment)
    played = play(scenario, undisturbed, place)
    problems = tuple(judge(played.outcome, undisturbed))
    if problems:
        damaged = f"damaged: {played.outcome.damaged}"
        (place / "problems.txt").write_text("\n".join([str(scenario), damaged, *problems, ""]))
    else:
        shutil.rmtree(place)
    return Verdict(played, problems)


def run_scenarios(
    minutes: float, first: int | None, experiments: int, jobs: int, folder: Path, console: Console
) -> list[Verdict]:
    """Examine scenarios until the time is over.

    Args:
        minutes: for this long, new scenarios begin.
        first: the first seed; the others follow it. None draws one.
        experiments: number of different experiments, because each costs an undisturbed run first; 0: all.
        jobs: scenarios at a time.
        folder: holds the runs of failing seeds.
        console: shows each verdict.
    """
    end = time.monotonic() + 60 * minutes
    seed = secrets.randbelow(1_000_000) * 1000 if first is None else first
    console.print(f"first seed {seed}, {minutes:g} minutes")
    references, verdicts = References(folder), list[Verdict]()
    seeds = _seeds(seed, experiments)
    with ThreadPoolExecutor(jobs) as pool:

        def work() -> None:
            while time.monotonic() < end:
                verdict = examine(plan(next(seeds)), references, folder)
                verdicts.append(verdict)
                write_report(verdicts, folder)  # an interrupted session has its report
                show(verdict, len(verdicts), console)

        for worker in as_completed([pool.submit(work) for _ in range(jobs)]):
            worker.result()
    return verdicts


def replay(seeds: list[int], folder: Path, console: Console) -> list[Verdict]:
    """Examine the scenarios of some seeds, one after the other."""
    references, verdicts = References(folder), list[Verdict]()
    for seed in seeds:
        console.print(str(plan(seed)), markup=False, highlight=False, soft_wrap=True)
        verdicts.append(examine(plan(seed), references, folder))
        show(verdicts[-1], len(verdicts), console)
    return verdicts


def _seeds(first: int, experiments: int) -> Iterator[int]:
    """Yield successive seeds whose plans need no more than some number of experiments."""
    chosen: set[str] = set()
    seed = first
    while True:
        name = plan(seed).experiment
        if name in chosen or not experiments or len(chosen) < experiments:
            chosen.add(name)
            yield seed
        seed += 1


def show(verdict: Verdict, number: int, console: Console) -> None:
    """Print one verdict; a failing one with the command that replays it."""
    played = verdict.played
    done = sum(injection.done for injection in played.injections)
    found = played.outcome.evidence
    line = f"{number:4} seed {verdict.seed}: {done} faults, {found.seconds:.0f} s"
    if not verdict.problems:
        console.print(f"[green]{line}, survived[/green]  {played.scenario.experiment}", highlight=False, soft_wrap=True)
        return
    console.print(f"[red]{line}, FAILED[/red]", highlight=False)
    console.print(f"     {played.scenario}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"     exit codes {found.codes}, damaged: {played.outcome.damaged or 'nothing'}", highlight=False)
    for problem in verdict.problems:
        console.print(f"     - {problem}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"     replay it alone: {REPLAY.format(seed=verdict.seed)}", highlight=False, markup=False, soft_wrap=True
    )


@dataclass(frozen=True)
class Row:
    """A line of the report."""

    label: str
    tried: int
    survived: int
    skipped: str


def tabulate(verdicts: list[Verdict]) -> list[Row]:
    """Count the faults that took effect, by class. A fault survives if nothing was wrong with its scenario."""
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    skipped: dict[str, str] = {}
    for verdict in verdicts:
        for injection in verdict.played.injections:
            label = injection.fault.label
            tried[label] += injection.done
            survived[label] += injection.done and not verdict.problems
            if injection.skipped:
                skipped[label] = injection.skipped
    return [Row(label, tried[label], survived[label], skipped.get(label, "")) for label in sorted(tried)]


def write_report(verdicts: list[Verdict], folder: Path) -> str:
    """Write ``report.json`` and ``report.md``; returns the latter."""
    rows = tabulate(verdicts)
    failed = {str(v.seed): {"scenario": str(v.played.scenario), "problems": v.problems} for v in verdicts if v.problems}
    content = {
        "scenarios": len(verdicts),
        "faults": sum(row.tried for row in rows),
        "classes": [vars(row) for row in rows],
        "experiments": dict(sorted(Counter(v.played.scenario.experiment for v in verdicts).items())),
        "failed": failed,
    }
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    lines = ["| fault | tried | survived |", "|---|---|---|"]
    lines += [f"| {row.label} | {row.tried} | {row.survived} |" for row in rows]
    lines += [f"| all | {content['faults']} | {sum(row.survived for row in rows)} |", ""]
    text = "\n".join(lines)
    (folder / "report.md").write_text(text)
    return text
