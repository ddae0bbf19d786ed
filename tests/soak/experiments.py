"""The small experiments of the soak test: one for each algorithm and way of pooling replies.

They are made from ``deploy/experiments/digits-*.yaml``.

Each one has four clients on two agents and trains little. Starting torch in several processes dominates the time of a
scenario, so a round costs almost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.files.yaml_text import load_yaml

FILES: Final = Path(__file__).parents[2] / "deploy" / "experiments"
CLIENTS: Final = 4
ROUNDS: Final = 8
ECHO: Final = "echo"
"""An experiment that trains nothing. It is the cheapest one, and its model passes in the most chunks."""
POOLED: Final = ("fedavg-secure",)
"""Secure aggregation. Private training is not among them: its noise follows policy and link, too, which vary here."""
NAMES: Final = (ECHO, *ALGORITHMS, *POOLED)
FEWER: Final = {"kd_epochs": 1, "tune_epochs": 1, "head_epochs": 1, "body_epochs": 1}
"""Fields of algorithms that only take time."""
QUORUM: Final = {"quorum": CLIENTS - 1, "deadline": 45.0}
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "wait": {"quorum": CLIENTS, "deadline": 45.0, "shortfall": "wait"},
    "quorum": {**QUORUM, "shortfall": "wait"},
    "replace": {**QUORUM, "shortfall": "replace"},
}
"""Sections ``participation``. A quorum has clients of both agents, so no round opens without one of the two."""
LINKS: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "plain": None,
    "narrow": {"rate": 500_000.0, "latency": 0.005},
    "lossy": {"rate": 500_000.0, "latency": 0.002, "loss": 0.05, "mtu": 4096},
}


def experiment(name: str, policy: str = "wait", link: str = "plain") -> dict[str, Any]:
    """Return an experiment as the content of its file.

    Args:
        name: ``echo``, the name of an algorithm, or one of ``POOLED``.
        policy: a key of ``POLICIES``. It does not change the model, because all clients reply before the deadline.
        link: a key of ``LINKS``, for the first agent. It does not change the model either.
    """
    raw = _echo() if name == ECHO else _shrink(load_yaml((FILES / f"digits-{name}.yaml").read_text(), name))
    raw["participation"] = {"per_round": CLIENTS, **POLICIES[policy]}
    if LINKS[link] is not None:
        raw["fleet"][0]["link"] = LINKS[link]
    return raw


def _echo() -> dict[str, Any]:
    return {
        "name": "soak-echo",
        "seed": 7,
        "rounds": ROUNDS,
        "data": {"set": "digits", "clients": CLIENTS},
        "model": {"name": "ballast", "megabytes": 0.2},
        "algorithm": {"name": "echo"},
        "wire": {"chunk": "8KiB"},
        "fleet": [{"kind": kind, "agents": 1, "clients": CLIENTS // 2} for kind in ("strong", "weak")],
    }


def _shrink(raw: dict[str, Any]) -> dict[str, Any]:
    """Keep the first and the last kind of board with two clients each, few rounds and one epoch."""
    fleet = [_shrink_line(raw["fleet"][place]) for place in (0, -1)]
    has_budgets = any("budget" in line for line in fleet)  # they fit the model as it is
    return {
        **raw,
        "name": f"soak-{raw['name']}",
        "rounds": ROUNDS,
        "data": {**raw["data"], "clients": CLIENTS},
        "model": raw["model"] if has_budgets else _shrink_model(raw["model"]),
        "algorithm": {**raw["algorithm"], **{key: FEWER[key] for key in FEWER if key in raw["algorithm"]}},
        "training": {**raw["training"], "epochs": 1, "batch": 64},
        "wire": {"chunk": "128KiB" if has_budgets else "8KiB"},
        "fleet": fleet,
    }


def _shrink_line(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "agents": 1, "clients": CLIENTS // 2, "variants": line.get("variants", [])[: CLIENTS // 2]}


def _shrink_model(model: dict[str, Any]) -> dict[str, Any]:
    hidden = [min(width, 64) for width in model.get("hidden", [])]
    return {**model, "hidden": hidden} if hidden else model
