"""FedBABU: only the body is trained and averaged, under the head that the run began with; heads are tuned for testing.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, algorithm 1 and
section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from fedquilt_common.algorithms.private_head import PrivateHead
from fedquilt_common.evaluation import counted
from fedquilt_common.heads import Head, leave, pick
from fedquilt_common.types import Arrays, Examples, Reply, Site, Task


@dataclass(frozen=True)
class FedBABU(PrivateHead):
    """``tune_epochs``: of fine-tuning before each evaluation, from the global model; ``tunes``: what is fine-tuned.

    The result is the client's own model, in its private memory. While only the head is tuned the base stands still,
    without dropout and with the statistics that its norms have.
    """

    tune_epochs: int = 10
    tunes: Literal["head", "whole"] = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune_epochs < 1:
            raise ValueError("tune_epochs must be 1 or more")
        if self.tunes not in ("head", "whole"):
            raise ValueError(f"tunes = {self.tunes!r}: must be head or whole")

    def train(self, task: Task, site: Site) -> Reply:
        body = leave(task.arrays, self.names(site)).keys()
        trained = site.learner.train(task.arrays, site.data, seed=site.seed, only=body)
        sent = pick(trained.arrays, self._sent(trained.arrays, self.names(site)))
        return Reply(sent, len(site.data), {"loss": trained.loss, "train_seconds": trained.seconds})

    def test(self, arrays: Arrays, site: Site) -> Reply:
        if self.tunes == "whole":
            return self._tested(arrays, site, site.data, site.test, None)
        data, test = (site.learner.features(arrays, some, self.head_layers) for some in (site.data, site.test))
        return self._tested(pick(arrays, self.names(site)), site, data, test, Head(self.head_layers))

    def _tested(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, data: Examples, test: Examples, part: Head | None
    ) -> Reply:
        """Of the model, or its head alone on the base's features."""
        learner = site.learner
        tuned = learner.train(arrays, data, seed=site.seed, part=part, epochs=self.tune_epochs)
        site.memory.update(tuned.arrays)
        (of_global,), (of_own,) = (learner.predict(one, test, part) for one in (arrays, tuned.arrays))
        return counted(test.y, of_global, of_own)
