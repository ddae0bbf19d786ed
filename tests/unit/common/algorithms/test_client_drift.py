"""SCAFFOLD, FedNova and q-FedAvg on two clients whose losses are parabolas, where the papers' formulas are exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.algorithm_api import Reply, State, Task, privacy_problem
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.algorithms.families.local_steps import gradient_count
from fedquilt_common.algorithms.scaffold import full_gradient
from fedquilt_common.experiment.training_section import BatchAugment, Training
from fedquilt_common.learning_tasks import Classification, Regression
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

SLOPES, OPTIMA = (0.5, 1.5), (4.0, 1.0)
"""Client k has one sample: its loss is (slope * (w - optimum))^2."""
CURVES = [2 * slope**2 for slope in SLOPES]
BEST = float(np.average(OPTIMA, weights=CURVES))
"""The optimum of both together."""


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


@dataclass
class Client:
    """A client context."""

    slope: float
    optimum: float
    settings: dict[str, Any]
    seed: int = 1
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)
    build: type[nn.Module] = Line

    @property
    def data(self) -> Examples:
        x = np.full((1, 1), self.slope, np.float32)
        return Examples(x, x * np.float32(self.optimum))

    @property
    def learner(self) -> TorchLearner:
        return TorchLearner(self.build, Training(**self.settings), Regression(1))


class Server:
    """A server context of two clients."""

    parameters = frozenset({"w"})
    clients = 2
    measures = False
    learner = Client(1.0, 1.0, {}).learner

    def select(self) -> list[int]:
        return [0, 1]


def clients(epochs: tuple[int, int] = (4, 4), lr: float = 0.1, **settings: Any) -> list[Client]:
    return [
        Client(slope, optimum, {"epochs": count, "lr": lr, **settings})
        for slope, optimum, count in zip(SLOPES, OPTIMA, epochs, strict=True)
    ]


def play(algorithm: Any, boards: list[Client], rounds: int, start: float = 0.0) -> State:
    ctx: Any = Server()
    state: State = algorithm.init({"w": np.array([start], np.float32)}, ctx)
    for _ in range(rounds):
        steps = algorithm.round(state, ctx)
        tasks = next(steps)
        replies = {client: algorithm.work(task, boards[client]) for client, task in tasks.items()}
        with pytest.raises(StopIteration) as done:
            steps.send(replies)
        state = done.value.value
    return state


def model(state: State) -> float:
    return float(state.arrays["w"][0])


def make(name: str, **fields: Any) -> Any:
    return make_algorithm(name, fields, ())


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_two_rounds_of_scaffold_by_hand(server_lr: float) -> None:
    """Algorithm 1 of the paper, option II, in plain numbers."""
    x, c, own, lr, steps = 0.0, 0.0, [0.0, 0.0], 0.1, 4
    for _ in range(2):
        trained, new = [], []
        for curve, optimum, control in zip(CURVES, OPTIMA, own, strict=True):
            y = x
            for _ in range(steps):
                y -= lr * (curve * (y - optimum) - control + c)
            trained.append(y)
            new.append(control - c + (x - y) / (steps * lr))
        x += server_lr * (sum(trained) / 2 - x)
        c += (sum(new) - sum(own)) / 2
        own = new
    boards = clients()
    state = play(make("scaffold", server_lr=server_lr), boards, 2)
    assert model(state) == pytest.approx(x, rel=1e-5)
    assert state.extra["c/w"][0] == pytest.approx(c, rel=1e-4)
    assert [board.memory["w"][0] for board in boards] == pytest.approx(own, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_finds_the_common_optimum_that_fedavg_misses(option: str, momentum: float) -> None:
    settings: dict[str, Any] = {"lr": 0.04, "momentum": momentum}
    drifted = model(play(make("fedavg"), clients(**settings), 40))
    corrected = model(play(make("scaffold", option=option), clients(**settings), 40))
    assert abs(drifted - BEST) > 0.02
    assert corrected == pytest.approx(BEST, abs=1e-3)


def test_option_one_is_the_gradient_at_the_received_model() -> None:
    boards = clients(momentum=0.9)
    play(make("scaffold", option="I"), boards, 1, start=2.0)
    gradients = [curve * (2.0 - optimum) for curve, optimum in zip(CURVES, OPTIMA, strict=True)]
    assert [board.memory["w"][0] for board in boards] == pytest.approx(gradients, rel=1e-6)


def test_a_client_that_is_missing_changes_the_control_variate_by_less() -> None:
    algorithm, ctx = make("scaffold"), Server()
    state = State({"w": np.zeros(1, np.float32), "steps": np.array(2)}, {"c/w": np.ones(1, np.float32)})
    reply = Reply({"w": np.ones(1, np.float32), "steps": np.array(5), "c/w": np.full(1, 3, np.float32)}, 9.0)
    merged = algorithm.merge(state, {1: reply}, ctx)
    assert merged.extra["c/w"].tolist() == [2.0]  # 1 + 1 / 2 * (3 - 1)
    assert (merged.arrays["w"], merged.arrays["steps"]) == (1.0, 5)  # a buffer is averaged


def test_which_scaffold_can_be_private() -> None:
    assert privacy_problem(make("scaffold")) == ""
    assert "`option: II` does not" in privacy_problem(make("scaffold", option="I"))


def test_option_i_takes_the_gradient_of_each_sample_as_it_is() -> None:
    """Neither ``sampling: balanced`` nor changed images have the gradient of the client's samples."""
    images = Examples(np.arange(72, dtype=np.float32).reshape(3, 1, 4, 6), np.array([0, 0, 1]))
    task = Classification(2)

    def gradient(**settings: Any) -> Any:
        made = TorchLearner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 2)), Training(**settings), task)
        ctx: Any = SimpleNamespace(learner=made, data=images, seed=1)
        return full_gradient(made.init(0), made.init(0), ctx)

    changed = gradient(sampling="balanced", augment=BatchAugment(crop=2, flip=True))
    assert all(np.array_equal(changed[name], plain) for name, plain in gradient().items())


def test_the_number_of_gradients_has_the_papers_closed_forms() -> None:
    for steps in (1, 2, 7, 40):
        assert gradient_count(steps, 0.0) == steps
        rho = 0.9
        assert gradient_count(steps, rho) == pytest.approx((steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
        pull = 0.05
        assert gradient_count(steps, 0.0, pull) == pytest.approx((1 - (1 - pull) ** steps) / pull)


@pytest.mark.parametrize(("rho", "pull"), [(0.0, 0.3), (0.9, 0.0), (0.9, 0.05), (0.99, 0.5)])
def test_the_number_of_gradients_is_the_sum_of_what_each_gradient_alone_moves(rho: float, pull: float) -> None:
    """With momentum and a proximal term, some gradients end up moving the model back: their absolute values count."""
    moved = velocity = np.zeros(28)
    for gradient in np.eye(28):  # each column follows one gradient
        velocity = rho * velocity + gradient - pull * moved
        moved = moved + velocity
    assert gradient_count(28, rho, pull) == pytest.approx(np.abs(moved).sum())
    assert (moved < 0).any() == (rho * pull > 0)


def test_fednova_by_hand() -> None:
    """Two clients with 1 and 3 samples, which made 2 and 10 steps: tau = 8, and each moves by its normalised update."""
    replies = {
        0: Reply({"w": np.array([3.0], np.float32), "mean": np.array([0.0], np.float32)}, 1.0, {"step_length": 0.2}),
        1: Reply({"w": np.array([11.0], np.float32), "mean": np.array([4.0], np.float32)}, 3.0, {"step_length": 1.0}),
    }
    state = State({"w": np.ones(1, np.float32), "mean": np.zeros(1, np.float32)})
    merged = make("fednova").merge(state, replies, Server())
    assert list(merged.arrays) == ["w", "mean"]
    assert merged.arrays["w"][0] == pytest.approx(1 + 8 * (0.25 * 2 / 2 + 0.75 * 10 / 10))
    assert merged.arrays["mean"][0] == 3.0  # a buffer: the mean by samples


@pytest.mark.long
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova_finds_the_common_optimum_although_clients_make_different_numbers_of_steps(momentum: float) -> None:
    """The paper's objective inconsistency: FedAvg serves the client with more steps."""
    settings: dict[str, Any] = {"lr": 0.001, "momentum": momentum}
    found = {
        name: model(play(make(name), clients((2, 20), **settings), 40, start=BEST)) for name in ("fedavg", "fednova")
    }
    assert abs(found["fednova"] - BEST) < 0.2 * abs(found["fedavg"] - BEST)


def test_fednovas_proximal_term_is_that_of_fedprox() -> None:
    boards = clients()
    fednova, fedprox = (
        make(name, mu=0.5).train(
            make(name, mu=0.5).make_task(State({"w": np.ones(1, np.float32)}), Server()), boards[0]
        )
        for name in ("fednova", "fedprox")
    )
    assert fednova.arrays["w"] == fedprox.arrays["w"]
    assert fednova.metrics["step_length"] == pytest.approx(0.1 * gradient_count(4, 0.0, 0.05))


@pytest.mark.parametrize(("name", "fields", "step"), [("fednova", {}, 0.055), ("qfedavg", {"q": 0.0}, 2 / 110)])
def test_clients_of_other_learning_rates_weigh_the_same(name: str, fields: dict[str, float], step: float) -> None:
    """After one step each, the server follows the mean gradient, although one client went ten times as far."""
    boards = [clients(epochs=(1, 1), lr=lr)[number] for number, lr in enumerate((0.1, 0.01))]
    gradient = np.mean([curve * (2.5 - optimum) for curve, optimum in zip(CURVES, OPTIMA, strict=True)])
    assert model(play(make(name, **fields), boards, 1, start=2.5)) == pytest.approx(2.5 - step * gradient, rel=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_fedavg_by_hand(q: float) -> None:
    """Algorithm 2 of the paper in plain numbers."""
    w, lr = 2.5, 0.1
    numerator = denominator = 0.0
    for slope, curve, optimum in zip(SLOPES, CURVES, OPTIMA, strict=True):
        loss, trained = (slope * (w - optimum)) ** 2, w
        for _ in range(4):
            trained -= lr * curve * (trained - optimum)
        change = (w - trained) / lr
        numerator += loss**q * change
        denominator += q * loss ** (q - 1) * change**2 + loss**q / lr
    assert model(play(make("qfedavg", q=q), clients(), 1, start=w)) == pytest.approx(w - numerator / denominator)


def test_a_client_that_understates_its_step_does_not_lengthen_the_servers() -> None:
    """``h_k`` is at least ``L * F_k^q``, so the server goes no farther than the weighted mean."""
    algorithm, state = make("qfedavg", q=1.0), State({"w": np.ones(1, np.float32)})
    for step in (0.0, 1e-300):
        reply = Reply({"w": np.array([3.0], np.float32)}, 1.0, {"fair_part": 1.0, "fair_length": step})
        assert algorithm.merge(state, {0: reply}, Server()).arrays["w"][0] == 3.0


@pytest.mark.long
def test_a_greater_q_makes_losses_more_even() -> None:
    def spread(q: float) -> float:
        w = model(play(make("qfedavg", q=q), clients(), 60))
        losses = [(slope * (w - optimum)) ** 2 for slope, optimum in zip(SLOPES, OPTIMA, strict=True)]
        return abs(losses[0] - losses[1])

    assert spread(2.0) < 0.5 * spread(0.5) < 0.5 * spread(0.0)


class WideLine(Line):
    """Multiplies in fp16 with amp, where the gradient overflows at the first scales."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.w[:, None]) * 100


def test_the_steps_that_amp_repeats_count_once() -> None:
    """A control variate is the mean gradient of the steps that were taken, and FedNova counts those only."""
    board = clients(epochs=(3, 3), lr=1e-6, precision="amp")[0]
    board.build = WideLine
    start = {"w": np.zeros(1, np.float32)}
    reply = make("scaffold").work(Task("train", {**start, "c/w": start["w"]}), board)
    assert reply.arrays["w"][0] != 0
    x = 100 * SLOPES[0]
    assert board.memory["w"][0] == pytest.approx(-2 * x * SLOPES[0] * OPTIMA[0], rel=0.02)  # hardly changes in 3 steps
    counted = make("fednova").work(Task("train", start), board)
    assert counted.metrics["step_length"] == pytest.approx(3e-6)
