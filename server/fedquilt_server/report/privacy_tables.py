"""Tables of the privacy that the clients of each run have spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from fedquilt_server.library.recorded_run import RecordedRun
from fedquilt_server.report.table import Cell, Column, ReportTable
from fedquilt_server.status.privacy_text import delta_text, epsilon_text
from fedquilt_server.status.results import PrivacySpent
from fedquilt_server.status.waiting import ranges

CENTRAL: Final = "each, by the coordinator"
KNOWN: Final = "the one asked most often, for those who know which clients took part"
_EPSILON = (
    "epsilon that is spent: on the client's samples, in all runs of its board; or, if the coordinator adds the "
    "noise, on all samples of a client, in this run. A dash: no reply named it"
)
_COLUMNS = (Column("budget", "budget", "text", "largest epsilon that the experiment allows"),
            Column("delta", "delta", "text", "probability with which the guarantee may fail"),
            Column("declined", "declined", "text", "why the client did no task any more"))  # fmt: skip


def privacy_table(runs: Sequence[RecordedRun]) -> ReportTable:
    """Return what the clients of each run have spent; clients with the same values share a row."""
    columns = (Column("run", "run"), Column("clients", "clients"), Column("epsilon", "epsilon", "text", _EPSILON))
    rows = tuple(row for run in runs for row in _shared_rows(run))
    meaning = (
        "What training has spent of the clients' differential privacy. Every run counts, even one that is not finished."
    )
    return ReportTable("privacy", "Privacy", meaning, (*columns, *_COLUMNS), rows)


def client_privacy_table(runs: Sequence[RecordedRun]) -> ReportTable:
    """Return what each client of each run has spent, with all digits."""
    columns = (Column("run", "run"), Column("client", "client"), Column("epsilon", "epsilon", "number", _EPSILON))
    rows = tuple(
        (run.label, str(one.client), one.epsilon, one.budget, one.delta, one.declined or None)
        for run in runs for one in _privacy_of(run)
    )  # fmt: skip
    meaning = "What training has spent of the differential privacy of each client."
    return ReportTable("privacy-clients", "Privacy by client", meaning, (*columns, *_COLUMNS), rows)


def _shared_rows(run: RecordedRun) -> Iterator[tuple[Cell, ...]]:
    central = run.rounds[-1].central_privacy if run.rounds else None
    if central is not None:
        limit = epsilon_text(central.budget), delta_text(central.delta)
        yield (run.label, CENTRAL, epsilon_text(central.epsilon), *limit, None)
        yield (run.label, KNOWN, epsilon_text(central.epsilon_known), *limit, None)
    clients = defaultdict[tuple[Cell, ...], list[int]](list)
    for one in _privacy_of(run):
        values = epsilon_text(one.epsilon), epsilon_text(one.budget), delta_text(one.delta), one.declined or None
        clients[values].append(one.client)
    yield from ((run.label, ranges(numbers), *values) for values, numbers in clients.items())


def _privacy_of(run: RecordedRun) -> Sequence[PrivacySpent]:
    return run.result.privacy if run.result else ()
