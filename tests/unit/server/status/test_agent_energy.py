"""The energy of the boards, from counters that begin again with each start of an agent."""

from __future__ import annotations

import pytest

from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.status.agent_list import AgentList


def report(agents: AgentList, at: float, joules: float, *, boot: int = 1, watts: float = 5.0) -> None:
    message = Telemetry(agent="pi", boot=boot, joules=joules, power=watts, power_source="estimate", interval=2.0)
    agents.update_telemetry(message, at)


@pytest.fixture
def agents() -> AgentList:
    made = AgentList()
    made.update_presence(AgentPresence(agent="pi", online=True, boot=1), 0.0)
    return made


def test_energy_counts_from_the_first_report_and_goes_on_after_a_restart(agents: AgentList) -> None:
    assert agents.total_joules(0.0) is None
    report(agents, 1.0, 100.0)
    report(agents, 3.0, 110.0)
    report(agents, 5.0, 4.0, boot=2)
    assert agents.total_joules(5.0) == 14.0
    assert agents.is_estimated
    found = agents.find("pi")
    assert found is not None
    assert found.joules == 14.0


def test_a_board_takes_its_last_power_until_its_next_report_is_due(agents: AgentList) -> None:
    report(agents, 1.0, 100.0)
    assert [agents.total_joules(at) for at in (0.5, 2.0, 3.0, 60.0)] == [0.0, 5.0, 10.0, 10.0]
    agents.update_online("pi", online=False)
    assert agents.total_joules(2.0) == 0.0
