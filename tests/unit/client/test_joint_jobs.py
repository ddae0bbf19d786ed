"""Joint jobs: which tasks they do together, the sum that comes out, and what happens if one of the tasks fails."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.agents import failures
from tests.unit.client.conftest import Host, Kit, Peer

from fedquilt_client import joint_jobs, worker
from fedquilt_client.current_run import CurrentRun
from fedquilt_client.joint_jobs import JointJobs
from fedquilt_client.records import JointReply
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import RunStore
from fedquilt_client.tasks import OpenTask, make_job, open_tasks
from fedquilt_client.worker import Worker
from fedquilt_client.worker_pool import JobFinished
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.codec import open_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, SumHeader
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.worker_lines import DoneLine, EnergyLine

MEMBERS = [(client, f"{client}" * 16) for client in (0, 2, 3)]


def do(job: Job, *cancelled: int) -> dict[str, Any]:
    out = io.StringIO()
    process = Worker(out)
    process.cancelled.update(cancelled)
    process.do(job)
    event: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return event


# -- the training process -------------------------------------------------------------------------


@pytest.mark.parametrize("up", ["fp32", "fp16"])
def test_a_joint_job_writes_the_sum_of_the_replies_of_single_ones(kit: Kit, up: str) -> None:
    run = kit.run(wire={"up": up, "down": "fp32"}, exact_sums=True)
    patch = kit.blob()
    singles = [kit.job(run, client, [patch.path], fingerprint=fingerprint) for client, fingerprint in MEMBERS]
    for job in singles:
        assert do(job)["event"] == "done"
    joint = kit.job(run, 0, [patch.path], members=MEMBERS)
    event = do(joint)
    assert (event["event"], event["done"], event["memoryless"]) == ("done", 3, True)

    replies = [open_arrays(job.reply) for job in singles]
    headers = [ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY]) for reply in replies]
    members = [SumMember(one.client, one.task, one.weight, one.metrics) for one in headers]
    path = kit.folder / "expected"
    write_partial_sum(
        path, SumHeader(run="run-1", round=1, exchange=0, base=patch.digest), members, replies, open_arrays(patch.path)
    )
    found, expected = PartialSum(open_arrays(joint.reply)), PartialSum(open_arrays(path))
    assert {name: x.tobytes() for name, x in found.items()} == {name: x.tobytes() for name, x in expected.items()}
    assert found.header == expected.header
    found.check_members()
    assert [(one.client, one.task, one.weight) for one in found.members] == [
        (one.client, one.task, one.weight) for one in members
    ]
    assert [one.metrics.keys() for one in found.members] == [one.metrics.keys() for one in members]


def test_a_joint_job_ends_early_if_its_tasks_take_long(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "JOINT_SECONDS", 0.0)
    job = kit.job(kit.run(exact_sums=True), 0, members=MEMBERS)
    assert do(job)["done"] == 2, "the coordinator accepts no sum of one reply"
    assert [one.client for one in PartialSum(open_arrays(job.reply)).members] == [0, 2]


def test_a_joint_job_can_be_cancelled_between_its_tasks(kit: Kit) -> None:
    job = kit.job(kit.run(exact_sums=True), 0, members=MEMBERS)
    assert do(job, job.number)["event"] == "cancelled"


def test_a_joint_job_whose_clients_keep_memory_against_their_word_fails(kit: Kit) -> None:
    name = kit.package("keeping", "ctx.memory['x'] = task.arrays['weight']")
    job = kit.job(kit.run(algorithm={"name": name}), 0, members=MEMBERS, allowed=["keeping"])
    event = do(job)
    assert event["event"] == "failed"
    assert "declares private_memory=False" in event["reason"]


def test_each_member_has_the_energy_of_its_own_task(kit: Kit) -> None:
    """The agent knows that of the job up to now."""
    job = kit.job(kit.run(exact_sums=True), 0, members=MEMBERS, measured=True, metered=True)
    out = io.StringIO()
    process = Worker(out)
    for total in (2.0, 5.0, 5.5):
        process.energies.put(EnergyLine(energy=job.number, joules=total))
    process.do(job)
    asked = [line for line in map(json.loads, out.getvalue().splitlines()) if line["event"] == "trained"]
    assert len(asked) == 3
    assert [one.metrics["joules"] for one in PartialSum(open_arrays(job.reply)).members] == [2.0, 3.0, 0.5]


# -- which tasks are done together ----------------------------------------------------------------


class Desk:
    """Divides the tasks of a manifest for clients of an agent."""

    def __init__(self, folder: Path, *, relay: bool = True, workers: int = 1) -> None:
        self.joint = JointJobs(AgentSettings("board", tuple(range(200)), folder, relay=relay, workers=workers))
        self.store = SimpleNamespace(is_memoryless=True)
        self.samples = SimpleNamespace(job_data=lambda _: None)
        self.run = CurrentRun(cast(RunStore, self.store), cast(Any, None), cast(Any, None), cast(Any, self.samples))

    def tasks(self, clients: int, size: int = 1000, *, summed: bool = True) -> list[OpenTask]:
        patch = PatchMessage(slot=0, digest="a" * 64, size=size)
        task = TaskMessage(clients=list(range(clients)), kind="train", patches=[0], summed=summed)
        message = RoundMessage(run="run", round=1, exchange=0, patches=[patch], tasks=[task])
        assert self.run.manifest.take(message, retained=False)
        return open_tasks(message, range(clients))

    def note(self, seconds: float, kit: Kit, **changes: Any) -> None:
        job = kit.job(kit.run(), 0, **changes)
        result = DoneLine(number=job.number, digest="d" * 64, size=1, memoryless=True, done=len(job.members))
        self.joint.note(JobFinished(job, result, seconds))

    def divide(self, tasks: list[OpenTask], *pending: str) -> list[int]:
        """Return the number of tasks of each job, while jobs of other kinds are pending."""
        jobs = self.joint.divide(self.run, tasks, [cast(Job, SimpleNamespace(kind=kind)) for kind in pending])
        return [len(job) for job in jobs]


def test_the_first_tasks_of_a_kind_show_how_long_it_takes(kit: Kit, tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=2)
    tasks = desk.tasks(10)
    assert desk.divide(tasks) == [1, 1]
    assert desk.divide(tasks, "train", "other") == [1]
    assert desk.divide(tasks, "train", "train") == []
    desk.note(0.02, kit)
    assert desk.divide(tasks) == [5, 5]
    desk.note(0.09, kit, members=MEMBERS)  # three tasks, 0.03 s each
    assert desk.divide(tasks) == [3, 3, 3, 1]
    desk.note(5.0, kit)
    assert desk.divide(tasks) == [1] * 10


def test_a_joint_job_has_limits(kit: Kit, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.note(1e-9, kit)
    assert max(desk.divide(desk.tasks(200))) == joint_jobs.MOST_TASKS
    assert desk.divide(desk.tasks(4, size=4 * joint_jobs.BYTES_PER_TASK)) == [4]
    assert desk.divide(desk.tasks(4, size=4 * joint_jobs.BYTES_PER_TASK + 1)) == [1] * 4
    large = joint_jobs.MOST_TASKS * joint_jobs.BYTES_PER_TASK
    assert desk.divide(desk.tasks(joint_jobs.MOST_TASKS + 2, size=large)) == [joint_jobs.MOST_TASKS, 1, 1]


def test_tasks_that_must_stay_apart_have_jobs_of_their_own(kit: Kit, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.note(1e-9, kit)
    tasks = desk.tasks(6)
    assert desk.divide(tasks) == [6]
    desk.run.apart.add(tasks[2].id)
    assert desk.divide(tasks) == [2, 1, 3]
    assert desk.divide(desk.tasks(3, summed=False)) == [1, 1, 1]
    tasks = desk.tasks(3)
    desk.samples.job_data = lambda client: client == 1 or None
    assert desk.divide(tasks) == [1, 1, 1]
    desk.samples.job_data = lambda _: None
    desk.store.is_memoryless = False
    assert desk.divide(tasks) == [1, 1, 1]


def test_a_joint_job_has_its_tasks_in_client_order(kit: Kit, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.note(1e-9, kit)
    (job,) = desk.joint.divide(desk.run, desk.tasks(5)[::-1], [])
    assert [task.client for task in job] == [0, 1, 2, 3, 4]


def test_an_agent_that_adds_nothing_up_has_no_joint_jobs(kit: Kit, tmp_path: Path) -> None:
    desk = Desk(tmp_path, relay=False)
    assert desk.divide(desk.tasks(3)) == [1, 1, 1]


def test_whether_clients_keep_memory_is_known_after_a_restart(kit: Kit, tmp_path: Path) -> None:
    def start() -> RunStore:
        return RunStore(tmp_path / "runs" / "run-1", kit.run())

    assert not start().is_memoryless
    start().note_memory(kept=False)
    store = start()
    assert store.is_memoryless
    store.note_memory(kept=True)
    store.note_memory(kept=False)
    assert not store.is_memoryless
    assert not start().is_memoryless


def test_joint_replies_to_tasks_that_are_over_are_deleted(kit: Kit, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs" / "run-1", kit.run())
    held = []
    for number, (clients, task) in enumerate([((0, 1), "a"), ((2, 3), "b")]):
        path, ids = store.drafts(number).reply, ("run-1", clients[0], 1, 0, task)
        path.write_bytes(b"sum")
        held.append(store.hold(JointReply(*ids, path.name, "d" * 64, 3, clients=clients, tasks=(task, task))))
    assert store.reply(1, 1, 0, "a") == held[0]
    assert store.reply(1, 2, 0, "a") is None
    store.keep_joint({(1, "a"), (2, "b"), (3, "b")})
    assert store.reply(1, 1, 0, "a") is None
    assert store.reply(3, 1, 0, "b") == held[1]
    assert not store.drafts(0).reply.exists()
    assert store.blob(held[1]).path.exists()


# -- the agent ------------------------------------------------------------------------------------

CLIENTS = tuple(range(8))
DATA = {"set": "digits", "clients": 8}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tasks of each job, on a board that is quick enough for joint jobs of all."""
    made = list[int]()

    def counted(number: int, tasks: Sequence[OpenTask], *rest: Any) -> Job:
        made.append(len(tasks))
        return make_job(number, tasks, *rest)

    monkeypatch.setattr("fedquilt_client.jobs.make_job", counted)
    monkeypatch.setattr(joint_jobs, "LONGEST_SECONDS", 1e3)
    monkeypatch.setattr(worker, "JOINT_SECONDS", 1e3)
    return made


def open_summed(peer: Peer, kit: Kit, number: int) -> None:
    task = TaskMessage(clients=list(CLIENTS), kind="train", patches=[0], summed=True)
    peer.open("run-1", number, kit.blob(), [], tasks=[task])


def take_sum(peer: Peer, number: int) -> PartialSum:
    """Wait for the sum of a round and accept all of its members."""
    arrays = peer.reply(0, number, accept=False)
    found = PartialSum(arrays)
    peer.accept(0, number, members=[one.client for one in found.members])
    return found


def test_an_agent_does_short_tasks_together_from_the_second_on(
    peer: Peer, kit: Kit, host: Host, sizes: list[int]
) -> None:
    peer.publish(peer.topics.run, kit.run(exact_sums=True, data=DATA))
    with host(clients=CLIENTS, relay=True):
        for number in (1, 2):
            open_summed(peer, kit, number)
            found = take_sum(peer, number)
            assert [one.client for one in found.members] == list(CLIENTS)
            found.check_members()
    assert sizes == [1, 1, 6, 8]


def test_a_task_that_fails_in_a_joint_job_fails_alone(
    peer: Peer, kit: Kit, host: Host, wait_for: Callable[..., Any], sizes: list[int]
) -> None:
    name = kit.package("failing", "if ctx.client == 5:\n    raise ValueError('client 5 is broken')")
    peer.publish(peer.topics.run, kit.run(exact_sums=True, data=DATA, algorithm={"name": name}))
    with host(clients=CLIENTS, relay=True, allow_import=("failing",)):
        open_summed(peer, kit, 1)
        found = take_sum(peer, 1)
        assert [one.client for one in found.members] == [client for client in CLIENTS if client != 5]

        assert "client 5 is broken" in wait_for(lambda: failures(peer), "the failure")[0].reason
        assert {one.client for one in failures(peer)} == {5}
    assert sizes == [1, 1, 6, *[1] * 6]


def test_a_restarted_agent_does_the_tasks_of_joint_jobs_again(
    peer: Peer, kit: Kit, host: Host, sizes: list[int]
) -> None:
    peer.publish(peer.topics.run, kit.run(exact_sums=True, data=DATA))
    with host(clients=CLIENTS, relay=True):
        open_summed(peer, kit, 1)
        take_sum(peer, 1)
        open_summed(peer, kit, 2)
        first = PartialSum(peer.reply(0, 2, accept=False))
        before = {name: x.tobytes() for name, x in first.items()}
        assert [one.client for one in first.members] == list(CLIENTS)
    peer.received.clear()
    with host(clients=CLIENTS, relay=True):
        again = take_sum(peer, 2)
        assert [one.client for one in again.members] == list(CLIENTS)
    assert {name: x.tobytes() for name, x in again.items()} == before


def test_a_later_run_of_an_agent_also_begins_with_single_jobs(
    peer: Peer, kit: Kit, host: Host, sizes: list[int]
) -> None:
    """Its tasks may take longer, and the training process loads its data first."""
    task = TaskMessage(clients=list(CLIENTS), kind="train", patches=[0], summed=True)
    with host(clients=CLIENTS, relay=True):
        for run in ("run-1", "run-2"):
            sizes.clear()
            peer.publish(peer.topics.run, kit.run(run, exact_sums=True, data=DATA))
            peer.received.clear()
            peer.open(run, 1, kit.blob(), [], tasks=[task])
            peer.reply(0, 1, accept=False)
            peer.accept(0, 1, run, members=list(CLIENTS))
            assert sizes == [1, 1, 6]


def test_clients_that_kill_the_training_process_fail_alone(peer: Peer, kit: Kit, host: Host, sizes: list[int]) -> None:
    name = kit.package("deadly", "if ctx.client in (0, 5):\n    os.kill(os.getpid(), signal.SIGKILL)")
    peer.publish(peer.topics.run, kit.run(exact_sums=True, data=DATA, algorithm={"name": name}))
    with host(clients=CLIENTS, relay=True, allow_import=("deadly",)):
        open_summed(peer, kit, 1)
        found = PartialSum(peer.reply(1, 1, accept=False))
        assert [one.client for one in found.members] == [1, 2, 3, 4, 6, 7]
        assert {one.client for one in failures(peer)} == {0, 5}
    assert max(sizes) > 1


def test_a_first_task_that_cannot_start_does_not_hold_the_others_back(
    peer: Peer, kit: Kit, host: Host, wait_for: Callable[..., Any]
) -> None:
    peer.publish(peer.topics.run, kit.run())
    home = peer.folder / "state" / "runs" / "run-1" / "clients" / "0"
    home.mkdir(parents=True)
    (home / "memory-1.0-abc").write_bytes(b"a memory that no record names")
    with host(relay=True):
        peer.open("run-1", 2, kit.blob(), [0, 1], since={"0": (1, 0)})
        assert "is missing or too old" in wait_for(lambda: failures(peer), "the failure")[0].reason
        peer.reply(1, 2)
