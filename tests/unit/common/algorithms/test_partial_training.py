"""Partial training: who measures static norms, which groups are cut, and ScaleFL's two losses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.aggregation.client_evaluation import EVALUATE, client_scores
from fedquilt_common.algorithm_api import OutputViews, Reply, Task
from fedquilt_common.algorithms.families.levels import evaluate_levels
from fedquilt_common.algorithms.federated_dropout import FederatedDropout
from fedquilt_common.algorithms.fedrolex import FedRolex
from fedquilt_common.algorithms.heterofl import HeteroFL
from fedquilt_common.algorithms.scalefl import ScaleFL, absent_arrays
from fedquilt_common.errors import SliceError, UncuttableModelError
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.learning_tasks.next_word import NextWord
from fedquilt_common.models.exits import MultiExit
from fedquilt_common.submodels.selection import prefix, window
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Group, Segment, anatomy_of_slice
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.types import Examples, Profile
from fedquilt_server.lab.context import RoundContext

KINDS = ("strong", "strong", "strong", "medium", "weak", "weak")
NORM = {f"norm.running_{kind}": ArrayAnatomy((4,), "float32", ((Segment(0, 1),),)) for kind in ("mean", "var")}
NET = Anatomy(
    (Group("conv", 4, 0), Group("body.attention", 8, 1)),
    {
        "conv": ArrayAnatomy((4, 3), "float32", ((Segment(0, 1),), (Segment(None, 3),))),
        "out": ArrayAnatomy((8, 4), "float32", ((Segment(1, 1),), (Segment(0, 1),)), 0),
        **NORM,
    },
    statistics=tuple(NORM),
)


def ctx(round: int = 1, per_round: int = 2) -> RoundContext:
    fleet = {client: Profile(kind) for client, kind in enumerate(KINDS)}
    return RoundContext(round, fleet, 3, 2, len(KINDS), per_round, cast(Any, SimpleNamespace(anatomy=NET)))


def model() -> dict[str, Any]:
    return {name: np.zeros(array.shape, np.float32) for name, array in NET.arrays.items()}


def answer(task: Task) -> Reply:
    shapes = task.expect[0] if isinstance(task.expect, tuple) else task.expect or {}
    return Reply({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, 10)


@pytest.mark.parametrize(("algorithm", "right"), [(FedRolex(), 1), (HeteroFL(mask_absent_classes=False), 0)])
def test_logits_of_absent_classes_are_0_in_local_tests(algorithm: FedRolex | HeteroFL, right: int) -> None:
    """As in FedRolex's published code, so a class of the client's own below 0 still loses."""
    logits = np.array([[1, 2, -1], [-1, 2, -1]], np.float32)
    task = Classification(3)

    def count(arrays: Any, data: Examples, views: OutputViews) -> list[Any]:
        return [task.count(view, task.targets(data.y)) for view in views([-logits, logits])]

    samples = Examples(np.zeros((2, 1), np.float32), np.array([0, 0]))
    client: Any = SimpleNamespace(learning_task=task, data=samples, test=samples, learner=SimpleNamespace(count=count))
    reply = algorithm.work(Task(EVALUATE, {}), client)
    assert client_scores({0: reply}, task, "global") == {"0": right / 2}


@pytest.mark.parametrize("algorithm", [HeteroFL(), FedRolex(), FederatedDropout()])
def test_every_connected_client_measures_static_norms_drawn_or_not(algorithm: Any) -> None:
    last = ctx(round=2)
    steps = algorithm.round(algorithm.init(model(), last), last)
    tasks = next(steps)
    assert len(tasks) == 2
    measured = steps.send({client: answer(task) for client, task in tasks.items()})
    assert sorted(measured) == list(range(len(KINDS)))
    assert {task.kind for task in measured.values()} == {"statistics"}
    found = {name: np.full(4, 1e5, np.float32) for name in NORM}  # beyond what `wire.up: fp16` holds
    client: Any = SimpleNamespace(data=range(3), learner=SimpleNamespace(statistics=lambda *_: found))
    reply = algorithm.work(measured[0], client)
    assert {name: str(np.asarray(array).dtype) for name, array in reply.arrays.items()} == measured[0].dtypes
    with pytest.raises(StopIteration) as ended:
        steps.send(dict.fromkeys(measured, reply))
    assert all(np.array_equal(ended.value.value.arrays[name], array) for name, array in found.items())


def test_only_matching_channel_groups_are_cut() -> None:
    algorithm = HeteroFL(cut=["*.attention"])
    for client, task in next(algorithm.round(algorithm.init(model(), ctx()), ctx(per_round=6))).items():
        assert task.slice is not None
        width = {"strong": 8, "medium": 4, "weak": 2}[KINDS[client]]
        assert dict(task.slice.counts) == {"conv": 4, "body.attention": width}


def test_a_pattern_without_a_group_is_refused_before_the_run() -> None:
    with pytest.raises(SliceError, match=r"algorithm.cut = head\*: matches no channel group; .* conv, body.attention"):
        HeteroFL(cut=["head*"]).init(model(), ctx())


def test_masks_need_an_array_that_has_all_outputs() -> None:
    """A model that concatenates two heads has none: all clients would fail in round 1."""
    out = replace(NET.arrays["out"], outputs=None)
    tools = SimpleNamespace(anatomy=replace(NET, arrays={**NET.arrays, "out": out}), learning_task=Classification(8))
    headless = replace(ctx(), tools=cast(Any, tools))
    with pytest.raises(UncuttableModelError, match=r"mask_absent_classes: no single array .* set it to false"):
        HeteroFL().init(model(), headless)
    HeteroFL(mask_absent_classes=False).init(model(), headless)


@pytest.mark.parametrize(
    ("exits", "reason"), [(1, "model has 2 exits, .* nobody trains its last"), (3, "give the model 2 early exits")]
)
def test_scalefls_strongest_boards_train_all_exits(exits: int, reason: str) -> None:
    algorithm = ScaleFL(exits={"strong": exits, "medium": 1, "weak": 1})
    with pytest.raises(SliceError, match=reason):
        algorithm.part(replace(NET, exits_after=(1, 2)), "strong")


class Staged(nn.Module):
    """A backbone that has ``stages`` of its own, before the stages of a ``MultiExit`` that two attributes name."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3))
        self.tail = MultiExit([nn.Linear(6, 8), nn.Linear(8, 8)], [nn.Linear(8, 4), nn.Linear(8, 4)], after=[0, 1])
        self.same = self.tail

    def forward(self, x: Tensor) -> list[Tensor]:
        for stage in self.stages:
            x = stage(x)
        return cast(list[Tensor], self.tail(x))


def test_scalefl_cuts_the_stages_of_the_exits_and_no_others() -> None:
    samples = np.zeros((2, 6), np.float32)
    blueprint = blueprint_for(Staged, samples)
    algorithm = ScaleFL(widths={"strong": 1.0, "weak": 0.5}, exits={"strong": 2, "weak": 1})
    strong, weak = (algorithm.part(blueprint.anatomy, kind) for kind in algorithm.widths)
    owners = {f"{place}.{module}.1" for place in ("tail", "same") for module in ("stages", "exits")}
    assert {name.rpartition(".")[0] for name in weak.absent} == owners
    assert not strong.absent
    for part in (strong, weak):
        check_cut(Staged, blueprint, samples, part)
        assert set(cut_module(Staged, blueprint, part).state_dict()) == set(part.shapes)
    assert absent_arrays(anatomy_of_slice(strong), 1) == weak.absent


@pytest.mark.parametrize("method", ["paper", "code"])
def test_scalefl_has_the_papers_loss_and_the_published_codes(method: Any) -> None:
    """The code adds gamma times a mean over samples and classes, from a quarter of the rounds on."""
    logits, targets = (
        [torch.randn(5, 3, generator=torch.Generator().manual_seed(k)) for k in range(2)],
        torch.arange(5) % 3,
    )
    algorithm = ScaleFL(method=method, temperature=2.0, distillation=0.25)
    shallow, deep = (functional.cross_entropy(one, targets) for one in logits)
    soft = (logits[1] / 2).softmax(1)
    apart = (soft * (soft.log() - (logits[0] / 2).log_softmax(1))).sum() * 4
    mixed = 0.75 * shallow + 0.25 * apart / 5 if method == "paper" else shallow + 0.25 * apart / 15
    torch.testing.assert_close(algorithm.loss(logits, targets), mixed / 3 + deep * 2 / 3)
    torch.testing.assert_close(algorithm.loss(logits, targets, distil=False), shallow / 3 + deep * 2 / 3)
    assert [algorithm.distils(round, 8) for round in (1, 2, 3)] == [method == "paper", method == "paper", True]


def test_scalefl_trains_all_exits_of_a_regression() -> None:
    losses: list[Any] = []

    def train(*_: Any, loss: Any, **__: Any) -> Any:
        losses.append(loss)
        return SimpleNamespace(arrays={}, loss=0.0, seconds=0.0)

    learner, task = SimpleNamespace(train=train), SimpleNamespace(name="regression", loss=functional.mse_loss)
    client: Any = SimpleNamespace(learning_task=task, learner=learner, data=(), seed=0)
    ScaleFL().work(Task("train"), client)
    targets = torch.zeros(4, 1)
    assert float(losses[0]([targets + 1, targets + 2], targets)) == pytest.approx(1 / 3 + 4 * 2 / 3)


def test_next_word_of_the_last_place_alone() -> None:
    """As the FedRolex thesis's Transformer; a sequence that ends in padding has no word there."""
    task = NextWord(7)
    words, logits = torch.tensor([[3, 4, 5], [2, 6, 0]]), torch.randn(2, 7)
    torch.testing.assert_close(task.loss(logits, words), functional.cross_entropy(logits[:1], words[:1, -1]))
    assert float(task.count(logits.numpy(), words.numpy())["words"]) == 1


def test_levels_do_not_use_the_whole_models_statistics() -> None:
    """They are measured on all channels, and differ from those of a sub-model, which uses its batches'."""
    arrays = {**model(), "norm.num_batches_tracked": np.array(1)}
    asked: list[tuple[bool, int]] = []

    def evaluate(found: Any, part: Any = None) -> dict[str, float]:
        asked.append((part is None, int(found["norm.num_batches_tracked"])))
        return {"accuracy": 0.5}

    tracked = {"norm.num_batches_tracked": ArrayAnatomy((), "int64", ())}
    anatomy = replace(NET, arrays={**NET.arrays, **tracked})
    task = SimpleNamespace(main=SimpleNamespace(name="accuracy"))
    turned = window(anatomy, 1.0, "floor", lambda group: 1)
    server: Any = SimpleNamespace(anatomy=anatomy, evaluate=evaluate, learning_task=task)
    scores = evaluate_levels(arrays, server, [("full", turned), ("half", prefix(anatomy, 0.5, "floor"))])
    assert scores.keys() == {"accuracy", "accuracy_full", "accuracy_half", "average_accuracy"}
    assert asked == [(True, 1), (False, 0)]
