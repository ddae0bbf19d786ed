"""Kinds of boards that fedquilt knows; any other name is a board like any Linux machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class BoardKind:
    """``memory``: MiB of RAM that the board is sold with. ``boot_partition``: whether its image has one in FAT, from
    which cloud-init reads. ``user``: who logs in on a stock image, empty where nobody can know."""

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
    "jetson-orin-nano": _jetson("NVIDIA Jetson Orin Nano", 8192),
    "jetson-agx-orin": _jetson("NVIDIA Jetson AGX Orin", 32768),
}
ANY: Final = BoardKind("Linux board", 0, boot_partition=False, user="")


def kind_of(name: str) -> BoardKind:
    """What is known of a kind; ``ANY`` of those that are not in the table."""
    return KINDS.get(name, ANY)
