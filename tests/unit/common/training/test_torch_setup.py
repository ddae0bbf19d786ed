"""New memory is filled with NaN until every layer has run once, and left as it is afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import TrainingDivergedError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import leave_new_memory, set_up_torch
from fedquilt_common.types import Examples

DATA = Examples(np.ones((400, 4), np.float32), np.arange(400) % 2)


@pytest.fixture(autouse=True)
def strict_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    set_up_torch()
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(threads)


class Watching(nn.Module):
    """Notes in each pass whether new memory is filled, and may read it."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.linear, self.reads, self.filled = nn.Linear(4, 2), reads, list[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.filled.append(is_filled())
        out: Tensor = self.linear(x)
        return out + torch.empty_like(out) if self.reads else out


def is_filled() -> bool:
    return bool(torch.empty(100).isnan().all())


def learner(module: nn.Module) -> TorchLearner:
    return TorchLearner(lambda: module, Training(batch=100, lr=0.1), Classification(2))


def test_only_the_first_step_fills_new_memory() -> None:
    module = Watching()
    learner(module).train(learner(Watching()).init(0), DATA, seed=0, epochs=2)
    passes = module.filled[-8:]  # the model is tried on two samples before
    assert passes == [True] + 7 * [False]
    assert is_filled()


def test_evaluation_fills_the_memory_of_its_first_batches() -> None:
    module, data = Watching(), Examples(np.ones((4000, 4), np.float32), np.arange(4000) % 2)
    learner(module).evaluate(learner(Watching()).init(0), data)
    assert module.filled[:2] == [True, True]
    assert not any(module.filled[-2:])
    assert is_filled()


def test_a_layer_that_reads_new_memory_is_noticed() -> None:
    one = learner(Watching(reads=True))
    with pytest.raises(TrainingDivergedError, match="loss became nan in step 1"):
        one.train(one.init(0), DATA, seed=0)


def test_the_setting_of_before_comes_back_when_the_last_context_ends() -> None:
    with leave_new_memory():
        with leave_new_memory():
            assert not is_filled()
        assert not is_filled()
    assert is_filled()
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    with leave_new_memory():
        pass
    assert not is_filled()


def test_an_error_restores_the_filling() -> None:
    with pytest.raises(RuntimeError, match="shape"), leave_new_memory():
        raise RuntimeError("shape")
    assert is_filled()
