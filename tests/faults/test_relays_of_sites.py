"""A tree of real brokers with relays at the sites: one reply for all boards behind a line, and the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_sites import TOPICS, agent, events, finished_rounds, texts, user, wait
from tests.support.peers import DELIVERED, NOT_AUTHORIZED, peer
from tests.support.runs import FEDQUILT, PATIENCE, journal_events
from tests.support.sites import BrokerTree, broker_tree
from tests.support.warm import ForkedProgram

from fedquilt_server.provisioning.cli import coordinator_options

CLIENTS = {"a": "0", "b": "1-3", "c": "4", "d": "5"}
RELAY = "hall-relay"
SITES = {"": ["a"], "hall": ["b", "c", "d"]}
ROUNDS = 3
ALGORITHMS = Path(__file__).parents[1] / "support" / "own_algorithms"
EXPERIMENT = """
name: noise-site
rounds: 3
data: {set: digits, clients: 6}
model: {name: mlp}
algorithm: {name: "noise_of_clients:Noise"}
participation: {per_round: 6, quorum: 6, deadline: 600}
exact_sums: true
"""


class Run:
    """A coordinator at the central broker, all agents, and the relays; ``processes`` has them by name."""

    def __init__(self, tree: BrokerTree, folder: Path, boards_add_up: tuple[str, ...]) -> None:
        self.tree, self.folder, self._boards_add_up = tree, folder, boards_add_up
        self.processes: dict[str, ForkedProgram] = {}
        (folder / "experiment.yaml").write_text(EXPERIMENT)

    def start(self, name: str, words: list[str]) -> None:
        paths = os.pathsep.join([str(ALGORITHMS), os.environ.get("PYTHONPATH", "")])
        self.processes[name] = ForkedProgram([*FEDQUILT, *words], env={**os.environ, "PYTHONPATH": paths})

    def start_agents(self) -> None:
        """Start the relays and the agents, and wait until the central broker has their presences."""
        federation = self.tree.federation
        with peer(federation.record.port, "w", certs=user(self.tree, "watch")) as watch:
            watch.subscribe(TOPICS.presence("+"))
            for name in CLIENTS:
                words = [*agent(self.tree, self.folder, name), "--allow-import", "noise_of_clients"]
                self.start(name, [*words, "--relay"] if name in self._boards_add_up else words)
            for site in federation.record.relays.values():
                self.start_relay(site)
            watch.wait(lambda: set(watch.topics) >= {TOPICS.presence(name) for name in self.processes})

    def start_relay(self, site: str) -> None:
        config = self.tree.federation.site_folder(site) / "relay" / "relay.yaml"
        self.start(f"{site}-relay", ["relay", "--config", str(config), "--state", str(self.folder / f"{site}-relay")])

    def start_coordinator(self, *more: str) -> None:
        options = [*more, "--out", str(self.folder / "run"), "--no-page", *coordinator_options(self.tree.federation)]
        self.start("coordinator", ["coordinator", str(self.folder / "experiment.yaml"), *options])

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def finish(self) -> str:
        """Wait for the end of the run; returns the SHA-256 of the global model."""
        assert self.processes["coordinator"].wait(PATIENCE) == 0
        assert [row["clients"] for row in finished_rounds(self.folder)] == [6] * ROUNDS
        return hashlib.sha256((self.folder / "run" / "global.safetensors").read_bytes()).hexdigest()

    def senders(self) -> set[tuple[int, int | None, str]]:
        """Return round, first client of the sum if there is one, and relay of each reply that was journaled."""
        replies = journal_events(self.folder / "run", "Replied")
        return {(event["round"], event["carrier"], event["relay"]) for event in replies}


@contextlib.contextmanager
def running(tree: BrokerTree, folder: Path, boards_add_up: tuple[str, ...] = ()) -> Iterator[Run]:
    """Run all agents and relays; a test starts the coordinator."""
    run = Run(tree, folder, boards_add_up)
    try:
        run.start_agents()
        yield run
    finally:
        for process in run.processes.values():
            process.kill()
            process.wait()


ONE_SUM_A_ROUND = {(number, *sent) for number in range(1, ROUNDS + 1) for sent in ((None, ""), (1, RELAY))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the global model of the same run with one broker and no relay."""
    folder = tmp_path_factory.mktemp("one-broker")
    with broker_tree(folder / "f", {"": list(CLIENTS)}, clients=CLIENTS) as tree, running(tree, folder) as run:
        run.start_coordinator()
        return run.finish()


def test_one_sum_for_a_whole_site_crosses_the_line(tmp_path: Path, undisturbed: str) -> None:
    """Board b adds its own replies up before; the relay adds that sum to the other replies."""
    with (
        broker_tree(tmp_path / "f", SITES, ["hall"], CLIENTS) as tree,
        running(tree, tmp_path, boards_add_up=("b",)) as run,
    ):
        before = tree.lines["hall"].up
        run.start_coordinator()
        assert run.finish() == undisturbed
        alone: Any = max(event["payload"] for event in journal_events(tmp_path / "run", "Replied"))
        assert tree.lines["hall"].up - before < ROUNDS * 2 * alone  # five replies a round are five times as much
    assert run.senders() == ONE_SUM_A_ROUND


def test_a_relay_that_stops_and_is_killed_goes_on_from_its_disk(tmp_path: Path, undisturbed: str) -> None:
    """Without it, the replies of its boards wait. It is killed while it waits for one, and with a sum on its way."""
    with broker_tree(tmp_path / "f", SITES, ["hall"], CLIENTS) as tree, running(tree, tmp_path) as run:
        state = tmp_path / RELAY
        run.processes["d"].send_signal(signal.SIGSTOP)
        run.start_coordinator()
        wait(lambda: len(replies_of(state)) == 4)
        run.kill(RELAY)
        for path in replies_of(state):
            path.unlink()
        run.start_relay("hall")
        wait(lambda: len(replies_of(state)) == 4)
        run.processes[RELAY].terminate()
        assert run.processes[RELAY].wait(PATIENCE) == 128 + signal.SIGTERM
        wait(lambda: "The relay of site hall is offline: the replies of its boards wait there" in texts(tmp_path))
        run.processes["d"].send_signal(signal.SIGCONT)
        wait(lambda: replies_of(tmp_path / "d"))
        run.processes["coordinator"].send_signal(signal.SIGSTOP)
        run.start_relay("hall")
        wait(lambda: list(state.glob("runs/*/sums/1.0-1.json")))
        run.kill(RELAY)
        run.start_relay("hall")
        run.processes["coordinator"].send_signal(signal.SIGCONT)
        assert run.finish() == undisturbed
    assert run.senders() == ONE_SUM_A_ROUND
    assert "The relay of site hall is connected again" in texts(tmp_path)


def test_a_cut_line_and_a_killed_coordinator_change_no_bit(tmp_path: Path, undisturbed: str) -> None:
    """The relay has a sum that cannot travel while the coordinator, which must ask for it, is gone."""
    with (
        broker_tree(tmp_path / "f", SITES, ["hall"], CLIENTS) as tree,
        running(tree, tmp_path, boards_add_up=("b",)) as run,
    ):
        run.processes["d"].send_signal(signal.SIGSTOP)
        run.start_coordinator()
        wait(lambda: len(replies_of(tmp_path / RELAY)) == 2)
        with tree.lines["hall"].cut():
            run.processes["d"].send_signal(signal.SIGCONT)
            wait(lambda: list((tmp_path / RELAY).glob("runs/*/sums/1.0-1.json")))
            run.kill("coordinator")
        run.start_coordinator("--resume")
        assert run.finish() == undisturbed
    assert run.senders() == ONE_SUM_A_ROUND


def test_a_board_that_floods_its_site_delays_nobody_else(tmp_path: Path, undisturbed: str) -> None:
    sites = {**SITES, "hall": [*SITES["hall"], "noisy"]}
    with (
        broker_tree(tmp_path / "f", sites, ["hall"], CLIENTS) as tree,
        running(tree, tmp_path, boards_add_up=("b",)) as run,
        peer(tree.federation.record.sites["hall"].port, "n", certs=tree.federation.board_folder("noisy")) as noisy,
    ):
        run.processes["d"].send_signal(signal.SIGSTOP)
        run.start_coordinator()
        wait(lambda: len(replies_of(tmp_path / RELAY)) == 2)
        for number in range(3000):
            noisy.client.publish(TOPICS.telemetry("noisy"), f"flood {number}".encode(), qos=1)
        wait(lambda: (RELAY, "notice") in {(event.board, event.kind) for event in events(tmp_path)})
        run.processes["d"].send_signal(signal.SIGCONT)
        assert run.finish() == undisturbed
    assert run.senders() == ONE_SUM_A_ROUND


def replies_of(state: Path) -> list[Path]:
    """Return the replies to round 1 in the store of an agent or a relay."""
    return list(state.glob("runs/*/clients/*/reply-1.0-*"))


def test_the_broker_of_a_site_gives_the_relay_its_rights_and_the_boards_no_more(tmp_path: Path) -> None:
    with broker_tree(tmp_path / "f", {"hall": ["b", "c"]}, ["hall"]) as tree, contextlib.ExitStack() as stack:
        federation, port = tree.federation, tree.federation.record.sites["hall"].port
        relay = stack.enter_context(peer(port, "r", certs=federation.site_folder("hall") / "relay"))
        board = stack.enter_context(peer(port, "b", certs=federation.board_folder("b")))
        for one in (relay, board):
            one.subscribe(TOPICS.reply_chunk("c", 1, 1, 0, 0))
            one.subscribe(TOPICS.inbox("b"))
        other = stack.enter_context(peer(port, "c", certs=federation.board_folder("c")))
        other.publish(TOPICS.reply_chunk("c", 1, 1, 0, 0), b"reply")
        assert relay.publish(TOPICS.inbox("b"), b"receipt") in DELIVERED
        relay.wait(lambda: b"reply" in relay.payloads)
        board.wait(lambda: board.payloads == [b"receipt"])
        assert relay.payloads == [b"reply"]
        for topic in (TOPICS.run, TOPICS.presence("b"), TOPICS.reply_chunk("b", 0, 1, 0, 0), TOPICS.inbox(RELAY)):
            assert relay.publish(topic) == NOT_AUTHORIZED, topic
        for topic in (TOPICS.inbox("b"), TOPICS.inbox("c"), TOPICS.reply_chunk(RELAY, 0, 1, 0, 0)):
            assert board.publish(topic) == NOT_AUTHORIZED, topic
