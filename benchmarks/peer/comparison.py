"""Measures both sides in turn: all cases on fedquilt and on Flower, then all again."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peer import environment, fedquilt_side, figures, samples
from peer.flower import FlowerSide
from provenance import commit
from resume import Line, Progress, end_on_signals, read_lines

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peer.jsonl"
PLOT = ROOT / "docs" / "images" / "peer.svg"
FLOWER = "1.41.0"
AGENTS = 4
ACCURACY_GAP = 0.1
"""A larger difference between the two sides' accuracies is an error: they would not do the same work. After ten rounds
the accuracy varies by several percent, because each side draws other clients and other initial weights."""


@dataclass(frozen=True)
class Case:
    """What is measured: rounds of a size in MB (10**6 bytes) without training, or the simulation (0 MB)."""

    name: str
    rounds: int
    megabytes: float = 0.0


CASES = (Case("0.1 MB", 10, 0.1), Case("45 MB", 10, 45), Case("simulation", 10))


@dataclass(frozen=True)
class Comparison:
    """The two sides, and Flower with short sleeps if that is measured, too.

    Attributes:
        work: folder for environment, data and progress.
        flower: the version of flwr.
        short_sleeps: also measure Flower without its fixed waits.
    """

    work: Path
    flower: str
    short_sleeps: bool = False
    _installed: list[environment.Environment] = field(default_factory=list)

    @property
    def installed(self) -> environment.Environment:
        """Flower's environment, created at the first use."""
        if not self._installed:
            self._installed.append(environment.prepare(self.work / "venv", self.flower))
        return self._installed[0]

    def sides(self, case: Case) -> list[str]:
        """Return the names of the sides that are measured in a case."""
        return ["fedquilt", "Flower", *["Flower, short sleeps"] * (self.short_sleeps and case.megabytes > 0)]

    def measure(self, case: Case, side: str, repeat: int) -> Line:
        """Measure one side of a case once; fedquilt's simulation has another seed in each repeat, as Flower's has."""
        if side == "fedquilt":
            return {"versions": {"fedquilt": version("fedquilt"), "torch": version("torch")}, **_ours(case, repeat)}
        flower = FlowerSide(self.installed, self.work / "flower", short_sleeps="short" in side)
        if case.megabytes:
            found = flower.deployment(case.megabytes, AGENTS, case.rounds)
        elif self.installed.missing:
            return {"skipped": self.installed.missing, "versions": self.installed.versions}
        else:
            data, rate = samples.export(self.work / "data"), samples.learning_rate()
            found = flower.simulation(data, case.rounds, rate)
        return {"versions": self.installed.versions, **found}


def _ours(case: Case, repeat: int) -> dict[str, Any]:
    if case.megabytes:
        return fedquilt_side.deployment(case.megabytes, AGENTS, case.rounds)
    return fedquilt_side.simulation(case.rounds, seed=repeat)


def run(comparison: Comparison, cases: Sequence[Case], repeats: int, progress: Progress) -> None:
    """Measure everything that is not measured yet, and print each line's summary."""
    _ = comparison.installed, samples.export(comparison.work / "data")
    for repeat, case in itertools.product(range(1, repeats + 1), cases):
        for side in comparison.sides(case):
            key = {"case": case.name, "side": side, "repeat": repeat, "rounds": case.rounds}
            line = progress.part(key, partial(comparison.measure, case, side, repeat))
            shown = {name: line.get(name) for name in ("case", "side", "seconds", "accuracy", "total_seconds")}
            print(json.dumps(shown), flush=True)


def check_accuracies(lines: Sequence[Line]) -> None:
    """Check that both sides learned the same.

    Raises:
        SystemExit: their median accuracies differ by more than ``ACCURACY_GAP``.
    """
    found = {side: figures.median_of(lines, "simulation", side, "accuracy") for side in ("fedquilt", "Flower")}
    ours, theirs = found["fedquilt"], found["Flower"]
    if ours is not None and theirs is not None and abs(ours - theirs) > ACCURACY_GAP:
        raise SystemExit(f"the comparison is not fair: accuracies {found} differ by more than {ACCURACY_GAP}; delete "
                         "progress.jsonl in the work folder to measure again")  # fmt: skip


def main(description: str | None) -> None:
    """Measure, and write results, README's table and the plot."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side and case (default: 3)")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], help="cases (default: all)")
    parser.add_argument("--flower", default=FLOWER, help=f"version of flwr (default: {FLOWER})")
    parser.add_argument("--short-sleeps", action="store_true", help="also measure Flower without its fixed waits")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peer", help="folder (default: build/peer)")
    parser.add_argument("--dry-run", action="store_true", help="keep the results that are there, and no progress")
    parser.add_argument("--plot", action="store_true", help="write table and plot again, measure nothing")
    options = parser.parse_args()
    end_on_signals()
    if not options.plot and not _measure(options):
        return
    lines = read_lines(RESULTS)
    print(figures.table(lines))
    figures.update_table(lines, ROOT / "README.md")
    figures.draw(lines, PLOT)


def _measure(options: argparse.Namespace) -> bool:
    """Measure what the options name; returns whether that has replaced the results."""
    cases = [case for case in CASES if case.name in (options.only or [case.name])]
    with Progress(options.work / "progress.jsonl", commit()) as progress:
        run(Comparison(options.work, options.flower, options.short_sleeps), cases, options.repeats, progress)
        check_accuracies(progress.lines)
        complete = not options.dry_run and len(cases) == len(CASES)
        if complete:
            progress.finish(RESULTS)
        else:
            print(figures.table(progress.lines))
        if options.dry_run:
            progress.forget()
    return complete
