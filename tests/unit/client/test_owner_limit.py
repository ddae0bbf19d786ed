"""A board whose owner limits epsilon declines what spends more, whatever the coordinator asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.accounting import few_orders
from tests.support.packages import needs
from tests.unit.client.test_private_tasks import PrivateBoard
from tests.unit.client.test_worker import do

from fedquilt_client.current_run import commit_finished
from fedquilt_common.privacy.accountant import epsilon_of
from fedquilt_common.privacy.ledger import SUFFIX, read_ledger
from fedquilt_common.privacy.noise_key import KEY_VARIABLE
from fedquilt_common.wire.codec import FileArrays

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

needs("opacus", "needs the extra dp")


@pytest.fixture(autouse=True, scope="module")
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


@pytest.fixture
def board(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateBoard]:
    monkeypatch.setenv(KEY_VARIABLE, "07" * 32)
    made = PrivateBoard(kit)
    yield made
    made.agent.release()


def decline(board: PrivateBoard, limit: float, name: str = "run-1", **changes: Any) -> str:
    """Return why the board declines a task of an experiment."""
    delta = changes.pop("max_delta", None)
    told = do(board.job(board.run(name, **changes), max_epsilon=limit, max_delta=delta))
    assert (told["event"], told["cause"]) == ("failed", "declined")
    return str(told["reason"])


def test_a_larger_budget_is_declined_with_what_to_change(board: PrivateBoard) -> None:
    assert decline(board, 4.0) == (
        "privacy.epsilon = 6: the board's owner allows at most epsilon 4 (--max-epsilon); choose a smaller "
        "privacy.epsilon, or ask the owner"
    )


@pytest.mark.parametrize("section", [None, {"mode": "central", "epsilon": 2.0, "delta": 0.001}])
def test_training_without_local_privacy_is_declined(section: dict[str, Any] | None, board: PrivateBoard) -> None:
    assert decline(board, 4.0, privacy=section) == (
        "the board's owner allows only training with local differential privacy, up to epsilon 4 (--max-epsilon); add "
        "privacy: {epsilon: 4}, or ask the owner"
    )


def test_a_larger_delta_is_declined_with_what_to_change(board: PrivateBoard) -> None:
    """Else the first experiment could choose one just below 1/n, at which any noise has a small epsilon."""
    assert decline(board, 8.0, max_delta=1e-4, privacy={"epsilon": 6.0, "delta": 0.002}) == (
        "privacy.delta = 0.002: the board's owner allows at most delta 0.0001 (--max-delta); choose a smaller "
        "privacy.delta, or ask the owner"
    )


def test_a_budget_up_to_the_limit_trains_as_without_one(board: PrivateBoard) -> None:
    def train(most: float | None, delta: float | None = None) -> dict[str, bytes]:
        job = board.job(board.run(privacy=section), max_epsilon=most, max_delta=delta)
        arrays = FileArrays(board.train(job).job.reply)
        return {name: x.tobytes() for name, x in arrays.items()}

    section = {"epsilon": 6.0, "delta": 0.0001}
    assert train(6.0, 0.0001) == train(6.0) == train(None)


def test_the_limit_holds_for_all_experiments_together_whatever_their_delta(board: PrivateBoard) -> None:
    """Else a coordinator that names a larger delta each time could spend without end: its epsilon is smaller."""
    first = board.run(privacy={"epsilon": 6.0, "delta": 0.0001})
    for round in (1, 2):
        commit_finished(first[1], board.train(board.job(first, round=round, max_epsilon=6.0)))
    later = {"privacy": {"epsilon": 6.0, "delta": 0.002}}
    assert "is spent on these samples" in decline(board, 6.0, "run-2", **later)
    assert "ask the board's owner for a larger --max-epsilon" in decline(board, 6.0, "run-2", **later)
    richer = board.run("run-3", **later)
    commit_finished(richer[1], board.train(board.job(richer, max_epsilon=7.0)))
    paths = (board.kit.folder / "state" / "privacy").glob(f"*{SUFFIX}")
    charges = [entry.charge for path in paths for entry in read_ledger(path)]
    assert len(charges) == 3
    assert epsilon_of(charges, 0.0001, "rdp") <= 7.0
    assert epsilon_of(charges, 0.002, "rdp") < 6.0
