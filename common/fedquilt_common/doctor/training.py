"""Check whether this machine can train, and in which precisions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fedquilt_common.doctor.check import Check
from fedquilt_common.errors import FedquiltError, how_to_install


def check_torch() -> Check:
    """Check that torch is installed, and in which precisions it trains here; loads torch."""
    if importlib.util.find_spec("torch") is None:
        advice = f"On a Jetson, install NVIDIA's torch; elsewhere, {how_to_install('client')}"
        return Check("torch", "fail", "is not installed", advice)
    try:
        import torch as library
    except (ImportError, OSError) as error:
        return Check(
            "torch",
            "fail",
            f"cannot be loaded: {error}",
            "Reinstall torch, or the library that it names, for this machine",
        )
    precisions = [precision for precision in ("fp32", "amp", "fp16", "bf16") if _trains(precision)]
    where = "CUDA" if library.cuda.is_available() else "the processor"
    state = Check("torch", "ok", f"{library.__version__} trains on {where} in {', '.join(precisions)}")
    if "fp32" not in precisions:
        return Check("torch", "fail", f"{library.__version__} cannot train", "Reinstall torch for this machine")
    if _is_jetson() and not library.cuda.is_available():
        return Check("torch", "warn", state.said, "The GPU is not used: install NVIDIA's torch for this JetPack")
    return state


def _trains(precision: str) -> bool:
    """Whether one step of training a small model succeeds."""
    import numpy as np
    from torch import nn

    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.learning_tasks import Classification
    from fedquilt_common.training.learner import TorchLearner
    from fedquilt_common.types import Examples

    training = Training.model_validate({"batch": 4, "precision": precision})
    learner = TorchLearner(lambda: nn.Linear(3, 2), training, Classification(2))
    data = Examples(np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]))
    try:
        learner.train(learner.init(0), data, seed=0)
    except (FedquiltError, RuntimeError):
        return False
    return True


def _is_jetson() -> bool:
    return Path("/etc/nv_tegra_release").exists() or Path("/dev/nvhost-gpu").exists()
