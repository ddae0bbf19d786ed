"""MOON and FedProto: losses of features, which compare them with another model's or with class prototypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.algorithm_api import Batch, Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.algorithms.fedproto import class_means
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import BatchAugment, Training
from fedquilt_common.learning_tasks import Classification, NextWord
from fedquilt_common.models import build_model
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.losses import look_up, model_contrast, prototype_distance
from fedquilt_common.types import Examples

Make = Callable[..., Any]


def make(name: str, **fields: Any) -> Any:
    return make_algorithm(name, fields, ())


def batch(features: Any, positions: Any, targets: Any = ()) -> Batch:
    tensors = torch.tensor(features), torch.tensor(positions), torch.tensor(targets)
    return Batch(torch.tensor(1.0), None, tensors[2], tensors[0], None, tensors[1])


def test_moons_loss_by_hand() -> None:
    """Sample 1 lies at 60 degrees from its near features and at 90 from the far ones; sample 0 at 0 and 180."""
    near = np.array([[2.0, 0.0], [1.0, 0.0]], np.float32)
    far = np.array([[-1.0, 0.0], [-math.sqrt(3), 1.0]], np.float32)
    features = [[0.5, math.sqrt(0.75)], [3.0, 0.0]]
    found = model_contrast(look_up(near), look_up(far), 2.0, 0.5, Classification(2).average)(batch(features, [1, 0]))
    expected = [
        -math.log(math.exp(1) / (math.exp(1) + math.exp(0))),
        -math.log(math.exp(2) / (math.exp(2) + math.exp(-2))),
    ]
    assert float(found) == pytest.approx(1.0 + 2.0 * sum(expected) / 2, rel=1e-5)


@pytest.mark.parametrize(("targets", "at"), [([[3, 1, 0], [2, 0, 0]], (0, 1, 3)), ([[0, 0, 0], [0, 0, 0]], ())])
def test_moons_loss_leaves_out_padding(targets: list[list[int]], at: tuple[int, ...]) -> None:
    near, far, features = np.random.default_rng(1).normal(size=(3, 2, 3, 4)).astype(np.float32)
    found = model_contrast(look_up(near), look_up(far), 2.0, 0.5, NextWord(5).average)(batch(features, [0, 1], targets))
    places = features.reshape(6, 1, 4)
    logits = [
        [cosine(*pair) / 0.5 for pair in zip(places, fixed.reshape(6, 1, 4), strict=True)] for fixed in (near, far)
    ]
    parts = [-math.log(math.exp(logits[0][n]) / (math.exp(logits[0][n]) + math.exp(logits[1][n]))) for n in at]
    assert float(found) == pytest.approx(1.0 + 2.0 * sum(parts) / max(len(at), 1), rel=1e-5)


def test_moons_loss_at_the_last_word_leaves_out_sequences_that_end_in_padding() -> None:
    near, far, features = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    contrast = model_contrast(look_up(near), look_up(far), 2.0, 0.5, NextWord(5).average)
    alone = model_contrast(look_up(near), look_up(far), 2.0, 0.5, Classification(5).average)
    pooled = np.repeat(features[:, None], 2, axis=1)  # at fewer places than words, all of which count
    assert (
        NextWord(5).average(torch.tensor(pooled[..., 0]), torch.tensor([[3, 1, 0], [2, 0, 0]])) == pooled[..., 0].mean()
    )
    both = contrast(batch(features, [0, 1], [[3, 1, 2], [2, 0, 0]]))
    assert float(both) == pytest.approx(float(alone(batch(features[:1], [0], [2]))))


def cosine(one: Any, other: Any) -> float:
    return float(((one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))).mean())


def margin(ctx: Any, mu: float) -> float:
    """Train with MOON, and return how much nearer the features are to the global model's than to the previous one's."""
    models = ctx.model, dict(ctx.memory), make("moon", mu=mu).train(Task("train", ctx.model), ctx).arrays
    near, far, trained = (ctx.learner.features(arrays, ctx.data, 1).x for arrays in models)
    return cosine(trained, near) - cosine(trained, far)


def test_a_greater_mu_brings_features_to_the_global_model_rather_than_to_the_previous_one(bench: Make) -> None:
    previous = bench().learner.init(2)
    small, large = (margin(bench(epochs=5, memory=dict(previous)), mu) for mu in (1e-6, 1.0))
    assert large > small


def test_without_a_previous_model_moon_trains_as_fedavg(bench: Make) -> None:
    ctx = bench()
    reply = make("moon", mu=5.0).train(Task("train", ctx.model), ctx)
    plain = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed).arrays
    assert all(np.allclose(reply.arrays[name], x, rtol=0, atol=1e-6) for name, x in plain.items())
    assert all(np.array_equal(ctx.memory[name], reply.arrays[name]) for name in plain)
    again = make("moon", mu=5.0).train(Task("train", ctx.model), ctx)
    assert not all(np.allclose(again.arrays[name], x, rtol=0, atol=1e-6) for name, x in plain.items())


def test_with_augmentation_moon_compares_features_of_the_augmented_images(bench: Make) -> None:
    ctx, previous = bench(), bench().learner.init(2)
    ctx.memory, ctx.learner = dict(previous), ctx.learner.with_settings(augment=BatchAugment(crop=2, flip=True))
    stored, seen = ctx.learner.features(ctx.model, ctx.data, 1).x, list[tuple[Any, Any, Any]]()
    near, far = (ctx.learner.feature_extractor(arrays, 1) for arrays in (ctx.model, previous))
    contrast = model_contrast(lambda b: near(b.samples), lambda b: far(b.samples), 5.0, 0.5, Classification(3).average)

    def loss(batch: Batch) -> Any:
        seen.append((near(batch.samples), batch.features.detach(), torch.from_numpy(stored[batch.positions.numpy()])))
        return contrast(batch)

    expected = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed, batch_loss=loss).arrays
    found, own, unchanged = seen[0]  # before the first step, the client's model is the global one
    assert torch.allclose(found, own, atol=1e-6)
    assert not torch.allclose(found, unchanged, atol=1e-2)
    reply = make("moon", mu=5.0).train(Task("train", ctx.model), ctx)
    assert all(np.array_equal(reply.arrays[name], x) for name, x in expected.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_extractor_computes_the_features_of_a_data_set(precision: str, bench: Make) -> None:
    ctx = bench()
    extract = ctx.learner.with_settings(precision=precision).feature_extractor(ctx.model, 1)
    samples = torch.from_numpy(ctx.data.x).to(torch.float32 if precision == "fp32" else torch.bfloat16)
    found, expected = extract(samples), ctx.learner.features(ctx.model, ctx.data, 1).x
    assert (found.dtype, found.requires_grad) == (torch.float32, False)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6 if precision == "fp32" else 0.05)


def test_a_model_without_features_is_refused_before_the_run() -> None:
    flat = TorchLearner(lambda: torch.nn.Sequential(torch.nn.Flatten()), Training(), Classification(3))
    for name in ("moon", "fedproto"):
        ctx: Any = SimpleNamespace(learner=flat, prototypes=[flat], classes=3)
        with pytest.raises(ExperimentError, match="has no head"):
            make(name).init({}, ctx)


def test_prototype_distance_by_hand() -> None:
    prototypes, known = np.array([[1.0, 2.0], [9.0, 9.0]], np.float32), np.array([True, False])
    features = [[3.0, 2.0], [0.0, 0.0], [1.0, 2.0]]
    found = prototype_distance(prototypes, known, 0.5)(batch(features, [0, 1, 2], [0, 1, 0]))
    assert float(found) == pytest.approx(1.0 + 0.5 * (4.0 / 2) / 3)  # class 1 has no prototype


def test_class_means() -> None:
    features = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert class_means(features, np.array([2, 0, 2]), 3).tolist() == [[3, 4], [0, 0], [3, 4]]


def prototypes(values: list[float], counts: list[float]) -> Reply:
    weights = np.array(counts, np.float32) / sum(counts)
    return Reply({"prototypes": (np.array(values, np.float32) * weights)[:, None], "weights": weights}, sum(counts))


def test_fedprotos_server_averages_each_class_by_its_samples_and_keeps_what_nobody_sends() -> None:
    before = State({}, {"prototypes": np.full((4, 1), 7, np.float32), "weights": np.array([1, 1, 1, 0], np.float32)})
    replies = {0: prototypes([2, 5, 0, 0], [3, 1, 0, 0]), 1: prototypes([6, 0, 0, 0], [1, 0, 0, 0])}
    after = make("fedproto").merge(before, replies).extra
    np.testing.assert_allclose(after["prototypes"][:, 0], [3.0, 5.0, 7.0, 7.0], rtol=1e-6)
    assert after["weights"].tolist() == [1.0, 1.0, 1.0, 0.0]


def test_a_client_sends_the_mean_features_of_its_trained_model(bench: Make) -> None:
    for weighting in ("samples", "uniform"):
        ctx = bench()
        ctx.data = ctx.data.take(np.flatnonzero(ctx.data.y < 8))
        zeros = {"prototypes": np.zeros((10, 12), np.float32), "weights": np.zeros(10, np.float32)}
        reply = make("fedproto", weighting=weighting).work(Task("train", zeros), ctx)
        counts = np.bincount(ctx.data.y, minlength=10)
        expected = counts / len(ctx.data) if weighting == "samples" else counts > 0
        np.testing.assert_allclose(reply.arrays["weights"], expected, rtol=1e-6)
        features = ctx.learner.features(ctx.memory, ctx.data, 1).x
        found = reply.arrays["prototypes"][3] / reply.arrays["weights"][3]
        np.testing.assert_allclose(found, features[ctx.data.y == 3].mean(axis=0), rtol=1e-5)
        assert {name: x.shape for name, x in reply.arrays.items()} == {name: x.shape for name, x in zeros.items()}


def test_sums_of_many_samples_are_sent_in_fp16(bench: Make) -> None:
    """A mean of 20 times 4,000 samples is no number of fp16."""
    ctx = bench(batch=400)
    many = np.zeros(4000, np.int64)
    ctx.data = Examples(np.full((4000, *ctx.data.x.shape[1:]), 1.0, np.float32), many)
    ctx.memory.update({name: x * 20 for name, x in ctx.learner.init(1).items()})
    zeros = {"prototypes": np.zeros((10, 12), np.float32), "weights": np.zeros(10, np.float32)}
    reply = make("fedproto").work(Task("train", zeros), ctx)
    features = ctx.learner.features(ctx.memory, ctx.data, 1).x
    assert features.max() * 4000 > 65504 > features.max()
    assert np.isfinite(reply.arrays["prototypes"].astype(np.float16)).all()
    assert make("fedproto").reply_weight(reply) == 4000


def test_a_greater_lambda_brings_features_nearer_to_the_prototypes(bench: Make) -> None:
    wanted = {"prototypes": np.full((10, 12), 0.5, np.float32), "weights": np.ones(10, np.float32)}

    def distance(lambda_: float) -> float:
        ctx = bench(epochs=5)
        make("fedproto", **{"lambda": lambda_}).work(Task("train", wanted), ctx)
        return float(((ctx.learner.features(ctx.memory, ctx.data, 1).x - 0.5) ** 2).mean())

    assert distance(10.0) < distance(1.0) < distance(0.0)


def test_with_lambda_0_clients_train_for_themselves(bench: Make) -> None:
    ctx, plain = bench(), bench()
    wanted = {"prototypes": np.ones((10, 12), np.float32), "weights": np.ones(10, np.float32)}
    make("fedproto", **{"lambda": 0.0}).work(Task("train", wanted), ctx)
    none = {"prototypes": np.zeros((10, 12), np.float32), "weights": np.zeros(10, np.float32)}
    make("fedproto").work(Task("train", none), plain)
    assert all(np.array_equal(ctx.memory[name], plain.memory[name]) for name in plain.memory)


def test_models_whose_prototypes_differ_in_length_are_refused() -> None:
    def learner(*hidden: int) -> TorchLearner:
        build = build_model("mlp", {"hidden": list(hidden)}, (1, 8, 8), 10)
        return TorchLearner(build, Training(), Classification(10))

    ctx: Any = SimpleNamespace(prototypes=[learner(20, 12), learner(12)], classes=10)
    assert make("fedproto").init({}, ctx).extra["prototypes"].shape == (10, 12)
    ctx.prototypes = [learner(12), learner(16)]
    with pytest.raises(ExperimentError, match=r"have \[12, 16\] inputs"):
        make("fedproto").init({}, ctx)
