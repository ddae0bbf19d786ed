"""The public Python API: ``import fedquilt as fq``.

Run an experiment and read its results::

    run = fq.simulate("deploy/experiments/digits-fedavg.yaml", rounds=3)
    print(run.rounds[-1].accuracy)
    model = run.model()

Or write an algorithm, a model or a data set of your own: every type that a plugin meets is here. ``examples/`` has
one of each. A name is imported when you first use it, so ``import fedquilt`` alone loads neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedquilt_common import __version__

if TYPE_CHECKING:
    from fedquilt.reporting import report
    from fedquilt.run import Run, load_run
    from fedquilt.simulation import load_experiment, simulate
    from fedquilt.sweeps import Sweep, SweepRun, load_sweep, sweep
    from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate, mean
    from fedquilt_common.aggregation.client_evaluation import (
        EVALUATE,
        count_locally,
        evaluate_locally,
        evaluate_on_clients,
        evaluation_reply,
    )
    from fedquilt_common.algorithm_api import (
        Algorithm,
        Ask,
        Batch,
        BatchLoss,
        ClientContext,
        Declaration,
        Learner,
        Loss,
        OutputViews,
        Penalty,
        Reply,
        Round,
        ServerContext,
        ServerTools,
        State,
        Task,
        TrainingPhase,
        TrainingResult,
        TrainingSettings,
    )
    from fedquilt_common.algorithms.adaptivefl import AdaptiveFL
    from fedquilt_common.algorithms.all_large import AllLarge
    from fedquilt_common.algorithms.alone import Alone
    from fedquilt_common.algorithms.cfedakd import CFedAKD
    from fedquilt_common.algorithms.decoupled import Decoupled
    from fedquilt_common.algorithms.ditto import Ditto
    from fedquilt_common.algorithms.dsfl import DSFL
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
    from fedquilt_common.errors import (
        AlgorithmError,
        BrokerFailedError,
        BrokerMissingError,
        BrokerUnreachableError,
        DamagedTransferError,
        DataUnavailableError,
        DownloadError,
        DownloadTooLargeError,
        ExperimentError,
        FederationError,
        FederationInUseError,
        FedquiltError,
        FolderInUseError,
        ForbiddenImportError,
        ImageError,
        ManualStepsError,
        MissingMemberError,
        NoGlobalModelError,
        NotFiniteError,
        PackageMissingError,
        PageUnreachableError,
        PayloadError,
        PrivacyBudgetError,
        ProtocolError,
        ProtocolVersionError,
        RayClusterError,
        RayNodeError,
        RepeatedMemberError,
        RunFailedError,
        RunFolderError,
        SliceError,
        SpoiledSumError,
        SumMismatchError,
        SumOverflowError,
        TrainingDivergedError,
        UncuttableModelError,
        UnknownNameError,
        UnsupportedPrecisionError,
        UpgradeFailedError,
    )
    from fedquilt_common.experiment.experiment import Experiment
    from fedquilt_common.learning_tasks.learning_task import LearningTask
    from fedquilt_common.models.exits import MultiExit
    from fedquilt_common.models.static_norm import StaticBatchNorm
    from fedquilt_common.seeds import derive_seed
    from fedquilt_common.submodels.slices import Slice
    from fedquilt_common.types import Arrays, ClientId, Dataset, Examples, Profile

__all__ = [
    "__version__",
    # run an experiment, read its results
    "simulate", "load_run", "Run", "load_experiment", "Experiment", "report",
    "sweep", "load_sweep", "Sweep", "SweepRun",
    # what an algorithm is made of
    "Algorithm", "ServerContext", "ServerTools", "ClientContext", "Round", "Task", "Ask", "Reply", "State",
    "Declaration",
    "Learner", "TrainingPhase", "TrainingResult", "TrainingSettings", "Loss", "Batch", "BatchLoss", "Penalty",
    "OutputViews", "LearningTask",
    "ClientId", "Arrays", "Examples", "Dataset", "Profile", "Slice", "StaticBatchNorm", "MultiExit",
    "mean", "aggregate", "SubModelUpdate", "EVALUATE", "evaluate_on_clients", "evaluation_reply",
    "evaluate_locally", "count_locally", "derive_seed",
    # the published algorithms
    "FedAvg", "FedProx", "HeteroFL", "FedRolex", "FederatedDropout", "AdaptiveFL", "ScaleFL", "Decoupled", "AllLarge",
    "FedOPT", "FedDyn", "Scaffold", "FedNova", "FedBuff", "Moon", "QFedAvg",
    "Ditto", "FedPer", "FedRep", "FedBABU", "FedROD", "FedReb",
    "FedMD", "FedAKD", "CFedAKD", "DSFL", "FedProto", "FedDF", "FedET", "Alone", "WeightedFedAvg",
    # errors
    "FedquiltError", "AlgorithmError", "BrokerFailedError", "BrokerMissingError", "BrokerUnreachableError",
    "DamagedTransferError",
    "DataUnavailableError", "DownloadError", "DownloadTooLargeError", "ExperimentError", "FederationError",
    "FederationInUseError", "FolderInUseError", "ForbiddenImportError", "ImageError", "ManualStepsError",
    "MissingMemberError", "NoGlobalModelError", "NotFiniteError", "PackageMissingError", "PageUnreachableError",
    "PayloadError", "PrivacyBudgetError", "ProtocolError", "ProtocolVersionError", "RayClusterError", "RayNodeError",
    "RepeatedMemberError", "RunFailedError", "RunFolderError", "SliceError", "SpoiledSumError", "SumMismatchError",
    "SumOverflowError",
    "TrainingDivergedError", "UncuttableModelError", "UnknownNameError", "UnsupportedPrecisionError",
    "UpgradeFailedError",
]  # fmt: skip

_NAMES = {
    "fedquilt.reporting": "report",
    "fedquilt.run": "Run load_run",
    "fedquilt.simulation": "load_experiment simulate",
    "fedquilt.sweeps": "Sweep SweepRun load_sweep sweep",
    "fedquilt_common.aggregation.averages": "SubModelUpdate aggregate mean",
    "fedquilt_common.aggregation.client_evaluation": "EVALUATE count_locally evaluate_locally evaluate_on_clients "
    "evaluation_reply",
    "fedquilt_common.algorithm_api": "Algorithm Ask Batch BatchLoss ClientContext Declaration Learner Loss OutputViews "
    "Penalty Reply Round ServerContext ServerTools State Task TrainingPhase TrainingResult TrainingSettings",
    "fedquilt_common.algorithms.adaptivefl": "AdaptiveFL",
    "fedquilt_common.algorithms.all_large": "AllLarge",
    "fedquilt_common.algorithms.alone": "Alone",
    "fedquilt_common.algorithms.cfedakd": "CFedAKD",
    "fedquilt_common.algorithms.decoupled": "Decoupled",
    "fedquilt_common.algorithms.ditto": "Ditto",
    "fedquilt_common.algorithms.dsfl": "DSFL",
    "fedquilt_common.algorithms.fedakd": "FedAKD",
    "fedquilt_common.algorithms.fedavg": "FedAvg",
    "fedquilt_common.algorithms.fedbabu": "FedBABU",
    "fedquilt_common.algorithms.feddf": "FedDF",
    "fedquilt_common.algorithms.feddyn": "FedDyn",
    "fedquilt_common.algorithms.federated_dropout": "FederatedDropout",
    "fedquilt_common.algorithms.fedet": "FedET",
    "fedquilt_common.algorithms.fedmd": "FedMD",
    "fedquilt_common.algorithms.fednova": "FedNova",
    "fedquilt_common.algorithms.fedbuff": "FedBuff",
    "fedquilt_common.algorithms.fedopt": "FedOPT",
    "fedquilt_common.algorithms.fedper": "FedPer",
    "fedquilt_common.algorithms.fedproto": "FedProto",
    "fedquilt_common.algorithms.fedprox": "FedProx",
    "fedquilt_common.algorithms.fedreb": "FedReb",
    "fedquilt_common.algorithms.fedrep": "FedRep",
    "fedquilt_common.algorithms.fedrod": "FedROD",
    "fedquilt_common.algorithms.fedrolex": "FedRolex",
    "fedquilt_common.algorithms.heterofl": "HeteroFL",
    "fedquilt_common.algorithms.moon": "Moon",
    "fedquilt_common.algorithms.qfedavg": "QFedAvg",
    "fedquilt_common.algorithms.scaffold": "Scaffold",
    "fedquilt_common.algorithms.scalefl": "ScaleFL",
    "fedquilt_common.algorithms.weighted_fedavg": "WeightedFedAvg",
    "fedquilt_common.errors": "AlgorithmError BrokerFailedError BrokerMissingError BrokerUnreachableError "
    "DamagedTransferError DataUnavailableError DownloadError DownloadTooLargeError ExperimentError FederationError "
    "FederationInUseError FedquiltError FolderInUseError ForbiddenImportError ImageError ManualStepsError "
    "MissingMemberError NoGlobalModelError NotFiniteError PackageMissingError PageUnreachableError PayloadError "
    "PrivacyBudgetError ProtocolError ProtocolVersionError RayClusterError RayNodeError RepeatedMemberError "
    "RunFailedError RunFolderError SliceError SpoiledSumError SumMismatchError SumOverflowError TrainingDivergedError "
    "UncuttableModelError UnknownNameError UnsupportedPrecisionError UpgradeFailedError",
    "fedquilt_common.experiment.experiment": "Experiment",
    "fedquilt_common.learning_tasks.learning_task": "LearningTask",
    "fedquilt_common.models.exits": "MultiExit",
    "fedquilt_common.models.static_norm": "StaticBatchNorm",
    "fedquilt_common.seeds": "derive_seed",
    "fedquilt_common.submodels.slices": "Slice",
    "fedquilt_common.types": "Arrays ClientId Dataset Examples Profile",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(_unknown(name))
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from fedquilt_common.errors import PackageMissingError, how_to_install

        raise PackageMissingError(
            f"fedquilt.{name} needs the Python package {error.name}: {how_to_install('server')}"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, __all__, n=1)
    return f"fedquilt has no {name!r}; {f'did you mean {near[0]!r}?' if near else 'see dir(fedquilt)'}"
