"""``fedquilt privacy audit``: it finds what a model has learned by heart, and nothing in a model that has not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.packages import needs
from tests.support.recorded_runs import make_round, write_run

from fedquilt_common.cli import run as run_command
from fedquilt_common.datasets.shares import take_samples
from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.types import Examples
from fedquilt_common.wire.codec import write_arrays
from fedquilt_server.privacy_audit.audit import AuditSettings, audit_run
from fedquilt_server.privacy_audit.bound import PrivacyBound
from fedquilt_server.privacy_audit.candidates import find_candidates
from fedquilt_server.privacy_audit.finished_run import AuditBench, read_finished
from fedquilt_server.privacy_audit.guarantee import find_guarantee
from fedquilt_server.privacy_audit.report import AttackResult, AuditReport, print_report
from fedquilt_server.privacy_audit.shadows import AuditStoppedError, ShadowPlan
from fedquilt_server.runs.journal import Journal

DICE: dict[str, Any] = {
    "data": {"set": "tests.support.toy_sets:dice", "clients": 2, "partition": {"scheme": "uniform", "shares": 10}},
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"epochs": 20, "batch": 40, "lr": 0.03, "optimiser": "adam"},
    "participation": {"per_round": 2, "quorum": 2},
}
"""160 members; learning them by heart takes 20 passes."""
HEADER = "round,exchange,client,outcome\n"
QUICK = {"training": {**DICE["training"], "epochs": 1}}


def write_finished(folder: Path, samples: Examples | None, settings: Mapping[str, Any] = DICE, **fields: Any) -> Path:
    """Write the folder of a finished run whose global model was trained on ``samples``; None: on the clients' own."""
    write_run(folder, [0.5], settings=settings, **fields)
    (folder / "replies.csv").write_text(HEADER + "1,0,0,accepted\n1,0,1,accepted\n")
    bench = AuditBench(load_experiment(folder / "experiment.yaml"))
    own = take_samples(bench.dataset, np.concatenate([share.train for share in bench.shares]))
    trained = bench.learner.train(bench.learner.init(1), samples or own, seed=1)
    write_arrays(folder / "global.safetensors", trained.arrays)
    return folder


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_finished(tmp_path_factory.mktemp("runs") / "overfitted", None)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has trained for one pass, and so do its shadows."""
    return write_finished(tmp_path_factory.mktemp("runs") / "quick", None, {**DICE, **QUICK})


def test_an_overfitted_model_tells_its_members(overfitted: Path) -> None:
    report = audit_run(overfitted, AuditSettings(shadows=4))
    loss, ratio = report.attacks
    assert (loss.attack, ratio.attack) == ("loss threshold", "likelihood ratio")
    assert loss.members == loss.non_members == report.unused
    assert min(loss.auc, ratio.auc) > 0.95
    assert loss.auc_low > 0.9
    assert ratio.tpr > 0.1
    assert (report.epsilon, loss.auc_bound, report.models) == (None, None, "global")


def test_a_model_that_has_seen_neither_tells_nothing(tmp_path: Path) -> None:
    from tests.support.toy_sets import dice

    report = audit_run(write_finished(tmp_path / "run", dice().test), AuditSettings(shadows=4))
    for attack in report.attacks:
        assert attack.auc_low < 0.5 < attack.auc_high
        assert attack.auc == pytest.approx(0.5, abs=0.08)


def test_the_same_seed_gives_the_same_report(quick: Path) -> None:
    first, again, other = (audit_run(quick, AuditSettings(shadows=4, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.attacks[1].auc != other.attacks[1].auc


def test_clients_without_a_reply_are_no_members(overfitted: Path) -> None:
    """Nor are they non-members: a reply of theirs may have been lost."""
    bench = AuditBench(load_experiment(overfitted / "experiment.yaml"))
    one, both = find_candidates(bench, [1], 0), find_candidates(bench, [0, 1], 0)
    assert (len(one.members), len(both.members)) == (80, 160)
    own = take_samples(bench.dataset, bench.shares[0].train).x
    assert not (one.samples.x[:, None] == own[None]).all(axis=2).any()


def test_members_and_non_members_have_the_same_classes() -> None:
    data = {"set": "digits", "clients": 5, "partition": {"scheme": "labels-per-client", "labels": 4}}
    raw = {"name": "x", "data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}
    bench = AuditBench(Experiment.model_validate(raw))
    found = find_candidates(bench, [2], 0)
    counts = [np.bincount(found.samples.y[part], minlength=10).tolist() for part in (found.members, found.others)]
    assert counts[0] == counts[1]
    assert sum(count > 0 for count in counts[0]) == 4
    assert len(np.unique(found.compared)) == 2 * len(found.members)


def test_samples_come_from_training_before_test(overfitted: Path) -> None:
    bench = AuditBench(load_experiment(overfitted / "experiment.yaml"))
    found = find_candidates(bench, [0, 1], 0)
    test = {row.tobytes() for row in bench.dataset.test.x}
    assert not any(found.samples.x[at].tobytes() in test for at in found.others)


def test_an_attack_beyond_the_guarantee_is_reported(overfitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = [
        {"client": client, "epsilon": epsilon, "budget": 1, "delta": 1e-5} for client, epsilon in ((0, 0.5), (1, 0.2))
    ]
    path = overfitted / "result.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "privacy": spent}))
    try:
        report = audit_run(overfitted, AuditSettings(shadows=0))
    finally:
        path.write_text(before)
    (loss,) = report.attacks
    assert (report.epsilon, report.exceeded) == (0.5, [loss])
    assert loss.auc_bound == pytest.approx(0.6225, abs=1e-3)
    print_report(report)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Allowed: the most that any attack can reach with epsilon 0.5 at delta 1e-05" in shown
    assert re.search(r"The loss threshold exceeds the guarantee: AUC 0\.9\d\d instead of at most 0\.622", shown)


def test_a_leak_of_few_samples_exceeds_the_guarantee_too() -> None:
    """Each tenth member stands out; the AUC hardly shows it."""
    leak = AttackResult(
        attack="likelihood ratio", client=None, members=364, non_members=364,
        auc=0.542, auc_low=0.501, auc_high=0.584, auc_bound=0.518,
        tpr=0.1126, least_tpr=0.082, most_fpr=0.028, tpr_bound=0.0108, most_tpr=0.03,
    )  # fmt: skip
    assert list(leak.excesses()) == ["TPR 0.113 instead of at most 0.011"]
    assert leak.exceeds
    assert not leak.model_copy(update={"least_tpr": 0.02}).exceeds


def test_noise_of_the_coordinator_bounds_attacks_too(tmp_path: Path) -> None:
    central = {"epsilon": 2.0, "epsilon_known": 2.5, "budget": 3.0, "delta": 0.001, "noise": 1.0, "clip": 1.0}
    folder = write_finished(
        tmp_path / "run", None, {**DICE, **QUICK}, rounds=[make_round(1, 0.5, central_privacy=central)]
    )
    report = audit_run(folder, AuditSettings(shadows=0))
    assert (report.epsilon, report.delta) == (2.0, 0.001)


OVERLAP = {"scheme": "per-class", "per_class": 60, "overlap": True}
"""Each of 2 clients draws 60 of about 133 samples of a class, so some have both."""


@pytest.mark.parametrize(
    ("partition", "epsilon"), [(OVERLAP, 0.7), (DICE["data"]["partition"], 0.5)], ids=["overlapping", "apart"]
)
def test_epsilons_of_clients_with_the_same_sample_add_up(
    partition: dict[str, Any], epsilon: float, tmp_path: Path
) -> None:
    settings = {**DICE, **QUICK, "data": {**DICE["data"], "partition": partition}}
    spent = [{"client": client, "epsilon": e, "budget": 1, "delta": 1e-5} for client, e in ((0, 0.5), (1, 0.2))]
    folder = write_finished(tmp_path / "run", None, settings, privacy=spent)
    report = audit_run(folder, AuditSettings(shadows=0))
    assert report.epsilon == pytest.approx(epsilon)
    assert report.delta == pytest.approx(2e-5 if partition is OVERLAP else 1e-5)


def test_clients_with_the_same_sample_are_a_group_for_the_coordinators_noise(tmp_path: Path) -> None:
    central = {"epsilon": 2.0, "epsilon_known": 2.5, "budget": 3.0, "delta": 0.001, "noise": 1.0, "clip": 1.0}
    settings = {**DICE, **QUICK, "data": {**DICE["data"], "partition": OVERLAP}}
    folder = write_finished(tmp_path / "run", None, settings, rounds=[make_round(1, 0.5, central_privacy=central)])
    assert audit_run(folder, AuditSettings(shadows=0)).epsilon == 4.0


def test_the_coordinators_noise_bounds_nothing_for_own_models(tmp_path: Path) -> None:
    central = {"epsilon": 2.0, "epsilon_known": 2.5, "budget": 3.0, "delta": 0.001, "noise": 1.0, "clip": 1.0}
    folder = write_finished(
        tmp_path / "run", None, {**DICE, **QUICK}, rounds=[make_round(1, 0.5, central_privacy=central)]
    )
    run = read_finished(folder)
    assert find_guarantee(run, [0], own=True) is None
    assert find_guarantee(run, [0], own=False) == PrivacyBound(2.0, 0.001)


def test_a_run_whose_clients_had_other_samples_is_refused(tmp_path: Path) -> None:
    """It would take members for non-members."""
    folder = write_finished(tmp_path / "run", None, {**DICE, **QUICK})
    own = read_finished(folder).bench.partition_digest()
    with closing(Journal(folder / "journal.sqlite")) as journal:
        journal.set_meta("partition", str(own))
        assert read_finished(folder).bench.partition_digest() == own
        journal.set_meta("partition", "a" * 64)
    with pytest.raises(RunFolderError, match="its clients had other samples when the run began"):
        read_finished(folder)


def test_a_central_training_is_audited_too(tmp_path: Path) -> None:
    folder = write_finished(tmp_path / "run", None, {**DICE, **QUICK})
    data = {**DICE["data"], "holdout": 0.25}
    write_run(folder, [0.5], algorithm="central", settings={**DICE, **QUICK, "data": data})
    (folder / "replies.csv").unlink()
    report = audit_run(folder, AuditSettings(shadows=4))
    assert (report.algorithm, report.attacks[0].members) == ("central", 120)


@pytest.mark.long
def test_private_runs_have_private_shadows(overfitted: Path) -> None:
    needs("opacus", "needs the extra dp")
    bench = AuditBench(load_experiment(overfitted / "experiment.yaml"))
    samples, usual = find_candidates(bench, [0, 1], 0).samples, bench.experiment.default_variant
    private = usual.model_copy(update={"privacy": Privacy(epsilon=1.0, delta=1e-3)})
    gained = []
    for variant in (usual, private):
        plan = ShadowPlan(bench, variant, samples, 4, 0, lambda: False)
        found, half = plan.measure(0), plan.halves[0]
        gained.append(found[half].mean() - found[~half].mean())
        assert (plan.measure(0) == found).all()
    assert gained[0] > 5
    assert abs(gained[1]) < 1


@pytest.mark.parametrize(
    ("algorithm", "trainings"),
    [({"name": "fedavg"}, 6), ({"name": "fedbuff", "buffer": 1}, 3), ({"name": "central", "epochs": 12}, 12)],
)
def test_shadows_train_in_as_many_rounds_as_a_client(algorithm: dict[str, Any], trainings: int) -> None:
    part = {"clients": 4, "partition": {"scheme": "uniform"}, "set": "digits"}
    settings = {"rounds": 12, "training": {"lr_decay": 0.5}, "participation": {"per_round": 2, "quorum": 1}}
    raw = {"name": "x", "data": part, "model": {"name": "mlp"}, "algorithm": algorithm, **settings}
    bench = AuditBench(Experiment.model_validate(raw))
    nobody = Examples(np.zeros((0, 1)), np.zeros(0, np.int64))
    plan = ShadowPlan(bench, bench.experiment.default_variant, nobody, 4, 0, lambda: False)
    assert len(plan.schedule) == trainings


def test_json_and_table(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["privacy", "audit", str(quick), "--shadows", "4", "--json"]) == 0
    report = AuditReport.model_validate_json(capsys.readouterr().out)
    assert (report.shadows, report.algorithm, report.fpr) == (4, "fedavg", 0.01)
    assert run_command(["privacy", "audit", str(quick), "--shadows", "0"]) == 0
    shown = capsys.readouterr().out
    assert "loss threshold" in shown
    assert "No epsilon bounds the attacks" in shown


def test_a_signal_stops_the_training_of_shadows(overfitted: Path) -> None:
    with pytest.raises(AuditStoppedError):
        audit_run(overfitted, AuditSettings(shadows=4, should_stop=lambda: True))


Wrong = tuple[dict[str, Any], list[str], int, str]
WRONG: dict[str, Wrong] = {
    "unfinished": ({"status": "failed"}, [], 6, "the run is failed, so it has released no model"),
    "own data": (
        {"settings": {**DICE, "data": {"delivery": "own", "clients": 2, "form": {"shape": [24], "classes": 6}}}},
        [], 4, "data.delivery = own: the clients' samples have never left",
    ),
    "missing data": ({"settings": {**DICE, "data": {"set": "uci-har", "clients": 2}}}, [], 5, "uci-har"),
    "noise": (
        {"settings": {**DICE, "data": {**DICE["data"], "label_noise": {"kind": "symmetric", "ratio": 0.1}}}},
        [], 4, "data.label_noise: members have noise",
    ),
    "words": (
        {"settings": {**DICE, "data": {"set": "tests.support.toy_sets:words", "clients": 2}}},
        [], 4, "a sample of next-word has no loss of its own",
    ),
    "odd": ({}, ["--shadows", "3"], 4, "--shadows 3: each sample is in half"),
    "few": ({}, ["--shadows", "2"], 4, "choose an even number from 4"),
    "no own models": ({}, ["--models", "own"], 6, "no client's own model is here"),
    "no state": ({}, ["--models", "own", "--state", "nowhere"], 6, "--state nowhere: "),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_runs_that_cannot_be_audited(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    fields, options, code, text = WRONG[case]
    folder = write_run(tmp_path / "run", [0.5], **{"settings": DICE, **fields})
    (folder / "replies.csv").write_text(HEADER + "1,0,0,accepted\n")
    write_arrays(folder / "global.safetensors", {"x": np.zeros(3, np.float32)})
    assert run_command(["privacy", "audit", str(folder), *options]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / "replies.csv").unlink(), "the clients that trained are unknown"),
        (lambda folder: (folder / "replies.csv").write_text(HEADER), "no reply was accepted"),
        (lambda folder: (folder / "global.safetensors").unlink(), "holds no global.safetensors"),
        (lambda folder: (folder / "global.safetensors").write_bytes(b"?"), "is damaged"),
        (
            lambda folder: write_arrays(folder / "global.safetensors", {"x": np.zeros(3)}),
            "does not fit the model 'mlp'",
        ),
        (lambda folder: (folder / "result.json").unlink(), "holds no result.json"),
        (lambda folder: (folder / "experiment.yaml").write_text("name: x"), "is damaged, or of another version"),
    ],
)
def test_damaged_runs_are_refused(tmp_path: Path, damage: Any, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_finished(tmp_path / "run", None, {**DICE, **QUICK})
    damage(folder)
    assert run_command(["privacy", "audit", str(folder)]) == 6
    assert text in capsys.readouterr().err


def test_a_run_without_a_global_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**DICE, "data": {**DICE["data"], "public": {"samples": 10}}}
    folder = write_run(tmp_path / "run", [0.5], algorithm="fedmd", settings=settings)
    (folder / "replies.csv").write_text(HEADER + "1,0,0,accepted\n")
    write_arrays(folder / "global.safetensors", {})
    assert run_command(["privacy", "audit", str(folder), "--models", "global"]) == 4
    assert "'fedmd' has no global model" in capsys.readouterr().err
