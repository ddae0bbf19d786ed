"""The newest snapshot in Prometheus' words, collected when asked; what is not known yet has no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web.view import scores


def registry_of(board: StatusStore) -> CollectorRegistry:
    """A registry of our own: the process-wide one may hold what other libraries count."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(board))
    return registry


class SnapshotCollector(Collector):
    """Nothing is counted here; the snapshot is the only source."""

    def __init__(self, board: StatusStore) -> None:
        self._board = board

    def describe(self) -> Iterable[Metric]:
        """Names are known without a snapshot, so registering collects nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One consistent snapshot a scrape."""
        snapshot = self._board.current
        yield _info(snapshot)
        yield from _run(snapshot)
        yield from _last_round(snapshot)
        yield from _totals(snapshot)
        yield from _boards(snapshot.boards)


def _info(s: Snapshot) -> Metric:
    labels = {"run": s.run, "algorithm": s.algorithm, "dataset": s.dataset}
    return InfoMetricFamily("fedquilt", "What is running", value=labels)


def _run(s: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("fedquilt_round", "Round in progress, 0 before the first", value=s.round)
    yield GaugeMetricFamily("fedquilt_rounds", "Rounds of the run", value=s.rounds)
    yield GaugeMetricFamily(
        "fedquilt_broker_connected", "1 while the coordinator has its broker", value=int(s.broker_connected)
    )


def _last_round(s: Snapshot) -> Iterator[Metric]:
    yield _latest(s, "accuracy", "fedquilt_accuracy", "Latest accuracy of the global model, 0 to 1")
    yield _latest(s, "personal_accuracy", "fedquilt_personal_accuracy", "Latest accuracy of the clients' own models")
    yield _latest(s, "r2", "fedquilt_r2", "Latest coefficient of determination of the global model")
    yield _latest(s, "loss", "fedquilt_loss", "Latest loss of the global model")
    yield _latest(s, "seconds", "fedquilt_round_seconds", "Wall clock seconds of the last round")
    yield _latest(s, "train_seconds", "fedquilt_train_seconds", "Seconds of training in the last round")


def _latest(s: Snapshot, field: str, name: str, text: str) -> Metric:
    measured = scores(s.history, field)
    return GaugeMetricFamily(name, text, value=measured[-1][1] if measured else None)


def _totals(s: Snapshot) -> Iterator[Metric]:
    yield _counter("bytes_down", "Bytes sent in finished rounds", sum(row.bytes_down for row in s.history))
    yield _counter("bytes_up", "Bytes received in finished rounds", sum(row.bytes_up for row in s.history))
    replies = CounterMetricFamily("fedquilt_replies", "Replies in all exchanges, by outcome", labels=["outcome"])
    replies.add_metric(["accepted"], s.accepted)
    replies.add_metric(["late"], s.late)
    replies.add_metric(["rejected"], s.rejected)
    replies.add_metric(["duplicate"], s.duplicates)
    yield replies


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"fedquilt_{name}", text, value=value)


def _boards(boards: Iterable[BoardStatus]) -> Iterator[Metric]:
    online = GaugeMetricFamily("fedquilt_board_online", "1 while the agent is online", labels=["agent", "kind"])
    hot = GaugeMetricFamily(
        "fedquilt_board_temperature_celsius", "Temperature as the board last told", labels=["agent"]
    )
    used = GaugeMetricFamily(
        "fedquilt_board_memory_used_bytes", "Memory in use as the board last told", labels=["agent"]
    )
    for board in boards:
        online.add_metric([board.agent, board.kind], int(board.online))
        _add(hot, board, board.temperature)
        _add(used, board, board.memory_used)
    yield from (online, hot, used)


def _add(family: GaugeMetricFamily, board: BoardStatus, value: float | None) -> None:
    if value is not None:
        family.add_metric([board.agent], value)
