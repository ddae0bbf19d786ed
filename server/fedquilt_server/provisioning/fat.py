"""Read and write files of a FAT partition inside an image, with mtools: without root, loop devices or mounts."""

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
        """Free space in bytes."""
        match = _FREE.search(self._run_tool("mdir", "::/").decode("utf-8", "replace"))
        return int(re.sub(r"\s", "", match[1])) if match else 0

    def names(self, folder: str = "/") -> set[str]:
        """List the files and folders in ``folder``. Names of folders end with ``/``."""
        listed = self._run_tool("mdir", "-b", f"::{folder}").decode("utf-8", "replace").splitlines()
        return {line.removeprefix("::").removeprefix(folder).lstrip("/") for line in listed if line.strip()}

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self._run_tool("mtype", f"::/{path}")

    def write_text(self, path: str, text: str) -> None:
        """Write ``text`` to ``path`` as UTF-8."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "file"
            source.write_bytes(text.encode("utf-8"))
            self.write_file(path, source)

    def write_file(self, path: str, source: Path) -> None:
        """Copy ``source`` to ``path``, replace an existing file, and make missing folders."""
        for folder in [*PurePosixPath(path).parents][-2::-1]:  # the outermost folder first, without "."
            self._run_tool("mmd", "-D", "s", f"::/{folder}", check=False)
        self._run_tool("mcopy", "-o", "-Q", str(source), f"::/{path}")

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all its files, if it exists."""
        if f"{path}/" in self.names():
            self._run_tool("mdeltree", f"::/{path}")

    def _run_tool(self, tool: str, *arguments: str, check: bool = True) -> bytes:
        program = shutil.which(tool)
        if program is None:
            raise ImageError(
                f"the program {tool} is missing: install mtools (sudo apt-get install mtools, or brew install mtools)"
            )
        place = f"{self.image}@@{self.partition.start}"
        # Without MTOOLS_SKIP_CHECK, mtools rejects stock images, because their geometry is not that of old systems.
        done = subprocess.run(  # noqa: S603 - mtools, with arguments of this module
            [program, "-i", place, *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "MTOOLS_SKIP_CHECK": "1"},
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            output = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise ImageError(f"{self.image}: {tool} failed on its boot partition: {output}")
        return done.stdout


def total_size(texts: Mapping[str, str], files: Mapping[str, Path]) -> int:
    """Return the total size of texts and files in bytes."""
    return sum(len(text.encode()) for text in texts.values()) + sum(path.stat().st_size for path in files.values())
