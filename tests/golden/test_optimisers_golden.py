"""FedDyn and FedOPT against numbers transcribed from the papers: Linear(3, 2), three clients, full batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.data import golden_vectors
from torch import nn

from fedquilt_common.algorithm_api import Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

PARAMETERS = frozenset({"weight", "bias"})


@dataclass(frozen=True)
class ServerContext:
    """What the two server halves look at."""

    parameters: frozenset[str] = PARAMETERS
    clients: int = 3
    measures: bool = False


@dataclass
class ClientContext:
    """What FedDyn's client half looks at."""

    data: Examples
    learner: TorchLearner
    seed: int = 0
    memory: dict[str, NDArray[Any]] = field(default_factory=dict)


def shaped(flat: Any) -> dict[str, NDArray[Any]]:
    values = np.array(flat, np.float32)
    return {"weight": values[:6].reshape(2, 3), "bias": values[6:]}


def flat(arrays: Any) -> NDArray[Any]:
    return np.concatenate([np.ravel(arrays["weight"]), arrays["bias"]])


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_feddyn_is_the_papers() -> None:
    """Three rounds with partial participation: clients' models, gradient memories, the server's h and theta."""
    golden = golden_vectors("h_optimiser_updates.json")
    paper, official = golden["feddyn_paper_own"], golden["feddyn_official"]
    algorithm: Any = make_algorithm("feddyn", {"alpha": paper["alpha"]}, ())
    data = [Examples(np.array(x, np.float32), np.array(y))
            for x, y in zip(golden["data_x"], golden["data_y"], strict=True)]  # fmt: skip
    sites = [ClientContext(d, TorchLearner(lambda: nn.Linear(3, 2),
                                           Training(epochs=official["epochs"], batch=len(d), lr=official["lr"]),
                                           Classification(2)))
             for d in data]  # fmt: skip
    state: State = algorithm.init(shaped(golden["w0"]), ServerContext())
    for expected in paper["rounds"]:
        task = Task("train", state.arrays)
        replies: dict[int, Reply] = {c: algorithm.train(task, sites[c]) for c in expected["selected"]}
        for place, client in enumerate(expected["selected"]):
            near(flat(replies[client].arrays), expected["client_params"][place])
        state = algorithm.merge(state, replies, ServerContext())
        near([flat(ctx.memory) if ctx.memory else np.zeros(8) for ctx in sites], expected["grad_memory"])
        near(flat(state.extra), expected["server_h"])
        near(flat(state.arrays), expected["theta_next"])


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fedadam_reddi_v0_tau2", {"optimizer": "adam"}),
        ("fedyogi_v0_tau2", {"optimizer": "yogi"}),
    ],
)
def test_fedopt_is_that_of_reddi_et_al(name: str, fields: dict[str, Any]) -> None:
    golden = golden_vectors("h_optimiser_updates.json")
    hyper, expected = golden["fedopt_own"]["hyper"], golden["fedopt_own"][name]
    numbers = {"server_lr": hyper["eta"], "beta2": hyper["beta2"], "tau": hyper["tau"]}
    for beta1 in ({"beta1": hyper["beta1"]}, {}):
        run(make_algorithm("fedopt", {**numbers, **beta1, **fields}, ()), golden, expected)


@pytest.mark.parametrize("beta1", [0.0, None])
def test_fedadagrad_without_its_first_second_moment(beta1: float | None) -> None:
    """The vectors begin at 0, the paper at tau squared: that much is taken out of our state."""
    golden = golden_vectors("h_optimiser_updates.json")
    hyper, expected = golden["fedopt_own"]["hyper"], golden["fedopt_own"]["fedadagrad_beta1_0_v0_0"]
    fields = {"optimizer": "adagrad", "server_lr": hyper["eta"], "beta1": beta1, "tau": hyper["tau"]}
    run(make_algorithm("fedopt", fields, ()), golden, expected, from_zero=True)


def test_fedavgm_is_torchs_sgd_with_momentum() -> None:
    """Hsu et al., section 4.2: the server descends along the clients' mean change as SGD does along a gradient."""
    golden = golden_vectors("h_optimiser_updates.json")
    model = torch.nn.Parameter(torch.tensor(golden["w0"], dtype=torch.float64))
    optimiser = torch.optim.SGD([model], lr=0.7, momentum=0.9)
    changes = np.average([client_change(m, np.arange(3)[:, None]) for m in range(3)], axis=0, weights=SIZES)
    expected = []
    for change in changes:
        model.grad = torch.tensor(-change)
        optimiser.step()
        expected.append(model.detach().numpy().copy())
    algorithm = make_algorithm("fedopt", {"optimizer": "sgd", "server_lr": 0.7}, ())
    run(algorithm, golden, expected)


SIZES = (4, 2, 3)


def client_change(client: int, t: Any) -> NDArray[Any]:
    """The vectors' fake training: client m adds 0.01 * (m + 1) * (t + 1), and a ramp over each array."""
    ramp: NDArray[Any] = 0.001 * np.array([0, 1, 2, 3, 4, 5, 0, 1])
    added: NDArray[Any] = 0.01 * (client + 1) * (t + 1) + ramp
    return added


def run(algorithm: Any, golden: Any, expected: Any, *, from_zero: bool = False) -> None:
    state: State = algorithm.init(shaped(golden["w0"]), ServerContext())
    if from_zero:
        state = State(state.arrays, {name: 0 * x if name[0] == "v" else x for name, x in state.extra.items()})
    for t, after in enumerate(expected):
        now = flat(state.arrays)
        replies = {m: Reply(shaped(now + client_change(m, t)), size) for m, size in enumerate(SIZES)}
        state = algorithm.merge(state, replies, ServerContext())
        near(flat(state.arrays), after)
