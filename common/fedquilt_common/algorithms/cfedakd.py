"""CFedAKD: FedAKD with labels of eight bits, and the least and greatest label of each class, in both directions.

Gad, "Light-weight Federated Learning with Augmented Knowledge Distillation for Human Activity Recognition", MSc thesis,
Lakehead University 2023, section 4.3, algorithm 2 and equation 4.1. ``fedmd`` has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt_common.algorithms.fedakd import FedAKD


@dataclass(frozen=True)
class CFedAKD(FedAKD):
    """FedAKD with quantised labels; it has FedAKD's fields."""

    compress: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.compress:
            raise ValueError("compress = False: cfedakd compresses its labels; use `name: fedakd`")
