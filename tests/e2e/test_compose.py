"""docker-compose.yml: what can be told by reading it, always; the federation itself where FEDQUILT_TEST_COMPOSE=1.

The second half builds both images and takes about three minutes. It needs a Docker engine and the two public images
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
import typer
import yaml

from fedquilt_common.agent_config import AgentConfig, parse_clients
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.cli import app as server_app
from fedquilt_server.results import RoundResult
from fedquilt_server.snapshot import BoardStatus, Snapshot, SnapshotBoard
from fedquilt_server.web.metrics import SnapshotCollector

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
AGENTS = {
    name: service for name, service in SERVICES.items() if name.startswith("agent-") and service["profiles"] == ["demo"]
}
TLS_AGENTS = {
    name: service for name, service in SERVICES.items() if name.startswith("agent-") and name.endswith("-tls")
}
OURS = [name for name, service in SERVICES.items() if "build" in service]
EXPERIMENTS = ROOT / "deploy" / "experiments"
QUICK = EXPERIMENTS / "digits-fedavg.yaml"
MONITORING = ROOT / "deploy" / "monitoring"
SIZES = {"m": 2**20, "g": 2**30}
ENOUGH_FOR_TORCH = 512 * 2**20


def defaults(text: str) -> str:
    """``${NAME:-word}`` -> ``word``, as Compose does where NAME is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def options(service: dict[str, Any]) -> dict[str, str]:
    """The options of an agent's command."""
    words = service["command"].split()
    assert words[0] == "agent"
    return {name.removeprefix("--"): value for name, value in zip(words[1::2], words[2::2], strict=True)}


def share(service: dict[str, Any], slot: int) -> tuple[int, ...]:
    """The clients of the replica ``slot`` of an agent's service."""
    told = options(service)
    clients, each = parse_clients(told["clients"]), int(told["each"])
    return clients[slot * each : (slot + 1) * each]


def memory_limit(service: dict[str, Any]) -> int:
    """In bytes."""
    return int(service["mem_limit"][:-1]) * SIZES[service["mem_limit"][-1]]


# -- by reading ------------------------------------------------------------------------------------


def test_three_kinds_of_boards_have_different_limits_that_torch_fits_into() -> None:
    assert len({options(service)["kind"] for service in AGENTS.values()}) == len(AGENTS) == 3
    assert len({options(service)["id"] for service in AGENTS.values()}) == 3
    limits = [memory_limit(service) for service in AGENTS.values()]
    assert limits == sorted(set(limits), reverse=True)
    assert min(limits) >= ENOUGH_FOR_TORCH
    cpus = [service["cpus"] for service in AGENTS.values()]
    assert cpus == sorted(set(cpus), reverse=True)


@pytest.mark.parametrize("service", AGENTS.values(), ids=AGENTS)
def test_an_agents_command_is_understood(service: dict[str, Any]) -> None:
    AgentConfig.model_validate(options(service))


def test_the_coordinators_command_is_understood() -> None:
    name, *words = defaults(SERVICES["coordinator"]["command"]).split()
    given = typer.main.get_group(server_app).commands[name].make_context(name, words).params
    assert given["experiment"] == Path("/experiments/boards-adaptivefl.yaml")
    assert given["resume"], "a coordinator that is started again must go on"
    assert given["out"].parent == Path("/runs")


@pytest.mark.parametrize(("name", "replicas"), [("boards-adaptivefl", 1), ("digits-fedavg", 1), ("boards-many", 3)])
def test_the_agents_host_each_client_once(name: str, replicas: int) -> None:
    hosted = [client for service in AGENTS.values() for slot in range(replicas) for client in share(service, slot)]
    assert sorted(hosted) == list(range(load_experiment(EXPERIMENTS / f"{name}.yaml").data.clients))


def test_with_certificates_boards_have_the_same_limits_and_clients() -> None:
    script = (DOCKERFILE.parent / "certificates.sh").read_text()
    given = re.findall(r"^board (\S+) --kind (\S+) --clients (\S+)$", script, re.MULTILINE)
    for name, kind, clients in given:
        plain, tls = SERVICES[f"agent-{kind}"], SERVICES[f"agent-{kind}-tls"]
        assert (name, parse_clients(clients)) == (f"{kind}-0", share(plain, 0))
        assert [plain[key] for key in ("mem_limit", "cpus")] == [tls[key] for key in ("mem_limit", "cpus")]
        assert f"tls-{kind}:/identity:ro" in tls["volumes"]
    assert len(given) == len(AGENTS) == len(TLS_AGENTS)


def test_nobody_but_who_fills_it_has_the_authoritys_volume() -> None:
    volumes = {name: [volume.partition(":")[0] for volume in service["volumes"]] for name, service in SERVICES.items()}
    assert [name for name, mounted in volumes.items() if "federation" in mounted] == ["certificates"]


def test_every_profile_is_whole() -> None:
    """What a service of a profile waits for is in that profile."""
    for name, service in SERVICES.items():
        for other in service.get("depends_on", []):
            assert SERVICES[other]["profiles"] == service["profiles"], name
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == {
        "demo",
        "tls",
        "monitoring",
    }
    assert (ROOT / ".env").read_text().splitlines()[-1] == "COMPOSE_PROFILES=demo"


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    dashboard = json.loads((MONITORING / "grafana" / "fedquilt.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"fedquilt_\w+", expression)}
    zeros = {field: 0 for field, told in RoundResult.model_fields.items() if told.is_required()}
    row = RoundResult.model_validate({**zeros, "accuracy": 0.5, "personal_accuracy": 0.5, "loss": 1.0})
    board = SnapshotBoard(Snapshot(boards=[BoardStatus(agent="a", temperature=1.0, memory_used=1)], history=[row]))
    offered = {sample.name for metric in SnapshotCollector(board).collect() for sample in metric.samples}
    assert names
    assert names <= offered
    uid = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text())["datasources"][0]["uid"]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {uid}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_prometheus_asks_both_coordinators() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    targets = [name for job in config["scrape_configs"] for one in job["static_configs"] for name in one["targets"]]
    assert [target.partition(":")[0] for target in targets] == ["coordinator", "coordinator-tls"]


def test_mounts_exist_and_volumes_are_declared() -> None:
    declared = yaml.safe_load(FILE.read_text())["volumes"]
    mounts = [defaults(mount).split(":") for service in SERVICES.values() for mount in service["volumes"]]
    for source, target, *mode in mounts:
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert mode == ["ro"], f"{target} could be changed from inside"
        else:
            assert source in declared


def test_the_page_is_published_to_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert {defaults(port) for port in published} == {f"127.0.0.1:{n}:{n}" for n in (8080, 9090, 3000)}


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_more_rights_than_they_need(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)
    assert service["security_opt"] == ["no-new-privileges:true"]
    stage = DOCKERFILE.read_text().split(f" AS {service['build']['target']}\n")[1].split("\nFROM ")[0]
    assert "USER fedquilt" in stage


def test_the_images_get_every_file_they_are_made_from() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.+)$", DOCKERFILE.read_text(), re.MULTILINE)]
    sources = [source for line in copied for source in line]
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sources) == sorted(let_in)
    for part in ("common", "server", "client"):
        for path in (ROOT / part).rglob("*"):
            target = path.resolve().relative_to(ROOT)
            assert any(target.is_relative_to(source) for source in sources), f"{path} leads to {target}"


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
@pytest.mark.parametrize("data", ["", "/srv/datasets"])
def test_docker_compose_takes_the_file(data: str) -> None:
    environment = {**plain_environment(), "FEDQUILT_DATA": data, "COMPOSE_PROFILES": "demo,tls,monitoring"}
    command = ["docker-compose", "-f", str(FILE), "config", "-q"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


# -- for real --------------------------------------------------------------------------------------


def plain_environment() -> dict[str, str]:
    """Ours without what changes the federation."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FEDQUILT_", "COMPOSE_"))}


def why_not() -> str:
    """What keeps the federation from being run here; empty when nothing does."""
    if os.environ.get("FEDQUILT_TEST_COMPOSE") != "1":
        return "builds images and takes minutes: set FEDQUILT_TEST_COMPOSE=1 to run it"
    if not shutil.which("docker") or docker("info", check=False).returncode:
        return "there is no Docker engine here"
    bases = [SERVICES["broker"]["image"], *re.findall(r"^FROM (\S+:\S+)", DOCKERFILE.read_text(), re.MULTILINE)]
    lacking = [name for name in bases if docker("image", "inspect", name, check=False).returncode]
    return f"the Docker engine has no image {' and '.join(lacking)}: docker pull it" if lacking else ""


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One docker command, and what it said."""
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check, timeout=100)


class Federation:
    """The compose file's federation under a project name and port of its own."""

    def __init__(self, folder: Path, profile: str = "demo", **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._base = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        self._project = f"fedquilt-test-{os.getpid()}"
        self.experiment = QUICK.stem
        self.coordinator = "coordinator" if profile == "demo" else f"coordinator-{profile}"
        self._more = folder / "more.yml"
        self._more.write_text('version: "2.4"\n')
        self._env = {
            **plain_environment(), "FEDQUILT_PORT": str(port), "FEDQUILT_LINGER": "5", "COMPOSE_PROFILES": profile,
            "FEDQUILT_EXPERIMENT": self.experiment, **environment,
        }  # fmt: skip
        self.page = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5)

    def choose(self, experiment: str) -> None:
        """Another experiment than the file's."""
        self.experiment = experiment
        self._env["FEDQUILT_EXPERIMENT"] = experiment

    def train_for(self, rounds: int) -> None:
        """Other rounds than the experiment file's."""
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
        """The snapshot; an empty one while the coordinator is not there."""
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
        """To the program; number 1 is the small init that Docker puts before it."""
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
        """``result.json``, fetched as a person would."""
        docker("cp", f"{self.container(self.coordinator)}:/runs/{self.experiment}/result.json", str(folder))
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


@pytest.fixture
def profile() -> str:
    """Which one is run; a test may choose another."""
    return "demo"


@pytest.fixture
def federation(tmp_path: Path, profile: str) -> Iterator[Federation]:
    """Nothing runs yet; all of it is gone afterwards, volumes too."""
    if reason := why_not():
        pytest.skip(reason)
    made = Federation(tmp_path, profile)
    made.compose("build")
    yield made
    made.compose("down", "-v", "--remove-orphans")
    made.page.close()


def check_pages(page: httpx.Client) -> None:
    home = page.get("/")
    links = re.findall(r'(?:src|href)="(/[^"]*)"', home.text)
    assert {link.rpartition("/")[2] for link in links} >= {"page.js", "page.css", "htmx.min.js", "uPlot.min.css"}
    answers = {link: page.get(link).status_code for link in ["/", "/healthz", "/metrics", *links]}
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
    """Each replica has clients of its own; one that is killed takes them up again."""
    federation.choose("boards-many")
    federation.train_for(1)
    federation.compose("up", "-d", "--scale", "agent-weak=2", "coordinator", "agent-weak")
    federation.await_status(lambda status: sum(board["online"] for board in status.get("boards", [])) == 2)
    hosted = {board["agent"]: board["clients"] for board in federation.status()["boards"]}
    assert hosted == {
        "weak-0": list(share(SERVICES["agent-weak"], 0)),
        "weak-1": list(share(SERVICES["agent-weak"], 1)),
    }
