"""The kinds of boards that fedquilt supports. A board of any other kind is treated as a plain Linux machine."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import FederationError
from fedquilt_common.wire.topics import NAME


@dataclass(frozen=True)
class BoardKind:
    """A kind of board.

    Args:
        label: the board's full name.
        memory: RAM in MiB as sold; 0 if unknown.
        boot_partition: whether its image has a FAT boot partition, which cloud-init reads.
        user: the user who logs in on a stock image; empty if unknown.
        jetson: whether it is an NVIDIA Jetson.
    """

    label: str
    memory: int
    boot_partition: bool = True
    user: str = "pi"
    jetson: bool = False


def _jetson(label: str, memory: int) -> BoardKind:
    return BoardKind(label, memory, boot_partition=False, user="ubuntu", jetson=True)


KINDS: Final[dict[str, BoardKind]] = {
    "pi3b": BoardKind("Raspberry Pi 3 Model B", 1024),
    "pi3b-plus": BoardKind("Raspberry Pi 3 Model B+", 1024),
    "pi4": BoardKind("Raspberry Pi 4 Model B", 4096),
    "pi5": BoardKind("Raspberry Pi 5", 8192),
    "jetson-nano": _jetson("NVIDIA Jetson Nano", 4096),
    "jetson-xavier-nx": _jetson("NVIDIA Jetson Xavier NX", 8192),
    "jetson-agx-xavier": _jetson("NVIDIA Jetson AGX Xavier", 32768),
    "jetson-orin-nano": _jetson("NVIDIA Jetson Orin Nano", 8192),
    "jetson-agx-orin": _jetson("NVIDIA Jetson AGX Orin", 32768),
}
ANY: Final = BoardKind("Linux board", 0, boot_partition=False, user="")


def kind_of(name: str) -> BoardKind:
    """Return the kind with this name; ``ANY`` if it is not in the table."""
    return KINDS.get(name, ANY)


def check_kind(name: str) -> None:
    """Check the kind of a board: one of the table, or a word that resembles none of them.

    Raises:
        FederationError: it is not one word, or it resembles a kind of the table.
    """
    if name in KINDS:
        return
    if not NAME.fullmatch(name):
        raise FederationError(f"{name!r} is not a kind: use one of {', '.join(KINDS)}, or a word of your own")
    if near := difflib.get_close_matches(name.lower(), KINDS, 1):
        raise FederationError(
            f"there is no kind {name!r}; did you mean {near[0]}? For any other board, write a kind of your own that "
            "resembles none, such as pc"
        )
