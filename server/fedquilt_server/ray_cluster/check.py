"""Look at a Ray cluster and its nodes, in a process of its own: Ray can end the process that uses it.

    python -m fedquilt_server.ray_cluster.check ADDRESS SHARED MARK MODULE...

Prints a ``ClusterReport`` as JSON, the last line of its output.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from fedquilt_common.errors import FedquiltError, RayClusterError
from fedquilt_server.ray_cluster.address import check_answers
from fedquilt_server.ray_cluster.library import Cluster
from fedquilt_server.ray_cluster.node import describe_node
from fedquilt_server.ray_cluster.requests import ClusterReport

_MODULE: Final = "fedquilt_server.ray_cluster.check"
_PATIENCE: Final = 150.0
"""Seconds for all of it. On a busy board, Ray takes many to start a process."""


def look_at(address: str, shared: str, modules: Sequence[str]) -> ClusterReport:
    """Return what the cluster at an address is made of.

    Args:
        address: ``host:port`` or ``auto``.
        shared: a folder that each node must see; empty: none.
        modules: what agents import.

    Raises:
        RayClusterError: there is no cluster.
    """
    check_answers(address)
    mark = f".fedquilt-{uuid4().hex}"
    with _marked(shared, mark), tempfile.TemporaryDirectory() as empty:
        # Ray gives the nodes its working directory to import from.
        argv = [sys.executable, "-m", _MODULE, address, shared, mark, *modules]
        try:
            done = subprocess.run(  # noqa: S603 - the command is our own
                argv, capture_output=True, text=True, timeout=_PATIENCE, cwd=empty, check=False
            )
        except subprocess.TimeoutExpired:
            raise RayClusterError(
                f"--ray {address}: the Ray cluster did not answer within {_PATIENCE:.0f} s. Check it with `ray status`"
            ) from None
    lines = done.stdout.splitlines() or [""]
    if done.returncode == 0:
        return ClusterReport.model_validate_json(lines[-1])
    raise RayClusterError(lines[-1] or f"--ray {address}: Ray ended with an error:\n{done.stderr[-2000:]}")


@contextlib.contextmanager
def _marked(shared: str, mark: str) -> Iterator[None]:
    """Put a file into the shared folder, for the nodes to find."""
    if not shared:
        yield
        return
    path = Path(shared, mark)
    try:
        path.touch()
    except OSError as error:
        raise RayClusterError(f"--ray-state {shared}: cannot be written here: {error.strerror}") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def main() -> None:
    """Print the report, or the error in one line."""
    address, shared, mark, *modules = sys.argv[1:]
    try:
        cluster = Cluster.connect(address)
        nodes = [node for node in cluster.nodes() if cluster.answers(node)]  # Ray lists a dead one for a while
        facts = cluster.ask_nodes(nodes, describe_node, modules, shared, mark)
        report = ClusterReport.of(cluster.address, nodes, facts)
        cluster.close()
    except FedquiltError as error:
        sys.stdout.write(str(error).replace("\n", " ") + "\n")
        sys.exit(error.exit_code)
    sys.stdout.write(report.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
