"""The contract of every published algorithm: both halves run in this process, without a broker.

A new algorithm needs one entry in ``cases.py``; a test fails until it has one.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.contract.cases import CASES
from tests.contract.federation import CLIENTS, FEW, Driver, Fleet, bits, kept, make, raw
from tests.support.tables import each

from fedquilt_common.algorithm_api import State, declaration_of
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays

NAMES = pytest.mark.parametrize("name", sorted(ALGORITHMS))


def test_every_algorithm_has_its_case() -> None:
    assert CASES.keys() == ALGORITHMS.keys()


@pytest.mark.long
@NAMES
def test_it_learns(name: str) -> None:
    case = CASES[name]
    training: dict[str, Any] = {"batch": case.batch, "lr": case.batch / 320}
    fleet = Fleet(make(name, case.fields), model=case.model, public_samples=case.public, **training)
    fleet.measures, fleet.measures_after = declaration_of(fleet.algorithm).holdout is not None, case.rounds
    before = fleet.algorithm.evaluate(fleet.first_state(), fleet.ctx(0, {})).get("accuracy", 0.0)
    driver = Driver(fleet, case.rounds)
    state = driver.run()
    after = driver.scores or fleet.algorithm.evaluate(state, fleet.ctx(case.rounds, {}))
    assert before < 0.3
    if fleet.measures:
        assert after.get("local_accuracy", 1.0) > case.accuracy - 0.1  # other samples of the same data set
        assert after.get("personal_accuracy", 1.0) > case.personal
        assert after["tested_samples"] == sum(len(test) for _, test in fleet.data)
    if "global_accuracy" not in after:  # there is no global model
        assert "accuracy" not in after or after["accuracy"] == after.get("personal_accuracy", after["accuracy"])
    is_global = {"global_accuracy", "local_accuracy"} & after.keys() or not fleet.measures
    assert after["accuracy"] > (case.accuracy if is_global else case.personal)
    assert any(fleet.memories.values()) == declaration_of(fleet.algorithm).private_memory
    if "global_accuracy" in after:
        assert after["global_accuracy"] == after["accuracy"]
        central = fleet.algorithm.evaluate(state, fleet.ctx(case.rounds, {}))["accuracy"]
        assert abs(after["global_accuracy"] - central) < 0.1  # other samples of the same data set


@NAMES
def test_it_replays_to_the_same_bits_after_a_crash(name: str) -> None:
    """After any event: before the first reply of an exchange, between two, after the last; in any order of arrival."""
    case = CASES[name]
    public = FEW if case.public else None
    settings: dict[str, Any] = {
        "model": case.model, "measures": True, "public_samples": public, "most": FEW, "epochs": 1
    }  # fmt: skip
    fleet = Fleet(make(name, case.fields), **settings)
    undisturbed = bits(Driver(fleet, 2, max if case.ordered else min).run())
    tasks = fleet.tasks_done
    assert tasks >= CLIENTS
    done: dict[Any, Any] = {}  # replies of the first loop below; the second loop takes them from here
    for crashes in (lambda _: True, lambda number: number % 3 == 0):
        again = Fleet(fleet.algorithm, **settings, done=done)
        assert bits(Driver(again, 2, max).run(crashes)) == undisturbed
        assert again.tasks_done == tasks  # no journaled task runs again


@each(sorted(name for name, one in ALGORITHMS.items() if one.declares.private_memory and one.declares.pooled == ""))
def test_what_a_client_sends_depends_on_its_memory_as_declared(name: str) -> None:
    """Central privacy counts on it: without such a dependence, replies tell nothing of who took part before."""
    case = CASES[name]
    public = FEW if case.public else None
    fleet = Fleet(make(name, case.fields), model=case.model, measures=True, public_samples=public, most=FEW, epochs=1)
    Driver(fleet, 2).run()
    done = fleet.done[0, (2, 0)]
    assert done.before
    forgetful = fleet.work(0, done.task, (2, 0), {})
    depends = raw(forgetful.reply.arrays) != raw(done.reply.arrays)
    assert depends == declaration_of(fleet.algorithm).sends_memory


@each(ALGORITHMS)
def test_its_case_has_a_degenerate_case_or_states_why_not(name: str) -> None:
    assert (CASES[name].degenerate is None) == bool(CASES[name].why)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case.degenerate is not None))
def test_its_degenerate_case_is_fedavg(name: str) -> None:
    case = CASES[name]
    assert case.degenerate is not None
    clients = 1 if case.alone else CLIENTS

    plain = plain_bits(clients, case.public)
    for fields in (case.degenerate, *case.also_degenerate):
        assert trained_bits(name, fields, clients, case.public) == plain
    if case.different is not None:
        assert trained_bits(name, case.different, clients, case.public) != plain


@functools.cache
def plain_bits(clients: int, public: int | None) -> dict[str, bytes]:
    return trained_bits("fedavg", {}, clients, public)


def trained_bits(name: str, fields: Mapping[str, Any], clients: int, public: int | None) -> dict[str, bytes]:
    model = {"name": "mlp", "hidden": [32, 32, 32]}
    fleet = Fleet(make(name, fields), clients, model, cramped=False, public_samples=public, most=FEW)
    return bits(Driver(fleet, 2).run())[0]


def test_fedavg_is_the_mean_weighted_by_samples() -> None:
    fleet = Fleet(make("fedavg", {}))
    driver = Driver(fleet, 1)
    state = driver.run()
    sizes = [len(train) for train, _ in fleet.data]
    assert len(set(sizes)) > 1
    for name, x in state.arrays.items():
        parts = [driver.replies[f"{client}-1.0"][name] for client in range(CLIENTS)]
        np.testing.assert_allclose(x, np.average(parts, axis=0, weights=sizes), rtol=1e-5, atol=1e-7)


def test_fedavg_of_one_client_is_plain_training() -> None:
    fleet = Fleet(make("fedavg", {}), clients=1)
    arrays: Arrays = fleet.first_state().arrays
    for round in (1, 2):
        seed = derive_seed(fleet.experiment.seed, round, 0, 0)
        arrays = kept(fleet.learner.train(arrays, fleet.data[0][0], seed=seed).arrays)
    assert bits(Driver(fleet, 2).run()) == bits(State(arrays))


@each([(name, fields, word) for name, case in CASES.items() for fields, word in case.refused])
def test_it_refuses_senseless_fields(name: str, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        make(name, fields)
    known = (field.name.removesuffix("_") for field in dataclasses.fields(ALGORITHMS[name]))
    places = {one: found.start() for one in known if (found := re.search(rf"\b{one}\b", str(error.value)))}
    assert min(places, key=places.__getitem__) == next(iter(fields)).removesuffix("_")  # `error_line` names it
