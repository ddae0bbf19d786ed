"""A model whose number of outputs is not that of the classes is refused before the run starts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench


def build_narrow(input_shape: tuple[int, ...], classes: int, outputs: int = 7) -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def build_map(input_shape: tuple[int, ...], classes: int) -> Any:
    return nn.Conv2d(1, classes, 3)


class TwoHeads(nn.Module):
    """Returns the logits, and one number beside them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.logits, self.number = nn.Linear(64, classes), nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        return self.logits(x.flatten(1)), self.number(x.flatten(1))


def build_two_heads(input_shape: tuple[int, ...], classes: int) -> Any:
    return TwoHeads(classes)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_loss_of_its_own_does_not_excuse_the_outputs_in_evaluation(name: str) -> None:
    with pytest.raises(ExperimentError, match=r"build_own_loss: the model has 7 outputs for a sample, .* 10 classes"):
        check({"name": f"{__name__}:build_own_loss", "outputs": 7}, algorithm={"name": name})


def test_a_detector_without_a_loss_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"^model\.name = .*build_map: .* no method training_loss"):
        check({"name": f"{__name__}:build_map"}, data={"set": "tests.support.toy_sets:boxes", "clients": 2})


class OwnLoss(nn.Sequential):
    """Has a loss of its own."""

    def training_loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def build_own_loss(input_shape: tuple[int, ...], classes: int, outputs: int = 10) -> Any:
    return OwnLoss(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))


def check(model: dict[str, Any], **keys: Any) -> None:
    usual = {"name": "a", "data": {"set": "digits", "clients": 2}, "algorithm": {"name": "fedavg"}}
    Workbench(Experiment.model_validate({**usual, "model": model, **keys})).check()


def test_the_error_has_both_numbers_and_what_to_change() -> None:
    with pytest.raises(ExperimentError) as error:
        check({"name": f"{__name__}:build_narrow"})
    assert str(error.value) == (
        f"model.name = {__name__}:build_narrow: the model has 7 outputs for a sample, but the data set has 10 classes; "
        "make its last layer as wide as the argument `classes` of its factory, or choose another model"
    )
    assert error.value.exit_code == 4
    with pytest.raises(ExperimentError, match="the model has 10x6x6 outputs for a sample, but the data set has 10"):
        check({"name": f"{__name__}:build_map"})
    check({"name": f"{__name__}:build_narrow", "outputs": 10})


def test_the_error_of_a_model_with_several_outputs_names_the_one_that_counts() -> None:
    words = r"the model has 1 output for a sample, .*\. It returns 2 outputs: the last one is evaluated$"
    with pytest.raises(ExperimentError, match=words):
        check({"name": f"{__name__}:build_two_heads"})


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_masks_of_absent_classes_do_not_replace_the_loss_of_a_model_silently(name: str) -> None:
    model = {"name": f"{__name__}:build_own_loss"}
    with pytest.raises(ExperimentError, match=r"own_loss: only the loss of the learning task can.*_classes: false$"):
        check(model, algorithm={"name": name})
    check(model, algorithm={"name": name, "mask_absent_classes": False})
    check(model)


@pytest.mark.parametrize(
    "algorithm",
    [{"name": "fedrod"}, {"name": "fedreb"}, {"name": "scalefl", "widths": {"generic": 1.0}, "exits": {"generic": 1}}],
)
def test_algorithms_with_losses_of_their_own_refuse_such_a_model(algorithm: dict[str, Any]) -> None:
    with pytest.raises(
        ExperimentError, match=r"own_loss: the algorithm trains with losses of its own instead of the mo"
    ):
        check({"name": f"{__name__}:build_own_loss"}, algorithm=algorithm)


def test_each_own_model_is_checked() -> None:
    variants = [{"model": {"name": "mlp"}}, {"model": {"name": f"{__name__}:build_narrow"}}]
    keys = {"fleet": [{"clients": 2, "variants": variants}], "algorithm": {"name": "fedmd"}}
    with pytest.raises(ExperimentError, match=r"fleet\.0\.variants\.1\.model\.name = .*: the model has 7 outputs"):
        check({"name": "mlp"}, data={"set": "digits", "clients": 2, "public": {"samples": 50}}, **keys)


def build_frozen(input_shape: tuple[int, ...], classes: int) -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(requires_grad=False)


class Statistics(FedAvg):
    """A user's own algorithm, which may train nothing."""


def test_a_model_without_parameters_to_train_is_refused() -> None:
    frozen = {"name": f"{__name__}:build_frozen"}
    words = rf"^model.name = {__name__}:build_frozen: 'fedavg' has nothing to train, because no parameter"
    with pytest.raises(ExperimentError, match=words):
        check(frozen)
    check(frozen, algorithm={"name": f"{__name__}:Statistics"})
