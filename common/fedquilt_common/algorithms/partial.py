"""What HeteroFL, FedRolex and Federated Dropout share: each client trains a sub-model, entries are averaged.

FedRolex thesis (Alam, 2023), algorithms 3.1 to 3.3 and equation 3.10. They differ in which channels a client gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.averages import Piece, sew
from fedquilt_common.slicing import Anatomy, Slice, full_slice
from fedquilt_common.submodels import DEFAULT_WIDTHS, Widths, by_size, check_widths, evaluate_levels, level_of
from fedquilt_common.types import Arrays, ClientId, Lab, Loss, Reply, Round, Shapes, Site, State, Task

HELD: Final = ".classes"
"""Name of the reply's array that says which classes the client has samples of: 1 or 0, shape (classes,)."""


@dataclass(frozen=True)
class PartialTraining(ABC):
    """``widths``: kind of board -> part of the channels it trains; kinds that are not listed train the smallest.

    ``mask_absent_classes``: a client leaves out of its loss the logits of classes that it has no samples of, and its
    rows of the classifier are not averaged for them. ``statistics``: after which rounds the clients of the greatest
    width collect the statistics of static batch norms; in between, evaluation uses the test batches' own.
    """

    widths: Widths = field(default_factory=lambda: dict(DEFAULT_WIDTHS))
    mask_absent_classes: bool = True
    statistics: Literal["never", "last", "each"] = "last"

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        if self.statistics not in ("never", "last", "each"):
            raise ValueError(f"statistics = {self.statistics!r}: must be never, last or each")

    @abstractmethod
    def part(self, lab: Lab, width: float) -> Slice:
        """The sub-model of one client in this round."""

    def piece_weight(self, reply: Reply, part: Slice) -> float:
        """What a client's entries count in the average: all the same (equation 3.10)."""
        return 1.0

    def init(self, model: Arrays, lab: Lab) -> State:
        full_slice(lab.anatomy)  # a model that cannot be cut is refused now, not in the first round
        return State(model)

    def round(self, state: State, lab: Lab) -> Round:
        parts = self._parts(lab)
        tasks = {client: Task("train", state.arrays, slice=part, expect=self._expected(part))
                 for client, part in parts.items()}  # fmt: skip
        replies = yield tasks
        pieces = {client: self._piece(reply, parts[client]) for client, reply in replies.items()}
        arrays: Arrays = sew(state.arrays, pieces)
        if self._collects_now(lab):
            arrays = yield from self._collected(arrays, {client: parts[client] for client in replies})
        trained = {str(client): self._width_of(client, lab) for client in sorted(replies)}
        return State(arrays, state.extra, {"trained": trained})

    def work(self, task: Task, site: Site) -> Reply:
        if task.kind == "statistics":
            return Reply(site.learner.statistics(task.arrays, site.data), len(site.data))
        held = np.bincount(site.data.y.astype(np.int64), minlength=site.classes) > 0 if self._masks(site) else None
        loss = None if held is None else masked_loss(held)
        trained = site.learner.train(task.arrays, site.data, seed=site.seed, loss=loss, part=task.slice)
        metrics = {"loss": trained.loss, "train_seconds": trained.seconds, "steps": trained.steps}
        arrays = {**trained.arrays, **({} if held is None else {HELD: held.astype(np.float32)})}
        return Reply(arrays, len(site.data), metrics)

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        levels = [(kind, self.part(lab, self.widths[kind])) for kind in by_size(self.widths)]
        return evaluate_levels(state.arrays, lab, levels)

    def _width_of(self, client: ClientId, lab: Lab) -> float:
        return self.widths[level_of(lab.fleet[client].kind, by_size(self.widths))]

    def _parts(self, lab: Lab) -> dict[ClientId, Slice]:
        return {client: self.part(lab, self._width_of(client, lab)) for client in sorted(lab.select())}

    def _masks(self, site: Site) -> bool:
        return self.mask_absent_classes and site.classes > 0

    def _expected(self, part: Slice) -> tuple[Shapes, ...]:
        """With the classes held, or without where there are none."""
        if not self.mask_absent_classes:
            return (part.shapes,)
        return ({**part.shapes, HELD: (outputs_of(part.anatomy),)}, part.shapes)

    def _piece(self, reply: Reply, part: Slice) -> Piece:
        held = np.asarray(reply.arrays[HELD]) > 0 if HELD in reply.arrays else None
        return Piece(reply.arrays, part, self.piece_weight(reply, part), held)

    def _collects_now(self, lab: Lab) -> bool:
        due = self.statistics == "each" or (self.statistics == "last" and lab.round == lab.rounds)
        return due and bool(lab.anatomy.statistics)

    def _collected(
        self, arrays: Arrays, parts: Mapping[ClientId, Slice]
    ) -> Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], Arrays]:
        """The sBN pass (HeteroFL, section 3) as an exchange: no sample leaves a client."""
        widest = max(part.entries for part in parts.values())
        asked = [client for client, part in parts.items() if part.entries == widest]
        anatomy = parts[asked[0]].anatomy
        shapes = {name: anatomy.arrays[name].shape for name in anatomy.statistics}
        task = Task("statistics", arrays, expect=shapes)
        replies = yield dict.fromkeys(asked, task)
        return {**arrays, **pooled(replies, anatomy)}


def outputs_of(anatomy: Anatomy) -> int:
    """How many outputs the model has."""
    return next((a.shape[a.outputs] for a in anatomy.arrays.values() if a.outputs is not None), 0)


def masked_loss(held: NDArray[np.bool_]) -> Loss:
    """Cross entropy in which the logits of classes that are not ``held`` are 0 (not minus infinity)."""

    def loss(outputs: Any, targets: Any) -> Any:
        import torch
        from torch.nn import functional

        logits = outputs[-1] if isinstance(outputs, list) else outputs
        absent = torch.from_numpy(~held).to(logits.device)
        return functional.cross_entropy(logits.masked_fill(absent, 0.0), targets)

    return loss


def pooled(replies: Mapping[ClientId, Reply], anatomy: Anatomy) -> dict[str, NDArray[Any]]:
    """Means and variances over all clients' samples; the norm layers know from a count of 1 that they are there."""
    result: dict[str, NDArray[Any]] = {}
    ordered = [replies[client] for client in sorted(replies)]
    weights = np.array([reply.weight for reply in ordered]) / sum(reply.weight for reply in ordered)
    for name in anatomy.statistics:
        if not name.endswith("running_mean"):
            continue
        norm = name.removesuffix("running_mean")
        means = np.stack([np.asarray(reply.arrays[name], np.float64) for reply in ordered])
        spread = np.stack([np.asarray(reply.arrays[f"{norm}running_var"], np.float64) for reply in ordered])
        mean = np.tensordot(weights, means, 1)
        result[name] = mean.astype(np.float32)
        variance = np.tensordot(weights, spread + means**2, 1) - mean**2
        result[f"{norm}running_var"] = np.maximum(variance, 0.0).astype(np.float32)
        result[f"{norm}num_batches_tracked"] = np.array(1, np.int64)
    return result
