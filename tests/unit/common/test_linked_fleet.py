"""The links of an experiment's fleet: what the agents get, and how small chunks become."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.experiment.experiment import Experiment, agent_specs, dump_experiment
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.wire.link import Link, parse_link


@pytest.mark.parametrize(
    ("links", "chunk"),
    [([None], 1_048_576), ([{"mtu": 222}], 1_048_576), ([{"mtu": 222, "loss": 0.2}], 94), ([{"loss": 0.2}], 1_048_576),
     ([{"mtu": 2200, "loss": 0.1}, {"mtu": 300, "loss": 0.1}], 172), ([{"mtu": 8, "loss": 0.1}], 16),
     ([{"mtu": 64, "loss": 0.1, "window": 3}], 1_048_576)],
)  # fmt: skip
def test_a_chunk_fits_a_packet_where_packets_are_lost(links: list[Any], chunk: int) -> None:
    """One of 37 packets, of which one in five is lost, would get through once in 4,000 times."""
    raw = {
        "name": "x", "data": {"set": "digits", "clients": len(links)}, "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"}, "fleet": [{"clients": 1, "link": link} for link in links],
    }  # fmt: skip
    assert Experiment.model_validate(raw).chunk == chunk


def test_the_open_times_of_a_drone_go_to_the_agents() -> None:
    link = {"rate": 10, "mtu": 64, "window": 3, "timeout": 2, "open": [[0, 30.5], [90, 120]], "period": 600}
    raw = {
        "name": "x", "speedup": 10, "data": {"set": "digits", "clients": 1}, "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"}, "fleet": [{"clients": 1, "link": link}],
    }  # fmt: skip
    made = Experiment.model_validate(raw)
    (spec,) = agent_specs(made.fleet, made.speedup)
    times = ((0.0, 30.5), (90.0, 120.0))
    expected = Link(rate=10.0, mtu=64, speedup=10.0, window=3, timeout=2.0, open=times, period=600.0)
    assert parse_link(spec.options["link"]) == spec.link == expected
    assert parse_experiment(dump_experiment(made), "again") == made
