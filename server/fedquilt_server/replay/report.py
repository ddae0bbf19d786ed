"""What a replay found: counts for each round, and the first difference to the recorded run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt_common.terminal import make_console
from fedquilt_common.wide_tables import print_whole


class ReplayedRound(BaseModel):
    """One round of a replay.

    Attributes:
        round: its number, from 1.
        replies: replies that count; each one is compared with the journal.
        equal: those that are equal to the recorded ones.
        trained: replies that were trained again.
        kept: replies that were read from the run folder.
        empty: replies without arrays that needed no training; their metrics are not computed again.
        seconds: duration of the replay of this round.
        state_equal: whether the state after the round is the recorded one; None if the journal does not have it.
        scores_equal: whether the evaluation gave the recorded scores; None if it was not carried out.
    """

    model_config = ConfigDict(frozen=True)

    round: int
    replies: int = 0
    equal: int = 0
    trained: int = 0
    kept: int = 0
    empty: int = 0
    seconds: float = 0.0
    state_equal: bool | None = None
    scores_equal: bool | None = None


class ReplayReport(BaseModel):
    """The outcome of a replay.

    Attributes:
        run: identifier of the run.
        algorithm: the run's algorithm.
        rounds: the replayed rounds.
        end: where the journal ends; empty after a difference.
        finished: whether the recorded run was finished.
        model_sha256: SHA-256 of the replayed global model.
        recorded_sha256: SHA-256 of the recorded one; None if the run has not written it, or the replay did not reach
            its end.
        difference: the first difference; None if everything that could be compared is equal.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    algorithm: str
    rounds: list[ReplayedRound]
    end: str
    finished: bool
    model_sha256: str
    recorded_sha256: str | None = None
    difference: str | None = None

    @property
    def identical(self) -> bool:
        """Whether everything that could be compared is equal."""
        return self.difference is None


def print_report(report: ReplayReport) -> None:
    """Print the table of the rounds and the outcome to standard output."""
    table = Table(title=f"{report.run}: {report.algorithm}", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("round", "replies", "equal", "trained", "kept", "empty", "state", "scores", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rounds:
        counts = (row.round, row.replies, row.equal, row.trained, row.kept, row.empty)
        words = (_word(row.state_equal), _word(row.scores_equal), f"{row.seconds:.2f}")
        table.add_row(*map(str, counts), *words)
    print_whole(table)
    for line in _outcome(report):
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _word(equal: bool | None) -> str:
    return "-" if equal is None else "equal" if equal else "differs"


def _outcome(report: ReplayReport) -> list[str]:
    if report.difference is not None:
        return [f"First difference: {report.difference}"]
    if report.recorded_sha256 is None:
        return [f"{report.end} Everything that was compared is bit-identical."]
    return [f"{report.end} The global model is bit-identical: SHA-256 {report.model_sha256}"]
