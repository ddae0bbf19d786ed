"""A run as a row: of ``fedquilt runs``, of the API, and of the page of a folder."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_common.terminal_text import printable
from fedquilt_server.library.quantities import best_value, last_value, pick_score
from fedquilt_server.library.recorded_run import RecordedRun, RecordedStatus, total_cost


class RunRow(BaseModel):
    """One run of a folder; null for what is not recorded. Costs are sums over the finished rounds."""

    model_config = ConfigDict(frozen=True)

    folder: str = Field(description="path of the run folder")
    name: str | None = Field(description="name of the experiment")
    algorithm: str | None
    dataset: str | None
    seed: int | None
    status: RecordedStatus
    reason: str = Field(description="why the run is not finished")
    rounds: int = Field(description="finished rounds")
    planned_rounds: int | None = Field(description="rounds of the experiment")
    score: str | None = Field(description="the score that `final` and `best` are of, such as accuracy")
    final: float | None = Field(description="score of the last evaluated round")
    best: float | None = Field(description="best score of all rounds")
    seconds: float | None
    bytes: float | None = Field(description="at the coordinator's socket, both ways")
    joules: float | None = Field(description="energy of the boards")
    started: float | None = Field(description="Unix time in seconds")
    notes: list[str] = Field(description="what else is wrong with the recorded values")


def run_row(run: RecordedRun) -> RunRow:
    """Return a run as a row."""
    score, result = pick_score([run.rounds]), run.result
    return RunRow(
        folder=printable(str(run.folder)),
        name=result.name if result else None,
        algorithm=result.algorithm if result else None,
        dataset=result.dataset if result else None,
        seed=run.seed,
        status=run.status,
        reason=printable(run.reason),
        rounds=len(run.rounds),
        planned_rounds=run.planned,
        score=score,
        final=last_value(run.rounds, score) if score else None,
        best=best_value(run.rounds, score) if score else None,
        seconds=total_cost(run, "seconds"),
        bytes=total_cost(run, "bytes"),
        joules=total_cost(run, "joules"),
        started=run.started,
        notes=list(map(printable, run.notes)),
    )


def run_json(run: RecordedRun) -> dict[str, Any]:
    """Return a run as plain data."""
    return run_row(run).model_dump()
