"""Publish once: whatever the tasks, every arrays object goes out once and every client gets its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Task
from fedquilt_common.types import Arrays, Scalar
from fedquilt_server.coordinator.publications import PublicationPlan, plan_publications

SCALARS = st.dictionaries(st.sampled_from("ab"), st.sampled_from([0, 1, True, 1.0, -0.0, 0.0, "1", float("nan")]))


ASKED = st.tuples(st.sampled_from(["train", "score"]), st.integers(0, 4), SCALARS)
"""Kind of a task, the place of its arrays, and its scalars."""


def _exchange(contents: list[int], asked: dict[int, tuple[str, int, dict[str, Scalar]]]) -> dict[int, Task]:
    """Return tasks; some arrays objects are equal without being the same, some are empty."""
    pool: list[dict[str, NDArray[Any]]] = [{"w": np.full(2, value)} if value else {} for value in contents]
    return {client: Task(kind, pool[place % len(pool)], scalars) for client, (kind, place, scalars) in asked.items()}


EXCHANGES = st.builds(
    _exchange,
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 50), ASKED, max_size=12),
)


def content(arrays: Arrays) -> dict[str, bytes]:
    return {name: x.tobytes() for name, x in arrays.items()}


@given(EXCHANGES)
def test_each_object_is_published_once(tasks: dict[int, Task]) -> None:
    published = [id(publication.arrays) for publication in plan_publications(tasks).patches]
    assert sorted(published) == sorted({id(t.arrays) for t in tasks.values() if t.arrays})


@given(EXCHANGES)
def test_each_client_gets_what_its_task_holds(tasks: dict[int, Task]) -> None:
    made = plan_publications(tasks)
    groups = {client: group for group in made.groups for client in group.clients}
    assert sorted(client for group in made.groups for client in group.clients) == sorted(tasks)
    for client, task in tasks.items():
        group = groups[client]
        rebuilt: dict[str, NDArray[Any]] = {}
        for position in group.patches:
            rebuilt |= made.patches[position].arrays
        assert content(rebuilt) == content(task.arrays)
        assert group.task.kind == task.kind
        # repr: 1, 1.0 and True are equal, but not the same scalar
        assert repr(sorted(group.task.scalars.items())) == repr(sorted(task.scalars.items()))


@given(EXCHANGES, st.randoms())
def test_the_order_is_that_of_the_clients(tasks: dict[int, Task], random: Any) -> None:
    made = plan_publications(tasks)
    firsts = [group.clients[0] for group in made.groups]
    assert firsts == sorted(firsts)
    assert all(list(group.clients) == sorted(group.clients) for group in made.groups)
    in_order = list(dict.fromkeys(id(tasks[c].arrays) for c in sorted(tasks) if tasks[c].arrays))
    assert [id(publication.arrays) for publication in made.patches] == in_order
    shuffled = list(tasks.items())
    random.shuffle(shuffled)
    assert [(g.clients, g.patches) for g in plan_publications(dict(shuffled)).groups] == [
        (g.clients, g.patches) for g in made.groups
    ]


def test_a_thousand_clients_with_one_model_are_one_publication_and_one_group() -> None:
    arrays = {"w": np.zeros(3)}
    made = plan_publications({client: Task("train", arrays, {"mu": 0.1}) for client in range(1000)})
    assert len(made.patches) == len(made.groups) == 1
    assert made.groups[0].clients == tuple(range(1000))


def test_clients_asked_the_same_share_a_group_whatever_the_order_of_scalars() -> None:
    made = plan_publications({0: Task("t", {}, {"a": 1, "b": 2}), 1: Task("t", {}, {"b": 2, "a": 1})})
    assert [group.clients for group in made.groups] == [(0, 1)]
    assert made.patches == ()


def test_nobody_asked() -> None:
    assert plan_publications({}) == PublicationPlan((), ())
