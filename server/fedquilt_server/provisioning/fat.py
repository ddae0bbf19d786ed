"""Files in a FAT file system inside an image, read and written with mtools: no root, no loop device, no mount."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from fedquilt_common.errors import ImageError
from fedquilt_server.provisioning.partitions import DiskPartition

_FREE: Final = re.compile(r"([\d\s]+) bytes free")
_SECONDS: Final = 1800.0


@dataclass(frozen=True)
class FatPartition:
    """A FAT partition of an image file."""

    image: Path
    partition: DiskPartition

    @property
    def free(self) -> int:
        """Bytes."""
        found = _FREE.search(self._run("mdir", "::/").decode("utf-8", "replace"))
        return int(re.sub(r"\s", "", found[1])) if found else 0

    def names(self, folder: str = "/") -> set[str]:
        """Files and folders directly in ``folder``, folders with a ``/`` at their end."""
        listed = self._run("mdir", "-b", f"::{folder}").decode("utf-8", "replace").splitlines()
        return {line.removeprefix("::").removeprefix(folder).lstrip("/") for line in listed if line.strip()}

    def read(self, path: str) -> bytes:
        return self._run("mtype", f"::/{path}")

    def write_text(self, path: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "file"
            source.write_bytes(text.encode("utf-8"))
            self.write_file(path, source)

    def write_file(self, path: str, source: Path) -> None:
        """Replace ``path``; its folders are made."""
        for folder in [*PurePosixPath(path).parents][-2::-1]:  # without ".", the outermost first
            self._run("mmd", "-D", "s", f"::/{folder}", check=False)
        self._run("mcopy", "-o", "-Q", str(source), f"::/{path}")

    def remove_folder(self, path: str) -> None:
        """With all that is in it; nothing where there is none."""
        if f"{path}/" in self.names():
            self._run("mdeltree", f"::/{path}")

    def _run(self, tool: str, *arguments: str, check: bool = True) -> bytes:
        program = shutil.which(tool)
        if program is None:
            raise ImageError(f"there is no program {tool}: install mtools (sudo apt-get install mtools, or brew)")
        place = f"{self.image}@@{self.partition.start}"
        # mtools takes a partition for damaged if it is not as old systems cut disks; stock images are not.
        done = subprocess.run(  # noqa: S603 - mtools, with what this module says
            [program, "-i", place, *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "MTOOLS_SKIP_CHECK": "1"},
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise ImageError(f"{self.image}: {tool} could not work on its boot partition: {said}")
        return done.stdout


def sizes(texts: Mapping[str, str], files: Mapping[str, Path]) -> int:
    """Bytes that these take."""
    return sum(len(text.encode()) for text in texts.values()) + sum(path.stat().st_size for path in files.values())
