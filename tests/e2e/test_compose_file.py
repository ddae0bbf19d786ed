"""``docker-compose.yml`` and the images: checks that only read the files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.support.compose_file import (
    AGENTS,
    DOCKERFILE,
    ENOUGH_FOR_TORCH,
    EXPERIMENTS,
    FILE,
    MONITORING,
    OURS,
    ROOT,
    SERVICES,
    TLS_AGENTS,
    compose_program,
    defaults,
    memory_limit,
    options,
    plain_environment,
    share,
)
from tests.support.dashboard import OTHER_SCORES, PANELS, QUERIES, name_metrics

from fedquilt_client.cli import app as agent_app
from fedquilt_common.experiment.agent_config import AgentConfig, parse_clients
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.cli import app as server_app
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web.metrics import SnapshotCollector

pytestmark = pytest.mark.quick  # without a Docker engine


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
    name, *words = service["command"].split()
    given = typer.main.get_group(agent_app).commands[name].make_context(name, words).params
    AgentConfig.model_validate({option: value for option, value in given.items() if value})


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


@pytest.mark.parametrize(("broker", "dependents"), [("broker", AGENTS), ("broker-tls", TLS_AGENTS)])
def test_all_start_when_their_broker_is_healthy(broker: str, dependents: dict[str, Any]) -> None:
    coordinator = broker.replace("broker", "coordinator")
    for service in (*dependents.values(), SERVICES[coordinator]):
        assert service["depends_on"] == {broker: {"condition": "service_healthy"}}
    assert "mosquitto_sub" in str(SERVICES[broker]["healthcheck"]["test"])


def test_the_probe_of_the_broker_with_certificates_can_write_nothing() -> None:
    copied = (DOCKERFILE.parent / "certificates.sh").read_text()
    assert "cp /federation/watch/* /identity/watch/" in copied
    assert "tls-watch:/identity/watch" in SERVICES["certificates"]["volumes"]
    assert "tls-watch:/identity:ro" in SERVICES["broker-tls"]["volumes"]


def test_every_profile_is_whole() -> None:
    """The services that a service of a profile depends on are in that profile."""
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
    names = name_metrics(QUERIES)
    zeros = {field: 0 for field, told in RoundResult.model_fields.items() if told.is_required()}
    row = RoundResult.model_validate(
        {**zeros, "accuracy": 0.5, "personal_accuracy": 0.5, "loss": 1.0, "scores": OTHER_SCORES}
    )
    readings = {"temperature": 1.0, "memory_used": 1, "memory_own": 1, "load": 1.0, "power": 1.0, "joules": 1.0}
    board = BoardStatus.model_validate({"agent": "a", "power_source": "meter", **readings})
    store = StatusStore(Snapshot(run="r", boards=[board], history=[row]))
    offered = {sample.name for metric in SnapshotCollector(store).collect() for sample in metric.samples}
    assert names
    assert names <= offered
    uid = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text())["datasources"][0]["uid"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {uid}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
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


@pytest.mark.parametrize("data", ["", "/srv/datasets"])
def test_docker_compose_takes_the_file(data: str) -> None:
    environment = {**plain_environment(), "FEDQUILT_DATA": data, "COMPOSE_PROFILES": "demo,tls,monitoring"}
    if not (program := compose_program()):
        pytest.skip("Docker Compose is not installed: sudo apt-get install docker-compose")
    command = [*program, "-f", str(FILE), "config", "-q"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
