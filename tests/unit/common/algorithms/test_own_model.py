"""What a client of soft labels does: when it trains on its own samples, what it keeps, what leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.errors import ExperimentError
from fedquilt_common.evaluation import EVALUATE
from fedquilt_common.types import Reply, Task

Make = Callable[..., Any]
LABELS_ONLY = ("fedmd", "fedakd", "cfedakd", "dsfl")
SEEN = load_dataset("digits").train.x[900:950]


@dataclass(frozen=True)
class Counting:
    """A learner that notes how many epochs it is asked for, and of how many samples."""

    inner: Any
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def tuned(self, **changes: Any) -> Counting:
        return replace(self, inner=self.inner.tuned(**changes))

    def train(self, arrays: Any, data: Any, *, epochs: int, **how: Any) -> Any:
        self.asked.append((len(data), epochs))
        return self.inner.train(arrays, data, epochs=epochs, **how)


@pytest.fixture
def site(bench: Make) -> Any:
    """60 own samples, 2 epochs in a round, 50 public samples."""
    made = bench()
    made.public = SEEN
    made.__dict__["learner"] = Counting(made.learner)
    return made


def score(algorithm: Any, site: Any) -> Reply:
    reply: Reply = algorithm.work(Task("score", scalars=drawn(algorithm)), site)
    return reply


def digest(algorithm: Any, site: Any, labels: Any) -> Reply:
    reply: Reply = algorithm.work(Task("digest", labels, drawn(algorithm)), site)
    return reply


def drawn(algorithm: Any) -> dict[str, Any]:
    """As ``draw`` gives them; those that do not mix look at none."""
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
    order: str, warm_up: int, first: list[list[tuple[int, int]]], then: list[list[tuple[int, int]]], site: Any
) -> None:
    """(samples, epochs) of the labelling and of what follows, in the first round and in the second."""
    algorithm = make_algorithm("fedmd", {"kd_epochs": 4, "order": order, "warm_up_epochs": warm_up}, ())
    for expected in (first, then):
        labels = score(algorithm, site).arrays
        assert site.learner.asked == expected[0]
        site.learner.asked.clear()
        digest(algorithm, site, labels)
        assert site.learner.asked == expected[1]
        site.learner.asked.clear()


@pytest.mark.parametrize("name", LABELS_ONLY)
def test_a_test_leaves_the_memory_alone_and_counts_right_answers(name: str, site: Any) -> None:
    algorithm: Any = make_algorithm(name, {"order": "local-first"}, ())
    score(algorithm, site)
    before = {key: x.tobytes() for key, x in site.memory.items()}
    reply = algorithm.work(Task(EVALUATE), site)
    assert {key: x.tobytes() for key, x in site.memory.items()} == before
    right = site.learner.predict(site.memory, site.test)[-1].argmax(axis=1) == site.test.y
    assert (reply.metrics["personal_right"], reply.metrics["samples"]) == (right.sum(), len(site.test))
    assert not reply.arrays


@pytest.mark.parametrize("name", LABELS_ONLY)
def test_no_number_of_the_model_leaves_the_board(name: str, site: Any) -> None:
    algorithm: Any = make_algorithm(name, {"order": "local-first"}, ())
    labels = score(algorithm, site)
    assert {key: x.shape for key, x in labels.arrays.items()} == {
        "fedmd": {"logits": (50, 10)}, "fedakd": {"logits": (50, 10)}, "dsfl": {"probabilities": (50, 10)},
        "cfedakd": {"codes": (50, 10), "range": (2, 10)},
    }[name]  # fmt: skip
    own = {x.tobytes() for x in site.memory.values()}
    assert not own & {x.tobytes() for x in labels.arrays.values()}
    assert not digest(algorithm, site, labels.arrays).arrays


def test_until_it_has_trained_a_client_labels_with_the_model_it_was_born_with(site: Any) -> None:
    algorithm = make_algorithm("fedmd", {}, ())
    first, again = (score(algorithm, site).arrays["logits"] for _ in range(2))
    assert not site.memory
    assert first.tobytes() == again.tobytes()
    site.lasting_seed += 1
    assert score(algorithm, site).arrays["logits"].tobytes() != first.tobytes()


def test_learning_from_labels_with_an_optimiser_of_its_own(site: Any) -> None:
    """With a rate of next to nothing the labels leave the model as it was."""
    still = {"kd_optimiser": "adam", "kd_lr": 1e-12}
    labels = {"logits": np.full((50, 10), 3.0, np.float32)}
    kept: list[dict[str, NDArray[Any]]] = []
    for fields in ({**still, "kd_epochs": 1}, {**still, "kd_epochs": 9}, {"kd_epochs": 9}):
        site.memory.clear()
        digest(make_algorithm("fedmd", fields, ()), site, labels)
        kept.append(dict(site.memory))
    assert all(np.allclose(kept[0][name], kept[1][name], atol=1e-6) for name in kept[0])
    assert not all(np.allclose(kept[0][name], kept[2][name], atol=1e-3) for name in kept[0])


@pytest.mark.parametrize("name", [*LABELS_ONLY, "feddf", "fedet"])
@pytest.mark.parametrize(("classes", "samples", "words"), [(0, 5, "the data set has none"), (3, 0, "no samples")])
def test_what_cannot_be_distilled_is_refused_at_the_start(name: str, classes: int, samples: int, words: str) -> None:
    class Lab:
        public = np.zeros((samples, 2), np.float32)

    Lab.classes = classes  # type: ignore[attr-defined]
    algorithm: Any = make_algorithm(name, {}, ())
    with pytest.raises(ExperimentError, match=words) as told:
        algorithm.init({}, Lab())
    assert classes or f"algorithm.name = {name}" in str(told.value)
