"""Flower's side: a SuperLink with SuperNodes or with the simulation runtime, and a run of ``flower_app``."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.environment import Environment
from process_watch import ProcessWatch

APP = Path(__file__).parent / "flower_app"
SETTINGS = {
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
"""Settings in Flower's favour: SuperExec looks for work 10 times a second instead of once; nothing leaves the machine.
Its other waits are fixed in the code: 3 s in ``HttpGrid.send_and_receive`` and between a SuperNode's requests."""
CONNECTION = """[superlink]
default = "peer"

[superlink.peer]
address = "127.0.0.1:{port}"
insecure = true
"""
LIMIT = 900.0
"""Seconds for which a run may last."""


@dataclass(frozen=True)
class FlowerSide:
    """Flower on this machine.

    Attributes:
        environment: its installation.
        work: folder for its files and logs; each run empties it.
        short_sleeps: cut each sleep of more than 0.1 s to 0.1 s, by a patch that no Flower has.
    """

    environment: Environment
    work: Path
    short_sleeps: bool = False

    def deployment(self, megabytes: float, agents: int, rounds: int) -> dict[str, Any]:
        """Measure rounds without training on a SuperLink and SuperNodes."""
        config = {"rounds": rounds, "nodes": agents, "per-round": agents, "megabytes": float(megabytes)}
        return self._measure(config, nodes=agents)

    def simulation(self, data: Path, rounds: int, lr: float) -> dict[str, Any]:
        """Measure a simulation of 100 clients, 10 a round, on two Ray actors of one processor each."""
        config = {"rounds": rounds, "nodes": 100, "per-round": 10, "data": str(data), "lr": lr}
        federation = "num-supernodes=100 client-resources-num-cpus=1 init-args-num-cpus=2"
        return self._measure(config, federation=federation)

    def _measure(self, config: dict[str, Any], nodes: int = 0, federation: str = "") -> dict[str, Any]:
        """Run the app; with ``nodes`` SuperNodes, or in the simulation runtime with these settings."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        out, start = self.work / "out.json", time.monotonic()
        values = " ".join(f"{key}={json.dumps(value)}" for key, value in {**config, "out": str(out)}.items())
        command = ["flwr", "run", str(APP), "peer", "--run-config", values]
        command += ["--federation-config", federation] if federation else []
        with ProcessWatch() as watch, self._federation(watch, nodes) as environment:
            done = subprocess.run(self._in_bin(command), env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"flwr run failed: {done.stderr[-2000:] or done.stdout[-2000:]}")
            found = self._await(out)
            total = time.monotonic() - start
        shown = [word.replace(str(APP), APP.name).replace(str(self.work.parent), "WORK") for word in command]
        return {**round_times(found), "total_seconds": round(total, 2), "command": " ".join(shown),
                "settings": {**SETTINGS, "short_sleeps": self.short_sleeps}, **watch.report()}  # fmt: skip

    @contextmanager
    def _federation(self, watch: ProcessWatch, nodes: int) -> Iterator[dict[str, str]]:
        """Start a SuperLink, and SuperNodes; yields the environment of ``flwr run``."""
        environment = self._environment(watch)
        port = _free_port()
        connection = (
            f'[superlink]\ndefault = "peer"\n\n[superlink.peer]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        (self.work / "config.toml").write_text(connection)
        link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
        with ExitStack() as stack:
            self._start(stack, environment, link if nodes else [*link, "--simulation"], "superlink")
            _await_health(port)
            for node in range(nodes):
                config = f"partition-id={node} num-partitions={nodes}"
                command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                           "--port", str(_free_port()), "--node-config", config]  # fmt: skip
                self._start(stack, environment, command, f"supernode-{node}")
            yield environment

    def _environment(self, watch: ProcessWatch) -> dict[str, str]:
        own = {**watch.environment, **SETTINGS, "FLWR_HOME": str(self.work)}
        own["PATH"] = f"{self.environment.bin}:{own['PATH']}"
        own.pop("PYTHONPATH", None)
        if self.short_sleeps:
            own["PYTHONPATH"] = str(Path(__file__).parent / "short_sleeps")
        return own

    def _start(self, stack: ExitStack, environment: dict[str, str], command: list[str], name: str) -> None:
        log = stack.enter_context((self.work / f"{name}.log").open("wb"))
        process = subprocess.Popen(self._in_bin(command), env=environment, stdout=log, stderr=log)
        stack.callback(_stop, process)

    def _in_bin(self, command: list[str]) -> list[str]:
        return [str(self.environment.bin / command[0]), *command[1:]]

    def _await(self, out: Path) -> dict[str, Any]:
        """Wait for the times that the server app writes."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if out.exists() and out.read_text().endswith("}"):
                found: dict[str, Any] = json.loads(out.read_text())
                return found
            time.sleep(0.1)
        raise RuntimeError(f"Flower's run did not end within {LIMIT:.0f} s; its logs are in {self.work}")


def round_times(found: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each round, from its opening to the next one's, as fedquilt counts them."""
    edges = [*found["openings"], found["end"]]
    seconds = [round(after - before, 4) for before, after in itertools.pairwise(edges)]
    return {"seconds": seconds, "accuracy": found["accuracy"]}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_health(port: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"the SuperLink did not answer on port {port} within {seconds:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
