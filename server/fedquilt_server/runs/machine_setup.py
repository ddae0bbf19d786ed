"""What a machine needs of an experiment: its policy, and the context of each round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fedquilt_common.algorithm_api import Algorithm, ServerContext, State, pooling_problem
from fedquilt_common.errors import ExperimentError, PayloadError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.partial_sums.exact_rounds import ExactRounds
from fedquilt_common.privacy.noise_key import open_key
from fedquilt_common.secure_aggregation.server_half import SecureRounds
from fedquilt_common.types import Arrays, ClientId, ExchangeId, Precision, Profile
from fedquilt_common.wire.codec import to_wire
from fedquilt_server.lab.central_privacy import CentralPrivacy
from fedquilt_server.lab.checked_algorithm import CheckedAlgorithm, find_log
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.round.policy import Policy

KEY_FOLDER: Final = "privacy"
"""Folder, in that of a run, with the key of the coordinator's secret noise."""


def make_policy(experiment: Experiment) -> Policy:
    """Return when the experiment's rounds start and when their exchanges close."""
    participation = experiment.participation
    return Policy(
        experiment.rounds,
        experiment.data.clients,
        participation.quorum,
        participation.deadline / experiment.speedup,
        participation.shortfall,
        skips_failed=participation.failures == "skip",
        firm=experiment.secure_aggregation,
    )


def make_server_half(
    workbench: Workbench, folder: Path, find_key: Callable[[Path], str] = open_key, *, grouped: bool = True
) -> Algorithm:
    """Return the algorithm as the coordinator runs it: with secure aggregation, exact sums or central privacy.

    Args:
        workbench: of the experiment.
        folder: of the run; it keeps the key of the secret noise.
        find_key: returns the key of a folder.
        grouped: whether replies may travel as partial sums, if the experiment has exact sums.

    Raises:
        RunFolderError: the key is damaged, or missing where ``find_key`` makes none.
    """
    algorithm, experiment = check_algorithm(workbench, folder), workbench.experiment
    if experiment.secure_aggregation:
        return SecureRounds(algorithm, experiment.participation.quorum)
    if experiment.exact_sums and not pooling_problem(algorithm.inner):
        return ExactRounds(algorithm, experiment.wire.down, grouped)
    if experiment.central_privacy is not None:
        digest = hashlib.sha256(experiment.model_dump_json().encode()).hexdigest()
        key = find_key(folder / KEY_FOLDER)
        return CentralPrivacy(algorithm, experiment.central_privacy, key, digest, workbench.clients_remember)
    return algorithm


def check_algorithm(workbench: Workbench, folder: Path) -> CheckedAlgorithm:
    """Return the experiment's algorithm with checks of what its server half yields and returns.

    Args:
        workbench: of the experiment.
        folder: of the run.
    """
    name = workbench.experiment.algorithm.name
    return CheckedAlgorithm(workbench.algorithm(), name, workbench.global_models, find_log(folder))


def make_context(
    workbench: Workbench,
    round: int,
    fleet: Mapping[ClientId, Profile],
    opened: float = 0.0,
    working: Mapping[ClientId, ExchangeId] | None = None,
) -> ServerContext:
    """Return the context of a round for the clients that may be asked; round 0 is the start of the run."""
    experiment = workbench.experiment
    return RoundContext(
        round,
        fleet,
        experiment.seed,
        experiment.rounds,
        experiment.data.clients,
        experiment.participation.per_round,
        workbench,
        workbench.is_evaluated(round) and workbench.clients_evaluate,
        opened,
        working or {},
    )


def first_state(workbench: Workbench, folder: Path) -> State:
    """Return the state before round 1, which the run's seed determines.

    Args:
        workbench: of the experiment.
        folder: of the run.

    Raises:
        ExperimentError: the experiment cannot start.
        AlgorithmError: the algorithm's ``init`` raises an error, or returns what is not a valid state.
    """
    workbench.check()
    state = check_algorithm(workbench, folder).init(workbench.first_model(), make_context(workbench, 0, {}))
    _check_wire(state.arrays, workbench.experiment.wire.down)
    return state


def _check_wire(arrays: Arrays, down: Precision) -> None:
    """Check that boards can receive a model; its least and greatest numbers show it without a copy."""
    for name, x in arrays.items():
        if x.dtype.kind == "f" and x.size:
            try:
                to_wire(name, np.array([x.min(), x.max()]), down)
            except PayloadError as error:
                raise ExperimentError(f"wire.down = {down}: {error}") from None
