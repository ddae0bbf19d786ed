"""Prometheus metrics of the status page, over real HTTP."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.page_snapshots import row, status

from fedquilt_server.status.problems import SEVERITY
from fedquilt_server.status.snapshot import StatusStore


def test_metrics(store: StatusStore, web: httpx.Client) -> None:
    hot = status('we"ird\n', kind="pi", temperature=61.5, memory_used=1024)
    store.update(run="r1", accepted=8, late=3, boards=[hot, status("b", online=False)], history=[row(1), row(2)])
    samples = read_metrics(web)
    assert samples["fedquilt_round", ()] == 2
    assert samples["fedquilt_accuracy", ()] == pytest.approx(0.2)
    assert samples["fedquilt_bytes_up_total", ()] == 6000
    assert samples["fedquilt_replies_total", (("outcome", "accepted"),)] == 8
    assert samples["fedquilt_replies_total", (("outcome", "late"),)] == 3
    assert samples["fedquilt_board_online", (("agent", "b"), ("kind", "generic"))] == 0
    assert samples["fedquilt_board_temperature_celsius", (("agent", 'we"ird\n'),)] == 61.5
    assert samples["fedquilt_info", (("algorithm", ""), ("dataset", ""), ("run", "r1"))] == 1


def test_metrics_count_the_accepted_replies_of_every_exchange(store: StatusStore, web: httpx.Client) -> None:
    """Two finished rounds with two exchanges and 4 clients, and one reply in the third round."""
    rounds = [row(number).model_copy(update={"replies": 8}) for number in (1, 2)]
    store.update(run="r1", accepted=17, history=rounds)
    assert read_metrics(web)["fedquilt_replies_total", (("outcome", "accepted"),)] == 17
    assert web.get("/api/status").json()["accepted"] == 17


def test_metrics_of_a_board_s_health_and_energy(store: StatusStore, web: httpx.Client) -> None:
    known = {"power": 5.5, "joules": 1200.0, "power_source": "estimate", "memory_own": 2048, "load": 1.5}
    store.update(run="r1", boards=[status("a", health="hot", restarts=3, **known), status("b", online=False)])
    samples = read_metrics(web)
    agent = ("agent", "a")
    assert samples["fedquilt_board_power_watts", (agent,)] == 5.5
    assert samples["fedquilt_board_energy_joules", (agent, ("source", "estimate"))] == 1200
    assert samples["fedquilt_board_memory_own_bytes", (agent,)] == 2048
    assert samples["fedquilt_board_load", (agent,)] == 1.5
    assert samples["fedquilt_board_restarts_total", (agent,)] == 3
    states = {dict(labels)["state"]: value for (name, labels), value in samples.items()
              if name == "fedquilt_board_health" and agent in labels}  # fmt: skip
    assert [state for state, value in states.items() if value] == ["hot"]
    assert set(states) == set(SEVERITY)
    assert samples["fedquilt_board_health", (("agent", "b"), ("state", "offline"))] == 1
    assert ("fedquilt_board_power_watts", (("agent", "b"),)) not in samples


def test_metrics_leave_out_what_is_not_known(store: StatusStore, web: httpx.Client) -> None:
    """As an endless energy, and one after a restart of the coordinator, until the board says how it knows it."""
    endless = status("c", joules=float("inf"), power_source="meter")
    store.update(run="r1", history=[], boards=[status("b", joules=50.0), endless])
    names = {name for name, _ in read_metrics(web)}
    unknown = (
        "fedquilt_accuracy",
        "fedquilt_loss",
        "fedquilt_board_temperature_celsius",
        "fedquilt_board_energy_joules",
    )
    assert not names & set(unknown)


def test_metrics_of_a_run_that_is_not_loaded_yet(store: StatusStore, web: httpx.Client) -> None:
    """Totals of 0 in between would count as restarts of the counters."""
    store.update(run="", history=[], boards=[])
    assert read_metrics(web) == {("fedquilt_broker_connected", ()): store.current.broker_connected}


def read_metrics(web: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(web.get("/metrics").text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}
