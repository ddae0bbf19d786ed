"""Appends the results of a sweep to a file of benchmarks/results: a line for each finished run.

    fedquilt sweep deploy/experiments/fedaiot/table-5.yaml --vary dataset=aep --set rounds=300 --json >sweep.json
    python benchmarks/sweep_results.py sweep.json --to fedaiot --command "fedquilt sweep ..."

Run it in the checkout that ran the sweep: the lines name its commit, and the machine. With `--folder`, they also have
the least and the greatest epsilon that a client of the run has spent.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

RESULTS = Path(__file__).parent / "results"


def lines_of(sweep: dict[str, Any], command: str, folder: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield a line for each finished run of a sweep, as ``fedquilt sweep --json`` printed it.

    Args:
        sweep: what it printed.
        command: that ran the sweep.
        folder: of the sweep; None: the lines have no epsilon.
    """
    origin = {"commit": commit(), "machine": machine(), "command": command}
    for run in sweep["runs"]:
        if run["status"] == "finished":
            spent = spent_epsilon(folder / run["folder"]) if folder else {}
            yield {**origin, "sweep": sweep["name"], "settings": run["settings"], "final": run["final"], **spent}


def spent_epsilon(run: Path) -> dict[str, list[float]]:
    """Return the least and the greatest epsilon of a run's clients; nothing if it had no privacy."""
    found = [client["epsilon"] for client in json.loads((run / "result.json").read_text())["privacy"]]
    return {"epsilon": [min(found), max(found)]} if found else {}


def main() -> None:
    """Append the results of the sweeps that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="what `fedquilt sweep --json` printed")
    parser.add_argument("--to", required=True, help="name of the file in benchmarks/results, without .jsonl")
    parser.add_argument("--command", required=True, help="the command that ran the sweep")
    parser.add_argument("--folder", type=Path, help="folder of the sweep, for the epsilon that its clients have spent")
    options = parser.parse_args()
    for line in list(lines_of(json.loads(options.sweep.read_text()), options.command, options.folder)):
        append_result(RESULTS / f"{options.to}.jsonl", line)


if __name__ == "__main__":
    main()
