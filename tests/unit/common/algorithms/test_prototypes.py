"""FedDF and Fed-ET with clients of two kinds: the means, the weights of their logits, what each kind receives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedquilt_common.aggregation.soft_labels import softmax
from fedquilt_common.algorithm_api import Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Arrays, Examples, Profile
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench

SMALL, TINY = {"name": "mlp", "hidden": [20, 12]}, {"name": "mlp", "hidden": [14, 12]}
LARGE = {"name": "mlp", "hidden": [32, 24, 12]}
CLIENTS = 4


def bench(
    name: str, model: dict[str, Any], kinds: tuple[dict[str, Any], ...] = (SMALL, TINY), **changes: Any
) -> Workbench:
    """Clients 0 and 1 have the first kind, 2 and 3 the second."""
    raw = {
        "name": "x", "seed": 4, "model": model, "algorithm": {"name": name}, "training": {"lr": 0.1},
        "data": {"set": "digits", "clients": CLIENTS, "public": {"samples": 60}},
        "fleet": [{"kind": f"k{n}", "clients": 2, "variants": [{"model": kind}]} for n, kind in enumerate(kinds)],
        **changes,
    }  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


def context_of(made: Workbench) -> RoundContext:
    fleet = {client: Profile("k") for client in range(CLIENTS)}
    return RoundContext(1, fleet, 4, 9, CLIENTS, CLIENTS, made)


def play(algorithm: Any, made: Workbench, replies: dict[int, Reply]) -> tuple[State, dict[int, Task], State]:
    """One round: (state before, tasks, state after)."""
    ctx = context_of(made)
    state = algorithm.init(made.first_model(), ctx)
    rounds = algorithm.round(state, ctx)
    tasks = next(rounds)
    with pytest.raises(StopIteration) as ended:
        rounds.send(replies)
    return state, tasks, ended.value.value


def replies_of(made: Workbench, weights: tuple[float, ...] = (1, 3, 1, 1)) -> dict[int, Reply]:
    """Each client's model, as if it had trained."""
    return {
        client: Reply(made.prototypes[made.prototype_of(client)].init(100 + client), weights[client], {"accuracy": 0.5})
        for client in range(CLIENTS)
    }


def mean(one: Arrays, other: Arrays, weights: tuple[float, float]) -> dict[str, Any]:
    return {name: np.average([one[name], other[name]], axis=0, weights=weights) for name in one}


def alike(one: Arrays, other: Arrays, *, but: tuple[str, ...] = ()) -> bool:
    return one.keys() == other.keys() and all(
        np.allclose(one[name], other[name], atol=1e-6) for name in one if name not in but
    )


def kind(state: State, number: int) -> dict[str, Any]:
    return {name[2:]: x for name, x in state.extra.items() if name.startswith(f"{number}/")}


def test_each_client_is_sent_the_model_of_its_kind() -> None:
    made = bench("feddf", SMALL)
    state, tasks, _ = play(make_algorithm("feddf", {"kd_epochs": 0}, ()), made, replies_of(made))
    assert tasks[0].arrays is tasks[1].arrays
    assert tasks[2].arrays is tasks[3].arrays
    assert alike(tasks[0].arrays, state.arrays)
    assert alike(tasks[2].arrays, kind(state, 0))
    assert {name: x.shape for name, x in tasks[2].arrays.items()}["fc1.weight"] == (14, 64)


def test_without_distillation_feddf_is_the_mean_of_each_kind_weighted_by_samples() -> None:
    made = bench("feddf", SMALL)
    replies = replies_of(made)
    _, _, after = play(make_algorithm("feddf", {"kd_epochs": 0}, ()), made, replies)
    assert alike(after.arrays, mean(replies[0].arrays, replies[1].arrays, (1, 3)))
    assert alike(kind(after, 0), mean(replies[2].arrays, replies[3].arrays, (1, 1)))


def test_both_kinds_come_nearer_to_the_mean_of_all_opinions() -> None:
    made = bench("feddf", SMALL)
    replies, public = replies_of(made), Examples(made.public, np.zeros(60, np.int64))
    logits = [made.prototypes[client // 2].predict(replies[client].arrays, public)[-1] for client in range(CLIENTS)]
    algorithm: Any = make_algorithm("feddf", {"kd_epochs": 30, "kd_lr": 0.01, "patience": 30}, ())
    np.testing.assert_allclose(algorithm.mean_logits(replies, context_of(made)), np.mean(logits, axis=0), atol=1e-6)
    _, _, means = play(make_algorithm("feddf", {"kd_epochs": 0}, ()), made, replies)
    _, _, taught = play(algorithm, made, replies)

    def distance(arrays: Arrays, number: int) -> float:
        own = made.prototypes[number].predict(arrays, public)[-1]
        return float(np.abs(softmax(own) - softmax(np.mean(logits, axis=0))).sum(axis=1).mean())

    for number, (before, after) in enumerate(((means.arrays, taught.arrays), (kind(means, 0), kind(taught, 0)))):
        assert distance(after, number) < distance(before, number) / 2


def test_accuracy_weighs_the_opinions_where_that_is_asked_for() -> None:
    made = bench("feddf", SMALL)
    replies = replies_of(made)
    accuracies = (0.0, 1.0, 0.0, 0.0)
    heard = {c: Reply(r.arrays, r.weight, {"accuracy": accuracies[c]}) for c, r in replies.items()}
    algorithm: Any = make_algorithm("feddf", {"weighting": "accuracy"}, ())
    only = made.prototypes[0].predict(replies[1].arrays, Examples(made.public, np.zeros(60, np.int64)))[-1]
    np.testing.assert_allclose(algorithm.mean_logits(heard, context_of(made)), only, atol=1e-6)
    nobody = {c: Reply(r.arrays, r.weight, {"accuracy": 0.0}) for c, r in replies.items()}
    uniform: Any = make_algorithm("feddf", {}, ())
    assert np.allclose(algorithm.mean_logits(nobody, context_of(made)), uniform.mean_logits(replies, context_of(made)))


def test_a_kind_that_nobody_has_trained_learns_all_the_same() -> None:
    made = bench("feddf", SMALL)
    replies = {client: reply for client, reply in replies_of(made).items() if client < 2}
    before, _, still = play(make_algorithm("feddf", {"kd_epochs": 0}, ()), made, replies)
    assert alike(kind(still, 0), kind(before, 0))
    _, _, after = play(make_algorithm("feddf", {"kd_epochs": 2}, ()), made, replies)
    assert not alike(kind(after, 0), kind(before, 0))


def test_after_a_round_of_fedet_all_kinds_have_the_large_models_head() -> None:
    made = bench("fedet", LARGE)
    replies = replies_of(made)
    before, tasks, after = play(make_algorithm("fedet", {"kd_epochs": 3}, ()), made, replies)
    assert tasks[0].arrays.keys() == replies[0].arrays.keys()
    for number in (0, 1):
        for part in ("weight", "bias"):
            assert np.array_equal(kind(after, number)[f"fc3.{part}"], after.arrays[f"fc4.{part}"])
        pair = replies[2 * number].arrays, replies[2 * number + 1].arrays
        expected = mean(*pair, (1, 3) if number == 0 else (1, 1))
        assert alike(kind(after, number), expected, but=("fc3.weight", "fc3.bias"))
    assert not alike(after.arrays, before.arrays, but=("fc4.weight", "fc4.bias"))


def test_the_large_model_begins_with_the_mean_of_the_clients_heads() -> None:
    """With a rate of next to nothing it is what the round ends with."""
    made = bench("fedet", LARGE)
    replies = replies_of(made)
    before, _, after = play(make_algorithm("fedet", {"kd_epochs": 1, "kd_lr": 1e-12}, ()), made, replies)
    heads = [replies[client].arrays["fc3.weight"] for client in range(CLIENTS)]
    np.testing.assert_allclose(after.arrays["fc4.weight"], np.mean(heads, axis=0), atol=1e-6)
    assert alike(after.arrays, before.arrays, but=("fc4.weight", "fc4.bias"))


def test_a_student_with_exits_learns_the_labels_at_the_last_one() -> None:
    student = {"name": "mlp", "hidden": [16, 12], "exits": [0]}
    made = bench("feddf", student, (student, student))
    replies = replies_of(made)
    _, _, means = play(make_algorithm("feddf", {"kd_epochs": 0}, ()), made, replies)
    _, _, after = play(make_algorithm("feddf", {"kd_epochs": 2}, ()), made, replies)
    kept = {name for name, x in means.arrays.items() if np.array_equal(x, after.arrays[name])}
    assert kept == {"exits.0.weight", "exits.0.bias"}


def test_heads_of_different_shapes_are_refused_at_the_start() -> None:
    made = bench("fedet", LARGE, (SMALL, {"name": "mlp", "hidden": [20, 11]}))
    algorithm = make_algorithm("fedet", {}, ())
    with pytest.raises(ExperimentError, match="same inputs"):
        algorithm.init(made.first_model(), context_of(made))


@pytest.mark.parametrize("kinds", [(TINY, TINY), (SMALL, TINY)])
def test_models_of_their_own_need_an_algorithm_that_has_them(kinds: Any) -> None:
    """Also where all clients have the same one, which is not the experiment's."""
    bench("feddf", SMALL, kinds).check()
    with pytest.raises(ExperimentError, match="'fedavg' has one model for all"):
        bench("fedavg", SMALL, kinds).check()
    bench("fedavg", SMALL, (SMALL, SMALL)).check()


def test_a_model_of_a_client_that_cannot_be_built_is_found_at_the_start() -> None:
    with pytest.raises(ExperimentError, match=r"fleet\.1\.variants\.0\.model: .*hidden"):
        bench("fedmd", SMALL, (SMALL, {"name": "mlp", "hidden": "many"})).check()


@pytest.mark.parametrize(
    "changes", [{"lr_decay": 0.1}, {"schedule": {"kind": "multi-step", "milestones": [1], "gamma": 0.01}}]
)
def test_the_coordinator_trains_with_the_learning_rate_of_the_round(changes: dict[str, Any]) -> None:
    """Round 0 is the start of the run, and has that of round 1."""
    made = bench("feddf", SMALL, training={"lr": 0.1, **changes})
    contexts = [replace(context_of(made), round=number) for number in (0, 1, 3)]
    expected = [0.1, 0.1, pytest.approx(0.001)]
    assert [ctx.learner.lr for ctx in contexts] == expected
    assert [[one.lr for one in ctx.prototypes] for ctx in contexts] == [[lr] * 2 for lr in expected]
    assert made.learner.at_round(3).at_round(3).lr == pytest.approx(0.001)


def test_a_learner_of_another_round_does_not_trace_the_model_again() -> None:
    learner = bench("feddf", SMALL, training={"lr": 0.1, "lr_decay": 0.5}).learner
    rounds: list[Any] = [learner.at_round(number) for number in (2, 3)]
    assert rounds[0].at_round(4)._heads is rounds[1]._heads
    assert rounds[0].parameters is rounds[1].parameters is learner.parameters


def test_the_global_model_of_dsfl_learns_with_the_learning_rate_of_the_round() -> None:
    distances = []
    for lr_decay in (1.0, 0.1):
        made = bench("dsfl", SMALL, training={"lr": 0.1, "lr_decay": lr_decay})
        algorithm: Any = made.algorithm()
        ctx = replace(context_of(made), round=3)
        before = made.first_model()
        labels = {"probabilities": np.eye(10, dtype=np.float32)[np.arange(len(made.public)) % 10]}
        after = algorithm.update_state(algorithm.init(before, ctx), labels, ctx).arrays
        distances.append(sum(float(((after[name] - before[name]) ** 2).sum()) for name in before) ** 0.5)
    assert distances[1] == pytest.approx(distances[0] / 100, rel=0.2)
