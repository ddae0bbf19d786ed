"""``fedquilt watch`` as a program: real pages, a real broker, a run folder, pipes and a real terminal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.support import warm
from tests.support.peers import bare_broker, peer, running
from tests.support.screens import on_screen
from tests.support.visitors import stops_at_once
from tests.support.warm import ForkedProgram

from fedquilt_common.files.locking import lock_folder
from fedquilt_common.wire.messages import AgentPresence, CoordinatorPresence, EndMessage, ReceiptMessage, RunMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.fleet import listener
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.runs.page_address import PageAddress, note_page
from fedquilt_server.simulate.mosquitto import broker_command, free_port
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.snapshot import BoardStatus, RunPhase, Snapshot, StatusStore
from fedquilt_server.web.server import PageServer

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
ROWS = [RoundResult.model_validate({**ZEROS, "round": n, "accuracy": 0.1 * n, "loss": 1.0}) for n in range(1, 6)]
RUN = Snapshot(
    name="demo", run="demo-1", algorithm="fedavg", dataset="digits", phase="training", broker_connected=True, round=3,
    rounds=5, tasks=8, replies=5, awaited=[1, 2, 3], history=ROWS[:2], boards=[BoardStatus(agent="pi-1", clients=[0])],
)  # fmt: skip
WATCH = ("fedquilt_common.cli", "watch")


@contextmanager
def watching(*options: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """``fedquilt watch`` in a pipe; yields the process and its lines."""
    argv = [sys.executable, "-m", *WATCH, *options]
    with (
        mock.patch.object(listener, "STORED_SECONDS", 1e6),  # the fork keeps it
        ForkedProgram(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            process.kill()


def run_watch(*options: str) -> subprocess.CompletedProcess[str]:
    return warm.fedquilt("watch", *options, where=Path.cwd())


@pytest.fixture
def store() -> StatusStore:
    return StatusStore(RUN)


@pytest.fixture
def page(store: StatusStore) -> Iterator[PageServer]:
    with PageServer(store) as server:
        yield server


@pytest.mark.parametrize(("phase", "code"), [("finished", 0), ("failed", 7), ("stopped", 7)])
def test_a_line_for_each_change_until_the_end(phase: RunPhase, code: int, store: StatusStore, page: PageServer) -> None:
    with watching(page.url, "--json") as (process, lines):
        first = json.loads(next(lines))
        assert (first["source"], first["trouble"], first["replies"]) == (page.url, "", 5)
        assert [row["round"] for row in first["history"]] == [1, 2]
        store.update(history=ROWS[:3], replies=0)
        second = json.loads(next(lines))
        assert ([row["round"] for row in second["history"]], second["replies"]) == ([3], 0)
        store.update(phase=phase, message="the reason")
        assert json.loads(next(lines))["phase"] == phase
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("the reason" in err) == (code != 0)


def test_it_sees_the_end_of_a_page_that_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = StatusStore(RUN)
    with PageServer(store) as server, watching(server.url, "--json") as (process, lines):
        assert json.loads(next(lines))["phase"] == "training"
        store.update(phase="finished", history=ROWS)
        assert stops_at_once(server, monkeypatch)
        last = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    assert (process.returncode, last["phase"], last["history"][-1]["round"]) == (0, "finished", 5)


def test_a_pipe_gets_a_line_for_each_round(store: StatusStore, page: PageServer) -> None:
    with watching(page.url) as (process, lines):
        assert next(lines) == "round 1/5: accuracy 0.1000, 0.00 s\n"
        assert next(lines) == "round 2/5: accuracy 0.2000, 0.00 s\n"
        store.update(history=ROWS[:3])
        assert next(lines) == "round 3/5: accuracy 0.3000, 0.00 s\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_it_reconnects_and_follows_the_next_run() -> None:
    port = free_port()
    with watching(f"127.0.0.1:{port}", "--json") as (_, lines):
        assert f"no status page answers at http://127.0.0.1:{port}" in json.loads(next(lines))["trouble"]
        with PageServer(StatusStore(RUN), port=port):
            assert len(next(state for state in map(json.loads, lines) if not state["trouble"])["history"]) == 2
        gone = next(state for state in map(json.loads, lines) if state["trouble"])
        assert (gone["run"], gone["history"]) == ("demo-1", [])
        with PageServer(StatusStore(RUN.model_copy(update={"run": "demo-2", "history": ROWS[:1]})), port=port):
            back = next(state for state in map(json.loads, lines) if not state["trouble"])
        assert (back["run"], [row["round"] for row in back["history"]]) == ("demo-2", [1])


def test_once(page: PageServer) -> None:
    done = run_watch(page.url, "--once")
    assert done.returncode == 0, done.stderr
    assert "Round 3/5" in done.stdout
    assert "pi-1   online  0" in done.stdout
    assert "\x1b" not in done.stdout
    assert json.loads(run_watch(page.url, "--once", "--json").stdout)["run"] == "demo-1"


def test_once_without_a_page() -> None:
    done = run_watch(f"http://127.0.0.1:{free_port()}", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("fedquilt: no status page answers at http://127.0.0.1:")
    assert "a run folder" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["http://page", "--broker", "mqtt://localhost"], 4, "give a page or folder, or a broker, not both"),
        (["tests", "--once"], 6, "tests holds no result.json, so there is no run to watch; name a run folder"),
        (
            ["--broker", "mqtt://localhost", "--federation", "a/b"],
            4,
            "--federation: federation 'a/b' cannot be used",
        ),
    ],
)
def test_what_cannot_be_watched(options: list[str], code: int, words: str) -> None:
    done = run_watch(*options)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_a_folder_leads_to_its_page_and_shows_its_end_without_one(tmp_path: Path) -> None:
    def write(**changes: Any) -> None:
        known = {"name": "demo", "run": "demo-1", "algorithm": "fedavg", "dataset": "digits", "seed": 1, "rounds": ROWS}
        new = tmp_path / "new"
        new.write_text(Result.model_validate({**known, **changes}).model_dump_json())
        new.replace(tmp_path / "result.json")

    (tmp_path / "experiment.yaml").write_text("rounds: 5\n")
    write(status="running", rounds=ROWS[:1])
    with lock_folder(tmp_path), watching(str(tmp_path), "--json") as (process, lines):
        first = json.loads(next(lines))
        assert (first["source"], first["phase"], first["rounds"]) == (str(tmp_path), "training", 5)
        assert "No page answers" in first["unknown"]
        with PageServer(StatusStore(RUN)) as server:
            note_page(tmp_path, PageAddress(url=server.url, run="demo-1"))
            second = json.loads(next(lines))
            assert (second["source"], second["replies"], second["unknown"]) == (server.url, 5, "")
        assert json.loads(next(lines))["source"] == str(tmp_path)
        write(status="finished")
        last = json.loads(next(lines))
        assert (last["phase"], last["unknown"], last["history"][-1]["round"]) == ("finished", "", 5)
        assert process.wait(60) == 0


def test_the_address_of_a_page_that_has_ended_gets_no_request(tmp_path: Path) -> None:
    known = {"name": "demo", "run": "demo-1", "algorithm": "fedavg", "dataset": "digits", "seed": 1, "rounds": ROWS}
    (tmp_path / "result.json").write_text(Result.model_validate({**known, "status": "finished"}).model_dump_json())
    with socket.create_server(("127.0.0.1", 0)) as other:
        note_page(tmp_path, PageAddress(url=f"http://127.0.0.1:{other.getsockname()[1]}/", run="demo-1"))
        assert run_watch(str(tmp_path), "--once", "--json").returncode == 0
        other.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_run_that_was_killed_is_interrupted(tmp_path: Path) -> None:
    known = {"name": "demo", "run": "demo-1", "algorithm": "fedavg", "dataset": "digits", "seed": 1, "rounds": ROWS}
    (tmp_path / "result.json").write_text(Result.model_validate({**known, "status": "running"}).model_dump_json())
    done = run_watch(str(tmp_path), "--json")
    state = json.loads(done.stdout)
    assert (state["phase"], state["round"], done.returncode) == ("interrupted", 5, 7)
    assert "the run was interrupted: the coordinator was killed" in done.stderr
    assert "run the same command again" in state["message"]


def test_the_page_of_another_run_is_not_shown(tmp_path: Path, page: PageServer) -> None:
    note_page(tmp_path, PageAddress(url=page.url, run="demo-0"))
    known = {"name": "old", "run": "demo-0", "algorithm": "fedavg", "dataset": "digits", "seed": 1, "rounds": ROWS}
    (tmp_path / "result.json").write_text(Result.model_validate({**known, "status": "finished"}).model_dump_json())
    assert json.loads(run_watch(str(tmp_path), "--json").stdout)["name"] == "old"


def test_over_a_broker(tmp_path: Path) -> None:
    port, topics = free_port(), Topics("lab")
    experiment = {"name": "x", "rounds": 9, "data": {"set": "digits", "clients": 2}, "algorithm": {"name": "fedavg"}}
    with running(broker_command(tmp_path, port), port), peer(port, "test") as client:
        presence = CoordinatorPresence(online=True, epoch=1, run="x-1")
        client.publish(topics.coordinator, presence.encode(), retain=True)
        client.publish(topics.run, RunMessage(run="x-1", experiment=experiment).encode(), retain=True)
        with watching("--broker", f"mqtt://127.0.0.1:{port}", "--federation", "lab", "--json") as (process, lines):
            first = json.loads(next(lines))
            assert (first["name"], first["awaited"], first["source"]) == (
                "x", [0, 1], f"mqtt://127.0.0.1:{port}, federation lab",
            )  # fmt: skip
            assert first["unknown"].startswith("MQTT shows no scores")
            joined = AgentPresence(agent="pi", online=True, boot=1, clients=[0])
            client.publish(topics.presence("pi"), joined.encode(), retain=True)
            assert json.loads(next(lines))["awaited"] == [1]
            client.publish(topics.end, EndMessage(run="x-1", reason="all rounds are done").encode(), retain=True)
            assert json.loads(next(lines))["phase"] == "finished"
            assert process.wait(60) == 0


def test_the_identity_watch_has_the_rights_for_it(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "federation", "lab", ["localhost"], free_port())
    federation.provision("pi", "pi4")
    port, topics, own = federation.record.port, Topics("lab"), federation.folder / "watch"
    receipt = ReceiptMessage(run="x-1", client=0, round=1, exchange=0, digest="0" * 64, outcome="late")
    files = ["--ca", f"{own}/ca.crt", "--cert", f"{own}/tls.crt", "--key", f"{own}/tls.key"]
    with (
        bare_broker(federation.folder, port),
        peer(port, "test-coordinator", certs=federation.folder / "coordinator") as client,
    ):
        presence = CoordinatorPresence(online=True, epoch=1, run="x-1")
        client.publish(topics.coordinator, presence.encode(), retain=True)
        with watching("--broker", f"mqtts://localhost:{port}", "--federation", "lab", *files, "--json") as (_, lines):
            assert json.loads(next(lines))["broker_connected"] is True
            client.publish(topics.inbox("pi"), receipt.encode())
            assert json.loads(next(lines))["late"] == 1


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (60, 20)])
def test_a_terminal_follows_the_run_and_keeps_its_last_state(
    columns: int, rows: int, store: StatusStore, page: PageServer
) -> None:
    with on_screen(*WATCH, page.url, columns=columns, rows=rows) as screen:
        screen.wait_for(lambda text: "5/8 replies" in text)
        assert screen.lines[0] == "demo: fedavg on digits"
        assert len(screen.lines) <= rows
        store.update(replies=6, awaited=[1, 2])
        screen.wait_for(lambda text: "6/8 replies" in text)
        store.update(phase="finished", history=ROWS, message="all rounds are done")
        assert screen.finish() == 0
        assert "Round 5/5" in screen.text
        assert b"\x1b[?1049l" in screen.raw  # it has left the other screen


def test_ctrl_c_ends_it_while_the_page_hangs() -> None:
    """The page accepts the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with on_screen(*WATCH, url, columns=80, rows=24) as screen:
            screen.wait_for(lambda text: "Connecting" in text)
            connection, _ = server.accept()
            with connection:
                screen.press(b"\x03")
                assert screen.finish() == 130
