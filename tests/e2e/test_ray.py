"""``fedquilt simulate --ray`` on a real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.support.packages import needs
from tests.support.ray_nodes import RayNodes, ray_nodes

from fedquilt_common import __version__
from fedquilt_common.errors import RayClusterError
from fedquilt_server.ray_cluster.address import check_answers
from fedquilt_server.status.placement import Placement, PlacementRecord

needs("ray", "Ray is not installed; pip install 'fedquilt[ray]'")

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="two nodes on one machine need Linux"),
]
ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "deploy" / "experiments" / "digits-fedavg.yaml"
GPU = {"kind": "gpu", "agents": 1, "clients": 2, "gpus": 1, "cpus": 0.5, "memory": "64MiB"}
ROUNDS = 20  # enough for a node to die before the last one
SHORT = (
    "--set", f"rounds={ROUNDS}", "--set", "training.epochs=8", "--set",
    f"fleet={json.dumps([GPU, {'kind': 'plain', 'agents': 3, 'clients': 6}])}",
)  # fmt: skip
PATIENCE = 400.0
MANY = 10
CONNECT = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"
"""Of MQTT 5, without user and password."""
CONNACK = b"\x20"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes() as nodes:
        yield nodes


@dataclass
class SecondNode:
    """The second node of the cluster."""

    cluster: RayNodes
    id: str = ""

    def start(self) -> str:
        """Start it if it does not run; returns its id."""
        self.id = self.id or self.cluster.add(num_cpus=2)
        return self.id

    def kill(self) -> None:
        """Kill it."""
        self.cluster.kill(self.id)
        self.id = ""


@pytest.fixture(scope="module")
def second(cluster: RayNodes) -> SecondNode:
    return SecondNode(cluster)


@contextlib.contextmanager
def simulate(where: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command; it is stopped at the end of the block."""
    command = [sys.executable, "-m", "fedquilt_common.cli", "simulate", str(DIGITS), "--out", "run", *options]
    paths = os.pathsep.join(str(ROOT / side) for side in ("common", "server", "client"))
    with subprocess.Popen(
        command,
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE)
    return out


def refuse(where: Path, *options: str) -> str:
    """Run a command that must fail before it starts anything; returns what it prints."""
    with simulate(where, *options) as process:
        out = finish(process)
    assert process.returncode in (4, 13), out
    assert not (where / "run").exists(), "nothing may be begun"
    return " ".join(out.split())


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / "run" / "global.safetensors").read_bytes()).hexdigest()


def await_page(where: Path, process: subprocess.Popen[str], is_true: Callable[[dict[str, Any]], object]) -> Any:
    """Return the first status of the page for which something holds."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, httpx.HTTPError, ValueError):
            url = json.loads((where / "run" / "page.json").read_text())["url"]
            status = httpx.get(f"{url}api/status", timeout=60).json()
            if is_true(status):
                return status
        time.sleep(0.2)
    raise AssertionError(
        process.communicate(timeout=60)[0] if process.poll() is not None else "the page shows it never"
    )


def placements(where: Path) -> dict[str, Placement]:
    record = PlacementRecord.model_validate_json((where / "run" / "placement.json").read_bytes())
    return {one.agent: one for one in record.placements}


def agents_of(where: Path) -> list[psutil.Process]:
    """Return the agents of a run, whoever started them."""
    federation = f"simulation-{hashlib.sha256(str((where / 'run').resolve()).encode()).hexdigest()[:8]}"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if "FEDQUILT_BROKER_PASSWORD" in environment and federation in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the model without Ray."""
    where = tmp_path_factory.mktemp("plain")
    with simulate(where, *SHORT) as process:
        out = finish(process)
    assert process.returncode == 0, out
    assert "The GPUs of 1 board (fleet.N.gpus) are not enforced: only `--ray` reserves them" in out
    return fingerprint(where)


def test_a_node_dies_and_the_model_is_the_same_to_the_bit(
    cluster: RayNodes, second: SecondNode, plain: str, tmp_path: Path
) -> None:
    node = second.start()
    with simulate(tmp_path, *SHORT, "--ray", cluster.address) as process:
        await_page(tmp_path, process, lambda status: status["round"] >= 2)
        with stopped(json.loads((tmp_path / "run" / "pids.json").read_text())["coordinator"]):
            before = await_placements(tmp_path)  # on a busy machine, the run could be over until they are recorded
            moving = {name for name, place in before.items() if place.node == node}
            assert moving, "agents without a reservation are spread"
            check_broker(tmp_path, cluster.address.partition(":")[0])
            second.kill()
        seen = await_page(
            tmp_path, process, lambda status: {e["board"] for e in status["events"] if e["kind"] == "moved"} >= moving
        )
        gpu = next(board["placement"] for board in seen["boards"] if board["agent"] == "gpu-0")
        assert gpu["node"] == cluster.head, "only the head has a GPU"
        assert (gpu["cpus"], gpu["memory"], gpu["gpus"]) == (0.5, 64 << 20, 1)
        out = finish(process)
    assert process.returncode == 0, out
    assert f"({node[:8]}) of the Ray cluster died. Its {len(moving)} agent" in out
    assert "They keep no private memory" in out
    after = placements(tmp_path)
    assert {after[name].node for name in moving} == {cluster.head}
    assert all(after[name].moves == 1 for name in moving)
    assert fingerprint(tmp_path) == plain
    assert not agents_of(tmp_path)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_placements(where: Path) -> dict[str, Placement]:
    """Return the places of all agents once each has a node."""
    end = time.monotonic() + PATIENCE
    while not all(place.node for place in placements(where).values()):
        assert time.monotonic() < end, "some agents get no node"
        time.sleep(0.2)
    return placements(where)


def check_broker(where: Path, host: str) -> None:
    """Check that the broker listens at one address, and only for TLS with the password."""
    pids = json.loads((where / "run" / "pids.json").read_text())
    listening = [c.laddr for c in psutil.Process(pids["broker"]).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == [host]
    port = listening[0].port
    with socket.create_connection((host, port), timeout=60) as bare, contextlib.suppress(ConnectionError):
        bare.sendall(CONNECT)
        assert bare.recv(4)[:1] != CONNACK, "the broker answers without TLS"
    trusted = ssl.create_default_context(cadata=json.loads((where / "run" / "ray.json").read_text())["ca"])
    with (
        socket.create_connection((host, port), timeout=60) as bare,
        trusted.wrap_socket(bare, server_hostname=host) as secure,
    ):
        secure.sendall(CONNECT)
        answer = secure.recv(4)
        assert answer[:1] == CONNACK
        assert answer[3] >= 0x80, "the broker accepts a client without the password"


def test_a_run_of_many_agents_is_interrupted_and_resumed(cluster: RayNodes, second: SecondNode, tmp_path: Path) -> None:
    """Nothing of it stays on the nodes, and the rest of the run gives the same bits."""
    second.start()
    many = (
        *("--set", "rounds=25", "--set", f"data.clients={MANY}", "--set", "data.partition={scheme: uniform}"),
        *("--set", f"participation={{per_round: {MANY}, quorum: {MANY}, deadline: 120}}"),
        *("--set", f"fleet=[{{kind: tiny, agents: {MANY}, clients: {MANY}, cpus: 0.1}}]"),
    )
    ray = (*many, "--ray", cluster.address)
    with simulate(tmp_path, *ray) as process:
        await_page(tmp_path, process, lambda status: status["round"] >= 2)
        process.send_signal(signal.SIGINT)
        out = finish(process)
    assert process.returncode == 130, out
    assert not agents_of(tmp_path)
    with simulate(tmp_path, *ray) as process:
        out = finish(process)
    assert process.returncode == 0, out
    spread = Counter(one.node for one in placements(tmp_path).values())
    assert len(spread) == 2, spread
    plain = tmp_path / "plain"
    plain.mkdir()
    with simulate(plain, *many) as process:
        out = finish(process)
    assert process.returncode == 0, out
    assert fingerprint(tmp_path) == fingerprint(plain)


def test_a_folder_that_all_nodes_share_keeps_private_memory(
    cluster: RayNodes, second: SecondNode, tmp_path: Path
) -> None:
    second.start()
    scaffold = (*("--set", "algorithm={name: scaffold}"), *("--set", "rounds=2"), "--ray", cluster.address)
    assert "algorithm.name = scaffold). Give --ray-state FOLDER" in refuse(tmp_path, *scaffold)
    shared = tmp_path / "shared"
    shared.mkdir()
    with simulate(tmp_path, *scaffold, "--ray-state", str(shared)) as process:
        out = finish(process)
    assert process.returncode == 0, out
    assert len(list(shared.glob("*/agents/*/boot"))) == 2


def test_nodes_without_the_package_or_with_another_version_are_named(cluster: RayNodes, tmp_path: Path) -> None:
    package = tmp_path / "old" / "fedquilt_common"
    shutil.copytree(ROOT / "common" / "fedquilt_common", package, ignore=shutil.ignore_patterns("__pycache__"))
    init = package / "__init__.py"
    init.write_text(init.read_text().replace(__version__, "0.0.1"))
    nothing = tmp_path / "nothing" / "fedquilt_common.py"
    nothing.parent.mkdir()
    nothing.write_text("raise ModuleNotFoundError(\"No module named 'fedquilt_common'\")\n")
    bad = [cluster.add(env_vars={"PYTHONPATH": str(path.parent)}) for path in (package, nothing)]
    where = tmp_path / "where"
    where.mkdir()
    try:
        out = refuse(where, "--ray", cluster.address)
    finally:
        for node in bad:
            cluster.kill(node)
    old, missing = (f"({node[:8]}): " for node in bad)
    assert f"{old}it has fedquilt 0.0.1, not {__version__}; run `pip install" in out
    assert f"{missing}fedquilt cannot be imported (ModuleNotFoundError: No module named" in out
    assert f"({cluster.head[:8]}): " not in out


def test_a_cluster_without_room_is_named(cluster: RayNodes, tmp_path: Path) -> None:
    fleet = json.dumps([{**GPU, "clients": 8, "gpus": 2}])
    out = refuse(tmp_path, "--set", f"fleet={fleet}", "--ray", cluster.address)
    assert "no room for the fleet: no node can host gpu-0, which needs processors 0.5, memory 64.0 MiB, GPUs 2" in out


def greet(listener: socket.socket) -> None:
    """Do what a mail server does."""
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"220 mail ready\r\n")
        connection.recv(100)


def test_an_address_that_is_no_cluster_is_named(tmp_path: Path) -> None:
    with socket.socket() as closed, socket.socket() as other:
        for each in (closed, other):
            each.bind(("127.0.0.1", 0))
        other.listen()
        threading.Thread(target=greet, args=(other,), daemon=True).start()
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (closed, other)]
        for address, text in zip(addresses, ("no Ray cluster answers there", "something else than a Ray"), strict=True):
            with pytest.raises(RayClusterError, match=f"--ray {address}: {text}"):
                check_answers(address)
    assert "--ray 127.0.0.1: write `auto` or" in refuse(tmp_path, "--ray", "127.0.0.1")
