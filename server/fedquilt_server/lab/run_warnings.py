"""Warnings of a run: why its models may train, or its replies travel, otherwise than its user expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedquilt_common.algorithm_api import declaration_of, half_precision_problem, pooling_problem
from fedquilt_common.experiment.training_section import Schedule, Training
from fedquilt_common.user_imports import suggest
from fedquilt_server.lab.workbench import Workbench


def warn_about_run(bench: Workbench) -> list[str]:
    """Return the warnings of an experiment that passed its checks, each with the key that it is about."""
    learning = [*_warn_about_models(bench), *_warn_about_trainings(bench)] if bench.learns else []
    others = (
        _warn_about_sums(bench), _warn_about_public(bench), _warn_about_sampling(bench), _warn_about_holders(bench),
    )  # fmt: skip
    return [warning for warning in (*learning, *others) if warning]


def warn_about_kind(bench: Workbench, kind: str) -> str:
    """Return that boards of a kind train the smallest sub-model as the algorithm does not list it; empty if it does."""
    algorithm = bench.algorithm()
    widths = getattr(algorithm, "widths", None) if declaration_of(algorithm).sub_models != "none" else None
    if not isinstance(widths, Mapping) or kind in widths:
        return ""
    return (
        f"boards of the kind '{kind}' train the smallest sub-model, because algorithm.widths does not list them; "
        f"{suggest(kind, widths)}"
    )


def _warn_about_models(bench: Workbench) -> Iterator[str]:
    if declaration_of(bench.algorithm()).sub_models == "averaged":
        yield bench.warn_about_norms()
    for warn in (bench.warn_about_static_norms, bench.warn_about_outputs):
        for model in bench.experiment.models:
            yield warn(model, bench.key_of(model))


def _warn_about_trainings(bench: Workbench) -> Iterator[str]:
    for key, training in dict(bench.experiment.trainings()).items():
        yield _warn_about_precision(key, training)
        yield _warn_about_schedule(key, training.schedule, bench.experiment.rounds)


def _warn_about_precision(key: str, training: Training) -> str:
    """Return that a training diverges in its precision; empty if not."""
    problem = half_precision_problem(training.optimiser, training.precision)
    return f"{key}.precision = fp16: {problem}" if problem else ""


def _warn_about_schedule(key: str, schedule: Schedule | None, rounds: int) -> str:
    """Return that a learning rate has milestones that no round reaches; empty if not."""
    milestones = () if schedule is None else schedule.milestones or ()
    late = ", ".join(str(milestone) for milestone in milestones if milestone >= rounds)
    return late and (
        f"{key}.schedule.milestones = {list(milestones)}: the run ends after {rounds} rounds, so the learning rate "
        f"does not fall at {late}; name earlier milestones, or raise rounds"
    )


def _warn_about_sums(bench: Workbench) -> str:
    """Return that no relay adds replies up although the experiment asks for it; empty if not."""
    if not bench.experiment.exact_sums or not (reason := pooling_problem(bench.algorithm())):
        return ""
    name = bench.experiment.algorithm.name
    return f"exact_sums: the replies to '{name}' travel one by one, and no relay adds them up: {reason}"


def _warn_about_sampling(bench: Workbench) -> str:
    """Return that sampling does not amplify central privacy; empty if it does or there is none."""
    if bench.experiment.central_privacy is None or not bench.clients_remember:
        return ""
    return (
        f"privacy.mode = central: what clients of '{bench.experiment.algorithm.name}' send may depend on when they "
        "were asked before, so sampling does not amplify, and the noise is for a client that is asked in every round"
    )


def _warn_about_holders(bench: Workbench) -> str:
    """Return that a private client's sample has several clients, whose epsilons add up; empty if there is none."""
    if not bench.experiment.is_private or bench.experiment.data.delivery == "own":
        return ""
    shares = [share.train for share in bench.shares]
    private = [client for client, _ in bench.experiment.private_clients()]
    holders = np.bincount(np.concatenate(shares))[np.concatenate([shares[client] for client in private])]
    if holders.max() == 1:
        return ""
    others = "; those without privacy do not protect it at all" if len(private) < len(shares) else ""
    return (
        f"privacy.epsilon: up to {holders.max()} clients have the same sample. Where different boards host them, what "
        f"they spend on it adds up, and each client's budget counts its own board only{others}"
    )


def _warn_about_public(bench: Workbench) -> str:
    """Return that the algorithm does not use the public samples; empty if it does or there are none."""
    if bench.experiment.data.public is None or declaration_of(bench.algorithm()).public is not False:
        return ""
    return (
        f"data.public: '{bench.experiment.algorithm.name}' does not use public samples, and no client trains on them; "
        "remove the key, or keep it to compare this run with that of an algorithm that uses them"
    )
