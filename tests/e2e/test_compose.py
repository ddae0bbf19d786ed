"""The federation of docker-compose.yml itself, where FEDQUILT_TEST_COMPOSE=1.

Both images are built, and all of it takes about eight minutes. It needs a Docker engine and the two public images
that ours are made from; a run of its own project name and port disturbs no other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.support.compose_file import (
    AGENTS,
    DOCKERFILE,
    FILE,
    QUICK,
    SERVICES,
    compose_program,
    memory_limit,
    options,
    plain_environment,
    share,
)


def why_not() -> str:
    """Return what is missing to run the federation and how to get it; empty if nothing is."""
    if os.environ.get("FEDQUILT_TEST_COMPOSE") != "1":
        return "builds images and takes minutes: set FEDQUILT_TEST_COMPOSE=1 to run it (needs a Docker engine)"
    if not shutil.which("docker") or docker("info", check=False).returncode:
        return "no Docker engine answers: start one (docker info must succeed)"
    if not compose_program():
        return "Docker Compose is not installed: sudo apt-get install docker-compose"
    bases = [SERVICES["broker"]["image"], *re.findall(r"^FROM (\S+:\S+)", DOCKERFILE.read_text(), re.MULTILINE)]
    lacking = [name for name in bases if docker("image", "inspect", name, check=False).returncode]
    return f"the Docker engine has no image {' and '.join(lacking)}: docker pull {' '.join(lacking)}" if lacking else ""


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a docker command; returns its output."""
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check, timeout=100)


class Federation:
    """The compose file's federation, with its own project name and port."""

    def __init__(self, folder: Path, profile: str = "demo", **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._base = compose_program()
        self._project = f"fedquilt-test-{os.getpid()}"
        self.experiment = QUICK.stem
        self.coordinator = "coordinator" if profile == "demo" else f"coordinator-{profile}"
        self._more = folder / "more.yml"
        self._more.write_text('version: "2.4"\n')
        self._env = {
            **plain_environment(), "FEDQUILT_PORT": str(port), "FEDQUILT_LINGER": "5", "COMPOSE_PROFILES": profile,
            "FEDQUILT_EXPERIMENT": self.experiment, **environment,
        }  # fmt: skip
        self.page = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def choose(self, experiment: str) -> None:
        """Use another experiment than the file's."""
        self.experiment = experiment
        self._env["FEDQUILT_EXPERIMENT"] = experiment

    def train_for(self, rounds: int) -> None:
        """Use another number of rounds than the experiment file's."""
        command = f"{SERVICES[self.coordinator]['command']} --set rounds={rounds}"
        more = {"version": "2.4", "services": {self.coordinator: {"command": command}}}
        self._more.write_text(yaml.safe_dump(more))

    def compose(self, *words: str) -> str:
        command = [*self._base, "-p", self._project, "-f", str(FILE), "-f", str(self._more), *words]
        result = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False, timeout=900)
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout

    def container(self, service: str) -> str:
        return self.compose("ps", "-qa", service).strip()

    def status(self) -> dict[str, Any]:
        """Return the snapshot; an empty one while the coordinator does not run."""
        try:
            answer: dict[str, Any] = self.page.get("/api/status").json()
        except httpx.HTTPError:
            return {"phase": "", "round": 0}
        return answer

    def await_status(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not wanted(status := self.status()):
            assert time.monotonic() < end, (status, self.compose("logs", "--no-color", "--tail", "30"))
            time.sleep(0.1)
        return status

    def await_round(self, number: int) -> None:
        self.await_status(lambda status: status["round"] >= number)

    def await_end(self, seconds: float = 120) -> dict[str, Any]:
        return self.await_status(lambda status: status["phase"] == "finished", seconds)

    def exit_code(self, service: str) -> int:
        return int(docker("wait", self.container(service)).stdout)

    def signal(self, service: str, name: str) -> None:
        """Send a signal to the program; process 1 is the init process that Docker starts before it."""
        docker("exec", self.container(service), "sh", "-c", f"kill -{name} $(cat /proc/1/task/1/children)")

    def await_health(self, service: str, wanted: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (is_ := self.inspect(service, "{{.State.Health.Status}}")) != wanted:
            assert time.monotonic() < end, (is_, self.inspect(service, "{{json .State.Health.Log}}"))
            time.sleep(1)

    def restarts(self, service: str) -> int:
        return int(self.inspect(service, "{{.RestartCount}}"))

    def inspect(self, service: str, what: str) -> str:
        return docker("inspect", "-f", what, self.container(service)).stdout.strip()

    def result(self, folder: Path) -> dict[str, Any]:
        """Return ``result.json``, copied out of the container as a user would do it."""
        docker("cp", f"{self.container(self.coordinator)}:/runs/{self.experiment}/result.json", str(folder))
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


@pytest.fixture
def profile() -> str:
    """Return the Compose profile to run; a test can override it."""
    return "demo"


@pytest.fixture
def federation(tmp_path: Path, profile: str) -> Iterator[Federation]:
    """A federation that is not started; the test removes all of it afterwards, volumes too."""
    if reason := why_not():
        pytest.skip(reason)
    made = Federation(tmp_path, profile)
    made.compose("build")
    yield made
    made.compose("down", "-v", "--remove-orphans")
    made.page.close()


def check_pages(page: httpx.Client) -> None:
    home = page.get("/")
    links = re.findall(r'(?:src|href)="([^"#]+)"', home.text)
    assert {link.rpartition("/")[2] for link in links} >= {"page.js", "page.css", "htmx.min.js", "uPlot.min.css"}
    answers = {link: page.get(home.url.join(link)).status_code for link in ["/", "/healthz", "/metrics", *links]}
    assert set(answers.values()) == {200}, answers


@pytest.mark.timeout(1200)
def test_the_demo_runs_to_its_end_and_can_be_shown_again(federation: Federation) -> None:
    federation.compose("up", "-d")
    status = federation.await_end()
    assert [row["round"] for row in status["history"]] == list(range(1, 21))
    assert status["history"][-1]["accuracy"] >= 0.93
    told = {board["kind"]: board["memory_total"] for board in status["boards"]}
    assert told == {options(service)["kind"]: memory_limit(service) for service in AGENTS.values()}
    check_pages(federation.page)
    assert federation.exit_code("coordinator") == 0

    federation.compose("up", "-d")
    again = federation.await_end()
    assert (again["run"], again["history"]) == (status["run"], status["history"])
    assert federation.page.get("/healthz").status_code == 200
    assert federation.exit_code("coordinator") == 0
    assert federation.restarts("coordinator") == 0

    federation.compose("down", "-v")
    federation.compose("up", "-d")
    new = federation.await_end()
    assert new["run"] != status["run"]
    assert new["history"][-1]["accuracy"] == status["history"][-1]["accuracy"]


@pytest.mark.timeout(1200)
def test_an_agent_that_hangs_is_not_healthy(federation: Federation) -> None:
    federation.compose("up", "-d", "broker", "agent-weak")
    federation.await_health("agent-weak", "healthy", 60)
    federation.signal("agent-weak", "STOP")
    federation.await_health("agent-weak", "unhealthy", 180)


@pytest.mark.timeout(1200)
def test_whatever_dies_the_model_is_the_same(federation: Federation, tmp_path: Path) -> None:
    federation.train_for(150)
    federation.compose("up", "-d")
    federation.await_end()
    calm = federation.result(tmp_path)["final"]
    federation.compose("down", "-v")

    federation.compose("up", "-d")
    federation.await_round(15)
    federation.signal("agent-weak", "KILL")
    federation.await_round(50)
    federation.signal("coordinator", "KILL")
    federation.await_round(80)
    docker("kill", federation.container("broker"))  # by a person's hand, so Docker does not start it again
    federation.await_status(lambda status: status["phase"] != "" and not status["broker_connected"])
    federation.compose("up", "-d")
    federation.await_end()
    stormy = federation.result(tmp_path)["final"]
    assert (stormy["rounds"], stormy["global_sha256"]) == (150, calm["global_sha256"])
    assert (federation.restarts("agent-weak"), federation.restarts("coordinator")) == (1, 1)


@pytest.mark.timeout(1200)
def test_a_board_with_little_memory_prunes_what_it_is_sent(federation: Federation, tmp_path: Path) -> None:
    federation.choose("boards-adaptivefl")
    federation.train_for(4)
    federation.compose("up", "-d")
    federation.await_end(seconds=400)
    rounds = federation.result(tmp_path)["rounds"]
    assert len(rounds) == 4
    mine = [str(client) for client in share(SERVICES["agent-weak"], 0)]
    weak = [row["trained"][client] for row in rounds for client in mine if client in row["trained"]]
    assert weak
    assert "L1" not in weak
    others = {size for row in rounds for client, size in row["trained"].items() if client not in mine}
    assert "L1" in others
    assert federation.restarts("agent-weak") == 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("profile", ["tls"])
def test_with_certificates_the_same_numbers_come_out(federation: Federation, tmp_path: Path) -> None:
    federation.train_for(3)
    federation.compose("up", "-d")
    federation.await_end(seconds=300)
    rows = federation.result(tmp_path)["rounds"]
    assert [row["clients"] for row in rows] == [8, 8, 8]
    where = federation.container("broker-tls")
    listening = docker("exec", where, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6").stdout
    assert f":{8883:04X} " in listening
    assert f":{1883:04X} " not in listening
    log = federation.compose("logs", "--no-color", "broker-tls")
    assert {name for name in ("coordinator", "strong-0", "medium-0", "weak-0") if f"u'{name}'" in log} == {
        "coordinator", "strong-0", "medium-0", "weak-0",
    }  # fmt: skip
    federation.compose("up", "-d")  # the identities are made once
    assert federation.exit_code("certificates") == 0


@pytest.mark.timeout(1200)
def test_more_boards_of_a_kind(federation: Federation) -> None:
    """Each replica has its own clients; a killed replica hosts them again after its restart."""
    federation.choose("boards-many")
    federation.train_for(1)
    federation.compose("up", "-d", "--scale", "agent-weak=2", "coordinator", "agent-weak")
    federation.await_status(lambda status: sum(board["online"] for board in status.get("boards", [])) == 2)
    hosted = {board["agent"]: board["clients"] for board in federation.status()["boards"]}
    assert hosted == {
        "weak-0": list(share(SERVICES["agent-weak"], 0)),
        "weak-1": list(share(SERVICES["agent-weak"], 1)),
    }
