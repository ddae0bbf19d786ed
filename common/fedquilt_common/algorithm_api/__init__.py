"""The interface between an algorithm and fedquilt: what both halves of an algorithm receive, and what they return.

``Arrays`` maps the names of a model's parameters and buffers to numpy arrays. Their shapes are the model's, or those of
a sub-model where one is named. Only annotations need numpy here, so importing this package costs an idle agent nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedquilt_common.algorithm_api.algorithm import (
    Algorithm,
    ClientContext,
    Round,
    ServerContext,
    ServerTools,
    advance_full_round,
    advance_round,
)
from fedquilt_common.algorithm_api.learner import (
    Batch,
    BatchLoss,
    Learner,
    Loss,
    OutputViews,
    Penalty,
    TrainingPhase,
    TrainingResult,
    deepest_exit,
)
from fedquilt_common.algorithm_api.levels import find_level, parts_to_try
from fedquilt_common.algorithm_api.participation import participation_problem, replies_per_round
from fedquilt_common.algorithm_api.pooling import pooling_problem, reply_weight
from fedquilt_common.algorithm_api.privacy import privacy_problem, private_passes
from fedquilt_common.algorithm_api.records import Ask, Declaration, Reply, State, Task, declaration_of
from fedquilt_common.algorithm_api.training_settings import (
    TrainingSettings,
    half_precision_problem,
    loss_problem,
    training_problem,
)

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api.learner import Outputs as Outputs
    from fedquilt_common.algorithm_api.learner import Part as Part

__all__ = [
    "Algorithm", "Round", "advance_round", "advance_full_round",
    "Ask", "Task", "Reply", "State", "Declaration", "declaration_of",
    "privacy_problem", "private_passes", "pooling_problem", "reply_weight", "find_level", "parts_to_try",
    "training_problem", "loss_problem", "participation_problem", "replies_per_round", "TrainingSettings",
    "half_precision_problem",
    "ServerContext", "ServerTools", "ClientContext",
    "Learner", "Loss", "Batch", "BatchLoss", "OutputViews", "Penalty", "deepest_exit",
    "TrainingPhase", "TrainingResult",
]  # fmt: skip
