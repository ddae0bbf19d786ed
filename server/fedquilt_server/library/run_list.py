"""A run as a row of ``fedquilt runs``."""

from __future__ import annotations

from typing import Any

from fedquilt_server.library.quantities import best_value, last_value, pick_score
from fedquilt_server.library.recorded_run import RecordedRun, total_cost


def run_json(run: RecordedRun) -> dict[str, Any]:
    """Return a run as plain data; null for what is not recorded."""
    score = pick_score([run.rounds])
    return {
        "folder": str(run.folder),
        "name": run.result.name if run.result else None,
        "algorithm": run.result.algorithm if run.result else None,
        "dataset": run.result.dataset if run.result else None,
        "seed": run.seed,
        "status": run.status,
        "reason": run.reason,
        "rounds": len(run.rounds),
        "planned_rounds": run.planned,
        "score": score,
        "final": last_value(run.rounds, score) if score else None,
        "best": best_value(run.rounds, score) if score else None,
        "seconds": total_cost(run, "seconds"),
        "bytes": total_cost(run, "bytes"),
        "joules": total_cost(run, "joules"),
        "started": run.started,
        "notes": list(run.notes),
    }
