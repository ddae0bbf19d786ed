"""What the list of agents holds is bounded, whatever agents publish."""

from __future__ import annotations

import pytest

from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.status import agent_list
from fedquilt_server.status.agent_list import AgentList


def presence(number: int) -> AgentPresence:
    return AgentPresence(agent=f"pi-{number}", online=True, boot=1, clients=[1, 2])


def test_names_that_come_and_go_do_not_fill_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_list, "MOST_SHOWN", 100)
    agents = AgentList()
    for number in range(200):
        agents.update_presence(presence(number), 0.0)
        agents.update_online(f"pi-{number}", online=False)
        assert len(agents.boards()) <= 100


def test_the_energy_of_boards_that_are_forgotten_stays_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_list, "MOST_SHOWN", 10)
    agents = AgentList()
    for number in range(50):
        agents.update_presence(presence(number), 0.0)
        for joules in (1.0, 3.0):
            agents.update_telemetry(Telemetry(agent=f"pi-{number}", boot=1, joules=joules, power=0.0), joules)
        agents.update_online(f"pi-{number}", online=False)
    assert len(agents._energy) <= 10
    assert agents.settle_energy(9.0) == 100.0
    assert agents.energy_coverage == (50, 50)


def test_progress_of_clients_that_an_agent_does_not_host_is_dropped() -> None:
    agents = AgentList()
    agents.update_presence(presence(0), 0.0)
    agents.update_telemetry(Telemetry(agent="pi-0", boot=1, training={"1": 0.5, "999": 0.5}), 1.0)
    assert agents.boards()[0].training == {1: 0.5}
