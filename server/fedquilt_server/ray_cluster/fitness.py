"""Judge whether the nodes of a cluster can host the agents of an experiment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedquilt_common import __version__
from fedquilt_common.errors import RayClusterError, RayNodeError, how_to_install
from fedquilt_common.experiment.experiment import AgentSpec, Experiment
from fedquilt_common.user_imports import is_user_import
from fedquilt_common.wire.message_base import PROTOCOL
from fedquilt_server.ray_cluster.library import Node, Resources, whole_above_one
from fedquilt_server.status.units import memory


def modules_of(experiment: Experiment) -> list[str]:
    """List the modules that the agents of an experiment import, besides the package itself."""
    names = [experiment.data.set, experiment.data.partition.features or "", experiment.algorithm.name]
    names += [model.name for model in experiment.models]
    own = {re.split(r"[.:]", name, maxsplit=1)[0] for name in names if is_user_import(name)}
    extras = [
        *(["opacus"] if experiment.is_private else []),
        *(["cryptography", "Crypto"] if experiment.secure_aggregation else []),
    ]
    return ["torch", "sklearn", *extras, *sorted(own)]


def judge_node(facts: Mapping[str, Any], shared: str) -> str:
    """Return why a node cannot host agents; empty if it can.

    Args:
        facts: as ``describe_node`` returns them, or an error.
        shared: the folder that all nodes must share; empty: none.
    """
    wanted = f"{how_to_install('client', __version__)} in the Python of its Ray"
    if "error" in facts:
        return f"fedquilt cannot be imported ({facts['error']}); {wanted}"
    if (facts["version"], facts["protocol"]) != (__version__, PROTOCOL):
        return f"it has fedquilt {facts['version']}, not {__version__}; {wanted}"
    if facts["missing"]:
        return f"it has no {', '.join(facts['missing'])}; {wanted}, and the packages that the experiment names"
    if not facts["sees"]:
        return f"its {shared} is another folder, or it has none; mount the same folder at this path on all nodes"
    return "" if facts["writes"] else f"it may not write to {shared}; change the folder's owner"


def check_nodes(nodes: Sequence[Node], facts: Mapping[str, Mapping[str, Any]], shared: str) -> None:
    """Check that each node can host agents.

    Raises:
        RayNodeError: one cannot; the text lists all of these.
    """
    problems = {node.name: judge_node(facts[node.id], shared) for node in nodes}
    bad = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if bad:
        which = f"{len(bad)} of the {len(nodes)} nodes" if len(nodes) > 1 else "the only node"
        raise RayNodeError(
            f"{which} of the Ray cluster cannot host agents. Correct or remove them; nothing was started.\n"
            + "\n".join(bad)
        )


def choose_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes for agents: those with processors. Somebody has kept the others free (``--num-cpus=0``)."""
    return [node for node in nodes if node.resources.cpus > 0] or list(nodes)


def resources_of(spec: AgentSpec) -> Resources:
    """Return what an agent's line of the fleet reserves; nothing where the line names no amount."""
    line = spec.line
    return Resources(whole_above_one(line.cpus or 0.0), int(line.memory or 0), whole_above_one(line.gpus or 0.0))


def check_room(agents: Sequence[AgentSpec], nodes: Sequence[Node]) -> None:
    """Check that the whole cluster, if nothing else ran on it, has room for all agents.

    Raises:
        RayClusterError: it has not; the text names the resource.
    """
    wanted = {spec.name: resources_of(spec) for spec in agents}
    if problems := [*_find_too_large(wanted, nodes)] or [*_find_too_many(wanted, nodes)]:
        raise RayClusterError(
            f"the Ray cluster has no room for the fleet: {'; '.join(problems)}. Add nodes, or lower fleet.N.cpus, "
            "memory, gpus or agents"
        )


_FIELDS = {"cpus": "processors", "memory": "memory", "gpus": "GPUs"}


def _find_too_large(wanted: Mapping[str, Resources], nodes: Sequence[Node]) -> Iterator[str]:
    for name, one in wanted.items():
        if not any(one.fit(node.resources) for node in nodes):
            yield f"no node can host {name}, which needs {_describe(one)} (the nodes: {_describe_all(nodes)})"
            return


def _find_too_many(wanted: Mapping[str, Resources], nodes: Sequence[Node]) -> Iterator[str]:
    for field, label in _FIELDS.items():
        needed = sum(getattr(one, field) for one in wanted.values())
        there = sum(getattr(node.resources, field) for node in nodes)
        if needed > there:
            yield f"all {len(wanted)} agents need {_amount(field, needed)} {label}, the nodes have " + _amount(
                field, there
            )


def _amount(field: str, amount: float) -> str:
    return (memory(amount) if amount else "0") if field == "memory" else f"{amount:g}"


def _describe(one: Resources) -> str:
    return ", ".join(f"{label} {_amount(field, getattr(one, field))}" for field, label in _FIELDS.items())


def _describe_all(nodes: Sequence[Node]) -> str:
    return "; ".join(f"{node.name}: {_describe(node.resources)}" for node in nodes)
