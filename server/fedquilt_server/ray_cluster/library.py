"""The only module that imports Ray: connect to a cluster, ask its nodes, start actors on them and wait for these.

A process that uses it is one of its own: Ray starts threads, installs signal handlers and ends its process if it loses
the cluster.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from fedquilt_common.errors import PackageMissingError, RayClusterError, how_to_install

_NODE_LABEL: Final = "ray.io/node-id"
_ASK_SECONDS: Final = 60.0
"""How long a node may take to start a process of Ray and to answer."""
_ANSWER_SECONDS: Final = 3.0
_SHORT_ID: Final = 8
_LONGEST: Final = 400
_ROUNDING: Final = 1e-6
"""Sums of parts of a processor are not exact; Ray counts in ten-thousandths."""


class ActorLostError(Exception):
    """An actor has died, and its node maybe with it."""


@dataclass(frozen=True)
class Resources:
    """What Ray reserves for an actor: processors, bytes of memory and GPUs."""

    cpus: float = 0.0
    memory: int = 0
    gpus: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpus + other.cpus, self.memory + other.memory, self.gpus + other.gpus)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpus - other.cpus, self.memory - other.memory, self.gpus - other.gpus)

    def fit(self, node: Resources) -> bool:
        """Whether a node that has these resources and hosts nothing else has room."""
        return all(mine <= there + _ROUNDING for mine, there in zip(astuple(self), astuple(node), strict=True))


@dataclass(frozen=True)
class Node:
    """A node of the cluster that is alive: where Ray listens there, and all its resources."""

    id: str
    host: str
    address: str
    port: int
    resources: Resources

    @property
    def name(self) -> str:
        """Its name for people: several nodes may be on one machine."""
        return f"{self.host} ({self.id[:_SHORT_ID]})"


def check_installed() -> None:
    """Check that Ray is installed.

    Raises:
        PackageMissingError: it is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise PackageMissingError(
            f"`simulate --ray` needs Ray, which is not installed: {how_to_install('ray')} here. It must have "
            "the version of the cluster's Ray"
        )


class Cluster:
    """The connection of this process to a Ray cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @staticmethod
    def connect(address: str) -> Cluster:
        """Connect to a cluster that runs; this never starts one.

        Args:
            address: ``host:port`` of the head, or ``auto`` for the cluster of this machine.

        Raises:
            RayClusterError: there is no such cluster.
        """
        check_installed()
        warnings.simplefilter("ignore")  # of Ray's, about future versions
        import ray

        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
            raise RayClusterError(_explain(address, error)) from None
        return Cluster(ray)

    def close(self) -> None:
        """Disconnect; all actors of this process end."""
        self._ray.shutdown()

    @property
    def address(self) -> str:
        """The address of this machine as the nodes know it."""
        return str(self._ray.util.get_node_ip_address())

    def nodes(self) -> list[Node]:
        """List the nodes that are alive, in the order of their names."""
        alive = [_read_node(raw) for raw in self._ray.nodes() if raw["Alive"]]
        return sorted(alive, key=lambda node: node.name)

    def answers(self, node: Node) -> bool:
        """Whether a node accepts connections now; Ray takes many seconds to find out that it is dead."""
        try:
            socket.create_connection((node.address, node.port), timeout=_ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    # -- tasks ---------------------------------------------------------------------------------

    def ask_nodes(
        self, nodes: Sequence[Node], question: Callable[..., Any], *arguments: object
    ) -> dict[str, dict[str, Any]]:
        """Let each node run a function, which takes its own text along: the node may not have the package.

        Args:
            nodes: the nodes.
            question: returns a dictionary; it imports all that it uses itself.
            arguments: of the function.

        Returns:
            What it returned by node; ``{"error": reason}`` of a node on which it failed or that did not answer.
        """
        task = self._ray.remote(_carry_text(question))
        asked = {node.id: task.options(**self._on_node(node.id)).remote(*arguments) for node in nodes}
        done, _ = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ASK_SECONDS)
        finished = set(done)
        return {id: self._read_answer(ref) if ref in finished else _SILENT for id, ref in asked.items()}

    def _on_node(self, node: str) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        affinity = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": affinity}

    def _read_answer(self, ref: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._ray.get(ref)
        except Exception as error:  # whatever the node's own installation raises
            return {"error": _shorten(error)}
        return answer

    # -- actors --------------------------------------------------------------------------------

    def start_on(self, node: str, kind: type) -> Any:
        """Start an actor on one node, which reserves nothing."""
        options = {key: value for key, value in self._on_node(node).items() if key != "max_retries"}
        return self._ray.remote(kind).options(**options).remote()

    def start_anywhere(self, kind: type, resources: Resources, nodes: Sequence[str]) -> Any:
        """Start an actor on one of some nodes, as soon as Ray has reserved its resources there.

        Args:
            kind: the class.
            resources: what it needs.
            nodes: their ids.
        """
        options: dict[str, Any] = {
            "num_cpus": whole_above_one(resources.cpus),
            "num_gpus": whole_above_one(resources.gpus),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            "label_selector": {_NODE_LABEL: f"in({', '.join(nodes)})"},
        }
        if resources.memory:
            options["memory"] = resources.memory
        return self._ray.remote(kind).options(**options).remote()

    def locate(self, actor: Any) -> Any:
        """Return a reference to the id of an actor's node, which is there once it has started."""
        return actor.__ray_call__.remote(_carry_text(_own_node))

    def wait(self, refs: Sequence[Any], seconds: float) -> list[Any]:
        """Return the references whose results are there; waits for the first one for some seconds."""
        if not refs:
            return []
        first, _ = self._ray.wait(list(refs), num_returns=1, timeout=seconds)
        if not first:
            return []
        done, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return list(done)

    def result(self, ref: Any, seconds: float | None = None) -> Any:
        """Return the result of an actor's method.

        Raises:
            ActorLostError: the actor has died, or did not answer in time.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(ref, timeout=seconds)
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayError as error:
            raise ActorLostError(_shorten(error)) from None

    def kill(self, actor: Any) -> None:
        """End an actor, if it still runs."""
        with contextlib.suppress(Exception):  # it has ended, or its node has
            self._ray.kill(actor, no_restart=True)


_SILENT: Final[dict[str, Any]] = {"error": f"it did not answer within {_ASK_SECONDS:.0f} s"}


def whole_above_one(amount: float) -> float:
    """Return an amount as Ray takes it: above 1 a whole number, rounded up."""
    return amount if amount <= 1 else float(-(-amount // 1))


def _own_node(_: object) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _carry_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that Ray sends as a whole: it sends only the name of one that a module has."""
    copy = types.FunctionType(function.__code__, {"__builtins__": __builtins__, "__name__": "__main__"})
    copy.__module__ = "__main__"
    return copy


def _read_node(raw: Mapping[str, Any]) -> Node:
    found = raw["Resources"]
    resources = Resources(float(found.get("CPU", 0)), int(found.get("memory", 0)), float(found.get("GPU", 0)))
    place = raw["NodeManagerHostname"], raw["NodeManagerAddress"], int(raw["NodeManagerPort"])
    return Node(raw["NodeID"], *place, resources)


def _shorten(error: BaseException) -> str:
    """Return the text of one of Ray's errors in one line: its beginning, and its end, which has the cause."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _explain(address: str, error: BaseException) -> str:
    if address == "auto":
        return (
            "--ray auto: no Ray cluster runs on this machine, and RAY_ADDRESS is not set. Start one with `ray start "
            "--head`, join one with `ray start --address=HOST:PORT`, or give --ray HOST:PORT"
        )
    reason = _shorten(error) if not isinstance(error, SystemExit) else "its head does not answer"
    return (
        f"--ray {address}: cannot join the Ray cluster: {reason}. Check the address (`ray status` on the head prints "
        "whether it runs), and make this machine one of its nodes: `ray start --address=HOST:PORT`"
    )
