"""The server's half: Flower's FedAvg, with a timestamp at the opening of each round and at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

ARRAYS = 8
"""Arrays of a model without training, as many as fedquilt's ``ballast`` has."""
app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that notes the Unix time at which each round opens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.openings: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note the time, then open the round."""
        self.openings.append(time.time())
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds and write the times, and the accuracy if there was training, to the file ``out``."""
    config = context.run_config
    nodes, each, rounds = int(config["nodes"]), int(config["per-round"]), int(config["rounds"])
    strategy = TimedFedAvg(
        fraction_train=each / nodes, min_train_nodes=each, min_available_nodes=nodes, fraction_evaluate=0.0
    )
    trains = bool(config["data"])
    arrays = first_weights() if trains else random_weights(float(config["megabytes"]))
    found: dict[int, float] = {}

    def evaluate(server_round: int, weights: ArrayRecord) -> MetricRecord | None:
        """Evaluate after the last round only, as fedquilt does here."""
        if server_round == rounds:
            from peer_app.convnet import evaluate

            found[server_round] = evaluate(weights.to_torch_state_dict(), Path(str(config["data"])))
        return None

    strategy.start(grid, arrays, num_rounds=rounds, timeout=3600, evaluate_fn=evaluate if trains else None)
    times = {"openings": strategy.openings, "end": time.time(), "accuracy": found.get(rounds)}
    Path(str(config["out"])).write_text(json.dumps(times))


def random_weights(megabytes: float) -> ArrayRecord:
    """Return ``ARRAYS`` arrays of random float32, ``megabytes`` million bytes together."""
    rng, size = np.random.default_rng(0), round(megabytes * 1e6 / 4 / ARRAYS)
    return ArrayRecord([rng.standard_normal(size, dtype=np.float32) for _ in range(ARRAYS)])


def first_weights() -> ArrayRecord:
    """Return the initial weights of the ConvNet."""
    import torch

    from peer_app.convnet import build

    torch.manual_seed(7)

    return ArrayRecord(build().state_dict())
