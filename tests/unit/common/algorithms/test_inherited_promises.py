"""What a class declares of its methods does not hold for those with which a derived class replaces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest

from fedquilt_common.algorithm_api import Declaration, Reply, State, declaration_of, pooling_problem, privacy_problem
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.algorithms.fedmd import FedMD
from fedquilt_common.algorithms.fedprox import FedProx
from fedquilt_common.partial_sums.exact_rounds import ExactRounds
from fedquilt_common.types import ClientId


@dataclass(frozen=True)
class Median(FedAvg):
    """A server half that reads each reply."""

    def merge(self, state: State, replies: Mapping[ClientId, Reply], _: Any) -> State:
        return state


@dataclass(frozen=True)
class Sends(FedProx):
    """A client half that may send anything."""

    def train(self, *_: Any) -> Reply:
        return Reply({})


class Logs:
    """A mix-in around the round."""

    def round(self, *arguments: Any) -> Any:
        return super().round(*arguments)  # type: ignore[misc]  # of the class that it is mixed into


class Logged(Logs, FedAvg):
    """A round around FedAvg's."""


class Labels(FedMD):
    """An average of labels of its own."""

    def aggregate_labels(self, *_: Any) -> Any:
        return {}


class Probes(FedAvg):
    """A further exchange of its own."""

    def evaluate_clients(self, *_: Any) -> Any:
        return None


class Checks(FedAvg):
    """A test that may send anything."""

    def test(self, *_: Any) -> Reply:
        return Reply({})


class Distils(FedMD):
    """A distillation that may send anything."""

    def learn_public(self, *_: Any) -> Any:
        return {}


class Works(FedAvg):
    """Work of its own."""

    def work(self, *_: Any) -> Reply:
        return Reply({})


class Below(Median):
    """A class below one that declares nothing."""


class Instance(Median):
    """An instance that declares something itself."""

    def __init__(self) -> None:
        self.__dict__["declares"] = FedAvg.declares


class Wrapped(ExactRounds):
    """A wrapper, whose declaration is that of the algorithm inside."""

    def work(self, *_: Any) -> Any:
        return None


class Alone:
    """A class that derives from none that declares anything."""

    def __init__(self) -> None:
        self.declares = FedAvg.declares

    def round(self, *_: Any) -> Any:
        return None

    work = round


class Declares(Median):
    """A class that repeats what is declared."""

    declares: ClassVar[Declaration] = FedAvg.declares


class Renamed(FedAvg):
    """A class that overrides nothing of which FedAvg declares something."""

    def make_task(self, *_: Any) -> Any:
        return None


SERVER = pooling_problem, privacy_problem, "may read more of the replies than their mean"
CLIENT = privacy_problem, pooling_problem, "may reveal more of the samples than training does"


@pytest.mark.parametrize(
    ("algorithm", "method", "half"),
    [
        (Median(), "Median.merge", SERVER),
        (Below(), "Median.merge", SERVER),
        (Logged(), "Logs.round", SERVER),
        (Labels(), "Labels.aggregate_labels", SERVER),
        (Probes(), "Probes.evaluate_clients", SERVER),
        (Sends(mu=0.1), "Sends.train", CLIENT),
        (Checks(), "Checks.test", CLIENT),
        (Works(), "Works.work", CLIENT),
        (Distils(), "Distils.learn_public", CLIENT),
    ],
)
def test_what_is_declared_of_a_half_does_not_hold_for_a_method_of_its_own(
    algorithm: object, method: str, half: tuple[Callable[[object], str], Callable[[object], str], str]
) -> None:
    problem, other, doubt = half
    assert problem(algorithm).startswith(
        f"{method} {doubt}, and {type(algorithm).__name__} has no `declares` of its own"
    )
    assert not other(algorithm)


def test_the_advice_names_the_class_that_the_experiment_names() -> None:
    """A mix-in must not declare anything: it may be mixed into an algorithm that reads single replies."""
    assert pooling_problem(Logged()) == (
        "Logs.round may read more of the replies than their mean, and Logged has no `declares` of its own. If it does "
        "not, write `declares = FedAvg.declares` into Logged"
    )


@pytest.mark.parametrize("algorithm", [Declares(), Renamed(), FedProx(mu=0.1), Instance(), Alone()])
def test_what_repeats_the_declaration_or_overrides_none_of_it_keeps_it(algorithm: object) -> None:
    assert (pooling_problem(algorithm), privacy_problem(algorithm)) == ("", "")


def test_a_client_half_of_its_own_may_keep_arrays_and_send_what_depends_on_them() -> None:
    """Central privacy then counts without amplification by sampling."""
    for declared in (declaration_of(Works()), declaration_of(Sends(mu=0.1))):
        assert (declared.private_memory, declared.sends_memory) == (None, True)
    wrapped = Wrapped(cast("Any", Works()), "fp32", grouped=True), Wrapped(FedAvg(), "fp32", grouped=True)
    assert [declaration_of(one).private_memory for one in wrapped] == [None, False]
    assert declaration_of(Declares()) == declaration_of(Median()) == FedAvg.declares
