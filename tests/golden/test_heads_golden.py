"""FedReb and FedROD against numbers transcribed from the thesis, and from PFLlib for the balanced softmax."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.data import golden_vectors
from torch import nn

from fedquilt_common.aggregation.rebalance import class_threshold, rebalance_examples
from fedquilt_common.algorithm_api import Reply, State
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.augment import repeat
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.submodels.heads import TwoHeads, add_second_head, split_second_head
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.losses import balanced_softmax, cross_entropy
from fedquilt_common.types import Examples

NAME = "f_fedreb_fedrod.json"
RULES = {
    "max": {"rule": "max"},
    "mean_floor": {"rule": "mean", "rounding": "floor"},
    "mean_round_half_even": {"rule": "mean", "rounding": "half-even"},
    "mean_ceil": {"rule": "mean", "rounding": "ceil"},
    "median_floor": {"rule": "median", "rounding": "floor"},
    "second_min_with_duplicates": {"rule": "second-min", "distinct": False},
    "second_min_distinct": {"rule": "second-min"},
    "min": {"rule": "min"},
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 3, bias=False))


BASE, HEAD = "0.weight", "2.weight"


@pytest.mark.parametrize("case", "ABCDE")
@pytest.mark.parametrize("rule", RULES)
def test_the_rebalanced_data_set(case: str, rule: str) -> None:
    golden = golden_vectors(NAME)["rebalance_cases"][case]
    counts = np.array(golden["class_counts"])
    threshold = class_threshold(counts, **RULES[rule])  # type: ignore[arg-type]
    assert threshold == golden["thresholds"][rule]
    expected = golden["rebalanced"][rule]
    y = np.repeat(np.arange(len(counts)), counts)
    made = rebalance_examples(
        Examples(np.arange(len(y))[:, None], y), threshold, lambda x, _: -1 - x, np.random.default_rng(0)
    )
    found, own = made.examples, made.examples.x[:, 0] >= 0
    assert np.bincount(found.y, minlength=len(counts)).tolist() == expected["class_counts"]
    assert np.bincount(found.y[~own], minlength=len(counts)).tolist() == expected["augmented_per_class"]
    assert np.bincount(found.y[own], minlength=len(counts)).tolist() == expected["effective_per_class"]
    assert (len(found), made.effective) == (expected["D_r"], expected["D_e"])
    assert len(np.unique(found.x[own])) == own.sum()  # nobody twice
    assert (y[np.where(own, found.x[:, 0], -1 - found.x[:, 0])] == found.y).all()


def test_exact_means_and_medians_are_rounded_half_up() -> None:
    assert [class_threshold(np.array([2, 3]), rule) for rule in ("mean", "median")] == [3, 3]
    assert class_threshold(np.array([2, 3]), "mean", "half-even") == 2
    assert class_threshold(np.array([0, 4, 4]), 17) == 17
    assert (
        len(rebalance_examples(Examples(np.zeros((4, 1)), np.zeros(4)), 17, repeat, np.random.default_rng(0)).examples)
        == 17
    )


@dataclass(frozen=True)
class ServerContext:
    learner: TorchLearner
    measures: bool = False


@pytest.mark.parametrize("threshold", ["mean_floor", "max", "median_floor", "second_min_distinct"])
@pytest.mark.parametrize(
    ("weights", "expected"),
    [("effective", "head_out_eq3.8"), ("original", "head_out_origin_weights"), ("rebalanced", None)],
)
def test_split_aggregation(threshold: str, weights: str, expected: str | None) -> None:
    golden = golden_vectors(NAME)["split_aggregation"][threshold]
    algorithm: Any = make_algorithm("fedreb", {"head_layers": 1, "head_weights": weights}, ())
    replies = {
        place: Reply({BASE: np.array(base, np.float32), HEAD: np.array(head, np.float32)}, original,
                     {"effective": effective, "rebalanced": balanced})
        for place, (base, head, original, effective, balanced) in enumerate(zip(
            *(golden[name] for name in ("base_in", "head_in", "D_o", "D_e", "D_r")), strict=True))
    }  # fmt: skip
    state = algorithm.merge(
        State(replies[0].arrays), replies, ServerContext(TorchLearner(net, Training(), Classification(3)))
    )
    np.testing.assert_allclose(state.arrays[BASE], golden["base_out"], atol=1e-5)
    head = golden[expected] if expected else np.tensordot(
        golden["gamma_head_alg3_rebalanced_size"], np.array(golden["head_in"]), 1)  # fmt: skip
    np.testing.assert_allclose(state.arrays[HEAD], head, atol=1e-5)


@pytest.mark.parametrize(
    ("freeze", "variant"),
    [(True, "text_and_opt1_variant(H1 frozen in phase 1)"), (False, "algorithm2_line11_variant(H1 also updated)")],
)
def test_one_batch_of_each_phase(freeze: bool, variant: str) -> None:
    """The two optimisers have a momentum each, so one step does not show in the other's."""
    golden = golden_vectors(NAME)["fedreb_one_batch_step"]
    algorithm: Any = make_algorithm("fedreb", {"head_layers": 1, "freeze_head": freeze}, ())
    training = Training(epochs=1, batch=2, lr=golden["lr"], momentum=golden["momentum"])
    learner = TorchLearner(net, training, Classification(3))
    start = {BASE: array(golden["base"]), HEAD: array(golden["H1"])}
    arranged = add_second_head(start, {HEAD: array(golden["H2"])})
    original, balanced = (Examples(array(golden[f"x_{x}"]), np.array(golden[f"y_{x}"])) for x in "or")
    phases = algorithm.phases(original, balanced, arranged, frozenset({HEAD}))
    expected = golden[variant]
    for schedule, after in (([0], "after_phase1"), ([0, 1], "after_phase2")):
        trained = learner.train_in_turn(arranged, phases, schedule, seed=0, part=TwoHeads(1))
        model, second = split_second_head(trained.arrays)
        for found, name in ((model[BASE], "base"), (model[HEAD], "H1"), (second[HEAD], "H2")):
            np.testing.assert_allclose(found, expected[after][name], atol=1e-6)
        assert trained.loss == pytest.approx(expected[f"loss_phase{len(schedule)}"], abs=1e-6)
    shared, own = learner.predict(add_second_head(model, second), original, TwoHeads(1))
    np.testing.assert_allclose(shared, expected["global_logits_after"], atol=1e-5)
    np.testing.assert_allclose(shared + own, expected["personal_logits_after"], atol=1e-5)


def array(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(("counts", "loss"), [("counts_full", "loss_full"), ("counts_absent_class2", "loss_absent")])
def test_the_balanced_softmax(counts: str, loss: str) -> None:
    golden = golden_vectors(NAME)["fedrod"]
    logits, labels = torch.tensor(golden["logits"]), torch.tensor(golden["labels"])
    found = balanced_softmax(np.array(golden[counts]))(logits, labels)
    assert found.item() == pytest.approx(golden[loss], abs=1e-6)
    assert cross_entropy(logits, labels).item() == pytest.approx(golden["plain_cross_entropy"], abs=1e-6)


@dataclass
class ClientContext:
    data: Examples
    learner: TorchLearner
    memory: dict[str, NDArray[Any]]
    classes: int = 3
    seed: int = 0
    test: Examples = field(default_factory=lambda: Examples(np.zeros((0, 3)), np.zeros(0)))


def test_one_step_of_fedrod() -> None:
    """The vectors' step has the samples of FedReb's phase 1; their class counts are given."""
    golden, shared = golden_vectors(NAME)["fedrod"]["one_step"], golden_vectors(NAME)["fedreb_one_batch_step"]
    algorithm: Any = make_algorithm("fedrod", {}, ())
    learner = TorchLearner(net, Training(epochs=1, batch=2, lr=golden["lr"]), Classification(3))
    data = Examples(array(shared["x_o"]), np.array(shared["y_o"]))
    generic = balanced_softmax(np.array(golden["counts"]))

    def loss(outputs: Any, targets: Any) -> Any:
        return generic(outputs[0], targets) + cross_entropy(outputs[0].detach() + outputs[1], targets)

    arranged = add_second_head({BASE: array(shared["base"]), HEAD: array(shared["H1"])}, {HEAD: array(shared["H2"])})
    trained = learner.train(arranged, data, seed=0, loss=loss, part=TwoHeads(1, detached=True))
    model, own = split_second_head(trained.arrays)
    for found, name in ((model[BASE], "base"), (model[HEAD], "head"), (own[HEAD], "personal_head")):
        np.testing.assert_allclose(found, golden[name], atol=1e-6)
    assert trained.loss == pytest.approx(golden["loss_bsm"] + golden["loss_personal"], abs=1e-6)

    # the algorithm's own loss is this one, with counts from its own samples
    ctx: Any = ClientContext(data, learner, {HEAD: array(shared["H2"])})
    outputs = [torch.randn(2, 3, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    targets = torch.tensor([0, 0])
    own_loss = algorithm.loss(ctx)(outputs, targets)
    by_hand = balanced_softmax(np.array([2, 0, 0]))(outputs[0], targets) + cross_entropy(sum(outputs), targets)
    assert own_loss.item() == pytest.approx(by_hand.item())
