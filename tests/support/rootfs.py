"""Root file systems of the distributions that boards run, made from the distributions' own packages and cached."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

KEYRINGS = Path("/usr/share/keyrings")
CACHE = Path(os.environ.get("FEDQUILT_TEST_CACHE") or "/var/cache/fedquilt-test")


@dataclass(frozen=True)
class Distribution:
    """A release of Debian or Ubuntu."""

    name: str
    suite: str
    python: str
    keyring: str = "debian-archive-keyring"
    """The package, and the file without its ending, with the keys that sign the distribution's packages."""
    components: str = "main"


UBUNTU = ("ubuntu-archive-keyring", "main,universe")
DEBIAN_12 = Distribution("Debian 12", "bookworm", "3.11")
DISTRIBUTIONS = (
    DEBIAN_12,
    Distribution("Debian 13", "trixie", "3.13"),
    Distribution("Ubuntu 22.04", "jammy", "3.10", *UBUNTU),
    Distribution("Ubuntu 24.04", "noble", "3.12", *UBUNTU),
)


@dataclass(frozen=True)
class RootFileSystem:
    """What a root file system contains; it is cached under a name that changes with that."""

    distribution: Distribution
    packages: str
    hooks: tuple[str, ...] = ()
    """Shell commands at the end, with the folder of the root file system as ``$1``."""

    @property
    def name(self) -> str:
        contents = "\n".join((self.packages, *self.hooks))
        return f"{self.distribution.suite}-{zlib.crc32(contents.encode()):08x}"

    @property
    def archive(self) -> Path:
        return CACHE / f"{self.name}.tar"

    def why_not(self) -> str:
        """Return what is missing to make it and how to get that; empty if nothing is."""
        if self.archive.exists():
            return ""
        if shutil.which("mmdebstrap") is None:
            return "mmdebstrap is not installed: sudo apt-get install mmdebstrap"
        keys = KEYRINGS / f"{self.distribution.keyring}.gpg"
        if not keys.exists():
            missing = f"{keys} is missing, whose keys sign the packages of {self.distribution.name}"
            return f"{missing}: install it, or put a root file system at {self.archive}"
        return ""

    def make(self) -> Path:
        """Return its archive; makes it first if it is not cached, which takes some minutes."""
        if self.archive.exists():
            return self.archive
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"{self.name}.{os.getpid()}.tar"
        options = [f"--components={self.distribution.components}", f"--include={self.packages}"]
        options += [f"--customize-hook={hook}" for hook in self.hooks]
        command = ["mmdebstrap", "--variant=minbase", *options, self.distribution.suite, str(partial)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"mmdebstrap failed for {self.distribution.name}: {done.stderr[-3000:]}"
            partial.replace(self.archive)
        finally:
            partial.unlink(missing_ok=True)
        return self.archive
