"""What an agent reports of its board's energy, memory and health: in telemetry, in replies and as notices."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agents import notices, telemetry
from tests.unit.client.test_agent_cli import agent_process

from fedquilt_client import worker as worker_module
from fedquilt_client.reports import MOST_NOTICES, NOTICE_SECONDS, NoticeLimit
from fedquilt_client.worker import Worker
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import MAX_METRICS, REPLY_KEY, NoticeMessage, ReplyHeader, Telemetry
from fedquilt_common.worker_lines import EnergyLine

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]
MEASURED = {"joules", "memory_peak"}


@pytest.fixture
def meter(tmp_path: Path) -> str:
    """A command that prints 5 W, and leaves a trace: ``asked``, and later ``asked-again``."""
    path = tmp_path / "meter"
    path.write_text(
        f"#!/bin/sh\n[ ! -e '{tmp_path}/asked' ] || again=-again\n: >'{tmp_path}/asked'$again\necho 5.0 W\n"
    )
    path.chmod(0o755)
    return str(path)


def metrics(reply: FileArrays) -> dict[str, float]:
    return ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY]).metrics


def test_replies_carry_the_energy_of_the_board(
    peer: Peer, kit: Kit, wait_for: Wait, tmp_path: Path, meter: str
) -> None:
    """The real process: each reply has joules, and the telemetry counts them."""
    with agent_process(peer.port, peer.topics.federation, tmp_path, "--power-command", meter):
        wait_for(Path(meter).with_name("asked-again").exists, "a second figure: the agent has the first one")
        peer.publish(peer.topics.run, kit.run())
        peer.open("run-1", 1, kit.blob(), [0, 1])
        for client in (0, 1):
            found = metrics(peer.reply(client, 1))
            assert 0 < found["joules"] < 5.0 * 60
            assert found["memory_peak"] > 10_000_000
        last: Telemetry = wait_for(lambda: [message for message in telemetry(peer) if message.joules], "joules")[-1]
        assert (last.power, last.power_source) == (5.0, "meter")
        assert last.memory_own is not None
        assert last.memory_own > 10_000_000
        assert last.load is not None


def test_the_figure_of_a_meters_topic_reaches_the_coordinator(peer: Peer, wait_for: Wait, tmp_path: Path) -> None:
    peer.publish("plug/watts", b"6.5")
    topic = f"mqtt://127.0.0.1:{peer.port}/plug/watts"
    with agent_process(peer.port, peer.topics.federation, tmp_path, "--power-topic", topic):
        last: Telemetry = wait_for(lambda: [message for message in telemetry(peer) if message.power], "power")[-1]
        assert (last.power, last.power_source) == (6.5, "meter")


def test_a_private_board_measures_nothing(peer: Peer, host: Host, kit: Kit, wait_for: Wait, meter: str) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host(private=True, power_command=meter):
        assert not metrics(peer.reply(0, 1)).keys() & MEASURED
        wait_for(lambda: telemetry(peer), "telemetry")
    for message in telemetry(peer):
        assert (message.memory_used, message.memory_own, message.load, message.temperature) == (None,) * 4
        assert (message.power, message.joules, message.power_source, message.throttled) == (None, None, "", None)
    assert not Path(meter).with_name("asked").exists()


# What comes into a reply


def do(job: Any, joules: float | None) -> dict[str, float]:
    """Return the metrics of the reply to a job, whose energy the agent answers."""
    out = io.StringIO()
    worker = Worker(out)
    worker.energies.put(EnergyLine(energy=job.number + 1, joules=99.0))  # an answer to another job
    worker.energies.put(EnergyLine(energy=job.number, joules=joules))
    worker.do(job)
    events = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert events == ["trained", "done"]
    return metrics(FileArrays(job.reply))


def test_the_energy_of_a_job(kit: Kit) -> None:
    found = do(kit.job(kit.run(), measured=True, metered=True), 2.5)
    assert found["joules"] == 2.5
    assert found["memory_peak"] > 10_000_000


def test_the_energy_of_a_short_job_follows_from_its_power(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process does not wait for the agent."""
    monkeypatch.setattr(worker_module, "QUICK_SECONDS", 60.0)
    out = io.StringIO()
    job = kit.job(kit.run(), measured=True, metered=True, watts=1e6)
    began = time.monotonic()
    Worker(out).do(job)
    seconds = time.monotonic() - began
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["done"]
    assert 0 < metrics(FileArrays(job.reply))["joules"] < 1e6 * seconds


def test_the_agent_knows_the_energy_of_a_long_job(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "QUICK_SECONDS", 0.0)
    assert do(kit.job(kit.run(), measured=True, metered=True, watts=1e6), 2.5)["joules"] == 2.5


def test_an_unknown_energy_is_left_out(kit: Kit) -> None:
    assert "joules" not in do(kit.job(kit.run(), measured=True, metered=True), None)


def test_nobody_is_asked_for_an_energy_that_is_unknown(kit: Kit) -> None:
    """The process would wait for the agent after each job."""
    out = io.StringIO()
    job = kit.job(kit.run(), measured=True)
    Worker(out).do(job)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["done"]
    assert metrics(FileArrays(job.reply)).keys() & MEASURED == {"memory_peak"}


def test_a_job_of_which_nothing_is_measured(kit: Kit) -> None:
    out = io.StringIO()
    job = kit.job(kit.run())
    Worker(out).do(job)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["done"]
    assert not metrics(FileArrays(job.reply)).keys() & MEASURED


def test_the_algorithms_own_metric_stays(kit: Kit) -> None:
    code = "reply = super().work(task, ctx)\nreturn Reply(reply.arrays, reply.weight, {'joules': 7.0})"
    run = kit.run(algorithm={"name": kit.package("thrifty", code)})
    found = do(kit.job(run, measured=True, metered=True, allowed=["thrifty"]), 2.5)
    assert found["joules"] == 7.0
    assert found["memory_peak"] > 0


@pytest.mark.parametrize(("own", "added"), [(MAX_METRICS, 0), (MAX_METRICS - 1, 1), (MAX_METRICS - 2, 2)])
def test_the_metrics_never_become_too_many(own: int, added: int, kit: Kit) -> None:
    code = (
        "reply = super().work(task, ctx)\n"
        f"return Reply(reply.arrays, reply.weight, {{str(i): 0.0 for i in range({own})}})"
    )
    name = f"talkative_{own}"
    found = do(
        kit.job(kit.run(algorithm={"name": kit.package(name, code)}), measured=True, metered=True, allowed=[name]), 2.5
    )
    assert len(found) == own + added
    assert len(found.keys() & MEASURED) == added


# Notices


def test_a_training_process_that_dies_is_noticed(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = f"if not os.path.exists('{tmp_path}/died'):\n    Path('{tmp_path}/died').touch()\n    os._exit(9)"
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("mortal", code)}))
    peer.open("run-1", 1, kit.blob(), [0])
    with host(clients=(0,), allow_import=("mortal",)):
        peer.reply(0, 1)
        found: NoticeMessage = wait_for(lambda: notices(peer), "a notice")[0]
    text = "client 0, round 1: the training process ended with exit code 9; starting it again"
    assert (found.kind, found.text, found.agent) == ("worker-restarted", text, "board")
    assert (found.run, found.client, found.round, found.exchange) == ("run-1", 0, 1, 0)
    assert text in caplog.text
    assert telemetry(peer)  # a notice is no telemetry


def test_running_out_of_memory_is_noticed(peer: Peer, host: Host, kit: Kit, wait_for: Wait, tmp_path: Path) -> None:
    code = (
        f"if not os.path.exists('{tmp_path}/full'):\n"
        f"    Path('{tmp_path}/full').touch()\n    ctx.on_need(1 << 20)\n    raise MemoryError"
    )
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("hungry", code)}))
    peer.open("run-1", 1, kit.blob(), [0])
    with host(clients=(0,), allow_import=("hungry",)):
        peer.reply(0, 1)
        found: NoticeMessage = wait_for(lambda: notices(peer), "a notice")[0]
    assert found.kind == "out-of-memory"
    assert "from now on this board trains only sub-models below 1 MiB" in found.text


def test_notices_are_limited() -> None:
    limit = NoticeLimit()
    assert [limit.allows(second) for second in range(100)] == [
        second % NOTICE_SECONDS < MOST_NOTICES for second in range(100)
    ]


def test_an_agent_in_a_loop_does_not_flood(peer: Peer, host: Host, kit: Kit, wait_for: Wait, tmp_path: Path) -> None:
    """Twelve notices arise; the log has all of them."""
    code = (
        f"n = len(os.listdir('{tmp_path}/seen'))\n"
        f"if n < 12:\n    Path('{tmp_path}/seen', str(n)).touch()\n    ctx.on_need(1 << 20)\n    raise MemoryError"
    )
    (tmp_path / "seen").mkdir()
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("greedy", code)}))
    peer.open("run-1", 1, kit.blob(), [0])
    begun = time.monotonic()
    with host(clients=(0,), allow_import=("greedy",)):
        peer.reply(0, 1)
        wait_for(lambda: notices(peer), "a notice")
    periods = 1 + int((time.monotonic() - begun) // NOTICE_SECONDS)
    assert len(notices(peer)) <= MOST_NOTICES * periods
