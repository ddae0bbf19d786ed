"""A client of soft labels: when it trains on its own samples, what it stores, what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.errors import ExperimentError
from fedquilt_common.models import build_model
from fedquilt_common.types import Examples

Make = Callable[..., Any]
LABELS_ONLY = ("fedmd", "fedakd", "cfedakd", "dsfl")
FIRST_EXIT = {"exits.0.weight", "exits.0.bias"}
SEEN = load_dataset("digits").train.x[900:950]


@dataclass(frozen=True)
class Counting:
    """A learner that records (samples, epochs) of each training."""

    inner: Any
    trainings: list[tuple[int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def with_settings(self, **changes: Any) -> Counting:
        return replace(self, inner=self.inner.with_settings(**changes))

    def train(self, arrays: Any, data: Any, *, epochs: int, **how: Any) -> Any:
        self.trainings.append((len(data), epochs))
        return self.inner.train(arrays, data, epochs=epochs, **how)


@pytest.fixture
def ctx(bench: Make) -> Any:
    """60 own samples, 2 epochs in a round, 50 public samples."""
    made = bench()
    made.public = SEEN
    made.__dict__["learner"] = Counting(made.learner)
    return made


def score(algorithm: Any, ctx: Any) -> Reply:
    reply: Reply = algorithm.work(Task("score", scalars=scalars(algorithm)), ctx)
    return reply


def digest(algorithm: Any, ctx: Any, labels: Any) -> Reply:
    reply: Reply = algorithm.work(Task("digest", labels, scalars(algorithm)), ctx)
    return reply


def scalars(algorithm: Any) -> dict[str, Any]:
    """Scalars as ``draw_scalars`` returns them; algorithms without mixup read none."""
    return {"seed": 3, "lambda": 0.4}


@pytest.mark.parametrize(
    ("order", "warm_up", "first", "then"),
    [
        ("labels-first", 0, [[], [(50, 4), (60, 2)]], [[], [(50, 4), (60, 2)]]),
        ("labels-first", 3, [[(60, 3)], [(50, 4), (60, 2)]], [[], [(50, 4), (60, 2)]]),
        ("local-first", 0, [[(60, 2)], [(50, 4)]], [[(60, 2)], [(50, 4)]]),
        ("local-first", 3, [[(60, 5)], [(50, 4)]], [[(60, 2)], [(50, 4)]]),
    ],
)
def test_when_a_client_trains(
    order: str, warm_up: int, first: list[list[tuple[int, int]]], then: list[list[tuple[int, int]]], ctx: Any
) -> None:
    """(samples, epochs) of the labelling and of what follows, in the first round and in the second."""
    algorithm = make_algorithm("fedmd", {"kd_epochs": 4, "order": order, "warm_up_epochs": warm_up}, ())
    for expected in (first, then):
        labels = score(algorithm, ctx).arrays
        assert ctx.learner.trainings == expected[0]
        ctx.learner.trainings.clear()
        digest(algorithm, ctx, labels)
        assert ctx.learner.trainings == expected[1]
        ctx.learner.trainings.clear()


def test_a_client_that_has_lost_its_model_before_it_learns_warms_up_again(ctx: Any) -> None:
    algorithm = make_algorithm("fedmd", {"kd_epochs": 4, "warm_up_epochs": 3}, ())
    labels = score(algorithm, ctx).arrays
    ctx.memory.clear()
    digest(algorithm, ctx, labels)
    assert ctx.learner.trainings == [(60, 3), (60, 3), (50, 4), (60, 2)]


def test_a_client_without_test_samples_says_that_its_accuracy_measures_nothing(ctx: Any) -> None:
    ctx.test, ctx.__dict__["learner"] = Examples(ctx.test.x[:0], ctx.test.y[:0]), ctx.learner.inner
    fedavg, model = make_algorithm("fedavg-weighted", {}, ()), ctx.learner.init(0)
    replies = [score(make_algorithm("fedakd", {}, ()), ctx), fedavg.work(Task("train", model), ctx)]
    assert [(reply.metrics["accuracy"], reply.metrics["untested"]) for reply in replies] == [(0.0, 1.0)] * 2


@pytest.mark.parametrize("name", LABELS_ONLY)
def test_a_test_leaves_the_memory_alone_and_counts_right_answers(name: str, ctx: Any) -> None:
    algorithm: Any = make_algorithm(name, {"order": "local-first"}, ())
    score(algorithm, ctx)
    before = {key: x.tobytes() for key, x in ctx.memory.items()}
    reply = algorithm.work(Task(EVALUATE), ctx)
    assert {key: x.tobytes() for key, x in ctx.memory.items()} == before
    right = ctx.learner.predict(ctx.memory, ctx.test)[-1].argmax(axis=1) == ctx.test.y
    assert reply.metrics == {"samples": len(ctx.test)}
    counts = reply.arrays["personal_classes"].view(np.float64)
    assert list(reply.arrays) == ["personal_classes", "personal_loss"]
    assert (counts.shape, counts[1].sum()) == ((3, 10), right.sum())


@pytest.mark.parametrize(
    ("name", "fields"), [*((name, {}) for name in LABELS_ONLY), ("fedmd", {"kd_loss": "kl", "gamma": 0.5})]
)
def test_a_model_with_exits_labels_with_the_last_one_and_learns_labels_there(
    name: str, fields: dict[str, Any], bench: Make
) -> None:
    made = bench(build=build_model("mlp", {"hidden": [16, 12], "exits": [0]}, (1, 8, 8), 10))
    made.public = SEEN
    made.memory = made.learner.init(3)
    before, algorithm = dict(made.memory), make_algorithm(name, fields, ())
    digest(algorithm, made, score(algorithm, made).arrays)
    assert {key for key in before if made.memory[key].tobytes() == before[key].tobytes()} == FIRST_EXIT


@pytest.mark.parametrize("name", LABELS_ONLY)
def test_no_number_of_the_model_leaves_the_board(name: str, ctx: Any) -> None:
    algorithm: Any = make_algorithm(name, {"order": "local-first"}, ())
    labels = score(algorithm, ctx)
    assert {key: x.shape for key, x in labels.arrays.items()} == {
        "fedmd": {"logits": (50, 10)}, "fedakd": {"logits": (50, 10)}, "dsfl": {"probabilities": (50, 10)},
        "cfedakd": {"codes": (50, 10), "range": (2, 10)},
    }[name]  # fmt: skip
    own = {x.tobytes() for x in ctx.memory.values()}
    assert not own & {x.tobytes() for x in labels.arrays.values()}
    assert not digest(algorithm, ctx, labels.arrays).arrays


def test_until_it_has_trained_a_client_labels_with_the_model_it_was_born_with(ctx: Any) -> None:
    algorithm = make_algorithm("fedmd", {}, ())
    first, again = (score(algorithm, ctx).arrays["logits"] for _ in range(2))
    assert not ctx.memory
    assert first.tobytes() == again.tobytes()
    ctx.lasting_seed += 1
    assert score(algorithm, ctx).arrays["logits"].tobytes() != first.tobytes()


def test_learning_from_labels_with_an_optimiser_of_its_own(ctx: Any) -> None:
    """With a rate of next to nothing the labels leave the model as it was."""
    still = {"kd_optimiser": "adam", "kd_lr": 1e-12}
    labels = {"logits": np.full((50, 10), 3.0, np.float32)}
    kept: list[dict[str, NDArray[Any]]] = []
    for fields in ({**still, "kd_epochs": 1}, {**still, "kd_epochs": 9}, {"kd_epochs": 9}):
        ctx.memory.clear()
        digest(make_algorithm("fedmd", fields, ()), ctx, labels)
        kept.append(dict(ctx.memory))
    assert all(np.allclose(kept[0][name], kept[1][name], atol=1e-6) for name in kept[0])
    assert not all(np.allclose(kept[0][name], kept[2][name], atol=1e-3) for name in kept[0])


@pytest.mark.parametrize("name", [*LABELS_ONLY, "feddf", "fedet"])
def test_an_empty_public_set_is_refused_at_the_start(name: str) -> None:
    class ServerContext:
        public = np.zeros((0, 2), np.float32)

    algorithm: Any = make_algorithm(name, {}, ())
    with pytest.raises(ExperimentError, match="no samples"):
        algorithm.init({}, ServerContext())


@pytest.mark.parametrize("name", ["fedakd", "cfedakd"])
def test_words_and_events_cannot_be_mixed(name: str) -> None:
    class ServerContext:
        public = np.zeros((9, 5), np.int64)

    algorithm: Any = make_algorithm(name, {}, ())
    with pytest.raises(ExperimentError, match=r"data\.public: its samples are int64.* choose fedmd"):
        algorithm.init({}, ServerContext())
    ServerContext.public = np.zeros((9, 5), np.float32)
    assert algorithm.init({}, ServerContext()).arrays == {}
    make_algorithm("fedmd", {}, ()).init({}, ServerContext())  # type: ignore[arg-type]
