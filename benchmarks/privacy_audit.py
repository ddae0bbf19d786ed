"""Measures how much membership inference finds in runs with and without differential privacy.

    python benchmarks/privacy_audit.py                      simulate and audit every case
    python benchmarks/privacy_audit.py --only digits-few digits-few-dp
    python benchmarks/privacy_audit.py --table              print the results in results/privacy_audit.jsonl

The data set of the cases har-* must be below FEDQUILT_DATA. A case whose run folder exists is not simulated again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "privacy_audit.jsonl"
DIGITS, FEW = "deploy/experiments/digits-fedavg.yaml", "benchmarks/privacy_audit_few.yaml"
HAR = "benchmarks/privacy_audit_har.yaml"
CASES: Mapping[str, tuple[str, ...]] = {
    "digits": (DIGITS,),
    "digits-dp": (DIGITS, "data.partition={scheme: uniform}", "privacy={epsilon: 8, delta: 0.001}"),
    "digits-few": (FEW,),
    "digits-few-dp": (FEW, "privacy={epsilon: 8, delta: 0.001}"),
    "digits-few-dp-1": (FEW, "privacy={epsilon: 1, delta: 0.001}"),
    "har-fedavg": (HAR,),
    "har-fedavg-dp": (HAR, "privacy={epsilon: 8, delta: 0.001}"),
    "har-fedakd": ("deploy/experiments/har-fedakd.yaml",),
    "har-fedakd-dp": ("deploy/experiments/har-fedakd-dp.yaml",),
}
"""The experiment of each case, and the keys that ``--set`` changes."""


def commands(case: str, folder: Path, shadows: int) -> tuple[list[str], list[str]]:
    """Return the commands that simulate and audit a case."""
    file, *changes = CASES[case]
    sets = [word for change in changes for word in ("--set", change)]
    simulate = ["fedquilt", "simulate", file, *sets, "--out", str(folder)]
    return simulate, ["fedquilt", "privacy", "audit", str(folder), "--shadows", str(shadows), "--json"]


def measure(case: str, folder: Path, shadows: int) -> dict[str, Any]:
    """Simulate and audit a case; returns commands, the run's last accuracy, and the audit's report."""
    simulate, audit = commands(case, folder, shadows)
    if not (folder / "result.json").exists():
        subprocess.run(simulate, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    report = json.loads(subprocess.run(audit, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    final = json.loads((folder / "result.json").read_text())["final"]
    named = [shlex.join(command).replace(str(folder), f"runs/{case}") for command in (simulate, audit)]
    return {"case": case, "commands": named, "accuracy": final["accuracy"], "report": report}


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the newest result of each case as Markdown."""
    newest = {row["case"]: row for row in rows}
    print("| case | epsilon | accuracy | samples | shadows | attack | AUC | TPR at 1 % FPR | allowed AUC |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case, row in newest.items():
        report = row["report"]
        epsilon = "none" if report["epsilon"] is None else f"{report['epsilon']:.2f}"
        for found in (one for one in report["attacks"] if one["client"] is None):
            auc = f"{found['auc']:.3f} ({found['auc_low']:.3f} to {found['auc_high']:.3f})"
            allowed = "-" if found["auc_bound"] is None else f"{found['auc_bound']:.3f}"
            cells = (
                f"`{case}`",
                epsilon,
                f"{row['accuracy']:.3f}",
                found["members"],
                report["shadows"],
                found["attack"],
                auc,
            )
            print("| " + " | ".join(map(str, (*cells, f"{found['tpr']:.3f}", allowed))) + " |")


def main() -> None:
    """Measure the chosen cases and append them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--shadows", type=int, default=32)
    parser.add_argument("--runs", type=Path, help="folder of the run folders; default: a temporary one")
    parser.add_argument("--dry-run", action="store_true", help="do not write to the results")
    parser.add_argument("--table", action="store_true", help="print the results, measure nothing")
    given = parser.parse_args()
    if given.table:
        print_table([json.loads(line) for line in RESULTS.read_text().splitlines()])
        return
    command, version, rows = shlex.join(["python", "benchmarks/privacy_audit.py", *sys.argv[1:]]), commit(), []
    with tempfile.TemporaryDirectory() as scratch:
        for case in given.only:
            origin = {"command": command, "commit": version, "machine": machine()}
            rows.append({**origin, **measure(case, (given.runs or Path(scratch)) / case, given.shadows)})
            if not given.dry_run:
                append_result(RESULTS, rows[-1])
    print_table(rows)


if __name__ == "__main__":
    main()
