"""The training process: what a job leaves on disk, what it refuses, and that it never outlives its agent."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from fedquilt_client.worker import Worker
from fedquilt_client.written_replies import reply_header
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.public import digest_public_set, public_set
from fedquilt_common.datasets.shares import digest_shares, shares
from fedquilt_common.errors import AlgorithmError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.file_stamp import stamp
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training_jobs import CheckedFile, Job
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, RunMessage
from fedquilt_common.worker_lines import DoneLine

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

FEDAVG: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "training": {"epochs": 2, "batch": 16, "lr": 0.05, "momentum": 0.9},
}


def do(job: Job) -> dict[str, Any]:
    """Return the worker's last event about a job."""
    out = io.StringIO()
    Worker(out).do(job)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {line["number"] for line in lines} == {job.number}
    last: dict[str, Any] = lines[-1]
    return last


def done(job: Job) -> DoneLine:
    event = do(job)
    assert event["event"] == "done", event
    return DoneLine.model_validate(event)


def experiment_of(run: RunMessage) -> Experiment:
    return Experiment.model_validate_json(json.dumps(run.experiment))


def learner(run: RunMessage) -> TorchLearner:
    data = load_dataset("digits")
    return TorchLearner(
        build_model("mlp", {}, data.input_shape, data.classes),
        Training.model_validate(run.experiment["training"]),
        Classification(data.classes),
    )


@pytest.fixture
def model(kit: Kit) -> Path:
    """A first model of the digits."""
    return write_arrays(kit.folder / "model.safetensors", learner(kit.run(**FEDAVG)).init(4)).path


def test_a_fedavg_job_is_the_learners_work_on_the_clients_share(kit: Kit, model: Path) -> None:
    run = kit.run(seed=11, **FEDAVG)
    job = kit.job(run, 2, [model], round=5, exchange=1)
    told = done(job)
    assert (told.digest, told.size, told.memory) == (digest_file(job.reply, "xxh3"), job.reply.stat().st_size, None)
    data = load_dataset("digits")
    own = data.train.take(shares(experiment_of(run), data)[2].train)
    expected = learner(run).train(FileArrays(model), own, seed=derive_seed(11, 5, 1, 2))
    reply = FileArrays(job.reply)
    assert reply.keys() == expected.arrays.keys()
    assert all(reply[name].tobytes() == x.tobytes() for name, x in expected.arrays.items())
    header = ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY])
    assert (header.run, header.client, header.round, header.exchange) == ("run-1", 2, 5, 1)
    assert (header.task, header.weight) == (job.fingerprint, len(own))
    assert header.metrics["loss"] == pytest.approx(expected.loss)
    assert header.metrics["train_seconds"] > 0
    assert not job.memory_out.exists()


def test_the_same_job_gives_the_same_bits_and_another_round_others(kit: Kit, model: Path) -> None:
    run = kit.run(**FEDAVG)

    def bits(**changes: Any) -> dict[str, bytes]:
        job = kit.job(run, 1, [model], **changes)
        done(job)
        return {name: x.tobytes() for name, x in FileArrays(job.reply).items()}

    assert bits() == bits()
    assert bits() != bits(round=2)
    assert bits() != bits(exchange=1)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "F16"), ("bf16", "BF16")])
def test_replies_go_up_in_the_experiments_precision(kit: Kit, precision: str, dtype: str) -> None:
    job = kit.job(kit.run(wire={"up": precision}))
    done(job)
    reply = FileArrays(job.reply)
    assert {reply.dtype(name) for name in reply} == {dtype}


@pytest.mark.parametrize("size", [None, 0, 10, 100_000], ids=str)
def test_a_reply_may_be_written_over_a_spare_file(kit: Kit, size: int | None) -> None:
    job = kit.job(kit.run(), spare=kit.folder / "spare")
    if size is not None:
        (kit.folder / "spare").write_bytes(bytes(size))
    told = done(job)
    assert (told.digest, told.size) == (digest_file(job.reply, "xxh3"), job.reply.stat().st_size)
    assert not (kit.folder / "spare").exists()


def test_progress_is_told_between_0_and_1(kit: Kit, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt_client.worker.PROGRESS_SECONDS", 0.0)
    out = io.StringIO()
    Worker(out).do(kit.job(kit.run(**FEDAVG), 0, [model]))
    *steps, last = [json.loads(line) for line in out.getvalue().splitlines()]
    values = [event["value"] for event in steps]
    assert {event["event"] for event in steps} == {"progress"}
    assert values == sorted(values)
    assert (values[-1], last["event"]) == (1.0, "done")


def test_private_memory_is_handed_on(kit: Kit) -> None:
    code = "ctx.memory['count'] = ctx.memory.get('count', task.arrays['bias'][:1] * 0) + 1"
    run = kit.run(algorithm={"name": kit.package("remembering", code)})
    first = kit.job(run, allowed=["remembering"])
    assert done(first).memory
    second = kit.job(run, allowed=["remembering"], memory=CheckedFile(first.memory_out, None))
    assert done(second).memory
    assert [FileArrays(job.memory_out)["count"].tolist() for job in (first, second)] == [[1.0], [2.0]]


@pytest.mark.parametrize("name", ["memory", "patches"])
def test_an_input_that_cannot_be_read_is_a_failure_of_the_disk(kit: Kit, name: str) -> None:
    """It may be intact: only a missing file, or one with other bytes, is damaged."""
    job = kit.job(kit.run())
    unreadable, missing = CheckedFile(kit.folder, "0" * 64), CheckedFile(kit.folder / "missing", "0" * 64)
    event = do(job.model_copy(update={name: unreadable if name == "memory" else [unreadable]}))
    assert (event["event"], event["cause"]) == ("failed", "disk")
    assert "Is a directory" in event["reason"]
    event = do(job.model_copy(update={name: missing if name == "memory" else [missing]}))
    assert (event["event"], event["path"]) == ("damaged", str(missing.path))


def test_a_patch_that_the_agent_found_intact_is_read_again_only_if_it_changed(kit: Kit) -> None:
    job = kit.job(kit.run())
    (patch,) = job.patches
    trusted = CheckedFile(patch.path, "0" * 64, stamp(patch.path))  # no file has this digest
    assert do(job.model_copy(update={"patches": [trusted]}))["event"] == "done"
    os.utime(patch.path, ns=(1, 1))
    assert do(job.model_copy(update={"patches": [trusted]}))["event"] == "damaged"


@pytest.mark.parametrize("own_digest", [True, False])
def test_labels_are_made_of_the_coordinators_public_set_or_not_at_all(own_digest: bool, kit: Kit) -> None:
    """Also by an algorithm that does not look at the public set itself before it has done its work."""
    marker = kit.folder / "worked"
    own = kit.package("careless", f"Path({str(marker)!r}).touch()\nreturn Reply({{}})")
    data = {"set": "digits", "clients": 4, "public": {"samples": 20}}
    run = kit.run(algorithm={"name": own}, data=data)
    digest = digest_public_set(public_set(experiment_of(run), load_dataset("digits"))) if own_digest else "0" * 64
    event = do(kit.job(run.model_copy(update={"public": digest}), labels=True, allowed=["careless"]))
    assert (event["event"], marker.exists()) == (("done", True) if own_digest else ("failed", False))
    assert own_digest or "the public set on this board differs" in event["reason"]


def test_code_that_draws_from_global_generators_gives_the_same_bits_again(kit: Kit) -> None:
    drawn = "[random.random(), numpy.random.rand(), float(torch.rand(1))]"
    own = kit.package("drawing", f"import random, numpy, torch\nreturn Reply({{'x': numpy.array({drawn})}})")
    run = kit.run(algorithm={"name": own})

    def bits(round: int) -> bytes:
        job = kit.job(run, round=round, allowed=["drawing"])
        done(job)
        return FileArrays(job.reply)["x"].tobytes()

    assert bits(1) == bits(1)
    assert bits(1) != bits(2)


@pytest.mark.parametrize("field", ["algorithm", "model", "data"])
def test_a_strangers_code_is_not_imported_unless_allowed(kit: Kit, model: Path, field: str) -> None:
    own = kit.package("stranger", "pass")
    marker = kit.folder / "imported"
    path = kit.folder / "packages" / "stranger.py"
    path.write_text(f"{path.read_text()}\nPath({str(marker)!r}).touch()\n")
    names: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "model": {"name": "mlp"}, field: {"name": own}}
    names["data"] = {"set": own if field == "data" else "digits", "clients": 4}
    run = kit.run(**names)
    sys.modules.pop("stranger", None)
    for allowed in ([], ["strange"], ["fedquilt_common"]):
        event = do(kit.job(run, 0, [model], allowed=allowed))
        assert event["event"] == "failed"
        assert "--allow-import stranger" in event["reason"]
    assert not marker.exists()
    with contextlib.suppress(Exception):  # it is neither model nor data set, but now it is loaded
        do(kit.job(run, 0, [model], allowed=["stranger"]))
    assert marker.exists()


def test_another_version_of_an_own_module_is_refused(kit: Kit) -> None:
    run = kit.run(algorithm={"name": kit.package("versioned", "raise SystemExit('it must not run')")})
    event = do(kit.job(run.model_copy(update={"code": {"versioned": "0a" * 32}}), allowed=["versioned"]))
    assert event["event"] == "failed"
    assert "the code of 'versioned' on this board differs from the coordinator's" in event["reason"]


def test_data_cut_otherwise_are_refused(kit: Kit, model: Path) -> None:
    run = kit.run(**FEDAVG)
    right = digest_shares(shares(experiment_of(run), load_dataset("digits")))
    done(kit.job(kit.run("right", partition=right, **FEDAVG), 0, [model]))
    event = do(kit.job(kit.run("wrong", partition="0" * 64, **FEDAVG), 0, [model]))
    assert event["event"] == "failed"
    assert "or its partition, differs from the coordinator's" in event["reason"]
    assert not any(path.suffix == ".reply" and path.name != "0.reply" for path in kit.folder.iterdir())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": {"name": "fedavg"}, "training": {"lr": 1e30}}, "the loss became"),
        ({"algorithm": {"name": "unknown"}}, "algorithm 'unknown' is unknown"),
        ({"algorithm": {"name": "fedavg"}, "model": {"name": "mlp", "hidden": [3]}}, "both sides must build the same"),
        ({"algorithm": {"name": "fedavg"}, "data": {"set": "nowhere", "clients": 4}}, "data set 'nowhere' is unknown"),
    ],
    ids=["diverges", "algorithm", "model", "data"],
)
def test_what_goes_wrong_is_said(kit: Kit, model: Path, changes: dict[str, Any], reason: str) -> None:
    job = kit.job(kit.run(**changes), 0, [model])
    event = do(job)
    assert event["event"] == "failed"
    assert reason in event["reason"]
    assert not job.reply.exists()


def test_too_little_memory_is_said(kit: Kit) -> None:
    event = do(kit.job(kit.run(algorithm={"name": kit.package("hungry", "raise MemoryError")}), allowed=["hungry"]))
    assert event["event"] == "memory"


def test_a_fault_in_the_program_is_told_and_the_process_goes_on(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    job = kit.job(kit.run(algorithm={"name": kit.package("faulty", "raise KeyError('x')")}), allowed=["faulty"])
    out = io.StringIO()
    worker = Worker(out)
    worker.do(job)
    assert json.loads(out.getvalue())["reason"] == "KeyError: 'x' (faulty.py line 7)"
    assert "Traceback" in capsys.readouterr().err
    worker.do(job)


def test_a_users_sys_exit_does_not_end_the_process(kit: Kit) -> None:
    job = kit.job(kit.run(algorithm={"name": kit.package("leaving", "raise SystemExit(0)")}), allowed=["leaving"])
    event = do(job)
    assert event["event"] == "failed"
    assert event["reason"].startswith("the experiment's code called sys.exit(0) (")
    assert event["reason"].endswith("; remove that call")


@pytest.mark.parametrize("kind", ["OSError", "ValueError"])
def test_an_error_whose_text_is_not_in_utf_8_is_told(kit: Kit, kind: str) -> None:
    """As the name of a file may be."""
    job = kit.job(kit.run(algorithm={"name": kit.package("odd", f"raise {kind}('a\\udcffb')")}), allowed=["odd"])
    event = do(job)
    assert event["event"] == "failed"
    assert event["reason"].endswith("a\\udcffb")


def test_another_run_in_the_same_file_is_noticed(kit: Kit) -> None:
    out = io.StringIO()
    worker = Worker(out)
    job = kit.job(kit.run())
    worker.do(job)
    job.run_file.write_text(kit.run(algorithm={"name": "echo", "step": 2.0}).model_dump_json())
    os.utime(job.run_file, ns=(1, 1))
    worker.do(job)
    given = FileArrays(job.patches[0].path)
    assert np.array_equal(FileArrays(job.reply)["bias"], given["bias"] + np.float32(2.0))


AGENT = """
import sys, time
from fedquilt_client.worker_pool import WorkerPool
from fedquilt_common.training_jobs import Job
pool = WorkerPool(1, 1, lambda call: None, lambda event: None)
pool.submit(Job.model_validate_json(sys.stdin.read()))
time.sleep(600)
"""


@pytest.fixture
def agent() -> Iterator[Callable[[Job], int]]:
    """Starts a process that has a job done; it is killed at the end at the latest."""
    started: list[subprocess.Popen[str]] = []

    def start(job: Job) -> int:
        process = subprocess.Popen([sys.executable, "-c", AGENT], stdin=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(job.model_dump_json())
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("code", ["time.sleep(600)", "pass"], ids=["busy", "idle"])
def test_a_worker_leaves_with_its_agent(
    kit: Kit, agent: Callable[[Job], int], wait_for: Callable[..., Any], code: str
) -> None:
    own = kit.package("leaving", "Path(os.environ['PID_FILE']).write_text(str(os.getpid()))\n" + code)
    pid_file = kit.folder / "pid"
    kit.monkeypatch.setenv("PID_FILE", str(pid_file))
    parent = agent(kit.job(kit.run(algorithm={"name": own}), allowed=["leaving"]))
    worker = int(wait_for(lambda: pid_file.exists() and pid_file.read_text()))
    assert psutil.Process(worker).ppid() == parent
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(worker), "the worker's end")


@pytest.mark.parametrize("reads", [True, False], ids=["cut line", "closed pipe"])
def test_a_worker_whose_agent_was_killed_prints_nothing(kit: Kit, reads: bool) -> None:
    """The agent dies while it writes a line; or before it reads one."""
    job = kit.job(kit.run()).model_copy(update={"run": kit.folder / "missing"}).model_dump_json()
    reader, writer = os.pipe()
    if not reads:
        os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "fedquilt_client.worker"],
        input="\n".join(['{"cancel": 1}', job, job[:20]]),
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0 if reads else 1)


@pytest.mark.parametrize(
    ("reply", "words"),
    [(Reply({}, 0.0), "weight: must be"), (Reply({}, 1.0, {"z": float("nan")}), r"metrics\.z: must be")],
)
def test_a_reply_that_cannot_be_sent_has_a_reason_that_its_author_understands(
    kit: Kit, model: Path, reply: Reply, words: str
) -> None:
    run = kit.run(**FEDAVG)
    with pytest.raises(AlgorithmError, match=f"^what the algorithm's `work` returned: {words}"):
        reply_header(kit.job(run, 2, [model]), run, reply, {})
