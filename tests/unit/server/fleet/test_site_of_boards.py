"""``fedquilt boards`` with a site that is cut off."""

from __future__ import annotations

from pathlib import Path

from tests.support.peers import bare_broker, peer

from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_server.fleet.health import known_boards, silent_boards, update_board
from fedquilt_server.fleet.listener import FleetListener
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.simulate.mosquitto import free_port

TOPICS = Topics("lab")


def test_the_boards_of_a_site_that_is_cut_off_have_that_problem_and_nobody_waits_for_their_health(
    tmp_path: Path,
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    federation.add_site("hall", ["localhost"])
    federation.provision("a", "pi4", site="hall")
    federation.provision("b", "pi4")
    with bare_broker(federation.folder, federation.record.port) as port:
        with peer(port, "x", certs=federation.folder / "coordinator") as author:
            author.publish(TOPICS.site("hall"), b"0", retain=True)
            for name, site in (("a", "hall"), ("b", None)):
                presence = AgentPresence(agent=name, online=True, boot=1, site=site)
                author.publish(TOPICS.presence(name), presence.encode(), retain=True)
        with FleetListener(federation, f"mqtts://localhost:{port}") as listener:
            while not listener.complete:
                listener.take(0.1, 1.0)
        assert listener.boards["a"].problems == ["its site hall is cut off"]
        assert listener.boards["b"].problems == []
        assert silent_boards(listener.boards.values()) == ["b"]


def test_a_relay_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.add_site("hall", ["localhost"], relay=True)
    boards = known_boards(federation.record)
    missing = ["the relay of site hall is offline: the replies of its boards wait there"]
    assert boards["hall-relay"].problems == missing
    for online, problems in ((True, []), (False, missing)):
        message = AgentPresence(agent="hall-relay", online=online, boot=1, site="hall", site_relay=True).encode()
        topic = TOPICS.presence("hall-relay")
        changed = update_board(boards, TOPICS, topic, message, retained=False, now=1.0)
        assert changed is not None
        boards["hall-relay"] = changed
        assert changed.problems == problems
