"""A real Ray cluster on this machine, in a process of its own: Ray would leave threads and sockets in the test's.

    python tests/support/ray_nodes.py

prints the cluster's address, then reads commands, one a line, and answers each with one line of JSON:
``add {options}`` adds a node and returns its id; ``kill ID`` kills it as a power cut would.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUICK_DEATH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 5,
}
"""Of Ray, whose defaults take 15 s longer to count a node as dead."""
STORE_BYTES = 80 << 20
"""The smallest store of objects; agents use none."""


@dataclass
class RayNodes:
    """A cluster that runs; ``head`` is the id of its first node."""

    address: str
    head: str
    _process: subprocess.Popen[str]

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def add(self, **options: object) -> str:
        """Add a node; returns its id. The options are those of Ray's ``Cluster.add_node``."""
        return str(self._ask(f"add {json.dumps(options)}"))

    def kill(self, node: str) -> None:
        """Kill Ray's processes on a node."""
        self._ask(f"kill {node}")


@contextlib.contextmanager
def ray_nodes(python: str = sys.executable, environment: Mapping[str, str] | None = None) -> Iterator[RayNodes]:
    """Start a cluster of one node, with two processors and one GPU that does not exist, until the block ends."""
    paths = os.pathsep.join(str(ROOT / side) for side in ("common", "server", "client"))
    env = {**os.environ, "PYTHONPATH": paths, "RAY_DISABLE_IMPORT_WARNING": "1", **(environment or {})}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        ) as process,
    ):
        assert process.stdout is not None
        try:
            started = process.stdout.readline()
            errors.seek(0)
            assert started, errors.read()
            yield RayNodes(**json.loads(started), _process=process)
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Run the cluster and obey the commands."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to the standard output
    first = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**first, "_system_config": QUICK_DEATH})
    nodes = {cluster.head_node.node_id: cluster.head_node}

    def answer(what: object) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    answer({"address": cluster.address, "head": cluster.head_node.node_id})
    try:
        for line in sys.stdin:
            command, _, rest = line.strip().partition(" ")
            if command == "add":
                node = cluster.add_node(object_store_memory=STORE_BYTES, **json.loads(rest))
                nodes[node.node_id] = node
                answer(node.node_id)
            else:
                cluster.remove_node(nodes.pop(rest), allow_graceful=False)
                answer(rest)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
