"""A tree of three real brokers: lines are cut, a site's broker is killed, and a site retains what is out of date."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.line import line
from tests.support.peers import DELIVERED, NOT_AUTHORIZED, peer
from tests.support.round_gate import RoundGate
from tests.support.runs import FEDQUILT, PATIENCE
from tests.support.sites import BrokerTree, broker_tree
from tests.support.warm import ForkedProgram

from fedquilt_common import cli
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Connected, Incoming, Will
from fedquilt_server.history.log_files import read_events
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.tools.bench import bench_experiment

TOPICS = Topics("lab")
BOARDS = ("a", "b", "c")
ROUNDS = 8


@contextlib.contextmanager
def run_with(
    tree: BrokerTree, folder: Path, rounds: int = ROUNDS, gate: RoundGate | None = None
) -> Iterator[ForkedProgram]:
    """Run a coordinator at the central broker, and all agents; yields the coordinator."""
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(3, 3, 0.5, rounds)))
    options = ["--out", str(folder / "run"), "--no-page", *coordinator_options(tree.federation)]
    with contextlib.ExitStack() as stack:
        programs = []
        for words in (["coordinator", str(experiment), *options], *(agent(tree, folder, name) for name in BOARDS)):
            programs.append(ForkedProgram([*FEDQUILT, *words], preexec_fn=gate.install if gate else None))
            stack.callback(programs[-1].wait)
            stack.callback(programs[-1].kill)
        yield programs[0]


def agent(tree: BrokerTree, folder: Path, name: str) -> list[str]:
    config = tree.federation.board_folder(name) / "agent.yaml"
    return ["agent", "--config", str(config), "--state", str(folder / name)]


def finished_rounds(folder: Path) -> list[Any]:
    path = folder / "run" / "result.json"
    rounds: list[Any] = json.loads(path.read_text())["rounds"] if path.exists() else []
    return rounds


def wait(done: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.02)


def events(folder: Path) -> list[RunEvent]:
    """Return the events so far; none while there is no file."""
    return read_events(folder / "run" / "events.jsonl")


def texts(folder: Path) -> list[str]:
    """Return the texts of the run's events so far."""
    return [event.text for event in events(folder)]


def user(tree: BrokerTree, name: str) -> Path:
    return tree.federation.folder / name


def ports(tree: BrokerTree, site: str) -> tuple[int, int]:
    """Return the ports of the central broker and of a site's."""
    return tree.federation.record.port, tree.federation.record.sites[site].port


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "run" / "global.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the global model of the same run with one broker."""
    folder = tmp_path_factory.mktemp("one-broker")
    with broker_tree(folder / "f", {"": BOARDS}) as tree, run_with(tree, folder) as coordinator:
        assert coordinator.wait(PATIENCE) == 0
    return sha256(folder)


def test_a_run_through_two_sites_ends_with_the_same_bits_despite_cuts_and_a_killed_broker(
    tmp_path: Path, undisturbed: str
) -> None:
    gate = RoundGate(tmp_path / "gate")
    with (
        broker_tree(tmp_path / "f", {"": ["a"], "hall": ["b"], "roof": ["c"]}) as tree,
        run_with(tree, tmp_path, gate=gate) as coordinator,
    ):
        gate.finish_round(tmp_path, 1)
        with tree.lines["hall"].cut():
            wait(lambda: "Site hall is cut off (1 board behind it)" in texts(tmp_path))
        tree.kill("roof")
        wait(lambda: "Site roof is cut off (1 board behind it)" in texts(tmp_path))
        wait(lambda: len(finished_rounds(tmp_path)) == 1)
        tree.start("roof")
        gate.open()
        assert coordinator.wait(PATIENCE) == 0
    assert [(row["clients"], row["rejected"]) for row in finished_rounds(tmp_path)] == [(3, 0)] * ROUNDS
    assert sha256(tmp_path) == undisturbed
    for site in ("hall", "roof"):
        assert f"Site {site} is connected again (1 board behind it)" in texts(tmp_path)


def test_what_a_site_retains_of_an_earlier_run_disturbs_nothing(tmp_path: Path, undisturbed: str) -> None:
    """The central broker forgets it while the line is cut, so the site does not learn that it is out of date."""
    with (
        broker_tree(tmp_path / "f", {"": ["a"], "hall": ["b"], "roof": ["c"]}) as tree,
        contextlib.ExitStack() as stack,
    ):
        watch, site = (stack.enter_context(peer(port, "w", certs=user(tree, "watch"))) for port in ports(tree, "hall"))
        (tmp_path / "old").mkdir()
        watch.subscribe(TOPICS.run)
        watch.subscribe(TOPICS.round)
        with run_with(tree, tmp_path / "old", rounds=1) as coordinator:
            assert coordinator.wait(PATIENCE) == 0
        watch.wait(lambda: (TOPICS.run, b"") in zip(watch.topics, watch.payloads, strict=True))
        old = {topic: payload for topic, payload in zip(watch.topics, watch.payloads, strict=True) if payload}
        assert set(old) == {TOPICS.run, TOPICS.round}
        stale = {**old, TOPICS.slot_chunk("slices/0", 0): b"stale", TOPICS.slot_chunk("slices/7", 3): b"stale"}
        author = stack.enter_context(peer(tree.federation.record.port, "x", certs=user(tree, "coordinator")))
        for topic, payload in stale.items():
            author.publish(topic, payload, retain=True)
        retained = TOPICS.slot_chunk("slices/7", 3)
        site.subscribe(retained)
        site.wait(lambda: b"stale" in site.payloads)
        with tree.lines["hall"].cut():
            for topic in stale:
                author.publish(topic, b"", retain=True)
            program = stack.enter_context(run_with(tree, tmp_path))
            wait(lambda: (tmp_path / "run" / "journal.sqlite").exists())
            time.sleep(1)
        assert program.wait(PATIENCE) == 0
        late = stack.enter_context(peer(tree.federation.record.sites["hall"].port, "l", certs=user(tree, "watch")))
        late.subscribe(retained)
        late.wait(lambda: late.payloads == [b"stale"])
    assert sha256(tmp_path) == undisturbed


def test_a_wrong_certificate_is_named_and_costs_no_message(
    tmp_path: Path, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_tree(tmp_path / "f", {"": ["a", "b"], "hall": ["c"]}) as tree:
        folder, record = tree.federation.site_folder("hall"), tree.federation.record
        right = {name: (folder / name).read_text() for name in ("bridge.crt", "bridge.key")}
        other = make_federation(tmp_path / "other", "other", ["localhost"])
        other.add_site("hall", ["localhost"])
        for name in right:
            (folder / name).write_text((other.site_folder("hall") / name).read_text())
        tree.kill("hall")
        tree.start("hall")
        files = [
            f"--{option}={folder / name}"
            for option, name in (("ca", "ca.crt"), ("cert", "bridge.crt"), ("key", "bridge.key"))
        ]
        doctor = ["doctor", "--broker", f"mqtts://localhost:{record.port}", "--federation", "lab", *files]
        assert cli.run(doctor) != 0
        assert "refused this machine's certificate" in " ".join(capsys.readouterr().out.split())
        with run_with(tree, tmp_path) as coordinator:
            wait(lambda: (tmp_path / "run" / "journal.sqlite").exists())
            time.sleep(1)
            for name, text in right.items():
                (folder / name).write_text(text)
            cli.run(doctor)
            assert "site-hall may write in the federation 'lab'" in " ".join(capsys.readouterr().out.split())
            tree.kill("hall")
            tree.start("hall")
            assert coordinator.wait(PATIENCE) == 0
    assert sha256(tmp_path) == undisturbed


def test_a_model_crosses_a_line_once_however_many_boards_are_behind_it(tmp_path: Path) -> None:
    size = 200_000
    with (
        broker_tree(tmp_path / "f", {"hall": BOARDS}) as tree,
        contextlib.ExitStack() as stack,
    ):
        _, near = ports(tree, "hall")
        boards = [stack.enter_context(peer(near, name, certs=tree.federation.board_folder(name))) for name in BOARDS]
        for board in boards:
            board.subscribe(TOPICS.slot_chunks("slices/0"))
        author = stack.enter_context(peer(tree.federation.record.port, "x", certs=user(tree, "coordinator")))
        author.subscribe(TOPICS.site("hall"))
        author.wait(lambda: b"1" in author.payloads)
        used = tree.lines["hall"]
        up, down = used.up, used.down
        author.publish(TOPICS.slot_chunk("slices/0", 0), bytes(size), retain=True)
        for board in boards:
            board.wait(lambda board=board: board.payloads == [bytes(size)])
        assert size < used.down - down < 1.05 * size
        assert used.up - up < 2_000  # acknowledgements: nothing comes back


def test_the_will_of_a_board_crosses_the_line_even_if_the_line_was_cut(tmp_path: Path) -> None:
    with broker_tree(tmp_path / "f", {"hall": ["a", "b"]}) as tree, contextlib.ExitStack() as stack:
        central, near = ports(tree, "hall")
        watch = stack.enter_context(peer(central, "w", certs=user(tree, "watch")))
        watch.subscribe(TOPICS.presence("+"))
        access = {name: stack.enter_context(line(near)) for name in ("a", "b")}
        for name, made in access.items():
            join_with_will(stack, tree, name, made.port)
        watch.wait(lambda: watch.payloads.count(b"here") == 2)
        with access["a"].cut():
            watch.wait(lambda: (TOPICS.presence("a"), b"gone") in zip(watch.topics, watch.payloads, strict=True))
            with tree.lines["hall"].cut(), access["b"].cut():
                time.sleep(0.5)
                assert watch.payloads.count(b"gone") == 1
            watch.wait(lambda: (TOPICS.presence("b"), b"gone") in zip(watch.topics, watch.payloads, strict=True))


def join_with_will(stack: contextlib.ExitStack, tree: BrokerTree, name: str, port: int) -> None:
    """Connect a board with a will through its own line, and publish its presence."""
    files = [str(tree.federation.board_folder(name) / file) for file in ("ca.crt", "tls.crt", "tls.key")]
    address = parse_broker_url(f"mqtts://localhost:{port}").with_files(*files)
    arrived: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    board = MqttTransport(address, name, arrived.put, will=Will(TOPICS.presence(name), b"gone"), session_expiry=0)
    stack.callback(board.close)
    board.connect()
    assert isinstance(arrived.get(timeout=PATIENCE), Connected)
    board.publish(TOPICS.presence(name), b"here", retain=True)


def test_the_central_broker_gives_a_bridge_the_rights_of_its_boards_only(tmp_path: Path) -> None:
    with broker_tree(tmp_path / "f", {"": ["a"], "hall": ["b"]}) as tree:
        folder, certs = tree.federation.site_folder("hall"), tmp_path / "bridge"
        certs.mkdir()
        for source, name in (("ca.crt", "ca.crt"), ("bridge.crt", "tls.crt"), ("bridge.key", "tls.key")):
            (certs / name).write_bytes((folder / source).read_bytes())
        with peer(tree.federation.record.port, "x", certs=certs) as bridge:
            assert bridge.publish(TOPICS.presence("b")) in DELIVERED
            for topic in (TOPICS.presence("a"), TOPICS.run, TOPICS.inbox("b"), TOPICS.site("roof")):
                assert bridge.publish(topic) == NOT_AUTHORIZED, topic
