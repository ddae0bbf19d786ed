"""Optimisers that an algorithm cannot use are refused before the run starts."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench


def bench(algorithm: dict[str, Any], **training: Any) -> Workbench:
    raw = {"name": "x", "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp", "hidden": [16, 16]},
           "algorithm": algorithm, "training": training}  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


@pytest.mark.parametrize("algorithm", [{"name": "heterofl"}, {"name": "adaptivefl", "starts": [1]}])
def test_sub_models_cannot_keep_optimisers(algorithm: dict[str, Any]) -> None:
    bench(algorithm).check()
    with pytest.raises(ExperimentError, match=r"training.keep_optimiser = true: .* remove the key"):
        bench(algorithm, keep_optimiser=True).check()


VARIANTS = [{"clients": 4, "variants": [{}, {"training": {"keep_optimiser": True}}]}]


def test_a_variant_cannot_keep_them_either() -> None:
    raw = {**bench({"name": "heterofl"}).experiment.model_dump(mode="json"), "fleet": VARIANTS}
    with pytest.raises(ExperimentError, match=r"^fleet.0.variants.1.training.keep_optimiser = true: .* remove the key"):
        Workbench(Experiment.model_validate(raw)).check()


SGD = [{"name": "scaffold"}, {"name": "fednova"}, {"name": "qfedavg", "q": 0.1}]


@pytest.mark.parametrize("algorithm", SGD)
def test_steps_that_are_not_the_gradients_of_this_round_are_refused(algorithm: dict[str, Any]) -> None:
    bench(algorithm, momentum=0.9).check()
    bench(algorithm, keep_optimiser=True).check()
    with pytest.raises(ExperimentError, match=r"^training.optimiser = adam: .*; choose sgd"):
        bench(algorithm, optimiser="adam", lr=0.001).check()
    with pytest.raises(ExperimentError, match=r"^training.keep_optimiser = true: .* momentum of earlier rounds"):
        bench(algorithm, keep_optimiser=True, momentum=0.9).check()


@pytest.mark.parametrize(
    ("algorithm", "kept"),
    [
        ({"name": "heterofl", "widths": {"a": 1.0, "generic": 0.25}}, [[4, 4]]),
        ({"name": "fedrolex", "widths": {"a": 0.25, "generic": 1.0}}, [[4, 4]]),
        ({"name": "federated-dropout", "widths": {"generic": 1.0}}, []),
        ({"name": "adaptivefl", "levels": {"M": 0.5, "S": 0.25}, "starts": [1, 0], "tau": 0}, [[4, 4]]),
        ({"name": "decoupled", "widths": {"a": 0.25, "generic": 1.0}, "start": 0}, [[4, 4]]),
        ({"name": "scalefl", "widths": {"a": 1.0, "generic": 0.25}, "exits": {"a": 1, "generic": 1}}, [[4, 4]]),
    ],
)
def test_the_smallest_sub_models_run_before_the_run(
    algorithm: dict[str, Any], kept: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = list[Any]()

    def note(_build: Any, _blueprint: Any, _x: Any, part: Any = None) -> None:
        parts.append(part)

    monkeypatch.setattr("fedquilt_common.tracing.dry_run.check_cut", note)
    bench(algorithm).check()
    assert parts[0] is None
    assert [[indices.count for indices in part.kept] for part in parts[1:]] == kept


def test_a_proximal_term_that_overshoots_is_refused() -> None:
    bench({"name": "fednova", "mu": 1.9}, lr=0.5).check()
    with pytest.raises(ExperimentError, match=r"^training.lr = 0.5: times mu = 2 it is 1, .* a smaller training.lr"):
        bench({"name": "fednova", "mu": 2.0}, lr=0.5).check()


@pytest.mark.parametrize("algorithm", SGD)
def test_so_are_those_of_a_variant(algorithm: dict[str, Any]) -> None:
    fleet = [{"clients": 4, "variants": [{}, {"training": {"optimiser": "adam", "momentum": 0}}]}]
    raw = {**bench(algorithm).experiment.model_dump(mode="json"), "fleet": fleet}
    with pytest.raises(ExperimentError, match=r"^fleet.0.variants.1.training.optimiser = adam: .*; choose sgd"):
        Workbench(Experiment.model_validate(raw)).check()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"augment": {"crop": 2}}, r"^training.augment: with algorithm.gamma below 1 .* remove the key"),
        ({"sampling": "balanced"}, r"^training.sampling = balanced: with algorithm.gamma below 1"),
    ],
)
def test_mixed_samples_are_neither_changed_nor_balanced(training: dict[str, Any], message: str) -> None:
    public = {"data": {"set": "digits", "clients": 4, "public": {"samples": 50}}, "training": training}
    for gamma in (1.0, 0.5):
        raw = {**bench({"name": "fedmd", "gamma": gamma}).experiment.model_dump(mode="json"), **public}
        made = Workbench(Experiment.model_validate(raw))
        if gamma == 1:
            made.check()
            continue
        with pytest.raises(ExperimentError, match=message):
            made.check()
