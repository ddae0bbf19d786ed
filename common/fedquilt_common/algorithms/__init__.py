"""The algorithms by name. To add one, write one file here and add one line to ``ALGORITHMS``."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedquilt_common.algorithm_api import Algorithm, Declaration
from fedquilt_common.algorithm_api.array_types import shorten
from fedquilt_common.algorithms.adaptivefl import AdaptiveFL
from fedquilt_common.algorithms.all_large import AllLarge
from fedquilt_common.algorithms.alone import Alone
from fedquilt_common.algorithms.cfedakd import CFedAKD
from fedquilt_common.algorithms.choices import check_choices
from fedquilt_common.algorithms.decoupled import Decoupled
from fedquilt_common.algorithms.ditto import Ditto
from fedquilt_common.algorithms.dsfl import DSFL
from fedquilt_common.algorithms.echo import Echo
from fedquilt_common.algorithms.fedakd import FedAKD
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.algorithms.fedbabu import FedBABU
from fedquilt_common.algorithms.fedbuff import FedBuff
from fedquilt_common.algorithms.feddf import FedDF
from fedquilt_common.algorithms.feddyn import FedDyn
from fedquilt_common.algorithms.federated_dropout import FederatedDropout
from fedquilt_common.algorithms.fedet import FedET
from fedquilt_common.algorithms.fedmd import FedMD
from fedquilt_common.algorithms.fednova import FedNova
from fedquilt_common.algorithms.fedopt import FedOPT
from fedquilt_common.algorithms.fedper import FedPer
from fedquilt_common.algorithms.fedproto import FedProto
from fedquilt_common.algorithms.fedprox import FedProx
from fedquilt_common.algorithms.fedreb import FedReb
from fedquilt_common.algorithms.fedrep import FedRep
from fedquilt_common.algorithms.fedrod import FedROD
from fedquilt_common.algorithms.fedrolex import FedRolex
from fedquilt_common.algorithms.heterofl import HeteroFL
from fedquilt_common.algorithms.moon import Moon
from fedquilt_common.algorithms.qfedavg import QFedAvg
from fedquilt_common.algorithms.scaffold import Scaffold
from fedquilt_common.algorithms.scalefl import ScaleFL
from fedquilt_common.algorithms.weighted_fedavg import WeightedFedAvg
from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.user_imports import (
    USER_ERRORS,
    describe_error,
    describe_sys_exit,
    find_parameters,
    find_place,
    package_of,
    resolve,
    suggest,
)

ALGORITHMS: dict[str, type[Any]] = {
    "fedavg": FedAvg,
    "fedavg-weighted": WeightedFedAvg,
    "fedprox": FedProx,
    "heterofl": HeteroFL,
    "fedrolex": FedRolex,
    "federated-dropout": FederatedDropout,
    "adaptivefl": AdaptiveFL,
    "scalefl": ScaleFL,
    "decoupled": Decoupled,
    "all-large": AllLarge,
    "fedopt": FedOPT,
    "feddyn": FedDyn,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedbuff": FedBuff,
    "moon": Moon,
    "qfedavg": QFedAvg,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedrod": FedROD,
    "fedreb": FedReb,
    "alone": Alone,
    "fedmd": FedMD,
    "fedakd": FedAKD,
    "cfedakd": CFedAKD,
    "dsfl": DSFL,
    "fedproto": FedProto,
    "feddf": FedDF,
    "fedet": FedET,
}
"""Published algorithms: tests/contract/test_algorithms.py checks each of them."""

DIAGNOSTICS: dict[str, type[Any]] = {"echo": Echo}
"""What ``fedquilt bench`` runs; these are no algorithms and learn nothing."""


def make_algorithm(name: str, fields: Mapping[str, Any], allowed: Collection[str]) -> Algorithm:
    """Return an algorithm with its hyper-parameters.

    Args:
        name: a key of ``ALGORITHMS`` or ``DIAGNOSTICS``, or a user's own ``package:factory``.
        fields: hyper-parameters under their keys in the experiment file.
        allowed: packages that a ``package:factory`` may come from; ``*`` allows all.

    Raises:
        UnknownNameError: there is no such algorithm.
        ForbiddenImportError: its package is not in ``allowed``.
        ValueError: a field has a value that an algorithm of this package does not accept.
        ExperimentError: a user's own algorithm cannot be made with these fields.
    """
    kind: Any = (ALGORITHMS | DIAGNOSTICS).get(name)
    return _make_own(name, fields, allowed) if kind is None else _make(kind, fields)


def _make(kind: Callable[..., Any], fields: Mapping[str, Any]) -> Algorithm:
    algorithm: Algorithm = kind(**{field_name(key): value for key, value in fields.items()})
    check_choices(algorithm)
    return algorithm


def _make_own(name: str, fields: Mapping[str, Any], allowed: Collection[str]) -> Algorithm:
    kind = resolve(name, {}, "algorithm", allowed)
    _check_fields(name, kind, fields)
    try:
        return _check_methods(name, _make(kind, fields))
    except FedquiltError:
        raise
    except USER_ERRORS as error:
        if isinstance(error, SystemExit):
            raise ExperimentError(f"algorithm '{name}': it {describe_sys_exit(error, package_of(name))}") from error
        given = ", ".join(f"algorithm.{key} = {value!r}" for key, value in fields.items()) or "no fields"
        raise ExperimentError(
            f"algorithm '{name}' cannot be made with {given}: {describe_error(error)} "
            f"({find_place(error, package_of(name))}); correct these fields, or its __post_init__"
        ) from error


def _check_fields(name: str, kind: Callable[..., Any], fields: Mapping[str, Any]) -> None:
    """Check that a user's own algorithm has the fields, and gets those that it requires."""
    accepted, takes_any = find_parameters(kind)
    known = [field.removesuffix("_") for field in accepted]
    for key in () if takes_any else fields:
        if key not in known:
            advice = suggest(key, known) if known else "it has none; remove it, or make the class a frozen dataclass"
            raise ExperimentError(f"algorithm.{key}: the algorithm '{name}' has no such field; {advice}")
    given = [field_name(key) for key in fields]
    for field, parameter in accepted.items():
        if parameter.default is parameter.empty and field not in given:
            raise ExperimentError(
                f"algorithm.{field.removesuffix('_')} is missing: the algorithm '{name}' requires this field; add it"
            )


def _check_methods(name: str, made: Algorithm) -> Algorithm:
    """Return what a user's own factory returned, if it has the methods and the declaration of an algorithm."""
    if made is None:
        raise ExperimentError(f"algorithm '{name}': the factory returned None; let it return the algorithm")
    missing = [method for method in ("init", "round", "evaluate", "work") if not callable(getattr(made, method, None))]
    if missing:
        raise ExperimentError(
            f"algorithm '{name}': {type(made).__name__} has no method {', '.join(missing)}; write it, or inherit from "
            "an algorithm such as FedAvg"
        )
    if not isinstance(declares := getattr(made, "declares", Declaration()), Declaration):
        raise ExperimentError(
            f"algorithm '{name}': its attribute declares is {shorten(declares)}; it must be a Declaration, such as "
            "`Declaration(holdout=0.2)`"
        )
    return made


def field_name(key: str) -> str:
    """Return the field for a key of an experiment file: ``lambda_`` for ``lambda``, which is a keyword of Python."""
    return f"{key}_" if keyword.iskeyword(key) else key
