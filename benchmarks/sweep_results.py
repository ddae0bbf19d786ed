"""Appends the results of a sweep to a file of benchmarks/results: a line for each finished run.

    fedquilt sweep deploy/experiments/fedaiot/table-5.yaml --vary dataset=aep --set rounds=300 --json >sweep.json
    python benchmarks/sweep_results.py sweep.json --to fedaiot --command "fedquilt sweep ..."

Run it in the checkout that ran the sweep: the lines name its commit, and the machine. With `--folder`, they also have
the scores of each evaluated round with their means over the last ten, and the least and the greatest epsilon that a
client of the run has spent.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

from fedquilt_server.library.quantities import late_value
from fedquilt_server.status.results import Result

RESULTS = Path(__file__).parent / "results"
CURVES = ("global_accuracy", "personal_accuracy", "accuracy", "average_accuracy")


def lines_of(sweep: dict[str, Any], command: str, folder: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield a line for each finished run of a sweep, as ``fedquilt sweep --json`` printed it.

    Args:
        sweep: what it printed.
        command: that ran the sweep.
        folder: of the sweep; None: the lines have neither curves nor epsilon.
    """
    origin = {"commit": commit(), "machine": machine(), "command": command}
    for run in sweep["runs"]:
        if run["status"] == "finished":
            more = details_of(folder / run["folder"]) if folder else {}
            yield {**origin, "sweep": sweep["name"], "settings": run["settings"], "final": run["final"], **more}


def details_of(run: Path) -> dict[str, Any]:
    """Return a run's curves and its spent epsilon, from its folder."""
    return {**curves_of(Result.model_validate_json((run / "result.json").read_text())), **spent_epsilon(run)}


def curves_of(result: Result) -> dict[str, Any]:
    """Return the distinct scores of each evaluated round, the means of their last ten, and the mean waste rate."""
    values = {name: [row.value(name) for row in result.rounds] for name in CURVES}
    curves = {name: [round(one, 4) for one in found if one is not None] for name, found in values.items()}
    names = list(curves)
    found = {name: curve for i, (name, curve) in enumerate(curves.items())
             if curve and curve not in [curves[one] for one in names[:i]]}  # fmt: skip
    waste = [row.waste_rate for row in result.rounds if row.waste_rate is not None]
    mean_waste = {"waste_rate": statistics.fmean(waste)} if waste else {}
    return {**mean_waste, "last_10": {name: late_value(result.rounds, name) for name in found}, "curves": found}


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
    parser.add_argument("--folder", type=Path, help="folder of the sweep, for curves and for spent epsilon")
    options = parser.parse_args()
    for line in list(lines_of(json.loads(options.sweep.read_text()), options.command, options.folder)):
        append_result(RESULTS / f"{options.to}.jsonl", line)


if __name__ == "__main__":
    main()
