"""Steps of private training that draw no sample."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.accounting import few_orders
from tests.support.packages import needs
from torch import Tensor, nn

from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.privacy.meter import PrivacyMeter
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

needs("opacus", "needs the extra dp")
RNG = np.random.default_rng(3)
DATA = Examples(RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 3, 60))


class WithSpare(nn.Module):
    """A classifier with a layer on which its loss does not depend."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        out: Tensor = self.head(x)
        return out


@pytest.fixture(autouse=True, scope="module")
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


def test_a_layer_without_a_gradient_tells_nothing_about_the_first_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedquilt_common.training.private_gradients import PrivateGradients

    empty, find_used = [0], PrivateGradients.find_used

    def count(self: PrivateGradients, loss: Tensor) -> None:
        empty[0] += 1
        find_used(self, loss)

    monkeypatch.setattr(PrivateGradients, "find_used", count)
    keys = [f"{number:02d}" * 32 for number in range(6)]
    for key in keys:
        meter = PrivacyMeter(Privacy(epsilon=8.0, delta=1e-3), 1, {}, None, functools.partial(open_secret, key))
        trainer = TorchLearner(WithSpare, Training(epochs=1, batch=1, lr=0.1), Classification(3), meter=meter)
        start = trainer.init(0)
        before = {name: np.array(x) for name, x in start.items()}
        trained = trainer.train(start, DATA, seed=1).arrays
        assert (trained["spare.weight"] == before["spare.weight"]).all()
        assert (trained["head.weight"] != before["head.weight"]).any()
    assert 0 < empty[0] < len(keys)  # the first draw was empty with some of the keys, and not with others
