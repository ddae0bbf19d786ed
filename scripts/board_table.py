#!/usr/bin/env python3
"""Prints the tables of docs/deploy.md that show which models train on which board, by fedquilt's own estimate.

python scripts/board_table.py
"""

from __future__ import annotations

from fedquilt_common.experiment.training_section import Training
from fedquilt_common.models import build_model
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.memory_estimate import memory_to_train
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_server.provisioning.kinds import KINDS

RESERVED = 600
"""MiB for the system without a desktop, the agent, and torch with the data."""
BATCH = 32
PRECISIONS = ("fp32", "amp", "fp16", "bf16")
MODELS = ("mlp", "convnet", "mobilenet-v2", "resnet18", "vgg16")
MIB = 1 << 20


def estimate_needs() -> dict[tuple[str, str], float]:
    """Return the MiB that training needs beyond ``RESERVED``, for each model and precision, on CIFAR-10 images."""
    import numpy as np

    needs = {}
    for name in MODELS:
        blueprint = blueprint_for(build_model(name, {}, (3, 32, 32), 10), np.zeros((1, 3, 32, 32), np.float32))
        for precision in PRECISIONS:
            training = Training.model_validate({"batch": BATCH, "momentum": 0.9, "precision": precision})
            needs[name, precision] = memory_to_train(blueprint, full_slice(blueprint.anatomy), training).total / MIB
    return needs


def rows() -> list[str]:
    """Return the lines of both tables, as Markdown."""
    need = estimate_needs()
    lines = ["| model | " + " | ".join(PRECISIONS) + " |", "|---|" + "---|" * len(PRECISIONS)]
    for name in MODELS:
        lines.append(
            f"| `{name}` | " + " | ".join(f"{need[name, precision]:.0f} MiB" for precision in PRECISIONS) + " |"
        )
    lines += ["", "| kind | board | RAM | for training | trains |", "|---|---|---|---|---|"]
    for kind, board in KINDS.items():
        room = board.memory - RESERVED
        lines.append(f"| `{kind}` | {board.label} | {board.memory} MiB | {room} MiB | {_fitting(need, room)} |")
    return lines


def _fitting(need: dict[tuple[str, str], float], room: float) -> str:
    """Return the models that fit; with their precisions if a model does not fit in all of them."""
    fitting = {name: [kind for kind in PRECISIONS if need[name, kind] <= room] for name in MODELS}
    if all(len(precisions) == len(PRECISIONS) for precisions in fitting.values()):
        return "all of them, in any precision"
    words = [
        f"`{name}`" + ("" if len(precisions) == len(PRECISIONS) else f" ({', '.join(precisions)})")
        for name, precisions in fitting.items()
        if precisions
    ]
    return ", ".join(words)


if __name__ == "__main__":
    print("\n".join(rows()))
