"""The command ``fedquilt upgrade``: run Ansible's playbook for the boards and the relays of a federation."""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import FederationError, UpgradeFailedError, how_to_install
from fedquilt_server.provisioning.cli import HERE, Folder
from fedquilt_server.provisioning.federation import Federation
from fedquilt_server.provisioning.names import GROUPS
from fedquilt_server.provisioning.owners import INVENTORY
from fedquilt_server.provisioning.record import FederationRecord

app = CommandApp()
PLAYBOOK: Final = "upgrade.yml"
PLAYBOOKS: Final = Path("ansible")
_INTERRUPTED: Final = 99
_MEANINGS: Final = {2: "a step failed on a board", 4: "a board could not be reached", 8: "the play was ended early"}
"""Bits of the exit code of ``ansible-playbook``."""


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``upgrade`` as a sub-command."""


@app.command()
def upgrade(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- OPTIONS", help="Options for ansible-playbook, such as --ask-become-pass."),
    ] = None,
    folder: Folder = HERE,
    limit: Annotated[
        str, typer.Option(help="Boards and relays to upgrade, such as kitchen,desk or jetsons.", show_default="all")
    ] = "",
    playbooks: Annotated[Path, typer.Option(help="Folder of fedquilt's playbooks.")] = PLAYBOOKS,
) -> None:
    """Install the wheelhouse's release on the boards, one after another, with Ansible and the federation's inventory.

    The relays of sites follow. If an agent or a relay does not start with the new release, its machine rolls back, and
    the command ends.
    """
    record = Federation(folder).record
    if not record.boards:
        raise FederationError(f"{folder} has no board to upgrade: run `fedquilt provision` first")
    if not (playbooks / PLAYBOOK).is_file():
        raise FederationError(
            f"{playbooks / PLAYBOOK}: there is no such playbook; run the command in the folder of fedquilt, or give "
            "the folder with --playbooks"
        )
    check_limit(record, limit)
    command = [find_ansible(), PLAYBOOK, "--inventory", str((folder / INVENTORY).absolute())]
    code = _run(command + (["--limit", limit] if limit else []) + (options or []), playbooks)
    check_exit_code(code)


def check_limit(record: FederationRecord, limit: str) -> None:
    """Check the names in a pattern of Ansible; groups, wildcards, slices, regular expressions and files pass.

    Raises:
        FederationError: the inventory has no such board, or the board is revoked.
    """
    boards = [name for name, board in record.boards.items() if board.revoked is None]
    words = [] if "~" in limit else [word.strip().lstrip("!&") for word in re.split("[,:]", limit)]
    for word in words:
        if word not in {"", *GROUPS, *boards, *record.relays} and not set(word) & set("*?[]@"):
            if word in record.boards:
                raise FederationError(f"--limit {limit}: {word} is revoked; remove it from the list")
            near = difflib.get_close_matches(word, boards, 1)
            hint = f"did you mean {near[0]}?" if near else "`fedquilt boards` lists the boards"
            raise FederationError(f"--limit {limit}: there is no board {word!r}; {hint}")


def find_ansible() -> str:
    """Return the path of ``ansible-playbook``: beside this Python, or on the PATH.

    Raises:
        UpgradeFailedError: Ansible is not installed.
    """
    own = Path(sys.executable).with_name("ansible-playbook")
    found = str(own) if own.is_file() else shutil.which("ansible-playbook")
    if found is None:
        raise UpgradeFailedError(f"Ansible is not installed: {how_to_install('deploy')}")
    return found


def _run(command: Sequence[str], folder: Path) -> int:
    """Run a command in a folder, with this terminal, and return its exit code.

    Raises:
        KeyboardInterrupt: the terminal has interrupted both. The command has ended by itself.
    """
    with _noted_interrupts() as interrupts:
        code = subprocess.Popen(command, cwd=folder).wait()  # noqa: S603 - Ansible, with the user's own options
    if interrupts:
        raise KeyboardInterrupt
    return code


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield the SIGINTs that arrive in the block, which goes on; an ignored SIGINT stays ignored."""
    found, before = list[int](), signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: found.append(number))
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


def check_exit_code(code: int) -> None:
    """Check the exit code of ``ansible-playbook``, which has printed what happened.

    Raises:
        KeyboardInterrupt: the user interrupted it.
        UpgradeFailedError: it did not end well.
    """
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        meanings = [meaning for bit, meaning in _MEANINGS.items() if 0 < code < 16 and code & bit]
        advice = ". Boards that it had finished keep the new release; run the command again for the others"
        raise UpgradeFailedError(
            f"Ansible ended with exit code {code}: {', '.join(meanings) or 'it could not run the playbook'}. Its "
            f"output above names the step, or an option that is wrong{advice if meanings else ''}"
        )


def run(arguments: list[str]) -> None:
    """Run ``fedquilt upgrade`` with these arguments."""
    app(arguments, prog_name="fedquilt")
