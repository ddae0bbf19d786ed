"""Prometheus metrics, collected from the latest snapshot at each scrape. A value that is not known has no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fedquilt_common.learning_tasks.metrics import LOCAL_METRICS, MAIN_METRICS, SECOND_METRICS
from fedquilt_server.status.problems import SEVERITY, board_health
from fedquilt_server.status.scores import measured_scores
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.status.units import is_number


def create_registry(store: StatusStore) -> CollectorRegistry:
    """Create a registry with the run's metrics only: the process-wide one may hold metrics of other libraries."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(store))
    return registry


class SnapshotCollector(Collector):
    """Converts the latest snapshot to metrics. It holds no counters of its own."""

    def __init__(self, store: StatusStore) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that the registry does not collect them when this collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of one snapshot, so that they are consistent."""
        snapshot = self._store.current
        yield GaugeMetricFamily(
            "fedquilt_broker_connected",
            "1 if the coordinator is connected to the broker",
            value=int(snapshot.broker_connected),
        )
        if not snapshot.run:  # still loading: a counter that shows 0 and then its total would seem to rise by all of it
            return
        yield _info(snapshot)
        yield from _run_metrics(snapshot)
        yield from _latest_results(snapshot)
        yield from _totals(snapshot)
        yield from _board_metrics(snapshot.boards)


def _info(s: Snapshot) -> Metric:
    labels = {"run": s.run, "algorithm": s.algorithm, "dataset": s.dataset}
    return InfoMetricFamily("fedquilt", "Run, algorithm and data set", value=labels)


def _run_metrics(s: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("fedquilt_round", "Current round, 0 before the first", value=s.round)
    yield GaugeMetricFamily("fedquilt_rounds", "Number of rounds of the run", value=s.rounds)


def _latest_results(s: Snapshot) -> Iterator[Metric]:
    for metric in (*MAIN_METRICS, *SECOND_METRICS):
        limits = ", 0 to 1" if metric.unit == "share" else ""
        yield _latest(s, metric.name, f"fedquilt_{metric.name}", f"Latest {metric.label} of the global model{limits}")
        if metric in MAIN_METRICS:
            name = f"personal_{metric.name}"
            yield _latest(s, name, f"fedquilt_{name}", f"Latest {metric.label} of personal models{limits}")
    for metric in LOCAL_METRICS:
        text = f"Latest {metric.label}: of the global model on the clients' test samples"
        yield _latest(s, metric.name, f"fedquilt_{metric.name}", text)
    yield _latest(s, "loss", "fedquilt_loss", "Latest loss of the global model")
    yield _latest(s, "seconds", "fedquilt_round_seconds", "Wall-clock seconds of the last round")
    yield _latest(s, "train_seconds", "fedquilt_train_seconds", "Training seconds of the last round")


def _latest(s: Snapshot, field: str, name: str, text: str) -> Metric:
    """Return a gauge of the latest round in which ``field`` was measured; without a sample if there is none."""
    scores = measured_scores(s.history, field)
    return GaugeMetricFamily(name, text, value=scores[-1][1] if scores else None)


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


def _board_metrics(boards: Sequence[BoardStatus]) -> Iterator[Metric]:
    online = GaugeMetricFamily("fedquilt_board_online", "1 if the agent is online", labels=["agent", "kind"])
    for board in boards:
        online.add_metric([board.agent, board.kind], int(board.online))
    yield online
    yield _health(boards)
    for name, text, field in _BOARD_GAUGES:
        gauge = GaugeMetricFamily(f"fedquilt_board_{name}", text, labels=["agent"])
        yield _with_samples(gauge, ((board.agent, getattr(board, field)) for board in boards))
    restarts = CounterMetricFamily("fedquilt_board_restarts", "Restarts of the agent during the run", labels=["agent"])
    yield _with_samples(restarts, ((board.agent, board.restarts) for board in boards))
    yield _energy(boards)


_BOARD_GAUGES: Final = (
    ("temperature_celsius", "Temperature that the board reported last", "temperature"),
    ("memory_used_bytes", "Memory in use that the board reported last", "memory_used"),
    ("memory_own_bytes", "Memory of the agent and its training processes", "memory_own"),
    ("power_watts", "Power that the board reported last; the energy's label says how it is known", "power"),
    ("load", "Load average over one minute", "load"),
)


def _health(boards: Iterable[BoardStatus]) -> Metric:
    """Return one sample per board and state: 1 for the state that the board is in, 0 for the others."""
    health = GaugeMetricFamily(
        "fedquilt_board_health", "1 for the board's state of health, 0 for the other states", labels=["agent", "state"]
    )
    for board in boards:
        for state in SEVERITY:
            health.add_metric([board.agent, state], int(state == board_health(board)))
    return health


def _energy(boards: Iterable[BoardStatus]) -> Metric:
    """Return the energy of the boards: a gauge, because a kill of the coordinator loses some seconds of it."""
    text = "Energy since the board connected in this run; source: sensor, meter or estimate"
    energy = GaugeMetricFamily("fedquilt_board_energy_joules", text, labels=["agent", "source"])
    for board in boards:
        if board.power_source and board.joules is not None and is_number(board.joules):
            energy.add_metric([board.agent, board.power_source], board.joules)
    return energy


Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


def _with_samples(family: Family, values: Iterable[tuple[str, float | None]]) -> Family:
    """Add a sample for each agent whose value is known, and return the family."""
    for agent, value in values:
        if value is not None:
            family.add_metric([agent], value)
    return family
