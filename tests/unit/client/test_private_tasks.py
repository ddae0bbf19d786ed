"""Tasks with differential privacy: what leaves the board, what the ledger gets, and when a client declines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.accounting import few_orders
from tests.support.packages import needs
from tests.unit.client.test_worker import do, done, learner

from fedquilt_client.context import BoardRun, TaskContext
from fedquilt_client.current_run import commit_finished
from fedquilt_client.privacy_account import PUBLIC_METRICS, open_account, open_task_secret
from fedquilt_client.store import AgentStore, RunStore
from fedquilt_client.worker_pool import JobFinished
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.privacy.ledger import SUFFIX, read_ledger
from fedquilt_common.privacy.noise_key import KEY_VARIABLE
from fedquilt_common.privacy.sample_batches import largest_draw
from fedquilt_common.private_memory import SECRETS
from fedquilt_common.secure_aggregation.tasks import ATTEMPT, EXCHANGE
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.training_jobs import CheckedFile, Job, JobData
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.data_messages import DataMessage
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, RunMessage

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

needs("opacus", "needs the extra dp")
PRIVATE: dict[str, Any] = {
    "algorithm": {"name": "fedavg"},
    "training": {"epochs": 1, "batch": 60, "lr": 0.1},
    "rounds": 2,
    "privacy": {"epsilon": 6.0, "delta": 0.001},
}
OWN_FORM = DataMessage(name="own", shape=[1, 8, 8], dtype="float32", classes=10, task="classification")
OWN_DATA = {"set": "own", "clients": 4, "delivery": "own", "form": {"shape": [1, 8, 8], "classes": 10}}


@pytest.fixture(autouse=True, scope="module")
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


class PrivateBoard:
    """An agent's store, and its training process."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.agent = AgentStore(kit.folder / "state")
        self.model = write_arrays(kit.folder / "model.safetensors", learner(kit.run(**PRIVATE)).init(4)).path

    def run(self, name: str = "run-1", **changes: Any) -> tuple[RunMessage, RunStore]:
        message = self.kit.run(name, **{**PRIVATE, **changes})
        return message, self.agent.open_run(message)

    def run_on_own_samples(self) -> tuple[RunMessage, RunStore]:
        message = self.kit.run("own", **PRIVATE, data=OWN_DATA).model_copy(update={"data": OWN_FORM})
        return message, self.agent.open_run(message)

    def job(self, run: tuple[RunMessage, RunStore], client: int = 0, round: int = 1, **changes: Any) -> Job:
        drafts = run[1].drafts(round)
        fields = {"round": round, "fingerprint": f"{round:016}", "ledgers": run[1].ledgers, **changes}
        return self.kit.job(run[0], client, [self.model], reply=drafts.reply, memory_out=drafts.memory, **fields)

    def train(self, job: Job) -> JobFinished:
        return JobFinished(job, done(job))

    def ledgers(self) -> list[int]:
        """Return the number of tasks in each ledger."""
        return [len(read_ledger(path)) for path in (self.kit.folder / "state" / "privacy").glob(f"*{SUFFIX}")]


@pytest.fixture
def board(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateBoard]:
    monkeypatch.setenv(KEY_VARIABLE, "07" * 32)
    made = PrivateBoard(kit)
    yield made
    made.agent.release()


def header(job: Job) -> ReplyHeader:
    return ReplyHeader.model_validate_json(FileArrays(job.reply).metadata[REPLY_KEY])


def test_a_reply_tells_neither_loss_nor_number_of_samples(board: PrivateBoard) -> None:
    job = board.job(board.run())
    board.train(job)
    found = header(job)
    assert found.weight == 1.0
    assert found.metrics.keys() <= (PUBLIC_METRICS - {"samples"}) | {"epsilon", "memory_peak"}
    assert 0 < found.metrics["epsilon"] < 6


def test_labels_of_a_client_that_does_not_train_have_no_number_of_samples_either(board: PrivateBoard) -> None:
    fields: dict[str, Any] = {
        "algorithm": {"name": "fedmd"}, "data": {"set": "digits", "clients": 4, "public": {"samples": 20}}
    }  # fmt: skip
    job = board.job(board.run(**fields), kind="score", labels=True)
    assert board.train(job).result.spent is None
    assert header(job).weight == 1.0


def test_a_board_tells_which_sub_model_would_fit(board: PrivateBoard) -> None:
    """Else AdaptiveFL, with privacy, would never send it a smaller one. Samples do not change it."""
    run = board.run()
    experiment = Experiment.model_validate(run[0].experiment)
    privacy = experiment.variant(0).privacy
    assert privacy is not None
    account = open_account(board.job(run), "run-1", experiment, privacy, 1, np.arange(9, dtype=np.uint64))
    assert account.withhold(Reply({}, 1.0, {"fits": 2.0, "loss": 0.5})).metrics == {"fits": 2.0}


def test_a_task_spends_once_whatever_is_repeated(board: PrivateBoard) -> None:
    run = board.run()
    finished = board.train(board.job(run))
    first = {name: x.tobytes() for name, x in FileArrays(finished.job.reply).items()}
    assert commit_finished(run[1], finished) is not None
    assert board.ledgers() == [1]
    again = board.train(board.job(run))  # as after a crash between ledger and reply
    assert {name: x.tobytes() for name, x in FileArrays(again.job.reply).items()} == first
    assert commit_finished(run[1], again) is not None
    assert board.ledgers() == [1]


def test_a_later_run_starts_from_what_was_spent_and_declines_in_the_end(board: PrivateBoard) -> None:
    run = board.run()
    for round in (1, 2):
        commit_finished(run[1], board.train(board.job(run, round=round)))
    spent = read_ledger(next((board.kit.folder / "state" / "privacy").glob(f"*{SUFFIX}")))[-1].epsilon
    assert 5.9 < spent <= 6
    told = do(board.job(board.run("run-2", seed=3, training={"epochs": 1, "batch": 50, "lr": 0.3})))
    assert told["event"] == "failed"
    assert told["reason"].startswith("the privacy budget is used up: 5.99")
    richer = board.job(board.run("run-3", privacy={"epsilon": 9.0, "delta": 0.001}))
    board.train(richer)
    assert spent < header(richer).metrics["epsilon"] < 9


def test_a_task_trains_again_if_another_has_spent_on_the_same_samples(board: PrivateBoard) -> None:
    one, other = board.run("run-1"), board.run("run-2")
    first, second = board.train(board.job(one)), board.train(board.job(other))
    assert commit_finished(one[1], first) is not None
    assert commit_finished(other[1], second) is None
    assert board.ledgers() == [1]
    assert commit_finished(other[1], board.train(board.job(other))) is not None


def own_samples(kit: Kit, name: str, x: NDArray[np.float32]) -> JobData:
    """Return what an agent with a file of its own samples gives to its training process."""
    path = kit.folder / f"{name}.npz"
    np.savez(path, x=x, y=np.arange(len(x)) % 10)
    return JobData(own=str(path))


@pytest.mark.parametrize("own_first", [False, True])
def test_epsilon_does_not_tell_whether_a_sample_that_the_board_received_is_among_its_own(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, own_first: bool
) -> None:
    """A coordinator can let the board train on a sample of its choice, and compare what the own ones have spent."""
    monkeypatch.setenv(KEY_VARIABLE, "07" * 32)
    guess = np.asarray(ExperimentTools(Experiment.model_validate(kit.run().experiment), ()).training_samples(0).x)[:1]
    other = np.random.default_rng(1).random((400, *guess.shape[1:]), np.float32)
    found = []
    for name, x in (("other", other), ("same", np.concatenate([other[1:], guess]))):
        (kit.folder / name).mkdir()
        board = PrivateBoard(replace(kit, folder=kit.folder / name))
        received, own = board.run("received"), board.run_on_own_samples()
        jobs = [(received, board.job(received)), (own, board.job(own, data=own_samples(board.kit, name, x)))]
        spent = []
        for run, job in reversed(jobs) if own_first else jobs:
            finished = board.train(job)
            spent.append(header(job).metrics["epsilon"])
            assert commit_finished(run[1], finished) is not None
        found.append(spent)
        board.agent.release()
    assert found[0] == found[1]
    assert found[0][1] > found[0][0]  # the later one counts both


def test_a_damaged_ledger_stops_the_training(board: PrivateBoard) -> None:
    run = board.run()
    commit_finished(run[1], board.train(board.job(run)))
    second = board.train(board.job(run, round=2))
    (path,) = (board.kit.folder / "state" / "privacy").glob(f"*{SUFFIX}")
    path.write_bytes(b"x" + path.read_bytes()[1:])
    told = do(board.job(run, round=3))
    assert told["event"] == "failed"
    assert "it trains no client with these samples. Restore the file from a backup" in told["reason"]
    with pytest.raises(RunFolderError, match="Restore the file"):  # also of a task that trained before the damage
        commit_finished(run[1], second)
    path.write_bytes(path.read_bytes()[:-10])
    assert commit_finished(run[1], second) is None  # it trains again, which fails as above


def test_a_board_checks_the_promise_itself(board: PrivateBoard) -> None:
    """A coordinator of another version, or a dishonest one, may not."""
    told = do(board.job(board.run(training={"precision": "bf16", "batch": 60})))
    assert told["event"] == "failed"
    assert "private training draws each sample alike, in fp32" in told["reason"]


def test_a_failure_tells_nothing_of_the_samples(board: PrivateBoard, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("secret,label\n1,0\nmy diagnosis,1\n")
    data = {"own": str(tmp_path / "own.csv")}
    told = do(board.job(board.run(), data=data))
    assert told["event"] == "failed"
    assert "diagnosis" not in told["reason"]
    assert told["reason"].endswith("see the log of the board's agent")


def test_no_client_tells_its_number_of_samples_in_an_experiment_with_privacy(board: PrivateBoard) -> None:
    """Else clients with privacy would weigh nothing beside the others."""
    fields: dict[str, Any] = {"privacy": None, "fleet": [{"clients": 3}, {"clients": 1, "privacy": {"epsilon": 2.0}}]}
    job = board.job(board.run(**fields))
    assert board.train(job).result.spent is None
    assert header(job).weight == 1.0


def test_a_replay_cannot_know_the_noise(board: PrivateBoard) -> None:
    told = do(board.job(board.run(), ledgers=None))
    assert "the noise is known to the board alone" in told["reason"]


def test_without_privacy_there_is_no_ledger(board: PrivateBoard, tmp_path: Path) -> None:
    assert board.train(board.job(board.run(privacy=None))).result.spent is None
    assert not (tmp_path / "state" / "privacy").exists()


def test_a_sub_model_fits_if_the_gradients_of_single_samples_do(kit: Kit) -> None:
    def need(**fields: Any) -> int:
        message, needs = kit.run(**fields, model={"name": "mlp", "hidden": [512]}), list[int]()
        experiment = Experiment.model_validate_json(json.dumps(message.experiment))
        board = BoardRun(message, experiment, ())
        ctx = TaskContext(board, 0, 1, 1, None, lambda: 1 << 40, lambda _: None, needs.append)
        assert ctx.fits(full_slice(board.anatomy))
        return needs[0]

    plain = {key: value for key, value in PRIVATE.items() if key != "privacy"}
    numbers = 64 * 512 + 512 + 512 * 10 + 10
    assert need(**PRIVATE) - need(**plain) == pytest.approx(largest_draw(60) * numbers * 4, rel=0.05)


def test_masks_change_no_noise(board: PrivateBoard) -> None:
    """A round of secure aggregation that starts again repeats its trainings, which must spend nothing twice."""
    experiment = Experiment.model_validate_json(json.dumps(board.kit.run(**PRIVATE).experiment))
    masked = experiment.model_copy(update={"secure_aggregation": True})

    def digest(attempt: str, exchange: int, secret: int, model: float = 1.0, **scalars: Any) -> str:
        arrays: Arrays = {"w": np.full(3, model, np.float32), f"{SECRETS}mask": np.full(16, secret, np.uint8)}
        memory = write_arrays(board.kit.folder / f"{attempt}{secret}{model}.memory", arrays)
        own = {ATTEMPT: attempt, EXCHANGE: 0, **scalars}
        job = board.job(board.run(), exchange=exchange, scalars=own, memory=CheckedFile(memory.path, memory.digest))
        assert masked.privacy is not None
        return open_task_secret(job, masked, masked.privacy, ["facts"])[0]

    assert digest("1.5 0", 2, 7) == digest("2.5 0", 6, 8)
    assert digest("1.5 0", 2, 7) != digest("1.5 0", 2, 7, model=2.0)
    assert digest("1.5 0", 2, 7) != digest("1.5 0", 2, 7, lr=0.5)


def test_relays_change_no_noise(board: PrivateBoard) -> None:
    """A simulation has the same bits with relays on no, some and all agents."""
    run = board.run(exact_sums=True)
    experiment, job = Experiment.model_validate(run[0].experiment), board.job(run)
    privacy = experiment.variant(0).privacy
    assert privacy is not None
    fleet = tuple(line.model_copy(update={"relay": True}) for line in experiment.fleet)
    relays = experiment.model_copy(update={"fleet": fleet})
    assert relays != experiment
    assert open_task_secret(job, relays, privacy, ["x"])[0] == open_task_secret(job, experiment, privacy, ["x"])[0]
