"""Shell completion: what a shell gets, and that it imports no more than the command on the line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedquilt_common import cli

FEDQUILT = (sys.executable, "-W", "error", "-X", "importtime", "-m", "fedquilt_common.cli")


def environment_of(line: str, shell: str) -> dict[str, str]:
    """The variables by which a shell asks what fits at the end of ``line``."""
    words = line.split(" ")
    environment = {"_FEDQUILT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    if shell == "bash":
        environment |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    if shell == "fish":
        environment["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    return environment


Ask = Callable[[str, str], str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that returns what a shell is offered at the end of a line."""

    def offered(line: str, shell: str) -> str:
        for name, value in environment_of(line, shell).items():
            monkeypatch.setenv(name, value)
        assert cli.run([]) == 0
        return capsys.readouterr().out

    return offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fedquilt ", list(cli.COMMANDS)),
        ("fedquilt mod", ["models", "model"]),
        ("fedquilt federation ", ["init", "renew", "broker", "announce"]),
        ("fedquilt memory ex", ["export"]),
        ("fedquilt agent --allow", ["--allow-import"]),
        ("fedquilt simulate --li", ["--linger", "--limits"]),
        ("fedquilt --ver", ["--version"]),
    ],
)
def test_bash_is_offered_what_fits(line: str, offered: list[str], ask: Ask) -> None:
    assert ask(line, "bash").split() == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_help_too(shell: str, ask: Ask) -> None:
    text = ask("fedquilt mo", shell)
    assert "models" in text
    assert "papers and parameters" in text
    assert "simulate" not in text
    assert "--linger" in ask("fedquilt simulate --", shell)


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("fedquilt ", ("fedquilt_server", "fedquilt_client", "numpy", "torch")),
        ("fedquilt agent --", ("fedquilt_server", "torch")),
        ("fedquilt simulate --", ("fedquilt_client", "torch")),
    ],
)
def test_only_the_command_on_the_line_is_imported(line: str, absent: tuple[str, ...]) -> None:
    environment = {**os.environ, **environment_of(line, "bash")}
    done = subprocess.run(FEDQUILT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "fedquilt_common.completion" in done.stderr
    assert [name for name in absent if f" {name}\n" in done.stderr] == []


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "--command fedquilt")]
)
def test_a_shells_script_can_be_shown(
    shell: str, sign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # the command adds a variable
    assert cli.run(["--show-completion", shell]) == 0
    shown = capsys.readouterr().out
    assert sign in shown
    assert "_FEDQUILT_COMPLETE=complete_" in shown


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_completes_with_the_installed_script(tmp_path: Path) -> None:
    """As a user does it: install, start a new shell, press the tab key."""
    program = tmp_path / "fedquilt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedquilt_common.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = (
        "fedquilt --install-completion >&2; source $HOME/.bashrc; COMP_WORDS=(fedquilt simu) COMP_CWORD=1; "
        "_fedquilt_completion fedquilt; echo ${COMPREPLY[*]}; exit 0"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "simulate\n", done.stderr
    assert "completion installed in" in done.stderr
