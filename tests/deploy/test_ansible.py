"""The playbooks: run against containers with systemd and sshd where FEDQUILT_TEST_BOARDS=1.

The second half makes a board image with mmdebstrap the first time and needs some minutes and a Docker engine.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Template
from jinja2.nativetypes import NativeEnvironment
from tests.support.boards import ROOT, Machine, Playbooks, asked_for, build_image, make_key, recap, start, why_not
from tests.support.releases import another_release, wheelhouse

from fedquilt_common.doctor.cli import INSTALLED
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.kinds import KINDS

ROUNDS = 4
EXPERIMENT = {
    "name": "boards", "seed": 1, "rounds": ROUNDS, "data": {"set": "digits", "clients": 3}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedper"}, "training": {"epochs": 1, "lr": 0.05},
}  # fmt: skip
"""Each client keeps a head of its own, so that there is a memory that an upgrade could lose."""


def test_the_example_is_what_provisioning_writes(tmp_path: Path) -> None:
    """But for the names in it."""
    federation = make_federation(tmp_path / "f", "lab", ["192.168.1.10"])
    federation.provision("kitchen", "pi4")
    federation.provision("desk", "jetson-orin-nano")
    federation.provision("cellar", "pi4")
    federation.revoke("cellar")
    federation.add_site("hall", ["10.2.0.5"], relay=True)
    written = yaml.safe_load((federation.folder / "inventory.yml").read_text())
    assert yaml.safe_load((ROOT / "ansible" / "inventory.example.yml").read_text()) == written


PATHS = ("/opt/fedquilt/current/bin/fedquilt", "/etc/fedquilt/agent.yaml", "/var/lib/fedquilt/data", "User=fedquilt\n")


def unit_of(program: str) -> str:
    return (ROOT / "deploy" / "systemd" / f"fedquilt-{program}.service").read_text()


def test_the_unit_and_the_roles_agree_on_paths_and_user() -> None:
    """None of them is a variable; the containers show that the roles create them."""
    unit = unit_of("agent")
    assert all(path in unit for path in PATHS)
    for line in ("Restart=always", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=fedquilt"):
        assert line in unit.splitlines()
    assert re.search(r"^WatchdogSec=\d+$", unit, re.MULTILINE)
    assert re.search(r"^MemoryMax=", unit, re.MULTILINE)
    assert {kind for kind, known in KINDS.items() if known.jetson} == {k for k in KINDS if k.startswith("jetson-")}


def settings_of(program: str) -> dict[str, list[str]]:
    """Return the values of each setting of a unit, without its comments."""
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit_of(program), re.MULTILINE):
        settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_of_a_relay_is_that_of_an_agent_but_for_its_files_and_for_training() -> None:
    agent, relay = settings_of("agent"), settings_of("relay")
    assert {name for name in agent if relay.get(name) != agent[name]} == {
        "Description", "ExecStart", "StateDirectory", "CacheDirectory", "CacheDirectoryMode", "Environment",
        "OOMPolicy",
    }  # fmt: skip
    assert set(relay) < set(agent)
    assert relay["StateDirectory"] == ["fedquilt-relay"]
    (program,) = relay["ExecStart"]
    folder = read("agent", "vars/main.yml")["agent_folder"]
    assert program == "/opt/fedquilt/current/bin/fedquilt relay --config /etc/fedquilt/relay/relay.yaml"
    assert "'/etc/fedquilt/relay' if 'relays' in group_names" in folder
    assert dict(INSTALLED) == {
        Path("/etc/fedquilt/agent.yaml"): Path("/var/lib/fedquilt"),
        Path("/etc/fedquilt/relay/relay.yaml"): Path("/var/lib/fedquilt-relay"),
    }  # the doctor finds them
    removed = (ROOT / "ansible/roles/agent/tasks/remove.yml").read_text().split()
    assert {"/var/lib/fedquilt-relay", "/etc/systemd/system/fedquilt-relay.service"} <= set(removed)


@pytest.mark.parametrize("program", ["agent", "relay"])
def test_the_release_contains_the_unit(program: str) -> None:
    """The role copies it from there, so that a rollback brings back the unit of the previous release."""
    packaged = resources.files("fedquilt_server.provisioning").joinpath(f"fedquilt-{program}.service")
    assert packaged.read_text() == unit_of(program)


IDENTITY = ["ca.crt", "tls.crt", "tls.key"]
BROKER_FILES = ["ca.crt", "broker.crt", "broker.key", "acl", "revoked.crl", "mosquitto-tls.conf"]
ROLES = sorted(path.name for path in (ROOT / "ansible" / "roles").iterdir())


def read(role: str, path: str) -> Any:
    file = ROOT / "ansible" / "roles" / role / path
    return yaml.safe_load(file.read_text()) if file.exists() else {}


def described(role: str) -> dict[str, dict[str, Any]]:
    """Return each variable's entry in the argument specification of the role."""
    points = read(role, "meta/argument_specs.yml")["argument_specs"].values()
    return {name: option for point in points for name, option in point.get("options", {}).items()}


@pytest.mark.parametrize("role", ROLES)
def test_each_variable_of_a_role_is_described(role: str) -> None:
    """Defaults, argument specification and README name the same variables, with the same values and meanings."""
    options = described(role)
    defaults = {name: option["default"] for name, option in options.items() if not option.get("required")}
    if (ROOT / "ansible" / "roles" / role / "defaults").exists():
        assert read(role, "defaults/main.yml") == defaults
    readme = (ROOT / "ansible" / "roles" / role / "README.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith((f"| `{role}_", "| `fedquilt_"))]
    assert rows == [row(name, option) for name, option in options.items()]


def row(name: str, option: dict[str, Any]) -> str:
    default = "required" if option.get("required") else f"`{option['default']}`"
    meaning = option["description"]
    text = meaning if isinstance(meaning, str) else " ".join(meaning)
    return f"| `{name}` | {default.replace('``', 'empty')} | {text} |"


@pytest.mark.parametrize(
    ("host", "group", "role", "variable", "files"),
    [
        ("localhost", "broker", "broker", "broker_files", BROKER_FILES),
        ("site-hall", "sites", "broker", "broker_files", [*BROKER_FILES, "bridge.crt", "bridge.key"]),
        ("kitchen", "agents", "agent", "agent_identity", ["agent.yaml", *IDENTITY]),
        ("hall-relay", "relays", "agent", "agent_identity", ["relay.yaml", *IDENTITY]),
    ],
)
def test_a_role_finds_the_files_of_each_host(
    host: str, group: str, role: str, variable: str, files: list[str], tmp_path: Path
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.add_site("hall", ["10.2.0.5"], relay=True)
    federation.provision("kitchen", "pi4", site="hall")
    children = yaml.safe_load((federation.folder / "inventory.yml").read_text())["all"]["children"]
    facts = {"inventory_dir": federation.folder, "inventory_hostname": host, "group_names": [group]}
    facts |= {"ansible_facts": {}, **children[group]["hosts"][host]}
    settings = {**read(role, "defaults/main.yml"), **read(role, "vars/main.yml")}
    facts |= {name: Template(str(value)).render(facts) for name, value in settings.items()}
    copies = [task for task in read(role, "tasks/main.yml") if f"{{{{ {variable} }}}}/" in str(task)]
    sources = [Path(source) for task in copies for source in copied(task, facts)]
    assert sorted(source.name for source in sources) == sorted(files)
    assert [source for source in sources if not source.is_file()] == []


def copied(task: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Return the files that a task copies, as Ansible finds them."""
    loop = task.get("loop", [""])
    items = NativeEnvironment().from_string(loop).render(facts) if isinstance(loop, str) else loop
    source = Template(task["ansible.builtin.copy"]["src"])
    return [source.render(facts, item=Template(item).render(facts)) for item in items]


@pytest.mark.parametrize(
    ("host", "token", "accepted"),
    [
        ("127.0.0.1", "", True), ("127.1.2.3", "", True), ("localhost", "", True), ("::1", "", True),
        ("0.0.0.0", "", False), ("192.168.1.4", "", False), ("127example.org", "", False),  # noqa: S104
        ("0.0.0.0", 'sixteen"letters\\', True), ("127.0.0.1", "too short", False),  # noqa: S104
        ("127.0.0.1", "with blanks in it", False), ("127.0.0.1", "für-alle-geheim-x", False),
    ],
)  # fmt: skip
def test_a_page_that_other_machines_reach_needs_a_token(host: str, token: str, accepted: bool) -> None:
    environment = NativeEnvironment()
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    facts = {"coordinator_host": host, "coordinator_page_token": token}
    checks = [task["ansible.builtin.assert"]["that"] for task in read("coordinator", "tasks/main.yml")
              if "ansible.builtin.assert" in task]  # fmt: skip
    assert len(checks) == 2
    assert all(environment.compile_expression(check)(**facts) for check in checks) == accepted


@pytest.mark.parametrize("role", ROLES)
def test_each_entry_point_has_an_argument_specification(role: str) -> None:
    """Those that a playbook or another role imports; ansible-core looks for the name in ``tasks_from``."""
    texts = [path.read_text() for path in (ROOT / "ansible").rglob("*.yml")]
    used = {name for text in texts for name in re.findall(rf"name: {role}\n\s+tasks_from: (\S+)", text)}
    assert set(read(role, "meta/argument_specs.yml")["argument_specs"]) == {"main", *used}


def test_no_task_shows_a_private_key() -> None:
    """Tasks that copy a key or a token, or replace a file with one, never print a difference."""
    tasks = [task for role in ROLES for path in ("main", "remove") for task in read(role, f"tasks/{path}.yml") or []]
    secret = [
        task for task in tasks
        if re.search(r"\.key\b|user-data|_TOKEN", str(task)) and "ansible.builtin.copy" in task
    ]  # fmt: skip
    assert len(secret) == 5
    assert [task["name"] for task in secret if task.get("diff") is not False] == []


# -- on containers ---------------------------------------------------------------------------------------------


UNIT = "systemctl show -p Description --value fedquilt-agent"


@dataclass(frozen=True)
class Lab:
    """A workstation, a board, their federation, and wheels for both."""

    hub: Machine
    board: Machine
    federation: Federation
    playbooks: Playbooks
    wheels: Path
    server_wheels: Path
    experiment: Path

    def site(self) -> str:
        return self.playbooks.play(
            "site", coordinator_experiment=self.experiment, agent_wheels=self.wheels,
            coordinator_wheels=self.server_wheels,
        )  # fmt: skip

    def memories(self) -> list[tuple[int, int, int]]:
        """Client, round and bytes of what the board keeps."""
        told = self.board.sh("/opt/fedquilt/current/bin/fedquilt memory list --state /var/lib/fedquilt --json")
        return [(row["client"], row["round"], row["bytes"]) for row in json.loads(told)]

    def await_rounds(self, count: int) -> None:
        end = time.monotonic() + 300
        while self.rounds() < count:
            assert time.monotonic() < end, self.board.sh("journalctl -u fedquilt-agent | tail -30", check=False)
            time.sleep(1)

    def rounds(self) -> int:
        told = self.hub.sh("cat /var/lib/fedquilt-coordinator/runs/*/result.json", check=False)
        return len(json.loads(told)["rounds"]) if told else 0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    build_image()
    folder = tmp_path_factory.mktemp("lab")
    key = make_key(folder)
    hub, board = start("hub", key), start("board", key)
    try:
        federation = make_federation(folder / "federation", "lab", [hub.address])
        federation.provision("board", "pi4", "0-2", host=board.address, user="root")
        playbooks = Playbooks(federation.folder, key, hub)
        wheels, server = wheelhouse(folder / "wheels"), wheelhouse(folder / "server", "--extra", "server")
        experiment = folder / "experiment.yaml"
        experiment.write_text(yaml.safe_dump(EXPERIMENT))
        yield Lab(hub, board, federation, playbooks, wheels, server, experiment)
    finally:
        hub.stop()
        board.stop()


@asked_for
@pytest.mark.timeout(1800)
def test_from_nothing_to_a_round_and_back_to_nothing(lab: Lab) -> None:
    """One story, since each step needs the one before."""
    lab.site()
    lab.await_rounds(ROUNDS)
    assert "changed=0" in recap(lab.site(), "board")
    assert "changed=0" in recap(lab.site(), "hub")
    assert lab.board.sh("systemctl show -p User --value fedquilt-agent").strip() == "fedquilt"
    assert lab.board.sh("stat -c '%U %a' /etc/fedquilt/tls.key /var/lib/fedquilt").split() == [
        "root", "640", "fedquilt", "700",
    ]  # fmt: skip
    memories = lab.memories()
    assert [(client, number) for client, number, _ in memories] == [(client, ROUNDS) for client in range(3)]
    first = lab.board.sh("readlink /opt/fedquilt/current")

    lab.playbooks.play("upgrade", agent_wheels=another_release(lab.wheels, "second"))
    second = lab.board.sh("readlink /opt/fedquilt/current")
    assert second != first
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"
    assert lab.memories() == memories
    assert lab.board.sh(UNIT).strip() == "second"

    lab.playbooks.play("rollback")
    assert lab.board.sh("readlink /opt/fedquilt/current") == first
    assert lab.board.sh(UNIT).strip() == "fedquilt agent"
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"

    told = lab.playbooks.play("upgrade", agent_wheels=another_release(lab.wheels, "third", broken=True), fails=True)
    assert "failed with the new release, so it was rolled back" in told
    assert lab.board.sh("readlink /opt/fedquilt/current") == first
    assert lab.board.sh(UNIT).strip() == "fedquilt agent"
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"

    before = lab.board.sh("systemctl show -p NRestarts --value fedquilt-agent").strip()
    lab.board.sh("kill -STOP $(systemctl show -p MainPID --value fedquilt-agent)")
    end = time.monotonic() + 200
    while lab.board.sh("systemctl show -p NRestarts --value fedquilt-agent").strip() == before:
        assert time.monotonic() < end, "the watchdog did not start an agent that hangs anew"
        time.sleep(2)

    lab.playbooks.play("remove")
    looks = (
        "find / -xdev -name '*fedquilt*' -not -path '/proc/*' -not -path '/sys/*'", "getent passwd fedquilt",
        "systemctl list-units --all --plain --no-legend 'fedquilt*'",
    )  # fmt: skip
    assert [lab.board.sh(look, check=False).strip() for look in looks] == ["", "", ""]
    assert "changed=0" in recap(lab.playbooks.play("remove"), "board")
