"""AdaptiveFL's coordinator: boards that can train less, or nothing, or report nonsense; and the round's report."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Reply, State, Task, find_level
from fedquilt_common.algorithms.adaptivefl import AdaptiveFL, Tables
from fedquilt_common.algorithms.decoupled import Decoupled
from fedquilt_common.errors import ExperimentError, SliceError
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.submodels.adaptivefl_pool import find_member, make_pool
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Group, Segment, cut
from fedquilt_common.types import Arrays, Profile
from fedquilt_server.lab.context import RoundContext

NET = Anatomy(
    tuple(Group(f"fc{depth}", 10, depth) for depth in range(3)),
    {
        "fc0": ArrayAnatomy((10, 4), "float32", ((Segment(0, 1),), (Segment(None, 4),))),
        "fc1": ArrayAnatomy((10, 10), "float32", ((Segment(1, 1),), (Segment(0, 1),))),
        "fc2": ArrayAnatomy((10, 10), "float32", ((Segment(2, 1),), (Segment(1, 1),))),
        "out": ArrayAnatomy((3, 10), "float32", ((Segment(None, 3),), (Segment(2, 1),)), 0),
    },
)
ALGORITHM = AdaptiveFL(starts=(2, 1))
POOL = make_pool(NET, ALGORITHM.levels, (2, 1))
NAMES = [member.name for member in POOL]


def model() -> dict[str, Any]:
    return {name: np.zeros(array.shape, np.float32) for name, array in NET.arrays.items()}


def ctx(clients: int = 6, seed: int = 3) -> RoundContext:
    fleet = {client: Profile() for client in range(clients)}
    return RoundContext(1, fleet, seed, 9, clients, clients, cast(Any, SimpleNamespace(anatomy=NET)))


def trained(task: Task, member: int, value: float = 1.0) -> Reply:
    part = POOL[member].part
    return Reply({name: np.full(shape, value, np.float32) for name, shape in part.shapes.items()}, 10)


def cannot(reported: float) -> Reply:
    return Reply({}, 1.0, {"fits": reported})


def member_sent(task: Task) -> int:
    return next(place for place, member in enumerate(POOL) if member.part == task.slice)


def one_round(answer: Any, again: Any = None) -> tuple[State, dict[int, int], dict[int, Task]]:
    """(state, member sent per client, second exchange's tasks)."""
    state = ALGORITHM.init(model(), ctx())
    steps = ALGORITHM.round(state, ctx())
    tasks = next(steps)
    second: dict[int, Task] = {}
    try:
        second = dict(steps.send({client: answer(client, task) for client, task in tasks.items()}))
        steps.send({client: again(client, task) for client, task in second.items()})
    except StopIteration as done:
        return done.value, {client: member_sent(task) for client, task in tasks.items()}, second
    raise AssertionError


def test_the_pool_ascends_in_size() -> None:
    """In this small model S1, which is cut late, is larger than M2."""
    assert NAMES == ["S2", "M2", "S1", "M1", "L1"]


def test_who_trains_what_it_was_sent_wastes_nothing() -> None:
    state, sent, second = one_round(lambda client, task: trained(task, member_sent(task)))
    assert second == {}
    assert state.report["waste_rate"] == 0
    assert state.report["trained"] == {str(client): NAMES[place] for client, place in sent.items()}
    assert set(np.unique(state.arrays["out"])) <= {0.0, 1.0}


def test_what_was_pruned_is_waste_and_counts_for_the_tables() -> None:
    state, sent, _ = one_round(lambda client, task: trained(task, 0))
    out = sum(POOL[place].part.entries for place in sent.values())
    assert state.report["waste_rate"] == pytest.approx(1 - 6 * POOL[0].part.entries / out)
    assert set(state.report["trained"].values()) == {"S2"}
    curiosity = np.asarray(state.extra["curiosity"])
    assert curiosity.sum() == 3 * 6 + 2 * 6  # one for what was sent, one for what came back


def test_a_board_gets_what_it_says_it_can_train_in_a_second_exchange() -> None:
    state, sent, second = one_round(lambda client, task: cannot(0), lambda client, task: trained(task, 0))
    assert {member_sent(task) for task in second.values()} == {0}
    assert set(second) == set(sent)
    assert set(state.report["trained"].values()) == {"S2"}
    both = sum(POOL[place].part.entries for place in sent.values()) + 6 * POOL[0].part.entries
    assert state.report["waste_rate"] == pytest.approx(1 - 6 * POOL[0].part.entries / both)


@pytest.mark.parametrize("reported", [-1, 99, 0.5, 1e300, -7.0])
def test_where_nothing_fits_the_model_stays_and_the_round_goes_on(reported: float) -> None:
    before = model()
    state, _, second = one_round(lambda client, task: cannot(reported))
    assert second == {}
    assert all((state.arrays[name] == before[name]).all() for name in before)
    assert state.report["waste_rate"] == 1
    assert state.report["trained"] == {}


def test_a_board_that_is_asked_again_may_still_find_that_nothing_fits() -> None:
    state, _, second = one_round(lambda client, task: cannot(1), lambda client, task: cannot(0))
    assert len(second) == 6
    assert state.report["trained"] == {}
    assert state.report["waste_rate"] == 1


def test_only_members_nested_in_what_was_sent_are_answers() -> None:
    state = ALGORITHM.init(model(), ctx())
    for task in next(ALGORITHM.round(state, ctx())).values():
        assert task.expect is not None
        assert isinstance(task.expect, tuple)
        own = POOL[member_sent(task)].part
        for shapes in task.expect:
            if shapes:
                member = next(m for m in POOL if m.part.shapes == shapes)
                assert member.part.is_within(own)
        assert {} in task.expect


def test_a_reply_that_slipped_through_with_other_shapes_is_an_error_not_an_average() -> None:
    def wide(client: int, task: Task) -> Reply:
        return Reply({name: np.ones((2, 2), np.float32) for name in NET.arrays}, 1)

    with pytest.raises(SliceError, match="shapes of no sub-model that is nested in the published one"):
        one_round(wide)


@pytest.mark.parametrize("starts", [(1, 2), (2, 1), ("fc1", "fc2")])
def test_the_pool_ascends_whatever_the_order_of_the_starts(starts: Any) -> None:
    assert AdaptiveFL(starts=starts).pool(ctx().anatomy) == POOL


@pytest.mark.parametrize(
    ("starts", "reason"),
    [
        (None, "starts is missing, and this model declares no start layers"),
        (("nothing",), "no layer of that name.*fc0, fc1, fc2"),
        ((2, "fc2"), r"algorithm.starts = \[2, 'fc2'\] \(layers \[2, 2\], counted from 0\): .* give different ones"),
        (("fc0",), r"algorithm.tau = 1: .* \['fc0'\] .* begin with layer 0; choose a smaller tau"),
        ((7,), "no layer from 7 on can be cut"),
    ],
)
def test_starts_that_the_model_does_not_have_are_refused_before_the_run(starts: Any, reason: str) -> None:
    with pytest.raises(SliceError, match=reason):
        AdaptiveFL(starts=starts).init(model(), ctx())


GAPS = replace(NET, groups=tuple(Group(f"fc{depth}", 10, depth) for depth in (0, 1, 4)))
"""The layers 2 and 3 have the channels of others, as the last convolution of a residual block has."""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"starts": (4, 3)},
            r"starts = \[4, 3\]: S2 and S1 .* layer 3 has no channels of its own; .* Leave out the start 3 or 4, or "
            r"choose .*: 0 \(fc0\), 1 \(fc1\), 4 \(fc4\)$",
        ),
        ({"starts": (1, 2, "fc4")}, r"starts = \[1, 2, 'fc4'\]: S2 and S1 .* layers 2 to 3 have no channels of their"),
        ({"starts": (1,), "levels": {"M": 0.69, "S": 0.61}}, r"levels = .*0.61\}: S1 and M1 .* differ more"),
    ],
)
def test_members_that_keep_the_same_channels_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SliceError, match=f"^algorithm.{reason}"):
        AdaptiveFL(**fields).pool(GAPS)


def test_of_members_that_keep_the_same_channels_the_client_trained_the_one_that_it_was_sent() -> None:
    pool = (POOL[0], replace(POOL[0], name="twin"), *POOL[1:])
    arrays = {name: np.zeros(shape, np.float32) for name, shape in POOL[0].part.shapes.items()}
    assert [find_member(pool, sent, arrays) for sent in (0, 1)] == [0, 1]


def tables(selection: Any) -> Tables:
    resources = np.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 6.0]])  # S2 ... L1 of two clients
    curiosity = np.array([[1.0, 1.0], [1.0, 1.0], [4.0, 1.0]])
    return Tables(curiosity, resources, tuple("SSMML"), "paper", selection)


@pytest.mark.parametrize(
    ("selection", "rewards"),
    [
        ("random", (1, 1)),
        ("curiosity", (1 / 2, 1)),
        ("resource", (1 / (2 * 8), 6 / (2 * 10))),
        ("both", (1 / (2 * 8) / 2, 6 / (2 * 10))),
    ],
)
def test_variants_of_figure_5_leave_rewards_out(selection: str, rewards: tuple[float, float]) -> None:
    expected = np.array(rewards) / sum(rewards)
    np.testing.assert_allclose(tables(selection).probabilities("L", [0, 1]), expected)


def test_a_board_that_no_member_fits_loses_all_its_rewards() -> None:
    found = tables("both")
    for _ in range(5):
        found.update(0, 0, None)
    assert found.resources.T.tolist() == [[0.0] * 5, [1.0, 1.0, 1.0, 1.0, 6.0]]
    assert found.curiosity[:, 0].tolist() == [6.0, 1.0, 4.0]
    assert found.probabilities("S", [0, 1]).tolist() == [0.0, 1.0]


def test_only_the_largest_member_of_each_level_is_evaluated_however_many_there_are() -> None:
    groups = tuple(Group(f"fc{depth}", 10, depth) for depth in range(13))
    arrays = {
        f"fc{depth}": ArrayAnatomy((10, 10), "float32", ((Segment(depth, 1),), (Segment(max(depth - 1, 0), 1),)))
        for depth in range(13)
    }
    net = Anatomy(groups, arrays)
    scored: list[Any] = []

    def evaluate(arrays: Arrays, part: Any = None, learner: Any = None) -> dict[str, float]:
        scored.append(part)
        return {"accuracy": 0.5}

    tools = SimpleNamespace(anatomy=net, learning_task=Classification(3), evaluate=evaluate)
    scores = AdaptiveFL(starts=tuple(range(12, 0, -1))).evaluate(
        State({name: np.zeros(array.shape, np.float32) for name, array in arrays.items()}),
        replace(ctx(), tools=cast(Any, tools)),
    )
    assert {name for name in scores if "_" in name} == {"accuracy_L1", "accuracy_M1", "accuracy_S1", "average_accuracy"}
    assert len(scored) == 3


def test_the_greedy_variant_sends_everybody_the_whole_model() -> None:
    greedy = AdaptiveFL(starts=(2, 1), dispatch="largest")
    tasks = next(greedy.round(greedy.init(model(), ctx()), ctx()))
    assert {member_sent(task) for task in tasks.values()} == {len(POOL) - 1}


def test_decoupled_trains_l1_m1_and_s1_of_the_pool() -> None:
    """The weak train S1 only, the strong any level."""
    decoupled = Decoupled(start=2)
    fleet = {client: Profile(kind) for client, kind in enumerate(["strong"] * 30 + ["weak"] * 3)}
    server = RoundContext(1, fleet, 3, 9, 33, 33, cast(Any, SimpleNamespace(anatomy=NET)))
    sent = next(decoupled.round(decoupled.init(model(), server), server))
    shapes = {
        name: next(m.part.shapes for m in make_pool(NET, {"M": 0.66, "S": 0.4}, (2,)) if m.name == name)
        for name in ("L1", "M1", "S1")
    }
    levels = {"strong": "L1", "medium": "M1", "weak": "S1"}
    for task in sent.values():
        name = levels[str(task.scalars["level"])]
        assert {key: np.shape(x) for key, x in task.arrays.items()} == dict(shapes[name])
    assert {sent[client].scalars["level"] for client in range(30)} == set(levels)
    assert {sent[client].scalars["level"] for client in (30, 31, 32)} == {"weak"}


@pytest.mark.parametrize(
    ("algorithm", "name", "reason"),
    [
        (ALGORITHM, "M9", "the pool has no such level; choose one of S2, M2, S1, M1, L1"),
        (Decoupled(), "M1", "use adaptivefl"),
    ],
)
def test_levels_of_the_fleet_must_be_the_algorithms(algorithm: Any, name: str, reason: str) -> None:
    assert find_level(ALGORITHM, "M1", ctx()) == POOL[3].part
    with pytest.raises(ExperimentError, match=f"fleet: fits = {name}: .*{reason}"):
        find_level(algorithm, name, ctx())


def test_layers_are_numbered_from_0() -> None:
    with pytest.raises(SliceError, match=r"algorithm.start = -4: layers are numbered from 0"):
        Decoupled(start=-4).init(model(), ctx())
    with pytest.raises(ValueError, match="tau = -5: layers are numbered from 0"):
        AdaptiveFL(starts=(-3, -2), tau=-5)


def test_decoupled_needs_a_start_layer_of_a_model_that_declares_none() -> None:
    with pytest.raises(SliceError, match=r"algorithm.start: .* give one, such as 0"):
        Decoupled().init(model(), ctx())


def test_start_layers_that_the_model_declares_are_named_when_tau_is_too_great() -> None:
    declares = replace(NET, start_layers=("fc1", 2))
    with pytest.raises(SliceError, match=r"^algorithm.tau = 2: .* start layers \['fc1', 2\] \(layers \[1, 2\]"):
        AdaptiveFL(tau=2).pool(declares)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"start": 7}, r"^algorithm.start = 7: "),
        ({"start": 0, "widths": {"strong": 1.0, "weak": 0.01}}, r"^algorithm.widths: a width of 0.01"),
    ],
)
def test_decoupled_names_its_own_keys(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SliceError, match=reason):
        Decoupled(**fields).init(model(), ctx())


def test_a_width_that_leaves_nothing_is_named() -> None:
    tiny = AdaptiveFL(levels={"S": 0.05}, starts=(1,))
    with pytest.raises(SliceError, match=r"width of 0.05 leaves 'fc1' none of its 10 channels"):
        tiny.pool(ctx().anatomy)


def test_a_start_behind_the_last_layer_is_named() -> None:
    with pytest.raises(SliceError, match="the last layer of this model that can be cut is 2"):
        AdaptiveFL(starts=(3,)).pool(ctx().anatomy)


def test_a_start_below_tau_is_named() -> None:
    with pytest.raises(ValueError, match="0 is below tau = 1"):
        AdaptiveFL(starts=(1, 0))


def test_probabilities_prefer_boards_that_have_managed() -> None:
    arrays: Arrays = model()
    state = ALGORITHM.init(arrays, ctx())
    assert cut(arrays, POOL[0].part)["out"].shape == (3, 4)
    for _ in range(8):  # client 0 trains everything, the others only the smallest
        steps = ALGORITHM.round(state, ctx())
        tasks = next(steps)
        try:
            steps.send({c: trained(t, member_sent(t) if c == 0 else 0) for c, t in tasks.items()})
        except StopIteration as done:
            state = done.value
    resources = np.asarray(state.extra["resources"])
    assert (resources[-1, 0] > resources[-1, 1:]).all()
