"""The ``fedquilt`` command as a shell sees it: what it prints where, its exit codes, and never a traceback."""

from __future__ import annotations

import errno
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from tests.support import warm

from fedquilt_common import __version__, cli, errors
from fedquilt_common.errors import FedquiltError
from fedquilt_common.experiment.agent_config import AgentConfig
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.coordinator.broker_wait import await_broker
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.simulate.mosquitto import free_port

EXPERIMENT = Path(__file__).parents[3] / "deploy" / "experiments" / "digits-fedavg.yaml"


def fedquilt(
    *arguments: str, where: Path, before: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    done = warm.fedquilt(*arguments, where=where, before=before)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = fedquilt(*arguments, where=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for name, (_, words) in cli.COMMANDS.items():
        assert any(line.split(None, 1) == [name, words] for line in lines)
    assert "Usage: fedquilt COMMAND" in done.stdout


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str) -> None:
    """In a process that nothing has prepared."""
    code = "import sys; sys.argv[0] = 'fedquilt'; from fedquilt_common.cli import main; main()"
    command = [sys.executable, "-W", "error", "-c", code, option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"fedquilt {__version__}\n")
    assert metadata.version("fedquilt") == __version__


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert f"fedquilt {name}" in capsys.readouterr().out


def test_groups_are_the_commands_with_sub_commands() -> None:
    found = set()
    for name, (module, _) in cli.COMMANDS.items():
        found |= {group.name for group in importlib.import_module(module).app.registered_groups} & {name}
    assert found == cli.GROUPS


@pytest.mark.parametrize("name", sorted(cli.GROUPS))
def test_a_group_alone_prints_its_help_as_fedquilt_alone_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == cli.run([name, "--help"]) == 0
    expected = capsys.readouterr().out.partition("exit codes.\n")[2]
    assert cli.run([name]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (expected, "")
    assert f"Usage: fedquilt {name}" in printed.out


def test_the_agents_help_shows_what_holds_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["agent", "--help"]) == 0
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for name, field in AgentConfig.model_fields.items():
        option = field.alias or name
        if isinstance(field.default, str | int) and field.default not in ("", False):
            assert re.search(rf"--{option} .*?\[default: \({field.default}\)\]", words), option
    for default in ("what is free", "STATE_DIRECTORY"):
        assert default in words


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("simulte", "did you mean `fedquilt simulate`?"),
        ("agnet", "`fedquilt agent`?"),
        ("xyzzy", "see `fedquilt --help`"),
    ],
)
def test_an_unknown_command_is_answered_with_advice(name: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"there is no command {name!r}" in said.err
    assert advice in said.err


def test_an_unknown_option_before_a_command_is_called_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--versio"]) == 2
    assert capsys.readouterr().err == "fedquilt: there is no option '--versio'; see `fedquilt --help`\n"


def test_an_unknown_option_is_answered_with_2(tmp_path: Path) -> None:
    done = fedquilt("simulate", str(EXPERIMENT), "--nonsense", where=tmp_path)
    assert done.returncode == 2
    assert "--nonsense" in done.stderr


@pytest.mark.parametrize("command", [("simulate",), ("coordinator", "--broker", "mqtt://127.0.0.1:1")])
def test_a_bad_experiment_is_explained(command: tuple[str, ...], tmp_path: Path) -> None:
    options = ("--set", "training.lr=-1", "--set", "algorithm.name=fedavgg", "--set", "bogus=1")
    done = fedquilt(*command, str(EXPERIMENT), *options, where=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("fedquilt: ")
    for words in ("training.lr = -1", "did you mean 'fedavg'?", "bogus"):
        assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_absent_experiment_is_named(tmp_path: Path) -> None:
    done = fedquilt("simulate", "absent.yaml", where=tmp_path)
    assert done.returncode == 4
    assert "absent.yaml" in done.stderr


def test_a_coordinator_without_a_broker_names_the_address(tmp_path: Path) -> None:
    address = f"mqtt://127.0.0.1:{free_port()}"
    options = ("--broker", address, "--broker-wait", "1", "--out", "run", "--no-page")
    done = fedquilt("coordinator", str(EXPERIMENT), *options, where=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"fedquilt: no MQTT broker answers at {address}" in done.stderr
    assert "firewall" in done.stderr


def stop_while_waiting() -> None:
    """Let this process's coordinator get SIGTERM as soon as it waits for a broker, for which it would wait long."""
    wait = await_broker

    def stop_and_wait(*given: Any) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return wait(*given)

    warm.assign("fedquilt_server.coordinator.coordinator:await_broker", stop_and_wait)


def test_a_coordinator_that_waits_for_a_broker_can_be_stopped(tmp_path: Path) -> None:
    options = ("--broker", f"mqtt://127.0.0.1:{free_port()}", "--broker-wait", "1000", "--out", "run", "--no-page")
    done = fedquilt("coordinator", str(EXPERIMENT), *options, where=tmp_path, before=stop_while_waiting)
    assert done.returncode == 143


@pytest.mark.parametrize("url", ["http://lab", "mqtt://", "mqtt://lab:port"])
def test_what_is_no_broker_address_is_explained(url: str, tmp_path: Path) -> None:
    done = fedquilt("coordinator", str(EXPERIMENT), "--broker", url, where=tmp_path)
    assert done.returncode == 4
    assert "mqtt://host" in done.stderr


def test_a_certificate_that_is_missing_is_no_missing_broker(tmp_path: Path) -> None:
    options = ("--broker", "mqtts://localhost:1", "--cert", "nothere", "--no-page")
    done = fedquilt("coordinator", str(EXPERIMENT), *options, where=tmp_path)
    assert done.returncode == 4
    assert "nothere: No such file or directory. Check --ca, --cert and --key" in done.stderr


def test_a_half_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fedquilt_server.simulate_cli", None)
    assert cli.run(["simulate"]) == 1
    assert "pip install 'fedquilt[server]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (KeyboardInterrupt(), 130),
        (SystemExit(None), 0),
        (SystemExit(143), 143),
        (SystemExit("words"), 1),
        (errors.RunFolderError("in use"), 6),
    ],
    ids=repr,
)
def test_however_a_command_ends_there_is_a_code(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_dispatch", command_of("click.core", raised))
    assert cli.run(["demo"]) == code


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EMFILE, "Allow more open files: `ulimit -n 8192`"), (errno.EACCES, "Check the path, its permissions")],
)
def test_an_error_of_the_system_is_explained(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_dispatch", command_of("click.core", OSError(number, os.strerror(number))))
    assert cli.run(["demo"]) == 1
    assert f"{os.strerror(number)}. {advice}" in capsys.readouterr().err


def command_of(module: str, raised: BaseException) -> Callable[[list[str]], None]:
    """Return a command that a module ends."""

    def command(arguments: list[str], error: BaseException = raised) -> None:
        raise error

    code = command.__code__.replace(co_filename=f"{module}.py", co_firstlineno=1)
    return FunctionType(code, {"__name__": module}, argdefs=command.__defaults__)


@pytest.mark.parametrize("code", [0, 3, None, "bye"])
def test_a_users_code_does_not_end_a_command_as_if_it_had_succeeded(
    code: int | str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_dispatch", command_of("lab.nets", SystemExit(code)))
    assert cli.run(["central"]) == 4
    given = "" if code is None else repr(code)
    place = "(lab.nets.py line 2)"
    assert capsys.readouterr().err == f"fedquilt: the package lab called sys.exit({given}) {place}; remove that call\n"


def test_a_reader_of_standard_output_that_leaves_is_no_mistake_of_a_users_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in ``fedquilt report --help | head -1``: rich ends the command."""
    monkeypatch.setattr(cli, "_dispatch", command_of("rich.console", SystemExit(1)))
    assert cli.run(["report", "--help"]) == 1
    assert capsys.readouterr().err == ""


def test_exit_codes_are_those_of_the_table() -> None:
    """docs/reference/exit-codes.md lists them; a new error class takes one of these."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(",")}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedquiltError)]
    assert len(kinds) > 10
    assert {kind.exit_code for kind in kinds} <= listed


def test_a_simulation_with_a_broker_that_is_not_there_says_so(tmp_path: Path) -> None:
    hurry = partial(warm.assign, "fedquilt_server.simulate.simulate:BROKER_SECONDS", 0.5)
    done = fedquilt("demo", "--broker", "mqtt://127.0.0.1:1", "--out", "run", where=tmp_path, before=hurry)
    assert done.returncode == 3
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("demo", "--out", "file"), ("demo", "--out", "file/below")])
def test_a_folder_that_cannot_be_is_told_without_a_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = fedquilt(*arguments, where=tmp_path)
    assert done.returncode in (1, 6)
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr


def test_more_agents_than_clients_are_refused_in_a_sentence(tmp_path: Path) -> None:
    done = fedquilt("bench", "round", "--agents", "4", "--clients", "3", where=tmp_path)
    assert done.returncode == 4
    assert "at least one client" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_experiment_that_cannot_begin_takes_no_folder(tmp_path: Path) -> None:
    options = (str(EXPERIMENT), "--out", "run", "--set", "rounds=1")
    refused = fedquilt("simulate", *options, "--set", "model.name=convnet", where=tmp_path)
    assert refused.returncode == 4
    assert "model.name" in refused.stderr
    run = ActiveRun(load_experiment(EXPERIMENT, ["wire.down=bf16"]), tmp_path / "run", resume=True)
    assert run.published_model.size < 20_000  # the model as sent: half of what fp32 takes
    run.folder.release()
