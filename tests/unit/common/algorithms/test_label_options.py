"""FedMD's options: compressed labels, a temperature, own samples in the distillation; and controls without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.algorithm_api import Reply, State, Task, pooling_problem, privacy_problem
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.algorithms.families.own_model import load_own_model
from fedquilt_common.datasets import load_dataset
from fedquilt_common.training.losses import DISTILLATION, cross_entropy, mean_squared, mix_samples, mixed_distillation
from fedquilt_common.types import Examples

Make = Callable[..., Any]
SEEN = load_dataset("digits").train.x[900:950]
RANDOM = np.random.default_rng(4)


@pytest.fixture
def ctx(bench: Make) -> Any:
    made = bench()
    made.public = SEEN
    return made


def labels_of(algorithm: Any, ctx: Any) -> Reply:
    reply: Reply = algorithm.work(Task("score", scalars={"seed": 1, "lambda": 0.5}), ctx)
    return reply


def test_cfedmd_and_cfedakd_send_the_same_codes(ctx: Any) -> None:
    exact = labels_of(make_algorithm("fedmd", {}, ()), ctx).arrays["logits"]
    compressed: Any = make_algorithm("fedmd", {"compress": True}, ())
    reply = labels_of(compressed, ctx)
    assert {name: x.nbytes for name, x in reply.arrays.items()} == {"codes": 500, "range": 80}
    np.testing.assert_allclose(compressed.decode(reply.arrays, 10), exact, atol=np.ptp(exact) / 255)


@pytest.mark.parametrize(("bits", "ranges"), [(1, "sample"), (4, "class"), (16, "tensor")])
def test_a_whole_round_of_labels_in_other_codes(bits: int, ranges: str, ctx: Any) -> None:
    """What the server expects is what a client sends, and the aggregate of one client is its labels."""
    algorithm: Any = make_algorithm("cfedakd", {"bits": bits, "ranges": ranges}, ())
    reply = labels_of(algorithm, ctx)
    assert {name: x.shape for name, x in reply.arrays.items()} == algorithm.label_shapes(ctx)
    assert {name: str(x.dtype) for name, x in reply.arrays.items()} == {"codes": "uint8", "range": "float32"}
    total = algorithm.aggregate_labels({0: reply}, 10)
    np.testing.assert_allclose(algorithm.decode(total, 10), algorithm.decode(reply.arrays, 10), atol=1e-4)
    learned = algorithm.work(Task("digest", total, {"seed": 1, "lambda": 0.5}), ctx)
    assert np.isfinite(learned.metrics["kd_loss"])


def test_compressed_labels_have_no_mean_in_secret() -> None:
    assert not pooling_problem(make_algorithm("fedmd", {}, ()))
    for name, fields in (("fedmd", {"compress": True, "bits": 4}), ("cfedakd", {"bits": 4})):
        assert "4 bits" in pooling_problem(make_algorithm(name, fields, ()))


def test_a_high_temperature_makes_the_divergence_half_a_squared_error() -> None:
    """For a high T, T^2 KL is the squared error of the centred logits over twice the classes (Hinton et al., eq. 4)."""
    student, teacher = (torch.tensor(RANDOM.normal(size=(7, 4))) for _ in range(2))
    algorithm: Any = make_algorithm("fedmd", {"kd_loss": "kl", "temperature": 1000.0}, ())
    apart = (student - student.mean(dim=1, keepdim=True)) - (teacher - teacher.mean(dim=1, keepdim=True))
    assert algorithm.loss(student, teacher).item() == pytest.approx((apart**2).sum(dim=1).mean().item() / 8, rel=1e-2)
    plain: Any = make_algorithm("fedmd", {"kd_loss": "kl"}, ())
    assert plain.loss is DISTILLATION["kl"]


@pytest.mark.parametrize("gamma", [0.2, 0.9])
def test_the_mixed_loss_is_equation_3_10_over_an_epoch(gamma: float) -> None:
    own = Examples(np.zeros((6, 2), np.float32), np.array([0, 1, 2, 2, 1, 0]))
    public = Examples(np.zeros((3, 2), np.float32), RANDOM.normal(size=(3, 3)).astype(np.float32))
    mixed = mix_samples(own, public)
    loss = mixed_distillation(mean_squared, gamma, 6, 3)
    outputs, targets = torch.tensor(RANDOM.normal(size=(9, 3))), torch.tensor(mixed.y)
    batches = [loss(outputs[at], targets[at]) * len(at) / 9 for at in ([0, 6, 1, 7], [2, 3, 4, 5], [8])]
    expected = (1 - gamma) * cross_entropy(outputs[:6], torch.tensor(own.y))
    expected += gamma * mean_squared(outputs[6:], torch.tensor(public.y))
    assert sum(batches).item() == pytest.approx(expected.item(), rel=1e-6)


def test_with_gamma_the_distillation_sees_own_samples_and_is_not_private(ctx: Any) -> None:
    seen: list[tuple[int, bool]] = []
    real = ctx.learner

    def train(arrays: Any, data: Examples, *, public: bool = False, **how: Any) -> Any:
        seen.append((len(data), public))
        return real.train(arrays, data, public=public, **how)

    ctx.__dict__["learner"] = SimpleNamespace(init=real.init, predict=real.predict, epochs=2, train=train)
    for gamma in (1.0, 0.5):
        algorithm: Any = make_algorithm("fedmd", {"gamma": gamma}, ())
        algorithm.work(Task("digest", labels_of(algorithm, ctx).arrays), ctx)
        assert bool(privacy_problem(algorithm)) == (gamma < 1)
    assert seen == [(50, True), (60, False), (110, False), (60, False)]


def test_a_full_batch_makes_one_step_of_distillation_an_epoch(ctx: Any) -> None:
    found = []
    for batch in (50, 10):
        algorithm: Any = make_algorithm("fedmd", {"kd_batch": batch, "kd_epochs": 3}, ())
        labelled = Examples(SEEN, np.zeros((50, 10), np.float32))
        found.append(algorithm.distil(ctx.learner, load_own_model(ctx), labelled, 1).steps)
    assert found == [3, 15]


def test_a_client_alone_starts_as_with_labels_and_sends_nothing(ctx: Any) -> None:
    start = {name: x.tobytes() for name, x in load_own_model(ctx).items()}
    alone = make_algorithm("alone", {}, ())
    reply = alone.work(Task("train"), ctx)
    assert not reply.arrays
    trained = ctx.learner.train(ctx.learner.init(0), ctx.data, seed=0).arrays.keys()
    assert ctx.memory.keys() == trained == start.keys()
    assert any(ctx.memory[name].tobytes() != start[name] for name in start)


def test_clients_weigh_by_what_their_own_updates_get_right(ctx: Any) -> None:
    model = ctx.learner.init(3)
    plain = make_algorithm("fedavg", {}, ()).work(Task("train", model), ctx)
    weighted: Any = make_algorithm("fedavg-weighted", {}, ())
    reply = weighted.work(Task("train", model), ctx)
    assert reply.metrics["accuracy"] == ctx.learner.evaluate(plain.arrays, ctx.test)["accuracy"]
    assert reply.weight == len(ctx.data)
    assert all(reply.arrays[name].tobytes() == plain.arrays[name].tobytes() for name in model)
    other = replace(reply, arrays={name: 0 * x for name, x in reply.arrays.items()}, metrics={"accuracy": 0.25})
    reply = replace(reply, metrics={"accuracy": 0.75})
    uniform: Any = make_algorithm("fedavg-weighted", {"weighting": "uniform"}, ())
    for algorithm, share in ((weighted, 0.75), (uniform, 0.5)):
        mean = algorithm.merge(State(model), {0: reply, 1: other}, None).arrays
        assert all(np.allclose(mean[name], share * x, rtol=1e-6) for name, x in reply.arrays.items())
