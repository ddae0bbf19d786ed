"""The plan of a seed: always the same, and varied enough."""

from __future__ import annotations

import pytest
from tests.soak import disk, network, peer
from tests.soak.experiments import LINKS, NAMES, POLICIES, experiment
from tests.soak.faults import INJECTORS
from tests.soak.scenario import ATTACKS, FAULTS, WEATHERS, WORKER_KILLS, plan

from fedquilt_common.experiment_file import make_experiment

PLANS = [plan(seed) for seed in range(2000)]


def test_a_seed_gives_the_same_scenario_everywhere() -> None:
    assert [plan(seed) for seed in range(2000)] == PLANS
    assert len({each.faults for each in PLANS}) > 1990


def test_all_experiments_faults_and_targets_are_drawn() -> None:
    assert {each.experiment for each in PLANS} == set(NAMES)
    assert {each.policy for each in PLANS} == set(POLICIES)
    assert {each.link for each in PLANS} == set(LINKS)
    drawn = {(each.theme, fault.kind, fault.target) for each in PLANS for fault in each.faults}
    assert drawn == {
        (theme, kind, target)
        for theme, classes in FAULTS.items()
        for kind, chosen in classes.items()
        for target in chosen.targets
    }


def test_each_class_of_faults_can_be_done() -> None:
    assert {*INJECTORS, *network.INJECTORS, "peer"} == {kind for classes in FAULTS.values() for kind in classes}
    assert tuple(network.WEATHERS) == WEATHERS
    assert tuple(peer.ATTACKS) == ATTACKS
    assert set(disk.DAMAGES) == set(FAULTS["disk"]["damage"].details)


def test_no_scenario_makes_an_agent_give_up() -> None:
    for each in PLANS:
        deadly = [fault for fault in each.faults if fault.target == "worker" and fault.kind != "stop"]
        assert len(deadly) <= WORKER_KILLS


@pytest.mark.parametrize("name", NAMES)
def test_each_experiment_is_valid(name: str) -> None:
    for policy in POLICIES:
        for link in LINKS:
            made = make_experiment(experiment(name, policy, link), name, [])
            assert made.participation.per_round == made.data.clients == 4
