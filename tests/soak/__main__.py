"""``python -m tests.soak``: look for faults that break the promise, or replay one seed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from tests.soak.session import replay, run_scenarios, write_report


def main() -> int:
    """Run the command; returns 1 if a scenario failed."""
    options = _parse()
    console = Console(stderr=True)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.seed:
        verdicts = replay(options.seed, options.out, console)
    else:
        verdicts = run_scenarios(
            options.minutes, options.first, options.experiments, options.jobs, options.out, console
        )
    print(write_report(verdicts, options.out))
    failed = [str(verdict.seed) for verdict in verdicts if verdict.problems]
    if failed:
        console.print(f"{len(failed)} of {len(verdicts)} scenarios FAILED, seeds {', '.join(failed)}: {options.out}")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("seed", nargs="*", type=int, help="replay these seeds alone")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin new scenarios for this long")
    parser.add_argument("--first", type=int, help="first seed of the session; default: drawn")
    parser.add_argument("--experiments", type=int, default=0, help="different experiments at most; 0: all")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time")
    parser.add_argument("--out", type=Path, default=Path("runs") / "soak", help="folder of the report and failing runs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
