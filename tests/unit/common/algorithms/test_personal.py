"""FedPer, FedRep, FedBABU, FedROD, FedReb, Ditto and FedDyn on a client: what they train, store and send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import Learner, Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Examples

HEAD = {"fc3.weight", "fc3.bias"}
Make = Callable[..., Any]
FIELDS: dict[str, dict[str, Any]] = {
    "ditto": {"lambda": 0.1}, "feddyn": {"alpha": 0.1}, "fedper": {}, "fedrep": {}, "fedbabu": {}, "fedrod": {},
    "fedreb": {"head_layers": 1},
}  # fmt: skip


def make(name: str, **fields: Any) -> Any:
    return make_algorithm(name, {**FIELDS[name], **fields}, ())


def work(algorithm: Any, ctx: Any, kind: str = "train", arrays: Any = None) -> Reply:
    reply: Reply = algorithm.work(Task(kind, ctx.model if arrays is None else arrays), ctx)
    return reply


def counted(reply: Reply, model: str) -> tuple[float, float]:
    """(right answers, sum of the losses) of a reply to ``EVALUATE``."""
    classes, loss = (reply.arrays[f"{model}_{name}"].view(np.float64) for name in ("classes", "loss"))
    return float(classes[1].sum()), float(loss)


def sent(reply: Reply) -> bytes:
    return b"".join(np.ascontiguousarray(x).tobytes() for x in reply.arrays.values())


@pytest.mark.parametrize("name", FIELDS)
def test_nothing_of_the_private_memory_is_in_a_reply(name: str, bench: Make) -> None:
    ctx, algorithm = bench(), make(name)
    replies = [work(algorithm, ctx), work(algorithm, ctx, EVALUATE), work(algorithm, ctx)]
    assert ctx.memory
    assert set(replies[1].arrays) == {"global_classes", "global_loss", "personal_classes", "personal_loss"}
    everything = b"".join(map(sent, replies))
    known = b"".join(x.tobytes() for x in ctx.model.values())  # what it received and did not change
    for array in ctx.memory.values():
        rows = array.reshape(len(array), -1) if array.ndim > 1 else array[None]
        own = [row.tobytes() for row in rows if row.any() and row.tobytes() not in known]
        assert own
        assert not any(row in everything for row in own)


@pytest.mark.parametrize("name", FIELDS)
def test_evaluation_changes_nothing_but_what_it_tunes(name: str, bench: Make) -> None:
    ctx, algorithm = bench(), make(name)
    work(algorithm, ctx)
    before = dict(ctx.memory)
    first, second = (work(algorithm, ctx, EVALUATE) for _ in range(2))
    assert sent(first) == sent(second)
    assert first.metrics == second.metrics == {"samples": 20}
    if name != "fedbabu":
        assert ctx.memory.keys() == before.keys()
        assert all(ctx.memory[key] is x for key, x in before.items())


@pytest.mark.parametrize("name", FIELDS)
def test_a_client_that_has_not_trained_has_the_global_model(name: str, bench: Make) -> None:
    ctx = bench()
    reply = work(make(name), ctx, EVALUATE)
    if name == "fedbabu":
        assert counted(reply, "personal")[1] != counted(reply, "global")[1]  # it tunes what it is sent
    else:
        assert counted(reply, "personal")[0] == counted(reply, "global")[0]


@pytest.mark.parametrize("name", FIELDS)
def test_a_client_without_test_samples_counts_nothing(name: str, bench: Make) -> None:
    assert set(work(make(name), bench(tests=0), EVALUATE).metrics.values()) == {0.0}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("case", ["one class", "one sample"])
def test_poor_clients(name: str, case: str, bench: Make) -> None:
    ctx = bench(count=1) if case == "one sample" else bench()
    if case == "one class":
        ctx.data = Examples(ctx.data.x, np.full_like(ctx.data.y, 4))
    reply = work(make(name), ctx)
    assert all(np.isfinite(x).all() for x in reply.arrays.values())
    assert reply.weight == len(ctx.data)
    assert work(make(name), ctx, EVALUATE).metrics["samples"] == 20


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_the_base_is_sent_and_the_head_only_for_measuring(name: str, bench: Make) -> None:
    ctx = bench()
    assert work(make(name), ctx).arrays.keys() == ctx.model.keys() - HEAD
    assert work(make(name, global_head="mean"), ctx).arrays.keys() == ctx.model.keys()


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_the_own_head_is_what_the_next_round_begins_with(name: str, bench: Make) -> None:
    ctx, algorithm = bench(), make(name)
    work(algorithm, ctx)
    assert ctx.memory.keys() == HEAD
    first = dict(ctx.memory)
    work(algorithm, ctx)
    fresh = bench()
    fresh.memory = first
    work(algorithm, fresh)
    assert all(np.array_equal(ctx.memory[key], fresh.memory[key]) for key in HEAD)
    forgetful = bench()
    work(algorithm, forgetful)
    assert not np.array_equal(forgetful.memory["fc3.weight"], ctx.memory["fc3.weight"])


@pytest.mark.parametrize("global_head", ["first", "mean"])
def test_training_begins_with_the_first_head_whatever_the_global_one_has_become(global_head: str, bench: Make) -> None:
    ctx = bench()
    server: Any = ServerContext(ctx.learner)
    algorithm = make("fedper", global_head=global_head)
    state = algorithm.init(ctx.model, server)
    for _ in range(2):
        steps = algorithm.round(state, server)
        task = next(steps)[0]
        reply = algorithm.work(task, bench())
        begun = {**task.arrays, **{name: ctx.model[name] for name in HEAD}}
        expected = ctx.learner.train(begun, ctx.data, seed=ctx.seed).arrays
        assert all(np.array_equal(x, expected[name]) for name, x in reply.arrays.items())
        assert task.expect == {name: x.shape for name, x in reply.arrays.items()}
        with pytest.raises(StopIteration) as done:
            steps.send({0: reply})
        state = done.value.value
        changed = [not np.array_equal(state.arrays[name], ctx.model[name]) for name in sorted(state.arrays)]
        assert changed == [global_head == "mean" or name not in HEAD for name in sorted(state.arrays)]


def test_fedper_trains_the_global_base_under_the_own_head(bench: Make) -> None:
    ctx = bench()
    own = {key: x + 0.25 for key, x in ctx.model.items() if key in HEAD}
    ctx.memory.update(own)
    reply = work(make("fedper"), ctx)
    expected = ctx.learner.train({**ctx.model, **own}, ctx.data, seed=ctx.seed).arrays
    assert all(np.array_equal(x, expected[name]) for name, x in reply.arrays.items())
    assert all(np.array_equal(ctx.memory[name], expected[name]) for name in HEAD)


def test_fedrep_trains_the_head_and_then_the_body(bench: Make) -> None:
    ctx = bench()
    reply = work(make("fedrep", head_epochs=3, body_epochs=1), ctx)
    head = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed, only=HEAD, epochs=3).arrays
    body = ctx.learner.train(head, ctx.data, seed=derive_seed(ctx.seed, "body"), only=head.keys() - HEAD, epochs=1)
    for name in HEAD:  # on the base's features, computed once, it is the same but for rounding
        np.testing.assert_allclose(ctx.memory[name], head[name], atol=1e-5)
    for name, x in reply.arrays.items():
        np.testing.assert_allclose(x, body.arrays[name], atol=1e-4)


@pytest.mark.parametrize("name", ["fedreb", "fedrod"])
def test_the_second_head_starts_as_the_initial_one(name: str, bench: Make) -> None:
    ctx, other = bench(), bench()
    trained = {key: x + np.float32(0.1) if key in HEAD else x for key, x in ctx.model.items()}
    other.memory.update({key: ctx.model[key] for key in HEAD})
    assert sent(work(make(name), ctx, arrays=trained)) == sent(work(make(name), other, arrays=trained))


def test_fedbabu_sends_a_tuned_head_for_the_mean(bench: Make) -> None:
    ctx = bench()
    received = {key: x + np.float32(0.1) if key in HEAD else x for key, x in ctx.model.items()}
    reply = work(make("fedbabu", global_head="mean", tune_epochs=3), ctx, arrays=received)
    body = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed, only=ctx.model.keys() - HEAD).arrays
    tuned = ctx.learner.train(body, ctx.data, seed=ctx.seed, only=HEAD, epochs=3).arrays
    for name, x in reply.arrays.items():
        np.testing.assert_allclose(x, tuned[name], atol=1e-5)


def test_fedbabu_never_trains_the_head_but_for_testing(bench: Make) -> None:
    ctx = bench()
    work(make("fedbabu"), ctx)
    assert not ctx.memory
    tested = work(make("fedbabu", tune_epochs=4), ctx, EVALUATE)
    tuned = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed, only=HEAD, epochs=4).arrays
    for name in HEAD:
        np.testing.assert_allclose(ctx.memory[name], tuned[name], atol=1e-5)
    logits = ctx.learner.predict(tuned, ctx.test)[0]
    assert counted(tested, "personal")[0] == (logits.argmax(1) == ctx.test.y).sum()
    ctx.memory.clear()
    work(make("fedbabu", tune_epochs=4, tunes="whole"), ctx, EVALUATE)
    assert ctx.memory.keys() == ctx.model.keys()


def test_fedrod_adds_its_head_to_the_generic_one(bench: Make) -> None:
    ctx, algorithm = bench(), make("fedrod")
    reply = work(algorithm, ctx)
    plain = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed).arrays
    unbalanced = work(make("fedrod", balanced=False), bench())
    assert all(np.array_equal(unbalanced.arrays[name], x) for name, x in plain.items())
    assert not np.array_equal(reply.arrays["fc1.weight"], plain["fc1.weight"])
    tested = work(algorithm, ctx, EVALUATE, reply.arrays)
    generic = ctx.learner.predict(reply.arrays, ctx.test)[0]
    added = ctx.learner.predict({**reply.arrays, **ctx.memory}, ctx.test)[0]
    assert counted(tested, "global")[0] == (generic.argmax(1) == ctx.test.y).sum()
    assert counted(tested, "personal")[0] == ((generic + added).argmax(1) == ctx.test.y).sum()


def test_ditto_holds_its_own_model_near_the_global_one(bench: Make) -> None:
    def apart(weight: float) -> float:
        ctx = bench(epochs=5)
        work(make("ditto", **{"lambda": weight}), ctx)
        return sum(float(((x - ctx.model[name]) ** 2).sum()) for name, x in ctx.memory.items())

    assert apart(5.0) < apart(0.5) < apart(1e-6)
    ctx = bench()
    reply = work(make("ditto", personal_epochs=1), ctx)
    plain = ctx.learner.train(ctx.model, ctx.data, seed=ctx.seed).arrays
    assert all(np.array_equal(reply.arrays[name], x) for name, x in plain.items())
    assert ctx.memory.keys() == ctx.model.keys()


def test_dittos_two_models_draw_other_batches(bench: Make) -> None:
    ctx = bench()
    reply = work(make("ditto", **{"lambda": 1e-9}), ctx)  # too weak to make the models differ
    assert not any(np.allclose(x, reply.arrays[name], atol=1e-4) for name, x in ctx.memory.items())


def test_fedreb_in_both_orders_and_with_both_aggregations(bench: Make) -> None:
    replies = {}
    for order in ("phases", "epochs"):
        for freeze in (True, False):
            replies[order, freeze] = work(make("fedreb", order=order, freeze_head=freeze), bench())
    bits = {sent(reply) for reply in replies.values()}
    assert len(bits) == 4
    metrics = replies["phases", True].metrics
    counts = np.bincount(bench().data.y, minlength=10)
    threshold = int(np.floor(counts[counts > 0].mean() + 0.5))
    assert metrics["effective"] == np.minimum(counts, threshold).sum()
    assert metrics["rebalanced"] == threshold * (counts > 0).sum()


def test_fedrebs_rebalanced_data_set_is_the_same_in_every_round(bench: Make) -> None:
    algorithm, ctx, later, other = make("fedreb"), bench(), bench(), bench()
    later.seed, other.lasting_seed = 12, 6
    first, second, third = (algorithm.rebalance(s).examples.x for s in (ctx, later, other))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_an_augmentation_that_does_not_suit_the_samples_is_refused_before_the_run() -> None:
    server: Any = ServerContext(SimpleNamespace(head=lambda layers: ()))
    with pytest.raises(DataUnavailableError, match=r"algorithm\.augmentation = time-series: .* of shape \(1, 8, 8\)"):
        make("fedreb", augmentation="time-series").init({}, server)
    make("fedreb").init({}, server)


def test_a_threshold_above_every_class_is_reached_by_augmentation(bench: Make) -> None:
    ctx = bench()
    reply = work(make("fedreb", threshold=40), ctx)
    assert reply.metrics["effective"] == len(ctx.data)
    assert reply.metrics["rebalanced"] == 40 * len(np.unique(ctx.data.y))


class ServerContext:
    """A server context that has the model's learner."""

    parameters = frozenset({"fc1.weight"})
    measures = False
    spare_test = Examples(np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64))
    clients = 4

    def select(self) -> list[int]:
        return [0]

    def __init__(self, learner: Learner) -> None:
        self.learner = learner


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "fedrod", "fedreb"])
def test_a_head_deeper_than_the_model_is_refused_before_the_run(name: str, bench: Make) -> None:
    ctx = bench()
    server: Any = ServerContext(ctx.learner)
    make(name, head_layers=2).init(ctx.model, server)
    with pytest.raises(ExperimentError, match=r"head_layers = 3: at most the last 2 linear layers of this model"):
        make(name, head_layers=3).init(ctx.model, server)


def test_feddyns_server_averages_buffers_and_moves_parameters(bench: Make) -> None:
    ctx: Any = ServerContext(bench().learner)
    start = {"fc1.weight": np.zeros(2, np.float32), "norm": np.zeros(2, np.float32)}
    algorithm = make("feddyn", alpha=0.5)
    state: State = algorithm.init(start, ctx)
    moved = {name: np.ones(2, np.float32) for name in start}
    replies = {0: Reply(moved, 1.0), 1: Reply({name: 3 * x for name, x in moved.items()}, 99.0)}
    state = algorithm.merge(state, replies, ctx)
    assert state.arrays["norm"].tolist() == [2.0, 2.0]  # all clients weigh equally
    # h = -alpha / m * sum of moves = -0.5 / 4 * 4, and the mean 2 - h / alpha
    assert state.extra["fc1.weight"].tolist() == [-0.5, -0.5]
    assert state.arrays["fc1.weight"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("weights", ["effective", "rebalanced"])
def test_fedreb_asks_for_what_it_weighs_heads_by(weights: str, bench: Make) -> None:
    ctx = bench()
    server: Any = ServerContext(ctx.learner)
    algorithm = make("fedreb", head_weights=weights)
    assert weights in algorithm.make_task(State(ctx.model), server).metrics
    one, other = (Reply({n: np.full_like(x, v) for n, x in ctx.model.items()}, 10.0,
                        {"effective": 9.0 if v else 1.0, "rebalanced": 1.0 if v else 3.0}) for v in (0, 1))  # fmt: skip
    state = algorithm.merge(State(ctx.model), {0: one, 1: replace(other, weight=30.0)}, server)
    np.testing.assert_allclose(state.arrays["fc1.weight"], 0.75)
    np.testing.assert_allclose(state.arrays["fc3.weight"], 0.9 if weights == "effective" else 0.25)
