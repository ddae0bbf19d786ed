"""Details of one run of each group: its boards, the scores of its clients, the coverage of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.library.quantities import is_possible
from fedquilt_server.library.recorded_run import RecordedRun
from fedquilt_server.library.run_files import read_coverage
from fedquilt_server.report.board_totals import BoardHistory, read_boards
from fedquilt_server.report.groups import RunGroup
from fedquilt_server.report.mean_deviation import mean_deviation, quantiles
from fedquilt_server.report.table import Cell, Column, ReportTable
from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.problems import natural_key
from fedquilt_server.status.run_file_names import COVERAGE, REPLIES, RESULT
from fedquilt_server.status.scores import choose_metric


@dataclass(frozen=True)
class RunDetail:
    """What the optional files of a run folder hold.

    Attributes:
        group: name of the run's group.
        run: the run.
        history: what is recorded about its boards and replies.
        coverage: how often each part of the model was trained; None if it is not recorded.
    """

    group: str
    run: RecordedRun
    history: BoardHistory
    coverage: Coverage | None


def read_detail(group: RunGroup, run: RecordedRun, notes: list[str]) -> RunDetail:
    """Read the optional files of a run; ``notes`` gets what is wrong with them."""
    history = read_boards(run.folder)
    notes += [*history.notes, *_missing_replies(run, history)]
    return RunDetail(group.name, run, history, read_coverage(run.folder / COVERAGE, notes))


def _missing_replies(run: RecordedRun, history: BoardHistory) -> Iterator[str]:
    """Yield that a finished run has fewer replies in ``replies.csv`` than its rounds counted."""
    if run.status != "finished" or run.result is None or not history.has_replies:
        return
    counted = sum(row.replies for row in run.result.rounds)
    if (found := sum(board.outcomes["accepted"] for board in history.boards)) < counted:
        yield (
            f"{run.folder / REPLIES} has {found} accepted replies and {RESULT} {counted}: lines are missing, also "
            "in the tables of boards"
        )


@dataclass(frozen=True)
class ClientScores:
    """The scores of the clients of a group.

    Attributes:
        group: name of the group.
        source: what the scores are.
        values: one for each client and run.
    """

    group: str
    source: str
    values: tuple[float, ...]


def client_scores(groups: Sequence[RunGroup], details: Sequence[RunDetail], metric: Metric) -> list[ClientScores]:
    """Return the scores of the clients of each group, from the results and, accuracies only, from the replies.

    Args:
        groups: groups of runs.
        details: of each of their runs.
        metric: the main metric; runs of a learning task with another one are left out.
    """
    histories = {detail.run.folder: detail.history for detail in details}
    found = []
    for group in groups:
        runs = [run for run in group.runs if choose_metric(run.rounds) is metric]
        own = [value for run in runs for value in _own_scores(run, metric)]
        reported = [value for run in runs for value in histories[run.folder].client_accuracy.values()]
        found += [ClientScores(group.name, "own model", tuple(own)), ClientScores(group.name, "reply", tuple(reported))]
    return [one for one in found if one.values]


def _own_scores(run: RecordedRun, metric: Metric) -> list[float]:
    """Return the main metric of each client's own model in the last round that tested it."""
    last = {client: value for row in run.rounds for client, value in (row.client_accuracy | row.client_scores).items()}
    return [value for value in last.values() if is_possible(value, metric.name)]


def client_table(scores: Sequence[ClientScores], metric: Metric) -> ReportTable:
    """Return the distribution of a metric over the clients of each group."""
    names = ("lowest", "first quartile", "median", "third quartile", "highest")
    columns = (
        Column("group", "group"),
        Column("source", "source", "text", "own model: the client's model on its test samples; "
               "reply: what the client reported with its last accepted reply"),
        Column("values", "clients x runs", "count"),
        *(Column(name.replace(" ", "_"), name, metric.unit) for name in names),
        Column("mean", "mean", metric.unit, "mean \N{PLUS-MINUS SIGN} sample standard deviation over clients and runs"),
    )  # fmt: skip
    rows = list[tuple[Cell, ...]]()
    for one in scores:
        q = quantiles(one.values)
        if q:
            cells = (q.low, q.first, q.median, q.third, q.high)
            rows.append((one.group, one.source, q.n, *cells, mean_deviation(one.values)))
    meaning = f"Distribution over the clients of all runs of a group, each client with its last {metric.label}."
    return ReportTable("clients", "Clients", meaning, columns, tuple(rows))


def board_table(details: Sequence[RunDetail]) -> ReportTable:
    """Return the totals of each board."""
    columns = (
        Column("group", "group"), Column("seed", "seed", "count"), Column("board", "board"),
        Column("accepted", "accepted", "count"), Column("late", "late", "count"),
        Column("rejected", "rejected", "count", "bad replies, clients that failed or declined"),
        Column("missing", "missing", "count"),
        Column("train_seconds", "training", "seconds", "sum over its replies, discarded ones included"),
        Column("bytes", "replies", "bytes", "payload bytes of its replies, discarded ones included"),
        Column("memory_peak", "peak memory", "bytes", "of a training process"),
        Column("train_joules", "energy of training", "joules",
               "sum over the replies that report it, discarded ones included"),
        Column("joules", "energy", "joules", "of the whole board during the run"),
        Column("power_source", "energy from", "text",
               "a sensor of the board, a meter, or an estimate; a dash: the board has reported none"),
        Column("temperature", "highest temperature", "number", "degrees Celsius"),
    )  # fmt: skip
    rows = tuple(
        (one.group, one.run.seed, board.board,
         *(board.outcomes[outcome] if one.history.has_replies else None
           for outcome in ("accepted", "late", "rejected", "missing")),
         board.train_seconds, board.bytes, board.memory_peak, board.train_joules, board.joules, board.power_source,
         board.temperature)
        for one in details for board in one.history.boards
    )  # fmt: skip
    meaning = "Totals of each board over a run, from replies.csv, telemetry.csv and boards.csv."
    return ReportTable("boards", "Boards", meaning, columns, rows)


def coverage_table(details: Sequence[RunDetail]) -> ReportTable:
    """Return how often the channels of each layer were trained, and by which boards."""
    columns = (
        Column("group", "group"), Column("seed", "seed", "count"), Column("layer", "layer"),
        Column("channels", "channels", "count", "output channels of the layer"),
        Column("covered", "trained", "share", "share of the channels that at least one reply trained"),
        Column("fewest", "fewest", "count", "replies that trained the least trained channel"),
        Column("mean", "mean", "number", "mean over the channels of the replies that trained them"),
        Column("most", "most", "count", "replies that trained the most trained channel"),
        Column("boards", "boards", "count", "boards that trained a part of the layer"),
        Column("lowest_share", "lowest share", "share", "of the layer: the board that trained least of it"),
        Column("highest_share", "highest share", "share", "of the layer: the board that trained most of it"),
    )  # fmt: skip
    rows = tuple(
        (one.group, one.run.seed, layer.name, *_layer_cells(layer))
        for one in details if one.coverage for layer in one.coverage.layers
    )  # fmt: skip
    meaning = "How many accepted replies trained each part of the model, over all rounds of a run."
    return ReportTable("coverage", "Coverage of the model", meaning, columns, rows)


def _layer_cells(layer: LayerCoverage) -> tuple[Cell, ...]:
    counts, shares = layer.counts, [share for share in layer.boards.values() if share > 0]
    boards = (len(shares), min(shares, default=None), max(shares, default=None))
    if not counts:
        return (0, None, None, None, None, *boards)
    covered = sum(count > 0 for count in counts) / len(counts)
    return (len(counts), covered, min(counts), sum(counts) / len(counts), max(counts), *boards)


def share_table(details: Sequence[RunDetail]) -> ReportTable:
    """Return the share of each layer that each board trained."""
    columns = (
        Column("group", "group"), Column("seed", "seed", "count"), Column("layer", "layer"), Column("board", "board"),
        Column("share", "share", "share", "share of the layer that the board trained, mean over its replies"),
    )  # fmt: skip
    rows = tuple(
        (one.group, one.run.seed, layer.name, board, share)
        for one in details if one.coverage for layer in one.coverage.layers
        for board, share in sorted(layer.boards.items(), key=lambda item: natural_key(item[0]))
    )  # fmt: skip
    meaning = "Which share of each layer each board trained, over all rounds of a run."
    return ReportTable("coverage-boards", "Coverage by board", meaning, columns, rows)
