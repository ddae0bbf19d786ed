"""Evaluation on several threads: the same bits for any number, for models that keep objects of a pass too."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import FedquiltError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.training import forward_passes
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

IMAGES = (3, 16, 16)


class Remembering(nn.Module):
    """Keeps its last features on the way, so that two threads may not share it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, 3)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.flatten(1)
        self.linear(torch.ones(200, 768))  # time for another thread
        out: Tensor = self.linear(self.last)
        return out


class Hooked(Remembering):
    """A hook connects it to an object that copies share."""

    def __init__(self) -> None:
        super().__init__()
        seen: list[int] = []
        self.linear.register_forward_pre_hook(lambda _, inputs: seen.append(threading.get_ident()))
        self.seen = seen


class Uncopyable(Remembering):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Failing(nn.Module):
    """Fails in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise FedquiltError("the model fails")


def samples(count: int = 500) -> Examples:
    rng = np.random.default_rng(0)
    return Examples(rng.standard_normal((count, *IMAGES), dtype=np.float32), rng.integers(0, 3, count))


def learner(build: Callable[[], nn.Module], threads: int) -> TorchLearner:
    return TorchLearner(build, Training(), Classification(3), threads=threads)


RESNET, MLP = build_model("resnet18", {"width": 0.1}, IMAGES, 3), build_model("mlp", {}, IMAGES, 3)


@pytest.mark.parametrize(
    "build",
    [RESNET, MLP, Remembering, Hooked, Uncopyable],
    ids=["resnet18", "mlp", "remembering", "hooked", "uncopyable"],
)  # fmt: skip
def test_no_bit_depends_on_the_number_of_threads(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_passes, "_WORTH_SHARING", 0.0)
    start, data = learner(build, 1).init(0), samples()
    alone = learner(build, 1)
    scores, (expected,) = alone.evaluate(start, data), alone.predict(start, data)
    for threads in (2, 3, 16):
        several = learner(build, threads)
        assert several.evaluate(start, data) == scores
        (found,) = several.predict(start, data)
        assert found.tobytes() == expected.tobytes()


def test_the_threads_of_an_operation_do_not_matter_and_stay() -> None:
    start, data, before = learner(RESNET, 1).init(0), samples(), torch.get_num_threads()
    found: list[Any] = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(learner(RESNET, 2).evaluate(start, data))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_threads_share_slow_batches() -> None:
    """Behind the first two, each batch waits until another one is computed too, so one thread alone cannot go on."""
    both, calls = threading.Barrier(2, timeout=60), itertools.count()

    class Slow(Remembering):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.005)
            if next(calls) > 1:
                both.wait()
            return super().forward(x)

    one = learner(Slow, 2)
    one.evaluate(one.init(0), samples(256))


def test_one_thread_computes_fast_batches() -> None:
    seen: set[int] = set()

    class Fast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(768, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen.add(threading.get_ident())
            return x.new_zeros(len(x), 3)

    one = learner(Fast, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward_passes, "_WORTH_SHARING", 60.0)
        one.evaluate(one.init(0), samples(640))
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_the_model_is_raised(threads: int) -> None:
    one = learner(Failing, threads)
    with pytest.raises(FedquiltError, match="the model fails"):
        one.evaluate(one.init(0), samples())


def test_no_samples_have_no_predictions() -> None:
    one = learner(Remembering, 2)
    assert one.predict(one.init(0), samples(0)) == []
