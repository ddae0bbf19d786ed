"""Attacks the models of a finished run by membership inference.

Two attacks. The loss threshold classifies a sample with a low loss as a member (Yeom et al., "Privacy Risk in Machine
Learning", CSF 2018, adversary 2). The likelihood ratio compares the model's confidence on a sample with those of shadow
models that have seen it and of others that have not (Carlini et al., "Membership Inference Attacks From First
Principles", IEEE S&P 2022, algorithm 1).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.sections import Variant
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays, ClientId, Shapes
from fedquilt_server.privacy_audit.bound import PrivacyBound
from fedquilt_server.privacy_audit.candidates import Candidates, find_candidates
from fedquilt_server.privacy_audit.finished_run import FinishedRun, find_states, read_finished, read_own_models
from fedquilt_server.privacy_audit.guarantee import find_guarantee
from fedquilt_server.privacy_audit.report import AttackName, AttackResult, AuditReport
from fedquilt_server.privacy_audit.scores import (
    FPR,
    Floats,
    compare_likelihoods,
    measure_separation,
    sample_confidences,
    sample_losses,
)
from fedquilt_server.privacy_audit.shadows import ShadowPlan

Audited = Literal["auto", "global", "own"]


@dataclass(frozen=True)
class AuditSettings:
    """How a run is audited.

    Attributes:
        models: which models are attacked; ``auto``: the global model if there is one, else the clients' own.
        states: state folders of the boards, for the clients' own models; empty: those of a simulated run.
        shadows: shadow models for each attacked model, even and 4 or more; 0: the loss threshold only.
        seed: of all that is random in the audit.
        should_stop: asked between two steps of a training.
        on_plan: called with the number of shadow models before the first.
        on_shadow: called after each shadow model.
    """

    models: Audited = "auto"
    states: Sequence[Path] = ()
    shadows: int = 16
    seed: int = 0
    should_stop: Callable[[], bool] = lambda: False
    on_plan: Callable[[int], None] = lambda _: None
    on_shadow: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Target:
    """A model to attack.

    Attributes:
        client: whose own model it is; None: the global model.
        variant: the model's name, its training and its privacy.
        arrays: the model's parameters and buffers.
        candidates: members and non-members.
        bound: what its members' privacy allows; None: nothing is guaranteed.
    """

    client: ClientId | None
    variant: Variant
    arrays: Arrays
    candidates: Candidates
    bound: PrivacyBound | None


@dataclass(frozen=True)
class _Scores:
    """The scores of one attack on one model, for the compared members and non-members."""

    attack: AttackName
    target: Target
    members: Floats
    others: Floats


def audit_run(folder: Path, settings: AuditSettings) -> AuditReport:
    """Audit a finished run. The same settings give the same report.

    Raises:
        RunFolderError: the folder holds no finished run, or a file in it is missing or damaged.
        ExperimentError: the run cannot be audited, or not with these settings.
        DataUnavailableError: the data set is missing or damaged.
        AuditStoppedError: ``settings.should_stop`` has returned True.
    """
    if settings.shadows % 2 or settings.shadows in range(1, 4):
        raise ExperimentError(
            f"--shadows {settings.shadows}: each sample is in half of the shadow models, and in two or more; choose an "
            "even number from 4, or 0 for the loss threshold only"
        )
    run = read_finished(folder)
    with _find_targets(run, settings) as targets:
        settings.on_plan(settings.shadows * len(targets))
        scores = [score for target in targets for score in _attack(run, target, settings)]
    return _make_report(run, targets, scores, settings)


@contextmanager
def _find_targets(run: FinishedRun, settings: AuditSettings) -> Iterator[list[Target]]:
    own = settings.models == "own" or (settings.models == "auto" and not len(run.global_model))
    if not own:
        yield [_global_target(run, settings.seed)]
        return
    with tempfile.TemporaryDirectory(prefix="fedquilt-audit-") as scratch:
        yield _own_targets(run, settings, Path(scratch))


def _global_target(run: FinishedRun, seed: int) -> Target:
    experiment, arrays = run.bench.experiment, run.global_model
    if not len(arrays):
        raise ExperimentError(
            f"--models global: '{run.result.algorithm}' has no global model; leave the option out to attack the "
            "clients' own models"
        )
    variants = [experiment.variant(client) for client in sorted(run.clients)]
    fitting = [
        one
        for one in (experiment.default_variant, *variants)
        if _shapes(run, one) == {name: x.shape for name, x in arrays.items()}
    ]
    if not fitting:
        raise RunFolderError(
            f"{run.folder}: the global model does not fit the model '{experiment.model.name}' of the experiment; if "
            "the model is your own, use the code that the run used"
        )
    private = [one.privacy for one in variants if one.privacy is not None]
    weakest = max(private, key=lambda privacy: privacy.epsilon) if len(private) == len(variants) else None
    bound = find_guarantee(run, run.clients, own=False)
    variant = fitting[0].model_copy(update={"privacy": weakest})
    return Target(None, variant, arrays, find_candidates(run.bench, run.clients, seed), bound)


def _own_targets(run: FinishedRun, settings: AuditSettings, scratch: Path) -> list[Target]:
    states = settings.states or find_states(run.folder)
    found = read_own_models(states, run.result.run, scratch)
    clients = sorted(run.clients & found.keys())
    if not clients:
        raise RunFolderError(
            f"{run.folder}: no client's own model is here. Boards keep them: copy the boards' state folders, and name "
            "each with --state"
        )
    return [_own_target(run, client, found[client], settings.seed) for client in clients]


def _own_target(run: FinishedRun, client: ClientId, arrays: Arrays, seed: int) -> Target:
    variant = run.bench.experiment.variant(client)
    if _shapes(run, variant) != {name: x.shape for name, x in arrays.items()}:
        raise ExperimentError(
            f"client {client}: '{run.result.algorithm}' keeps only a part of a model on the board, so there is no own "
            "model to attack; use --models global"
        )
    candidates = find_candidates(run.bench, [client], derive_seed(seed, client))
    return Target(client, variant, arrays, candidates, find_guarantee(run, [client], own=True))


def _shapes(run: FinishedRun, variant: Variant) -> Shapes:
    learner = run.bench.make_learner(variant.model, variant.training)
    return {name: tuple(x.shape) for name, x in learner.init(0).items()}


def _attack(run: FinishedRun, target: Target, settings: AuditSettings) -> Iterator[_Scores]:
    candidates, variant = target.candidates, target.variant
    samples = candidates.samples
    outputs = run.bench.make_learner(variant.model, variant.training).predict(target.arrays, samples)[-1]
    yield _compare("loss threshold", target, -sample_losses(outputs, samples.y))
    if settings.shadows:
        seed = derive_seed(settings.seed, "shadows", target.client)
        plan = ShadowPlan(run.bench, variant, samples, settings.shadows, seed, settings.should_stop)
        confidences = [_measure(plan, number, settings) for number in range(settings.shadows)]
        found = sample_confidences(outputs, samples.y)
        yield _compare("likelihood ratio", target, compare_likelihoods(found, np.stack(confidences), plan.halves))


def _measure(plan: ShadowPlan, number: int, settings: AuditSettings) -> Floats:
    confidences = plan.measure(number)
    settings.on_shadow()
    return confidences


def _compare(attack: AttackName, target: Target, scores: Floats) -> _Scores:
    return _Scores(attack, target, scores[target.candidates.members], scores[target.candidates.others])


def _make_report(
    run: FinishedRun, targets: Sequence[Target], scores: Sequence[_Scores], settings: AuditSettings
) -> AuditReport:
    attacks = list(dict.fromkeys(one.attack for one in scores))
    together = [_result([one for one in scores if one.attack == attack], None, settings.seed) for attack in attacks]
    each = [_result([one], one.target.client, settings.seed) for one in scores] if len(targets) > 1 else []
    loosest = _loosest([target.bound for target in targets])
    return AuditReport(
        run=run.result.run,
        algorithm=run.result.algorithm,
        dataset=run.result.dataset,
        models="global" if targets[0].client is None else "own",
        seed=settings.seed,
        shadows=settings.shadows,
        fpr=FPR,
        unused=sum(target.candidates.unused for target in targets),
        epsilon=loosest.epsilon if loosest else None,
        delta=loosest.delta if loosest else None,
        attacks=[*together, *each],
    )


def _result(scores: Sequence[_Scores], client: ClientId | None, seed: int) -> AttackResult:
    """Return the result of one attack on one model, or on several together."""
    members, others = (np.concatenate(part) for part in zip(*((s.members, s.others) for s in scores), strict=True))
    found = measure_separation(members, others, derive_seed(seed, "bootstrap"))
    bound = _loosest([score.target.bound for score in scores])
    return AttackResult(
        attack=scores[0].attack,
        client=client,
        members=len(members),
        non_members=len(others),
        auc=found.auc,
        auc_low=found.low,
        auc_high=found.high,
        tpr=found.tpr,
        least_tpr=found.least_tpr,
        most_fpr=found.most_fpr,
        auc_bound=bound.auc if bound else None,
        tpr_bound=bound.limit_tpr(FPR) if bound else None,
        most_tpr=bound.limit_tpr(found.most_fpr) if bound else None,
    )


def _loosest(bounds: Sequence[PrivacyBound | None]) -> PrivacyBound | None:
    """Return the bound that allows most; None if one of them bounds nothing."""
    known = [bound for bound in bounds if bound is not None]
    return max(known, key=lambda bound: bound.auc, default=None) if len(known) == len(bounds) else None
