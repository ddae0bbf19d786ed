"""The cases of each published algorithm, for ``test_algorithms.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedquilt_common.algorithm_api import Reply, Task


@dataclass(frozen=True)
class Case:
    """How one algorithm is tested.

    Attributes:
        model: the experiment's ``model`` section.
        alone: the degenerate case has one client, for algorithms that do not weigh clients by their samples.
        fields: the algorithm's fields for learning.
        degenerate: fields that make it FedAvg to the bit; None if there are none.
        also_degenerate: other such fields.
        why: the reason why there is no degenerate case.
        different: fields that must not give FedAvg's bits.
        refused: fields that it must not accept, each with a word of the reason.
        rounds: rounds of learning.
        batch: samples of a step of learning; the learning rate is proportional to it.
        accuracy: that the global model must reach.
        personal: accuracy that the clients' own models must reach, on their own samples.
        public: number of public samples, for algorithms that need them.
        ordered: the order in which replies arrive decides which of them count.
    """

    model: dict[str, Any] = field(default_factory=lambda: {"name": "mlp", "hidden": [32]})
    alone: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    degenerate: dict[str, Any] | None = field(default_factory=dict)
    also_degenerate: tuple[dict[str, Any], ...] = ()
    why: str = ""
    different: dict[str, Any] | None = None
    refused: tuple[tuple[dict[str, Any], str], ...] = ()
    rounds: int = 4
    batch: int = 32
    accuracy: float = 0.85
    personal: float = 0.85
    public: int | None = None
    ordered: bool = False


DISTILLED = {"kd_epochs": 5, "kd_optimiser": "adam", "kd_lr": 0.001}
OWN_MODELS = "clients have models of their own and send no weights"
CASES: dict[str, Case] = {
    "fedavg": Case(),
    "fedavg-weighted": Case(
        degenerate={},
        alone=True,
        also_degenerate=({"weighting": "uniform"},),
        different=None,
        refused=(({"weighting": "samples"}, "accuracy or uniform"),),
    ),
    "fedprox": Case(
        fields={"mu": 0.01},
        degenerate={"mu": 1e-30},  # the proximal term vanishes beside any gradient
        different={"mu": 1.0},
        refused=(
            ({"mu": 0.0}, "fedavg"),
            ({"mu": -0.1}, "positive"),
            ({"mu": float("nan")}, "positive"),
            ({"mu": float("inf")}, "positive"),
        ),
    ),
    "heterofl": Case(
        degenerate={"widths": {"strong": 1.0}, "mask_absent_classes": False},
        alone=True,
        different={"widths": {"strong": 0.5}, "mask_absent_classes": False},
        refused=(
            ({"widths": {"strong": 0.0}}, "above 0"),
            ({"widths": {"strong": 1.5}}, "at most 1"),
            ({"widths": {"strong": float("nan")}}, "above 0"),
            ({"widths": {}}, "each kind"),
            ({"statistics": "sometimes"}, "never, last or each"),
            ({"rounding": "half"}, "floor or ceil"),
        ),
        rounds=10,
        accuracy=0.75,
    ),
    "fedrolex": Case(
        degenerate={"widths": {"strong": 1.0}, "mask_absent_classes": False, "weighting": "samples", "step": 0},
        different={"widths": {"strong": 0.5}, "mask_absent_classes": False, "weighting": "samples"},
        refused=(
            ({"direction": "sideways"}, "forward"),
            ({"rounding": "half"}, "floor"),
            ({"weighting": "votes"}, "samples"),
            ({"step": -1}, "0 or more"),
            ({"overlap": 1.5}, "between 0 and 1"),
            ({"widths": {"strong": True}}, "above 0"),
        ),
        rounds=12,
        accuracy=0.75,
    ),
    "federated-dropout": Case(
        degenerate={"widths": {"strong": 1.0}},
        alone=True,
        different={"widths": {"strong": 0.5}},
        refused=(({"widths": {"strong": -1}}, "above 0"),),
        rounds=12,
        accuracy=0.75,
    ),
    "adaptivefl": Case(
        model={"name": "mlp", "hidden": [32, 32, 32]},
        fields={"starts": (2, 1)},
        degenerate={"levels": {}},
        different={"starts": (2, 1)},
        refused=(
            ({"starts": (3, 0)}, "below tau"),
            ({"starts": ()}, "give the layers"),
            ({"starts": (True,)}, "give the layers"),
            ({"selection": "all"}, "both, curiosity, resource or random"),
            ({"dispatch": "small"}, "random or largest"),
            ({"levels": {"M": 1.0}}, "below it"),
            ({"levels": {"L": 0.5}}, "below it"),
            ({"levels": {"M": 0.5, "S": 0.5}}, "two levels are the same"),
            ({"levels": {"M": 0.0}}, "above 0"),
        ),
        rounds=40,
        accuracy=0.75,
    ),
    "scalefl": Case(
        model={"name": "mlp", "hidden": [32, 32, 32], "exits": [0, 1]},
        degenerate={"widths": {"strong": 1.0}, "exits": {"strong": 1}},
        refused=(
            ({"exits": {"strong": 1}}, "no number of exits for"),
            ({"exits": {"strong": 0, "medium": 1, "weak": 1}}, "1 or more"),
            ({"temperature": 0.0}, "positive"),
            ({"distillation": 1.5}, "from 0 to 1"),
        ),
        rounds=12,
        accuracy=0.75,
        batch=16,
    ),
    "decoupled": Case(
        fields={"start": 0},
        degenerate={"widths": {"strong": 1.0}},
        different={"widths": {"strong": 1.0, "weak": 0.5}, "start": 0},
        refused=(({"widths": {"strong": 0.5}}, "width 1"), ({"data": "all"}, "affordable or own")),
        rounds=6,
        accuracy=0.7,
        batch=16,
    ),
    "all-large": Case(),
    "fedopt": Case(
        fields={"server_lr": 0.03},
        # with this tau the denominator is 2 tau for any gradient, so the step is the whole change
        degenerate={"optimizer": "adagrad", "beta1": 0.0, "tau": 2.0**50, "server_lr": 2.0**51},
        also_degenerate=({"optimizer": "sgd", "beta1": 0.0, "server_lr": 1.0},),
        different={"optimizer": "sgd", "beta1": 0.5, "server_lr": 1.0},
        refused=(
            ({"optimizer": "rmsprop"}, "adam, yogi, adagrad or sgd"),
            ({"server_lr": 0.0}, "positive"),
            ({"tau": 0.0}, "positive"),
            ({"tau": float("nan")}, "positive"),
            ({"beta1": 1.0}, "not including, 1"),
            ({"beta2": -0.1}, "not including, 1"),
        ),
        rounds=8,
        batch=16,
    ),
    "feddyn": Case(
        fields={"alpha": 0.1},
        degenerate=None,
        why="the server adds to the mean what the clients have moved, however small alpha is; see its own tests",
        refused=(({"alpha": 0.0}, "positive"), ({"alpha": -1.0}, "positive"), ({"alpha": float("inf")}, "positive")),
    ),
    "scaffold": Case(
        degenerate={},
        alone=True,  # a single client's control variate is the server's
        different={"server_lr": 0.5},
        refused=(({"server_lr": 0.0}, "positive"), ({"server_lr": float("nan")}, "positive")),
    ),
    "fednova": Case(
        degenerate={},  # every client has as many samples, so it takes as many steps
        different={"mu": 0.5},
        refused=(({"mu": -0.1}, "0 or a positive"), ({"mu": float("inf")}, "0 or a positive")),
        batch=16,
    ),
    "fedbuff": Case(
        degenerate=None,
        why="clients send what training changed, which rounds differently",
        refused=(({"buffer": 0}, "from 1"), ({"staleness": -1}, "staleness must be 0 or")),
        rounds=14,
        ordered=True,
    ),
    "moon": Case(
        degenerate={"mu": 1e-30},  # the contrastive loss vanishes beside any gradient
        different={"mu": 5.0},
        refused=(
            ({"mu": 0.0}, "fedavg"),
            ({"mu": float("nan")}, "positive"),
            ({"temperature": 0.0}, "positive"),
        ),
    ),
    "qfedavg": Case(
        fields={"q": 0.01},
        rounds=8,
        degenerate={"q": 0.0},  # all clients weigh equally, as their samples do here
        different={"q": 1.0},
        refused=(({"q": -1.0}, "0 or a positive"), ({"q": float("inf")}, "0 or a positive")),
    ),
    "ditto": Case(
        fields={"lambda_": 0.1},
        degenerate={"lambda_": 0.1},  # its global model is FedAvg's
        refused=(
            ({"lambda_": 0.0}, "lambda must be a positive number"),
            ({"lambda_": -0.1}, "positive"),
            ({"personal_epochs": 0, "lambda_": 0.1}, "1 or more"),
        ),
    ),
    "fedper": Case(
        fields={"global_head": "mean"},
        degenerate={"global_head": "mean"},
        alone=True,
        different={},  # the head stays the first one
        refused=(
            ({"head_layers": 0}, "whole number of 1 or more"),
            ({"head_layers": True}, "whole number"),
            ({"global_head": "last"}, "first or mean"),
        ),
    ),
    "fedrep": Case(
        model={"name": "mlp", "hidden": [32, 32]},
        fields={"global_head": "mean", "body_epochs": 2},
        degenerate=None,
        why="head and body are never trained together",
        refused=(({"body_epochs": 0}, "1 or more"), ({"head_epochs": 0}, "1 or more"), ({"head_layers": -1}, "1 or")),
        rounds=8,
        accuracy=0.6,
    ),
    "fedbabu": Case(
        model={"name": "mlp", "hidden": [32, 32]},
        degenerate=None,
        why="the head is never trained by the federation",
        refused=(({"tune_epochs": 0}, "1 or more"), ({"tunes": "body"}, "head or whole")),
        rounds=10,
        accuracy=0.6,
    ),
    "fedrod": Case(
        degenerate={"balanced": False},
        different={},
        refused=(({"head_layers": 0}, "1 or more"),),
    ),
    "fedreb": Case(
        model={"name": "mlp", "hidden": [32, 32]},
        degenerate=None,
        why="every client trains a second time, on other samples",
        refused=(
            ({"head_layers": 0}, "1 or more"),
            ({"threshold": "mode"}, "mean, median, max"),
            ({"threshold": 0}, "from 1"),
            ({"threshold": True}, "from 1"),
            ({"rounding": "up"}, "half-up"),
            ({"augmentation": "mixup"}, "five-step"),
            ({"head_weights": "equal"}, "effective"),
            ({"order": "random"}, "phases"),
        ),
    ),
    "alone": Case(degenerate=None, why=OWN_MODELS, rounds=6, personal=0.8),
    "fedmd": Case(
        fields=DISTILLED,
        degenerate=None,
        why=OWN_MODELS,
        refused=(
            ({"kd_epochs": 0}, "1 or more"),
            ({"kd_lr": 0.0}, "positive"),
            ({"kd_loss": "huber"}, "mse, mae or kl"),
            ({"order": "both"}, "labels-first or local-first"),
            ({"weighting": "samples"}, "uniform or accuracy"),
            ({"warm_up_epochs": -1}, "0 or more"),
            ({"kd_batch": 0}, "1 or more"),
            ({"temperature": 0.0, "kd_loss": "kl"}, "positive"),
            ({"temperature": 3.0}, "kd_loss: kl"),
            ({"gamma": 0.0}, "above 0"),
            ({"bits": 17, "compress": True}, "1 to 16"),
            ({"bits": 4}, "compress: true"),
            ({"ranges": "sample"}, "compress: true"),
            ({"compress": "yes"}, "true or false"),
        ),
        rounds=6,
        public=200,
        personal=0.8,
    ),
    "fedakd": Case(
        fields=DISTILLED,
        degenerate=None,
        why=OWN_MODELS,
        refused=(({"alpha": 0.0}, "positive"), ({"alpha": float("nan")}, "positive"), ({"kd_lr": -1.0}, "positive")),
        rounds=6,
        public=200,
        personal=0.8,
    ),
    "cfedakd": Case(
        fields=DISTILLED,
        degenerate=None,
        why=OWN_MODELS,
        refused=(({"alpha": -1.0}, "positive"), ({"compress": False}, "fedakd")),
        rounds=6,
        public=200,
        personal=0.8,
    ),
    "dsfl": Case(
        fields={"kd_epochs": 5},
        degenerate=None,
        why=OWN_MODELS,
        refused=(({"temperature": 0.0}, "positive"), ({"aggregation": "median"}, "era or sa")),
        rounds=6,
        public=300,
        accuracy=0.75,
        personal=0.8,
    ),
    "fedproto": Case(
        degenerate=None,
        why=OWN_MODELS,
        refused=(
            ({"lambda_": -1.0}, "lambda must be 0 or a positive"),
            ({"weighting": "votes"}, "samples or uniform"),
        ),
    ),
    "feddf": Case(
        degenerate={"kd_epochs": 0},
        different={"kd_epochs": 1},
        refused=(
            ({"kd_epochs": -1}, "0 or more"),
            ({"patience": 0}, "1 or more"),
            ({"weighting": "variance"}, "uniform or accuracy"),
        ),
        public=200,
    ),
    "fedet": Case(
        degenerate=None,
        why="the global model only ever learns from labels",
        refused=(
            ({"kd_epochs": 0}, "1 or more"),
            ({"diversity": -0.1}, "0 or more"),
            ({"head_layers": 0}, "1 or more"),
            ({"kd_lr": 0.0}, "positive"),
        ),
        public=300,
        rounds=6,
        accuracy=0.75,
    ),
}


def check_reply(task: Task, reply: Reply) -> None:
    """Check a reply as the coordinator does: the shapes of its arrays, and the metrics that the task asks for."""
    assert all(least <= reply.metrics[name] <= most for name, (least, most) in task.metrics.items())
    expect = {name: np.shape(x) for name, x in task.arrays.items()} if task.expect is None else task.expect
    allowed = expect if isinstance(expect, tuple) else (expect,)
    assert {name: np.shape(x) for name, x in reply.arrays.items()} in [dict(shapes) for shapes in allowed]
