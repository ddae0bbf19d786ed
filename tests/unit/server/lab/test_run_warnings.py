"""Warnings of a run, which it logs once when it starts."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.models.static_norm import StaticBatchNorm
from fedquilt_server.lab.run_warnings import warn_about_kind, warn_about_run
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.run import ActiveRun


class Out(NamedTuple):
    logits: Tensor
    aux: Tensor


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Out:
        logits = self.head(x.flatten(1))
        return Out(logits, logits)


class Own(Named):
    def training_loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs[0], targets)


class Swapped(nn.Module):
    """Trains another head than the one that is evaluated; at random, it leaves out a layer that is trained, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux, self.fc = nn.Linear(64, 64), nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = x if self.training and torch.rand(()) < 0.5 else self.body(x)
        logits: Tensor = self.aux(x) if self.training else self.fc(x)
        return logits


def swapped(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Swapped()


class Experts(nn.Module):
    """Each sample trains one of two layers; in evaluation, its numbers leave torch on the way if ``numpy`` is set."""

    def __init__(self, numpy: bool) -> None:
        super().__init__()
        self.first, self.second, self.numpy = nn.Linear(64, 10), nn.Linear(64, 10), numpy

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        chosen = self.first if x.sum() > 0 else self.second
        logits: Tensor = chosen(x) if self.training else self.first(x) + self.second(x)
        return torch.from_numpy(logits.numpy()) if self.numpy and not self.training else logits


def experts(input_shape: tuple[int, ...], classes: int, numpy: bool = False) -> nn.Module:
    return Experts(numpy)


def named(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Named()


def own(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Own()


def static(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(StaticBatchNorm(1), nn.Flatten(), nn.Linear(64, classes))


def bench(
    model: str,
    algorithm: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    fleet: list[dict[str, Any]] | None = None,
    **params: Any,
) -> Workbench:
    raw = {"name": "x", "data": {"set": "digits", "clients": 2, **(data or {})}, "training": training or {},
           "model": {"name": model, **params}, "algorithm": algorithm or {"name": "fedavg"},
           "privacy": privacy, **({"fleet": fleet} if fleet else {})}  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


def test_a_named_tuple_of_which_the_last_output_is_trained_is_pointed_out() -> None:
    made = bench(f"{__name__}:named")
    made.check()
    (warning,) = warn_about_run(made)
    assert warning.startswith(f"model.name = {__name__}:named: the model returns a named tuple (logits, aux)")


def test_parameters_that_training_leaves_out_and_evaluation_uses_are_pointed_out() -> None:
    (warning,) = warn_about_run(bench(f"{__name__}:swapped"))
    assert f"{__name__}:swapped: evaluation uses fc.bias, fc.weight, which training leaves out: they keep" in warning


@pytest.mark.parametrize("model", ["mlp", f"{__name__}:own"])
def test_other_models_have_no_warning(model: str) -> None:
    assert warn_about_run(bench(model)) == []


@pytest.mark.parametrize("numpy", [False, True])
def test_layers_that_some_samples_train_and_outputs_without_a_gradient_are_no_reason(numpy: bool) -> None:
    assert warn_about_run(bench(f"{__name__}:experts", numpy=numpy)) == []


def test_optimisers_that_diverge_in_half_precision_are_pointed_out() -> None:
    half = {"precision": "fp16", "optimiser": "adam"}
    (warning,) = warn_about_run(bench("mlp", training=half))
    assert re.match(r"training\.precision = fp16: .*adam.*choose training\.precision bf16", warning)
    for other in ({"precision": "bf16"}, {"optimiser": "sgd"}, {"optimiser": "rmsprop-keras"}):
        assert warn_about_run(bench("mlp", training={**half, **other})) == []


def test_milestones_that_no_round_reaches_are_pointed_out() -> None:
    def warnings(*milestones: int) -> list[str]:
        schedule = {"kind": "multi-step", "milestones": list(milestones)}
        return warn_about_run(bench("mlp", training={"schedule": schedule}))

    rounds = bench("mlp").experiment.rounds
    assert warnings(rounds - 1) == []
    (warning,) = warnings(1, rounds, rounds + 5)
    assert re.match(
        rf"training\.schedule\.milestones = \[1, .*after {rounds} rounds.*at {rounds}, {rounds + 5};", warning
    )


@pytest.mark.parametrize(("name", "fields"), [("feddf", {}), ("fedet", {}), ("fedmd", {"kd_optimiser": "adam"})])
def test_a_distillation_that_diverges_in_half_precision_is_refused(name: str, fields: dict[str, Any]) -> None:
    made = bench("mlp", {"name": name, **fields}, {"precision": "fp16"}, {"public": {"samples": 9}})
    with pytest.raises(ExperimentError, match=r"^training\.precision = fp16.*squares of small gradients"):
        made.check()


@pytest.mark.parametrize(
    ("algorithm", "norm"),
    [({"name": "fedavg"}, "batch"), ({"name": "fedprox", "mu": 0.1}, "batch"), ({"name": "alone"}, "batch"),
     ({"name": "all-large"}, "batch"), ({"name": "decoupled"}, "batch"),
     ({"name": "scalefl", "exits": {"strong": 1, "medium": 1, "weak": 1}}, "group"), ({"name": "adaptivefl"}, "group")],
)  # fmt: skip
def test_static_norms_that_nothing_measures_are_pointed_out(algorithm: dict[str, Any], norm: str) -> None:
    """Their scores depend on the order of the test samples."""
    (warning,) = warn_about_run(bench("resnet18", algorithm, width=0.125, norm="static"))
    assert warning.startswith(f"model.name = resnet18: '{algorithm['name']}' never measures the statistics of its Stat")
    assert f"norm: {norm}}}" in warning
    for other in {norm, "group"}:
        assert warn_about_run(bench("resnet18", algorithm, width=0.125, norm=other)) == []


@pytest.mark.parametrize("algorithm", ["heterofl", "fedrolex", "federated-dropout"])
def test_static_norms_that_the_algorithm_measures_have_no_warning(algorithm: str) -> None:
    assert warn_about_run(bench("resnet18", {"name": algorithm}, width=0.125, norm="static")) == []


def test_a_users_own_static_norms_are_pointed_out() -> None:
    (warning,) = warn_about_run(bench(f"{__name__}:static"))
    assert "use nn.BatchNorm2d or nn.GroupNorm in its place" in warning


def test_a_run_logs_it_when_it_starts_and_keeps_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = ActiveRun(bench(f"{__name__}:named").experiment, tmp_path / "run", resume=False)
    try:
        (warning,) = run.result().warnings
    finally:
        run.folder.release()
    assert "a named tuple (logits, aux)" in warning
    assert caplog.messages.count(warning) == 1


@pytest.mark.parametrize(("algorithm", "public", "warned"), [("fedavg", 50, 1), ("fedmd", 50, 0), ("fedavg", None, 0)])
def test_public_samples_that_nobody_uses_are_pointed_out(algorithm: str, public: int | None, warned: int) -> None:
    data = {"public": {"samples": public}} if public else {}
    warnings = warn_about_run(bench("mlp", {"name": algorithm}, data=data))
    assert [text.startswith(f"data.public: '{algorithm}' does not use public samples") for text in warnings] == (
        [True] * warned
    )


@pytest.mark.parametrize(
    ("algorithm", "kind", "warning"),
    [
        ({"name": "heterofl"}, "generic", "boards of the kind 'generic' train the smallest sub-model"),
        ({"name": "heterofl", "widths": {"strong": 1.0, "medium": 0.5}}, "strng", r"did you mean 'strong'\?"),
        ({"name": "heterofl"}, "weak", "^$"),
        ({"name": "fedavg"}, "generic", "^$"),
        ({"name": "adaptivefl", "starts": [1]}, "generic", "^$"),
    ],
)
def test_kinds_that_widths_do_not_list_are_pointed_out(algorithm: dict[str, Any], kind: str, warning: str) -> None:
    assert re.search(warning, warn_about_kind(bench("mlp", algorithm), kind))


PRIVACY = {"epsilon": 8, "delta": 1e-5, "clip": 1.0}


@pytest.mark.parametrize(
    ("overlap", "private", "ending"),
    [(True, 7, "its own board only"), (True, 3, "those without privacy do not protect it at all"), (True, 0, ""),
     (False, 7, "")],
)  # fmt: skip
def test_epsilons_of_clients_with_the_same_sample_are_pointed_out(overlap: bool, private: int, ending: str) -> None:
    partition = {"scheme": "per-class", "per_class": 19, "overlap": overlap}
    lines: list[dict[str, Any]] = [{"clients": private, "privacy": PRIVACY}, {"clients": 7 - private}]
    made = bench(
        "mlp", data={"clients": 7, "holdout": 0.0, "partition": partition},
        fleet=[line for line in lines if line["clients"]],
    )  # fmt: skip
    found = [warning for warning in warn_about_run(made) if "clients have the same sample" in warning]
    assert len(found) == bool(ending)
    shares = [share.train for share in made.shares]
    for warning in found:
        most = np.bincount(np.concatenate(shares))[np.concatenate(shares[:private])].max()
        assert warning.startswith(f"privacy.epsilon: up to {most} clients have the same sample")
        assert warning.endswith(ending)


@pytest.mark.parametrize(
    ("name", "training", "warns"), [("fedavg", {}, 0), ("fedper", {}, 1), ("fedavg", {"keep_optimiser": True}, 1)]
)
def test_clients_that_remember_get_no_amplification(name: str, training: dict[str, Any], warns: int) -> None:
    privacy = {"mode": "central", "epsilon": 900.0, "delta": 0.02, "clip": 1.0}
    made = bench("mlp", {"name": name}, {"momentum": 0.9, **training}, {"clients": 40, "holdout": 0.0}, privacy=privacy)
    found = [warning for warning in warn_about_run(made) if "sampling does not amplify" in warning]
    assert len(found) == warns
