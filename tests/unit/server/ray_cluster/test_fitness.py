"""Which nodes can host agents, which memory a dead node takes along, and what the address of a cluster looks like."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common import __version__
from fedquilt_common.errors import ExperimentError, RayClusterError, RayNodeError
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_common.wire.message_base import PROTOCOL
from fedquilt_server.ray_cluster.address import resolve_address
from fedquilt_server.ray_cluster.fitness import check_nodes, check_room, choose_nodes, modules_of, resources_of
from fedquilt_server.ray_cluster.library import Node, Resources, whole_above_one
from fedquilt_server.ray_cluster.memory import list_memories

GIB = 1 << 30
FIT = {"version": __version__, "protocol": PROTOCOL, "missing": [], "sees": True, "writes": True}


def experiment(*lines: dict[str, Any], **changes: Any) -> Experiment:
    fleet = lines or ({"clients": 4},)
    raw = {
        "name": "on-ray", "seed": 1, "data": {"set": "digits", "clients": sum(line["clients"] for line in fleet)},
        "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}, "fleet": fleet,
    }  # fmt: skip
    return Experiment.model_validate({**raw, **changes})


def node(number: int, cpus: float = 2.0, memory: int = GIB, gpus: float = 0.0) -> Node:
    return Node(f"{number}" * 56, "box", f"10.0.0.{number}", 6379, Resources(cpus, memory, gpus))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"error": "ModuleNotFoundError: No module named 'fedquilt_common'"}, "fedquilt cannot be imported"),
        ({**FIT, "version": "0.0.9"}, f"it has fedquilt 0.0.9, not {__version__}"),
        ({**FIT, "protocol": PROTOCOL + 1}, f"it has fedquilt {__version__}"),
        ({**FIT, "missing": ["torch", "mine"]}, "it has no torch, mine"),
        ({**FIT, "sees": False}, "its /srv/shared is another folder"),
        ({**FIT, "writes": False}, "it may not write to /srv/shared"),
    ],
)
def test_an_unfit_node_is_named_with_the_reason(facts: dict[str, Any], text: str) -> None:
    nodes = [node(1), node(2)]
    check_nodes(nodes, {one.id: FIT for one in nodes}, "/srv/shared")
    with pytest.raises(RayNodeError) as error:
        check_nodes(nodes, {nodes[0].id: FIT, nodes[1].id: facts}, "/srv/shared")
    assert "1 of the 2 nodes of the Ray cluster cannot host agents. " in str(error.value)
    assert f"\nbox (22222222): {text}" in str(error.value)


def test_nodes_without_processors_get_no_agents_unless_all_are() -> None:
    workers, head = [node(1), node(2)], node(3, cpus=0)
    assert choose_nodes([*workers, head]) == workers
    assert choose_nodes([head]) == [head]


def test_a_line_of_the_fleet_becomes_resources() -> None:
    loaded = experiment({"clients": 1, "cpus": 1.5, "memory": "2GiB", "gpus": 0.25}, {"clients": 1, "kind": "plain"})
    assert [resources_of(spec) for spec in agent_specs(loaded.fleet)] == [Resources(2.0, 2 * GIB, 0.25), Resources()]
    assert [whole_above_one(amount) for amount in (0.5, 1.0, 1.0001, 4.0)] == [0.5, 1.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="above 1 it must be a whole number"):
        experiment({"clients": 1, "gpus": 1.5})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"agents": 2, "cpus": 2}, None),
        ({"agents": 4, "cpus": 1, "memory": "512MiB"}, None),
        ({"agents": 1, "gpus": 1}, r"no node can host generic-0, which needs .*GPUs 1 \(the nodes: box \(11111111\)"),
        ({"agents": 5, "cpus": 1}, "all 5 agents need 5 processors, the nodes have 4"),
        ({"agents": 3, "memory": "1GiB"}, "all 3 agents need 3.0 GiB memory, the nodes have 2.0 GiB"),
    ],
)
def test_a_cluster_without_room_is_found_before_the_start(line: dict[str, Any], text: str | None) -> None:
    agents = agent_specs(experiment({"clients": 8, **line}).fleet)
    if text is None:
        check_room(agents, [node(1), node(2)])
        return
    with pytest.raises(RayClusterError, match=text):
        check_room(agents, [node(1), node(2)])


def test_what_clients_keep_is_found() -> None:
    assert list_memories(experiment()) == []
    (scaffold,) = list_memories(experiment(algorithm={"name": "scaffold"}))
    assert "algorithm.name = scaffold" in scaffold
    (optimiser,) = list_memories(experiment(training={"keep_optimiser": True, "momentum": 0.9}))
    assert "training.keep_optimiser" in optimiser
    local = {"mode": "local", "epsilon": 5.0}
    (spent,) = list_memories(experiment(privacy=local))
    assert "privacy.mode = local" in spent


def test_own_packages_are_asked_of_the_nodes() -> None:
    assert modules_of(experiment()) == ["torch", "sklearn"]
    assert modules_of(experiment(model={"name": "mine.nets:build"})) == ["torch", "sklearn", "mine"]


@pytest.mark.parametrize("given", ["10.0.0.1", "head:0", "head:70000", "http://head:6379", "ray://head:10001", ""])
def test_an_address_of_another_form_is_refused(given: str) -> None:
    with pytest.raises(ExperimentError, match="--ray "):
        resolve_address(given)


def test_auto_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert resolve_address("auto") == "auto"
    assert resolve_address("[fd00::2]:6379") == "[fd00::2]:6379"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert resolve_address("auto") == "head:6379"
