"""A board behind a site floods: the site's relay mutes it, the other boards are served, and every reply counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.faults.test_floods import TOTAL, bad_chunk, large_chunk, probe, telemetry
from tests.faults.test_hostile_sums import make_exact
from tests.faults.test_site_relays import RELAY, TOPICS, appear
from tests.support.memory_bridge import connect_brokers
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client.site_relay import RelaySettings, SiteRelay
from fedquilt_common.flood_control import admission, flood_guard
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.transport import Deliver, Transport, Will
from fedquilt_server.history.log_files import read_events
from fedquilt_server.round.events import Replied

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage


class Site:
    """All boards of a stage behind a site, whose relay is driven step by step."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage, self.broker = stage, MemoryBroker()
        for player in stage.players.values():
            player.transport = MemoryTransport(self.broker, player.name, player._take)
        connect_brokers(stage.broker, self.broker, TOPICS, [*stage.players, "noisy"], RELAY)
        settings = RelaySettings(RELAY, "hall", folder / "relay", federation=TOPICS.federation)
        self.relay = SiteRelay(settings, self._connect)
        self.probes = [0.0]
        self.narrow: list[bool] = []
        stage.arrive = self.arrive  # type: ignore[method-assign]

    def _connect(self, deliver: Deliver, will: Will) -> Transport:
        return cast(Transport, MemoryTransport(self.broker, RELAY, deliver, will=will))

    def arrive(self) -> None:
        from tests.faults.conftest import FLEET

        self.relay._transport.connect()
        for name, player in self.stage.players.items():
            player.arrive(FLEET[name])
            appear(player, FLEET[name], "hall")

    def turn(self, flood: Callable[[Player, RoundMessage], object] | None = None) -> bool:
        self.stage.turn(flood)
        probe(self.stage, self.probes)
        self._look()  # a mute may end in the next step, if this machine is slow
        while not self.relay._events.empty():
            self.relay._step()
        self.relay._advance(time.monotonic())
        self._look()
        return False

    def _look(self) -> None:
        self.narrow.append(TOPICS.telemetry("+") not in self.broker.sessions[RELAY].filters)

    def notices(self) -> list[str]:
        """Return what the relay has reported."""
        events = read_events(self.stage.folder / "events.jsonl")
        return [event.text for event in events if event.kind == "notice" and event.board == RELAY]


@pytest.fixture
def site(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(flood_guard, "FIRST_MUTE", 0.3)
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.1)
    make_exact(stage)
    site = Site(stage, tmp_path)
    yield site
    site.relay._store.release()


def changed_presence(player: Player, number: int) -> None:
    message = AgentPresence(agent=player.name, online=True, boot=1 + number, clients=[2], site="hall")
    player.transport.publish(TOPICS.presence(player.name), message.encode(), retain=True)


def no_chunk(player: Player, number: int) -> None:
    player.say(TOPICS.reply_chunk(player.name, 2, 1, 0, number), b"x", b"no header")


@pytest.mark.parametrize("message", [bad_chunk, telemetry, changed_presence, large_chunk, no_chunk])
def test_a_board_that_floods_and_replies_is_muted_and_its_replies_count(
    message: Callable[[Player, int], None], site: Site, single_replies: str
) -> None:
    def flood(player: Player, current: RoundMessage) -> None:
        if player.name == "jetson" and current.round == 2:
            for number in range(TOTAL if message is not large_chunk else 200):
                message(player, number)

    site.stage.play_with(lambda: site.turn(flood))
    assert site.stage.sha256 == single_replies
    assert [row.clients for row in site.stage.rows] == [3, 3]
    assert any(site.narrow)
    assert not site.narrow[-1]
    assert all(text.startswith("agent jetson floods") for text in site.notices())
    assert site.notices()
    replies = [event for event in site.stage.events() if isinstance(event, Replied)]
    assert {(reply.relay, reply.carrier) for reply in replies} == {(RELAY, 0)}


def test_the_other_boards_are_served_while_one_never_stops(
    site: Site, single_replies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood_guard, "FIRST_MUTE", 600.0)
    noisy = site.stage.player("noisy")
    noisy.transport = MemoryTransport(site.broker, "noisy", noisy._take)
    pi = site.stage.players["pi"]

    def turn() -> bool:
        for number in range(50 if site.narrow else TOTAL):
            telemetry(noisy, number)
        return site.turn()

    noisy.arrive(())
    site.stage.play_with(turn)
    assert site.stage.sha256 == single_replies
    assert {receipt.client for receipt in pi.receipts if receipt.final} == {0, 1}
    assert site.narrow[-1]
