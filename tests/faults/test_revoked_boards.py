"""A revoked board at a real broker: its presence goes, and its replacement hosts its clients in the same run."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.peers import Peer, federation_broker, peer
from tests.support.runs import FEDQUILT, journal_events
from tests.support.warm import ForkedProgram

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.tools.bench import bench_experiment

TOPICS = Topics("lab")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Federation]:
    """A federation with one board, while its broker runs."""
    federation = make_federation(tmp_path / "federation", "lab", ["localhost"], free_port())
    federation.provision("lost", "pi4", "0")
    with federation_broker(federation.folder, federation.record.port):
        yield federation


@contextlib.contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with ForkedProgram([*FEDQUILT, *words]) as process:
        try:
            yield process
        finally:
            process.kill()


def coordinator(made: Federation, folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a coordinator of a run with client 0 only. It finds the inventory next to its certificate."""
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(1, 1, 0.01, 1)))
    options = ("--out", str(folder / "run"), "--resume", "--no-page", *coordinator_options(made))
    return command("coordinator", str(experiment), *options)


def await_(done: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for less time than the silence after which every agent is gone."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"still waiting after {seconds} seconds"
        time.sleep(0.02)


def claim_client(board: Peer) -> None:
    here = AgentPresence(agent="lost", online=True, boot=1, clients=[0]).encode()
    board.publish(TOPICS.presence("lost"), here, retain=True)


def retained_presences(made: Federation) -> set[str]:
    """Return the topics of the presences that the broker retains."""
    return retained(made, TOPICS.presence("+"))


def retained(made: Federation, name: str) -> set[str]:
    """Return the topics that a filter matches, and on which the broker retains a message."""
    with peer(made.record.port, "watch", certs=made.folder / "watch") as watch:
        watch.subscribe(name)
        watch.subscribe(TOPICS.run)
        watch.wait(lambda: TOPICS.run in watch.topics)  # the broker sends what it retains in this order
        return set(watch.topics) - {TOPICS.run}


def test_the_log_of_a_revoked_agent_names_the_cause_and_the_remedy(
    made: Federation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, log = str(made.board_folder("lost") / "agent.yaml"), ""

    def shows(words: str) -> bool:
        nonlocal log
        log += "".join(capfd.readouterr())
        return words in log

    with command("agent", "--config", config, "--state", str(tmp_path / "state")):
        await_(lambda: shows("connected to the broker"))
        made.revoke("lost")
        await_(lambda: shows("refused this machine's certificate: it is revoked. For a board, run `fedquilt provision"))


@pytest.mark.parametrize("coordinator_runs", [True, False])
def test_what_a_revoked_board_let_the_broker_retain_is_cleared(
    made: Federation, tmp_path: Path, coordinator_runs: bool
) -> None:
    (replies,) = TOPICS.filters("replies", agent="lost")
    with contextlib.ExitStack() as stack:
        if coordinator_runs:
            stack.enter_context(coordinator(made, tmp_path))
            await_(lambda: retained(made, TOPICS.coordinator))
        with peer(made.record.port, "lost", certs=made.board_folder("lost")) as lost:
            for number in range(600):
                lost.publish(TOPICS.reply_chunk("lost", 0, number, 0, 0), b"x", retain=True)
        assert not coordinator_runs or len(retained(made, replies)) == 600
        made.revoke("lost")
        if not coordinator_runs:
            stack.enter_context(coordinator(made, tmp_path))
            await_(lambda: retained(made, TOPICS.coordinator))
        await_(lambda: not retained(made, replies))


@pytest.mark.parametrize(("coordinator_runs", "replacement"), [(True, "spare"), (False, "spare"), (True, "lost")])
def test_a_replacement_hosts_the_clients_of_a_revoked_board(
    made: Federation, tmp_path: Path, coordinator_runs: bool, replacement: str
) -> None:
    """Whether the coordinator runs when the board is revoked, or resumes its run later; also under the same name."""
    with (
        peer(made.record.port, "lost", certs=made.board_folder("lost"), keep=True) as lost,
        contextlib.ExitStack() as stack,
    ):
        process = stack.enter_context(coordinator(made, tmp_path))
        claim_client(lost)
        await_(lambda: journal_events(tmp_path / "run", "Joined"))
        assert retained_presences(made) == {TOPICS.presence("lost")}
        if not coordinator_runs:
            process.kill()
            process.wait()
        made.revoke("lost")
        if not coordinator_runs:
            process = stack.enter_context(coordinator(made, tmp_path))
        await_(lambda: journal_events(tmp_path / "run", "Left"))
        await_(lambda: not retained_presences(made))
        made.provision(replacement, "pi4", "0")
        made.reload()
        config, state = str(made.board_folder(replacement) / "agent.yaml"), str(tmp_path / "state")
        with command("agent", "--config", config, "--state", state, "--once"):
            assert process.wait(60) == 0
    assert [event["agent"] for event in journal_events(tmp_path / "run", "Replied")] == [replacement]
    # The board asks for its receipt with a second copy if the coordinator's connection breaks when the broker reloads.
    refused = [
        event["reason"] for event in journal_events(tmp_path / "run", "Rejected") if event["outcome"] != "duplicate"
    ]
    assert refused == []
