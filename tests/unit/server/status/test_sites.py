"""A site that is cut off shows once, and the boards behind it as unreachable."""

from __future__ import annotations

from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.health import BoardFacts
from fedquilt_server.status.problems import list_problems
from fedquilt_server.status.snapshot import Snapshot


def make_list() -> AgentList:
    agents = AgentList()
    for name, site in (("a", "hall"), ("b", "hall"), ("c", "roof"), ("d", None)):
        agents.update_presence(AgentPresence(agent=name, online=True, boot=1, site=site), now=1.0)
    return agents


def healths(agents: AgentList) -> dict[str, str]:
    agents.refresh({name: BoardFacts() for name in "abcd"}, now=2.0)
    return {board.agent: board.health for board in agents.boards()}


def test_the_boards_behind_a_site_that_is_cut_off_are_unreachable_until_it_is_back() -> None:
    agents = make_list()
    assert agents.behind("hall") == 2
    assert agents.update_site("hall", connected=False)
    agents.update_online("b", online=False)  # silent for too long
    assert healths(agents) == {"a": "unreachable", "b": "unreachable", "c": "online", "d": "online"}
    assert agents.update_site("hall", connected=True)
    assert healths(agents) == {"a": "online", "b": "offline", "c": "online", "d": "online"}


def test_the_relay_of_a_site_is_none_of_its_boards_and_shows_when_it_is_gone() -> None:
    agents = make_list()
    relay = AgentPresence(agent="hall-relay", online=True, boot=1, site="hall", site_relay=True)
    agents.update_presence(relay, now=1.0)
    assert agents.behind("hall") == 2
    agents.update_online("hall-relay", online=False)
    healths(agents)
    snapshot = Snapshot(phase="training", broker_connected=True, boards=agents.boards())
    assert [problem.text for problem in list_problems(snapshot)] == [
        "The relay of site hall is offline: the replies of its boards wait there"
    ]
    agents.update_site("hall", connected=False)
    healths(agents)
    snapshot = snapshot.model_copy(update={"boards": agents.boards()})
    assert [problem.text for problem in list_problems(snapshot)] == ["Site hall is cut off (2 boards behind it)"]


def test_a_state_that_is_published_again_is_no_change() -> None:
    agents = make_list()
    assert not agents.update_site("hall", connected=True)
    agents.update_site("hall", connected=False)
    assert not agents.update_site("hall", connected=False)
