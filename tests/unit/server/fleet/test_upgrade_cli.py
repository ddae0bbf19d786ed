"""``fedquilt upgrade`` with a real Ansible and a playbook that stands for the boards' own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.support.warm import ForkedProgram, assign

from fedquilt_common import cli
from fedquilt_common.errors import FederationError
from fedquilt_server.fleet.upgrade_cli import _run, check_exit_code, check_limit
from fedquilt_server.provisioning.federation import Federation, make_federation

PLAYBOOK = """\
- hosts: agents
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "{{ inventory_hostname }} hosts {{ fedquilt_clients }}"
    - ansible.builtin.fail:
        msg: no release
      when: inventory_hostname == "broken"
"""
SLOW_ANSIBLE = """\
#!/bin/sh
trap 'sleep 0.5; touch ended; exit 99' INT
touch started
while true; do sleep 0.1; done
"""


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A federation of two boards, and a folder with a playbook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_NOCOLOR", "1")
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "home"))
    Path("ansible").mkdir()
    Path("ansible/upgrade.yml").write_text(PLAYBOOK)
    federation = make_federation(Path("federation"), "lab", ["localhost"])
    federation.provision("kitchen", "pi4", "7")
    federation.provision("desk", "pi4", "8")
    return federation


def test_each_board_of_the_inventory_is_upgraded_and_one_that_fails_has_a_documented_exit_code(
    federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    federation.provision("broken", "pi4")
    assert cli.run(["upgrade"]) == 11
    found = capfd.readouterr()
    assert "kitchen hosts 7" in found.out
    assert "desk hosts 8" in found.out
    assert "no release" in found.out
    assert "exit code 2: a step failed on a board" in found.err
    assert "keep the new release" in found.err


def test_options_of_ansible_pass(federation: Federation, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["upgrade", "--limit", "desk", "--", "--check"]) == 0
    output = capfd.readouterr().out
    assert "kitchen" not in output
    assert "desk hosts 8" in output
    assert cli.run(["upgrade", "--", "--no-such-option"]) == 11
    assert "or an option that is wrong" in capfd.readouterr().err
    assert cli.run(["upgrade", "--limit", "none*"]) == 11
    assert "keep the new release" not in capfd.readouterr().err


def test_a_board_that_does_not_exist_is_named_before_ansible_starts(
    federation: Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    federation.provision("old", "pi4")
    federation.revoke("old")
    for limit, words in (
        ("kitchn", "there is no board 'kitchn'; did you mean kitchen?"), ("desk,attic", "there is no board 'attic'"),
        ("agents:!dsk", "did you mean desk?"), ("old", "old is revoked"),
    ):  # fmt: skip
        assert cli.run(["upgrade", "--limit", limit]) == 8
        found = capfd.readouterr()
        assert (found.out, words in found.err) == ("", True)


@pytest.mark.parametrize(
    "limit", ["desk,kitchen", "agents:!desk", "kit*", "agents[0:1]", "~(desk|kit)", "all:&agents", "@retry", " desk "]
)
def test_patterns_of_ansible_pass(limit: str, federation: Federation) -> None:
    check_limit(federation.record, limit)


def test_a_relay_of_a_site_can_be_upgraded_alone(federation: Federation) -> None:
    federation.add_site("hall", ["localhost"], relay=True)
    check_limit(federation.record, "hall-relay,relays")
    with pytest.raises(FederationError, match="there is no board 'roof-relay'"):
        check_limit(federation.record, "roof-relay")


def test_what_is_missing_is_named(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["upgrade", "--playbooks", "elsewhere"]) == 8
    assert "elsewhere/upgrade.yml: there is no such playbook" in capsys.readouterr().err
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.run(["upgrade"]) == 11
    assert "pip install 'fedquilt[deploy]'" in capsys.readouterr().err
    make_federation(Path("empty"), "lab", ["localhost"])
    assert cli.run(["upgrade", "--folder", "empty"]) == 8


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4, "a board could not be reached"), (6, "failed on a board, a board could not"), (1, "could not run"),
        (250, "could not run"),
    ],
)  # fmt: skip
def test_what_the_codes_of_ansible_mean(code: int, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check_exit_code(code)


def test_an_interrupted_upgrade_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        check_exit_code(99)


def test_ctrl_c_while_ansible_starts_waits_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], cwd: Path) -> None:
            super().__init__(command, cwd=cwd)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _run(["sh", "-c", "sleep 0.2; touch ended"], tmp_path)
    assert (tmp_path / "ended").exists()
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_waits_until_ansible_has_ended(federation: Federation, tmp_path: Path) -> None:
    """The terminal interrupts both. This Ansible takes a moment to end."""
    ansible = tmp_path / "bin" / "ansible-playbook"
    ansible.parent.mkdir()
    ansible.write_text(SLOW_ANSIBLE)
    ansible.chmod(0o755)
    child = ForkedProgram(
        [sys.executable, "-m", "fedquilt_common.cli", "upgrade"],
        env={**os.environ, "PATH": f"{ansible.parent}:{os.environ['PATH']}"},
        preexec_fn=partial(assign, "sys:executable", "/none"),
        start_new_session=True,
    )
    while not (tmp_path / "ansible" / "started").exists():
        assert child.poll() is None
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(60) == 130
    assert (tmp_path / "ansible" / "ended").exists()
