"""The ``fedquilt`` command: finds the half of the program that has the sub-command, and turns errors into messages.

Nothing is imported before it is needed: on a board there is no server half, and an idle agent must stay small.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import sys
from itertools import pairwise
from types import ModuleType
from typing import NoReturn

from fedquilt_common import __version__
from fedquilt_common.error_messages import print_error
from fedquilt_common.errors import ExperimentError, FedquiltError, how_to_install
from fedquilt_common.process.signals import is_interrupted, remember_interrupts

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("fedquilt_server.simulate_cli", "Run a small federation on this machine, with a live page."),
    "simulate": ("fedquilt_server.simulate_cli", "Run an experiment and all its agents on this machine."),
    "coordinator": ("fedquilt_server.cli", "Run the coordinator of an experiment against a broker."),
    "central": ("fedquilt_server.central.cli", "Train in one place, as the baseline of a federated run."),
    "sweep": ("fedquilt_server.sweep.cli", "Run an experiment in many variations, and compare them."),
    "runs": ("fedquilt_server.report.cli", "List runs, including failed and damaged ones."),
    "compare": ("fedquilt_server.report.cli", "Compare two or more runs side by side."),
    "report": ("fedquilt_server.report.cli", "Make a report of runs or a sweep: tables, curves, boards."),
    "watch": ("fedquilt_server.watch.cli", "Show a run live in the terminal."),
    "page": ("fedquilt_server.web.cli", "Show a folder of runs in a browser: list, search, compare."),
    "replay": ("fedquilt_server.replay.cli", "Replay a run from its journal, or predict other settings."),
    "init": ("fedquilt_server.tools.init_cli", "Write a commented experiment to start from."),
    "algorithms": ("fedquilt_common.catalogue.cli", "List the algorithms, their papers and fields."),
    "models": ("fedquilt_common.catalogue.cli", "List the models, their papers and parameters."),
    "datasets": ("fedquilt_common.catalogue.cli", "List the data sets and the files that they need."),
    "data": ("fedquilt_common.data_tools.cli", "List, download, inspect, partition and publish data sets."),
    "agent": ("fedquilt_client.cli", "Host clients on this board."),
    "relay": ("fedquilt_client.relay_cli", "Add up the replies of a site's boards before they travel."),
    "memory": ("fedquilt_client.memory_cli", "List and export the private memory of clients on this board."),
    "privacy": ("fedquilt_client.privacy_cli", "See what training has spent of the samples' privacy, and audit a run."),
    "model": ("fedquilt_server.tools.model_cli", "Inspect a model and its sub-models."),
    "federation": ("fedquilt_server.provisioning.cli", "Create a federation's certificates, and run its broker."),
    "provision": ("fedquilt_server.provisioning.cli", "Give a board an identity and its configuration."),
    "revoke": ("fedquilt_server.provisioning.cli", "Revoke a board's identity."),
    "boards": ("fedquilt_server.fleet.boards_cli", "List the boards that have an identity, or watch their health."),
    "flash": ("fedquilt_server.provisioning.flash_cli", "Write a board's identity and software into a stock image."),
    "upgrade": ("fedquilt_server.fleet.upgrade_cli", "Install another release on the boards, with Ansible."),
    "homeassistant": ("fedquilt_server.fleet.homeassistant_cli", "Show the boards' sensors in Home Assistant."),
    "doctor": ("fedquilt_common.doctor.cli", "Check everything that a run needs, and report what is missing."),
    "bench": ("fedquilt_server.tools.bench_cli", "Measure rounds without training, and the cost of narrow links."),
}
PARTS: dict[str, tuple[str, ...]] = {
    "data": ("fedquilt_server.central.noise_matrix_cli",),
    "privacy": ("fedquilt_server.privacy_audit.cli",),
}
"""Modules of another half of the program with further sub-commands of a group; each has ``add_to``."""
GROUPS = frozenset({"bench", "data", "federation", "memory", "model", "privacy"})
"""Commands that only hold sub-commands: alone they print their help and exit with 0, as ``fedquilt`` alone does."""
EXTRAS = {"fedquilt_client": "client"}
INTERRUPTED = 130
_LEAVING = frozenset({"click", "rich", "typer", __name__})
"""Packages whose ``sys.exit`` is the end of a command; rich's if nobody reads standard output any more.

A user's code that does it is mistaken.
"""
COMPLETE = "_FEDQUILT_COMPLETE"
"""The shell's completion script sets it."""


def main() -> NoReturn:
    """Run ``fedquilt`` with the arguments of this process; exits with a documented code."""
    remember_interrupts()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code, having printed any message."""
    _replace_what_output_cannot_show()
    try:
        _dispatch(arguments)
    except FedquiltError as error:
        print_error(error)
        return error.exit_code
    except OSError as error:
        print_error(f"{error}. {_advise(error)}")
        return FedquiltError.exit_code
    except ModuleNotFoundError as error:
        print_error(f"the Python package {error.name} is missing: {how_to_install('server')}")
        return FedquiltError.exit_code
    except KeyboardInterrupt:
        return _report_interruption()
    except SystemExit as leaving:
        return _exit_code(leaving)
    except Exception:
        if is_interrupted():  # an import has turned KeyboardInterrupt into this
            return _report_interruption()
        raise
    return 0


def _report_interruption() -> int:
    print_error("interrupted")
    return INTERRUPTED


def _replace_what_output_cannot_show() -> None:
    """Print a question mark for a character that the terminal's or the pipe's encoding does not have."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error replaces them by itself
        sys.stdout.reconfigure(errors="replace")


def _advise(error: OSError) -> str:
    """Return what to do about an error of the system that no other place explains."""
    if error.errno == errno.EMFILE:
        return "Allow more open files: `ulimit -n 8192` in this shell, or LimitNOFILE=8192 in the systemd service"
    if error.errno == errno.ENOENT and error.filename is None:
        return "The folder in which this command was started may have been removed: change to another one"
    return "Check the path, its permissions and the free disk space"


def _exit_code(leaving: SystemExit) -> int:
    """Return the exit code of a command that left, having printed that an experiment's code did so unasked."""
    from fedquilt_common.user_imports import describe_sys_exit, find_package

    package = find_package(leaving)
    if package and package not in _LEAVING and not package.startswith("fedquilt_"):
        print_error(f"the package {package} {describe_sys_exit(leaving, package)}")
        return ExperimentError.exit_code
    return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1


def _dispatch(arguments: list[str]) -> None:
    first = arguments[0] if arguments else "--help"
    if COMPLETE in os.environ or first in ("--install-completion", "--show-completion"):
        _complete(arguments)
    elif first in ("-h", "--help"):
        _print_help()
    elif first in ("-V", "--version"):
        print(f"fedquilt {__version__}")
    else:
        _refuse_empty_out(arguments)
        _module(first).run([first, "--help"] if arguments in ([group] for group in GROUPS) else arguments)


def _refuse_empty_out(arguments: list[str]) -> None:
    """Leave with a message if ``--out`` is empty: as a path, that would be the current folder."""
    if any(name == "--out" and not value.strip() for name, value in pairwise(arguments)) or "--out=" in arguments:
        print_error("--out is empty; name a folder")
        sys.exit(2)


def _complete(arguments: list[str]) -> None:
    from fedquilt_common.completion import complete

    complete(
        arguments, COMPLETE, {name: words for name, (_, words) in COMMANDS.items()}, lambda name: _module(name).app
    )


def _module(name: str) -> ModuleType:
    """Import the module that has a command; leave with a message where there is none, or a package is missing."""
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean `fedquilt {near[0]}`?" if near else "see `fedquilt --help`"
        what = "option" if name.startswith("-") else "command"
        print_error(f"there is no {what} {name!r}; {hint}")
        sys.exit(2)
    module = COMMANDS[name][0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(module.partition(".")[0], "server")
        print_error(f"`{name}` needs the Python package {error.name}: {how_to_install(extra)}")
        sys.exit(1)


def add_parts(group: str, to: object) -> None:
    """Add the sub-commands that other modules have for a group, as far as these are installed."""
    for name in PARTS[group]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name).add_to(to)


def _print_help() -> None:
    print(f"fedquilt {__version__}: a federated-learning test bed on MQTT\n\nUsage: fedquilt COMMAND [OPTIONS]\n")
    for name, (_, words) in COMMANDS.items():
        print(f"  {name:<13} {words}")
    print("\nOptions: --help, --version (-V), --install-completion, --show-completion [SHELL]")
    print("`fedquilt COMMAND --help` describes a command. docs/reference/exit-codes.md lists the exit codes.")


if __name__ == "__main__":
    main()
