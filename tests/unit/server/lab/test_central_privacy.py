"""DP-FedAvg around an algorithm: secret clients and noise, an account that is a part of the state, a firm budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedquilt_common.algorithm_api import Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import ExperimentError, RunFailedError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.privacy.central_accountant import NoisyRounds, central_epsilon
from fedquilt_common.types import ClientId, Profile
from fedquilt_server.lab.central_privacy import REPORT, CentralPrivacy, _known_rounds
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.machine_setup import make_server_half

KEY, OTHER = "0" * 64, "1" * 64
PRIVACY = Privacy.model_validate({"mode": "central", "epsilon": 20.0, "delta": 0.001, "adaptive": {}})
ROUNDS, CLIENTS = 5, 12


def algorithm(key: str = KEY, name: str = "fedavg", privacy: Privacy = PRIVACY) -> CentralPrivacy:
    return CentralPrivacy(make_algorithm(name, {}, ()), privacy, key, "digest")


def context(round: int, present: int = CLIENTS) -> RoundContext:
    fleet = dict.fromkeys(range(present), Profile("generic", 1))
    return RoundContext(round, fleet, 5, max(ROUNDS, round), CLIENTS, 4, None)  # type: ignore[arg-type]


def answer(task: Task, client: ClientId, round: int) -> Reply:
    rng = np.random.default_rng([round, client])
    return Reply({name: x + rng.normal(size=x.shape).astype(np.float32) for name, x in task.arrays.items()}, 7.0)


def start() -> State:
    return State({"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)})


def stored(state: State) -> State:
    """Return a state as the next round starts from it: floats in float32."""
    kept = {n: x.astype(np.float32) if x.dtype.kind == "f" else x for n, x in dict(state.extra).items()}
    return replace(state, extra=kept, report={})


def play(
    private: CentralPrivacy, state: State, round: int, present: int = CLIENTS, silent: int = 0
) -> tuple[Mapping[ClientId, Task], State]:
    """Run a round; the last ``silent`` clients that are asked do not reply."""
    steps = private.round(state, context(round, present))
    tasks = next(steps)
    replying = sorted(tasks)[: len(tasks) - silent]
    with pytest.raises(StopIteration) as done:
        steps.send({client: answer(tasks[client], client, round) for client in replying})
    return tasks, done.value.value


def run(key: str = KEY, present: tuple[int, ...] = (CLIENTS,) * ROUNDS) -> list[tuple[list[ClientId], State]]:
    private, state, played = algorithm(key), start(), []
    for number, here in enumerate(present, 1):
        tasks, state = play(private, stored(state), number, here)
        played.append((sorted(tasks), state))
    return played


def epsilons(played: list[tuple[list[ClientId], State]]) -> list[float]:
    return [state.report[REPORT]["epsilon"] for _, state in played]


def test_clients_and_noise_follow_from_the_key_alone() -> None:
    first, again, other = run(), run(), run(OTHER)
    assert [asked for asked, _ in first] == [asked for asked, _ in again] != [asked for asked, _ in other]
    for (_, one), (_, two), (_, three) in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one.arrays["weight"], two.arrays["weight"])
        assert not np.array_equal(one.arrays["weight"], three.arrays["weight"])


def test_the_run_spends_its_budget_and_no_more() -> None:
    spent = epsilons(run())
    assert spent == sorted(spent)
    assert 19.9 < spent[-1] <= 20.0
    assert len({state.report[REPORT]["noise"] for _, state in run()}) == 1


def test_fewer_clients_among_which_to_draw_get_more_noise() -> None:
    played = run(present=(12, 12, 6, 6, 12))
    noises = [state.report[REPORT]["noise"] for _, state in played]
    assert noises[0] == noises[1] < noises[2]
    assert epsilons(played)[-1] <= 20.0


def test_who_replies_decides_the_noise() -> None:
    """The same noise on two sums would tell their difference."""
    private = algorithm()
    (_, all_replied), (_, one_silent) = (play(private, start(), 1, silent=silent) for silent in (0, 1))
    tasks, _ = play(private, start(), 1)
    missing = max(tasks)
    change = answer(tasks[missing], missing, 1).arrays["weight"]
    difference = (all_replied.arrays["weight"] - one_silent.arrays["weight"]).ravel()
    cosine = float(difference @ change.ravel() / np.linalg.norm(difference) / np.linalg.norm(change))
    assert abs(cosine) < 0.9


def test_a_round_that_starts_again_draws_anew() -> None:
    """Draws from the same random numbers would make it likely who is asked instead of a client that is away."""
    instead = Counter[int]()
    for round in range(1, 200):
        before, after = (sorted(next(algorithm().round(start(), context(round, here)))) for here in (12, 11))
        if 11 in before:
            instead.update(set(after) - set(before))
    assert max(instead.values()) < 2 * min(instead[client] for client in range(11))


def test_the_same_noise_is_on_no_other_sum() -> None:
    """Another experiment with the same key, and other updates of the same clients."""
    means = []
    for experiment, shift in (("one", 0.0), ("two", 0.0), ("one", 0.5)):
        steps = replace(algorithm(), experiment=experiment).round(start(), context(1))
        tasks = next(steps)
        with pytest.raises(StopIteration) as done:
            steps.send({c: Reply({n: np.full_like(x, shift) for n, x in t.arrays.items()}) for c, t in tasks.items()})
        means.append(done.value.value.arrays["weight"].ravel())
    shapes = [mean - mean.mean() for mean in means]
    assert abs(np.corrcoef(shapes)[np.triu_indices(3, 1)]).max() < 0.95


def test_who_knows_the_participants_learns_more() -> None:
    """The client that was asked most often, without amplification by sampling."""
    played = run()
    rounds = max(sum(client in asked for asked, _ in played) for client in range(CLIENTS))
    noise = played[-1][1].report[REPORT]["noise"]
    expected = central_epsilon([NoisyRounds(noise, 1, 1, rounds)], PRIVACY.delta)
    assert played[-1][1].report[REPORT]["epsilon_known"] == pytest.approx(expected)
    assert rounds < ROUNDS


@given(
    st.lists(st.tuples(st.sampled_from([0.7, 1.1, 3.0]), st.lists(st.booleans(), min_size=4, max_size=4)), min_size=1)
)
def test_what_participants_know_is_the_sum_of_the_rounds_that_asked_a_client(
    rounds: list[tuple[float, list[bool]]],
) -> None:
    noises, asked = np.array([noise for noise, _ in rounds]), np.array([row for _, row in rounds], np.uint8)
    counted = {round(central_epsilon(one, 1e-5), 9) for one in _known_rounds(noises, asked)}
    single = [[NoisyRounds(noise, 1, 1) for noise, row in rounds if row[client]] for client in range(4)]
    assert counted == {round(central_epsilon(one, 1e-5), 9) for one in single}


def test_clients_that_remember_pay_for_each_round_in_which_they_are_asked() -> None:
    """Then the models tell who took part, so the secret draw does not amplify."""
    private, state, usual = replace(algorithm(), remembers=True), start(), run()
    for number in range(1, ROUNDS + 1):
        _, state = play(private, stored(state), number)
    spent = state.report[REPORT]
    whole = central_epsilon([NoisyRounds(spent["noise"], 1, 1, ROUNDS)], PRIVACY.delta)
    assert 19.9 < whole <= 20.0  # a client that is asked in every round stays within the budget
    assert spent["noise"] > usual[-1][1].report[REPORT]["noise"]
    assert spent["epsilon"] == spent["epsilon_known"] < 20.0


def test_the_algorithm_keeps_its_own_state() -> None:
    private = algorithm(name="fedopt")
    first = private.init(start().arrays, replace(context(0), tools=_Parameters()))  # type: ignore[arg-type]
    _, state = play(private, first, 1)
    assert {name for name in state.extra if not name.startswith("central")} == set(first.extra)


def test_the_noisy_mean_has_the_metrics_that_the_task_requires() -> None:
    private = algorithm(name="fedavg-weighted")  # weighs by the metric accuracy
    _, state = play(private, start(), 1)
    assert np.isfinite(state.arrays["weight"]).all()


class _Parameters:
    parameters = frozenset({"weight", "bias"})


def test_a_round_that_asks_nobody_keeps_what_the_rounds_before_have_spent() -> None:
    class Nobody:
        def round(self, state: State, ctx: Any) -> Any:
            yield from ()
            return state

    _, first = play(algorithm(), start(), 1)
    steps = replace(algorithm(), inner=Nobody()).round(stored(first), context(2))  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as done:
        next(steps)
    _, third = play(algorithm(), stored(done.value.value), 3)
    spent = third.report[REPORT]
    expected = central_epsilon([NoisyRounds(spent["noise"], 4, CLIENTS, 2)], PRIVACY.delta)
    assert spent["epsilon"] == pytest.approx(expected)
    assert expected > 1.1 * first.report[REPORT]["epsilon"]


def test_a_budget_that_becomes_too_small_ends_the_run() -> None:
    poor = PRIVACY.model_copy(update={"epsilon": 0.002, "delta": 1e-5})
    with pytest.raises(RunFailedError, match=r"round 1: .*choose a larger privacy\.epsilon"):
        next(algorithm(privacy=poor).round(start(), context(1)))


def test_an_algorithm_that_asks_again_is_refused() -> None:
    class Twice:
        def round(self, state: State, ctx: Any) -> Any:
            yield {0: Task("train", state.arrays)}
            yield {0: Task("test", state.arrays)}

    steps = CentralPrivacy(Twice(), PRIVACY, KEY, "digest").round(start(), context(1))  # type: ignore[arg-type]
    task = next(steps)[0]
    with pytest.raises(RunFailedError, match="asks the clients again"):
        steps.send({0: answer(task, 0, 1)})


def build_frozen(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    base = nn.Linear(64, 8).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), base, nn.Linear(8, classes))


BASE: dict[str, Any] = {
    "name": "central",
    "data": {"set": "digits", "clients": 8},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
    "privacy": {"mode": "central", "epsilon": 50.0, "delta": 0.01},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "heterofl"}}, "clients train different sub-models"),
        ({"algorithm": {"name": "fedreb"}, "data": {**BASE["data"], "holdout": 0}}, "with different weights"),
        ({"algorithm": {"name": "dsfl"}, "data": {**BASE["data"], "public": {"samples": 50}}}, "labels, not updates"),
        ({"algorithm": {"name": "fedavg-weighted"}}, "noisy mean weighs all clients equally .* such as fedavg"),
        ({"data": {**BASE["data"], "holdout": 0.2}}, "data.holdout = 0.2"),
        ({"model": {"name": "resnet18"}}, "batch norm, which nothing clips. Set model.norm to group"),
        ({"model": {"name": f"{__name__}:build_frozen"}}, r"its array '1\.bias' \(a frozen layer or a buffer\)"),
        ({"privacy": {"mode": "central", "epsilon": 0.001}}, "choose a larger privacy.epsilon"),
    ],
)  # fmt: skip
def test_experiments_that_it_cannot_protect_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Workbench(Experiment.model_validate({**BASE, **changes})).check()


def test_a_usual_experiment_passes() -> None:
    Workbench(Experiment.model_validate(BASE)).check()


@pytest.mark.parametrize(("name", "remembers"), [("fedavg", False), ("fedper", True), ("ditto", False)])
def test_the_coordinator_asks_the_algorithm_whether_its_clients_remember(
    name: str, remembers: bool, tmp_path: Path
) -> None:
    fields = {"lambda": 0.1} if name == "ditto" else {}
    raw = {"name": "x", "data": {"set": "digits", "clients": 40, "holdout": 0.0}, "model": {"name": "mlp"},
           "algorithm": {"name": name, **fields},
           "privacy": {"mode": "central", "epsilon": 900.0, "delta": 0.02, "clip": 1.0}}  # fmt: skip
    made = make_server_half(Workbench(Experiment.model_validate(raw)), tmp_path)
    assert isinstance(made, CentralPrivacy)
    assert made.remembers == remembers
