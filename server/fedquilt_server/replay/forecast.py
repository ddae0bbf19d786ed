"""The forecast for other settings: predicts rounds with them and, as a check, with the recorded settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt_common.plurals import counted
from fedquilt_common.terminal import make_console
from fedquilt_common.types import ClientId
from fedquilt_common.wide_tables import print_whole
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.replay.measurements import WARM_UP, Measurements, measure
from fedquilt_server.replay.prediction import SimulatedRound, Spread, simulate_rounds, spread
from fedquilt_server.replay.recording import Recording
from fedquilt_server.replay.what_if import WhatIf, check_kinds, parse_what_if, recorded_settings
from fedquilt_server.replay.widths import WidthCost, measure_widths, scale_measurements
from fedquilt_server.status.units import traffic
from fedquilt_server.status.waiting import ranges

NOT_MODELLED: Final = (
    "queues at the broker and the coordinator, which grow with the number of boards",
    "boards that share a machine and slow each other down more, or less, than in the recorded run",
    "boards that fail, leave or throttle, and clients that never replied in the recorded run",
    "algorithms that do not draw their clients uniformly",
    "shares of secure aggregation, whose number grows with the square of the clients",
    "links: messages other than patches and replies, and the topics and headers of these",
    "what is asked for again while it is on its way over a slow link, such as receipts",
    "a `wire.chunk` other than the default, on links that lose chunks",
    "the losses and closed times of the recorded link of a board that gets another link",
)
"""What a forecast leaves out."""


class ForecastNumbers(BaseModel):
    """Median and percentiles of the simulated rounds; seconds, counts and bytes."""

    model_config = ConfigDict(frozen=True)

    seconds: Spread
    replies: Spread
    bytes_down: Spread
    bytes_up: Spread


class Forecast(BaseModel):
    """A forecast of the rounds with other settings.

    Attributes:
        run: identifier of the recorded run.
        recorded_rounds: rounds that were measured.
        recorded_seconds: their median duration.
        only_warm_up: whether the first round, in which training processes start, is the only measured one.
        same: the forecast for the recorded settings.
        settings: the changed settings.
        widths: what a task costs with the other widths, by client, measured on this machine; empty without them.
        changed: the forecast for these.
        not_modelled: what the forecast leaves out.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    recorded_rounds: int
    recorded_seconds: float
    only_warm_up: bool = False
    same: ForecastNumbers
    settings: dict[str, Any]
    widths: dict[ClientId, WidthCost] = {}
    changed: ForecastNumbers
    not_modelled: list[str] = list(NOT_MODELLED)


def make_forecast(recording: Recording, texts: Sequence[str], samples: int, seed: int) -> Forecast:
    """Predict rounds of a recorded run with other settings.

    Args:
        recording: the recorded run.
        texts: changes such as ``deadline=30``.
        samples: rounds to simulate.
        seed: of the draws.

    Raises:
        ExperimentError: a change is not valid.
        RunFolderError: the run has no round that can be measured.
        UncuttableModelError: ``width`` is set, but fedquilt cannot cut sub-models from the model.
    """
    measurements, speedup = measure(recording), recording.experiment.speedup
    recorded = recorded_settings(recording.experiment, measurements)
    settings = parse_what_if(texts, recorded, speedup)
    check_kinds(settings, measurements)
    costs = measure_widths(measurements, settings.widths, Workbench(recording.experiment)) if settings.widths else {}
    return Forecast(
        run=recording.run,
        recorded_rounds=len(measurements.rounds),
        recorded_seconds=measurements.seconds,
        only_warm_up=max(measurements.rounds) <= WARM_UP,
        same=_numbers(measurements, recorded, speedup, samples, seed),
        settings=asdict(settings),
        widths=costs,
        changed=_numbers(scale_measurements(measurements, costs), settings, speedup, samples, seed),
    )


def _numbers(measurements: Measurements, settings: WhatIf, speedup: float, samples: int, seed: int) -> ForecastNumbers:
    rounds = simulate_rounds(measurements, settings, speedup, samples, seed)

    def column(name: str) -> Spread:
        return spread([getattr(row, name) for row in rounds])

    return ForecastNumbers(**{name: column(name) for name in SimulatedRound.__dataclass_fields__})


def _group_clients(widths: Mapping[ClientId, WidthCost]) -> dict[WidthCost, list[ClientId]]:
    groups: dict[WidthCost, list[ClientId]] = {}
    for client, cost in sorted(widths.items()):
        groups.setdefault(cost, []).append(client)
    return groups


def print_forecast(forecast: Forecast) -> None:
    """Print a forecast as a table, and what it leaves out, to standard output."""
    table = Table(title=f"{forecast.run}: median (5 to 95 %)", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("", "seconds a round", "replies", "down", "up"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    table.add_row(f"recorded, {counted(forecast.recorded_rounds, 'round')}", f"{forecast.recorded_seconds:.2f}")
    for label, numbers in (("predicted, same settings", forecast.same), ("predicted, what if", forecast.changed)):
        seconds, replies = numbers.seconds, numbers.replies
        table.add_row(
            label,
            f"{seconds.median:.2f} ({seconds.low:.2f} to {seconds.high:.2f})",
            f"{replies.median:.0f} ({replies.low:.0f} to {replies.high:.0f})",
            traffic(numbers.bytes_down.median),
            traffic(numbers.bytes_up.median),
        )
    print_whole(table)
    console = make_console()
    if forecast.only_warm_up:
        console.print(
            "Only the first round was measured. Training processes start in it, so later rounds can be faster.",
            highlight=False,
            soft_wrap=True,
        )
    for cost, clients in _group_clients(forecast.widths).items():
        console.print(
            f"Clients {ranges(clients)}: {cost.training:.2f} times the recorded training, measured on this "
            f"machine, and {cost.bytes:.2f} times the bytes",
            highlight=False,
            soft_wrap=True,
        )
    console.print("Not modelled:", highlight=False)
    for line in forecast.not_modelled:
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)
