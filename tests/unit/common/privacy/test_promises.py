"""Experiments with differential privacy that would tell more than the budget allows are refused before they start."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tables import each

from fedquilt_common.algorithm_api import privacy_problem, private_passes
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.algorithms.echo import Echo
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench

REFUSED = {
    "fedreb", "fedrod", "moon", "fednova", "qfedavg", "fedproto",  # always
    "fedrolex", "heterofl",  # with their default fields
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "ditto": {"lambda": 0.1}, "fedprox": {"mu": 0.1}, "feddyn": {"alpha": 0.1}, "qfedavg": {"q": 0.1},
}  # fmt: skip


def make_normed(input_shape: tuple[int, ...], classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def make_averaging(input_shape: tuple[int, ...], classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, classes))


def make_centred(input_shape: tuple[int, ...], classes: int) -> Any:
    from torch import nn

    class Centred(nn.Module):
        def forward(self, x: Any) -> Any:
            return x - x.mean(dim=0)

    return nn.Sequential(nn.Flatten(), Centred(), nn.Linear(64, classes))


def check(**changes: Any) -> None:
    raw = {
        "name": "private",
        "data": {"set": "digits", "clients": 4},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        "privacy": {"epsilon": 8.0},
        **changes,
    }
    Workbench(Experiment.model_validate(raw)).check()


@each(sorted(ALGORITHMS))
def test_each_algorithm_declares_whether_it_can_be_private(name: str) -> None:
    problem = privacy_problem(make_algorithm(name, FIELDS.get(name, {}), ()))
    assert bool(problem) == (name in REFUSED)
    assert "does not declare" not in problem


def test_an_algorithm_that_does_not_declare_it_cannot() -> None:
    class Own:
        pass

    assert "does not declare" in privacy_problem(Own())


@pytest.mark.parametrize(
    ("name", "fields", "passes"),
    [
        ("fedavg", {}, 6), ("ditto", {"lambda": 0.1}, 12), ("ditto", {"lambda": 0.1, "personal_epochs": 1}, 9),
        ("fedakd", {"warm_up_epochs": 20, "kd_epochs": 5}, 26), ("fedper", {}, 6), ("fedbabu", {}, 6),
        ("fedrep", {"body_epochs": 2}, 12), ("fedrep", {"head_epochs": 5}, 18),
    ],
)  # fmt: skip
def test_the_passes_that_a_client_may_make_in_a_run(name: str, fields: dict[str, Any], passes: int) -> None:
    assert private_passes(make_algorithm(name, fields, ()), epochs=2, rounds=3) == passes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"algorithm": {"name": "fedreb"}, "data": {"set": "digits", "clients": 4}}, "fedreb: it cannot train with"),
        ({"algorithm": {"name": "heterofl"}}, "`mask_absent_classes: false`"),
        ({"data": {"set": "digits", "clients": 4, "holdout": 0.2}}, r"data\.holdout = 0\.2: .* set it to 0"),
        ({"data": {"set": "digits", "clients": 4, "sensor_noise": {"std": 0.1}}}, r"data\.sensor_noise: its size"),
        ({"training": {"precision": "bf16"}}, r"training\.precision = bf16: .* remove the key"),
        ({"training": {"sampling": "balanced"}}, r"training\.sampling = balanced: "),
        (
            {"fleet": [{"clients": 4, "variants": [{"training": {"precision": "fp16"}}]}]},
            r"fleet\.0\.variants\.0\.training\.precision = fp16: ",
        ),
        (
            {"training": {"sampling": "balanced"}, "fleet": [{"clients": 4, "variants": [{"training": {"lr": 0.1}}]}]},
            r"^training\.sampling = balanced: ",
        ),
        ({"model": {"name": "resnet18"}}, r"model\.name = resnet18: its BatchNorm2d .*: {name: resnet18, norm: group}"),
        ({"model": {"name": "resnet18", "norm": "static"}}, "its StaticBatchNorm mixes .* Set model.norm to group"),
        ({"model": {"name": "preact-resnet18"}}, r"its StaticBatchNorm mixes .* Set model\.norm to group"),
        ({"model": {"name": f"{__name__}:make_normed"}}, "BatchNorm1d mixes .* a model without such norms, such as"),
        (
            {"model": {"name": f"{__name__}:make_centred"}},
            "depends on the others of the batch, .* Choose another model",
        ),
        (
            {"model": {"name": f"{__name__}:make_averaging"}},
            "its InstanceNorm2d with track_running_stats mixes samples, so what it reveals of one sample cannot be",
        ),
        (
            {
                "algorithm": {"name": "fedmd"},
                "fleet": [{"clients": 4, "variants": [{}, {"model": {"name": "resnet18"}}]}],
            },
            r"fleet\.0\.variants\.1\.model\.name = resnet18: .* Set fleet\.0\.variants\.1\.model\.norm to group",
        ),
    ],
)
def test_what_would_leak_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        check(**changes)


@pytest.mark.parametrize("privacy", [None, {"epsilon": 8.0}])
def test_a_model_with_batch_norm_may_train_in_the_open_and_with_group_norm_privately(privacy: Any) -> None:
    check(model={"name": "resnet18", "norm": "group" if privacy else "batch"}, privacy=privacy)


def test_a_private_experiment_passes_and_a_line_may_have_its_own_budget() -> None:
    check()
    check(privacy=None, fleet=[{"clients": 3}, {"clients": 1, "privacy": {"epsilon": 2.0}}])


def test_clients_without_privacy_may_train_in_another_precision() -> None:
    lines = [
        {"clients": 2, "privacy": {"epsilon": 8.0}},
        {"clients": 2, "variants": [{"training": {"precision": "bf16"}}]},
    ]
    check(privacy=None, fleet=lines)
    lines[1]["privacy"] = {"epsilon": 8.0}
    with pytest.raises(ExperimentError, match=r"fleet\.1\.variants\.0\.training\.precision = bf16"):
        check(privacy=None, fleet=lines)


def test_only_training_in_the_open_is_checked() -> None:
    assert privacy_problem(Echo()) == ""
    check(privacy=None, training={"sampling": "balanced"})


@pytest.mark.parametrize(
    "privacy", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": 8.0, "delta": 1.0}, {"epsilon": 8.0, "clip": 0.0}, {}]
)
def test_impossible_budgets_are_refused(privacy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="privacy"):
        check(privacy=privacy)


def test_each_client_has_the_budget_of_its_variant_line_or_experiment() -> None:
    raw = {
        "name": "private", "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp"},
        "algorithm": {"name": "fedmd"}, "privacy": {"epsilon": 8.0, "delta": 0.001},
        "fleet": [
            {"clients": 1}, {"clients": 1, "privacy": {"epsilon": 4.0}},
            {"clients": 2, "privacy": {"clip": 2.0}, "variants": [{"privacy": {"epsilon": 2.0}}, {}]},
        ],
    }  # fmt: skip
    experiment = Experiment.model_validate(raw)
    found = [experiment.variant(client).privacy for client in range(4)]
    assert [(one.epsilon, one.delta, one.clip) for one in found if one is not None] == [
        (8.0, 0.001, 1.0), (4.0, 0.001, 1.0), (2.0, 0.001, 2.0), (8.0, 0.001, 2.0)
    ]  # fmt: skip
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"training": {"batch": 400}},
            r"privacy: client 0 \(and 3 more\): the client has fewer samples than a batch of",
        ),
        ({"privacy": {"epsilon": 8.0, "delta": 0.01}}, r"privacy: client 0 \(and 3 more\): .*delta = 0.01 allows"),
    ],
)
def test_clients_that_cannot_train_privately_are_named_before_others_spend_their_budgets(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ExperimentError, match=text):
        check(**changes)
