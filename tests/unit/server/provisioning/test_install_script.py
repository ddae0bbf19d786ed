"""``install.sh`` in a mount namespace, whose changes of /etc, /opt and /run nobody else sees; systemd is replaced."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedquilt_server.provisioning.packaged_files import read_packaged

OVERLAY = """
set -e
for folder in etc opt run; do
  mkdir -p "$WORK/$folder/upper" "$WORK/$folder/work"
  mount -t overlay -o "lowerdir=/$folder,upperdir=$WORK/$folder/upper,workdir=$WORK/$folder/work" overlay "/$folder"
done
exec sh "$CARD/install.sh"
"""
SYSTEMCTL = '#!/bin/sh\necho "$*" >>"$WORK/calls"\n'


def can_mount() -> bool:
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs Linux and root, for a mount namespace")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The folder ``fedquilt`` of a card, whose release is already installed."""
    folder = tmp_path / "card"
    for name in ("identity", "wheels"):
        (folder / name).mkdir(parents=True)
    (folder / "install.sh").write_text(read_packaged("install.sh"))
    (folder / "fedquilt-agent.service").write_text(read_packaged("fedquilt-agent.service"))
    (folder / "identity" / "tls.key").write_text("PRIVATE KEY\n" * 20)
    (folder / "identity" / "agent.yaml").write_text("id: kitchen\n")
    (folder / "wheels" / "requirements.txt").write_text("fedquilt\n")
    digest = hashlib.sha256(b"fedquilt\n").hexdigest()[:12]
    release = tmp_path / "work" / "opt" / "upper" / "fedquilt" / "releases" / digest
    (release / "bin").mkdir(parents=True)
    (release / ".complete").touch()
    (release / "bin" / "fedquilt").write_text("#!/bin/sh\n")
    (release / "bin" / "fedquilt").chmod(0o755)
    return folder


def install(card: Path) -> tuple[Path, list[str]]:
    """Run the script; returns the folder that stands for /etc, and the calls of systemctl."""
    work, tools = card.parent / "work", card.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "systemctl").write_text(SYSTEMCTL)
    (tools / "systemctl").chmod(0o755)
    (work / "calls").unlink(missing_ok=True)
    path = f"{tools}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {"WORK": str(work), "CARD": str(card), "PATH": path}
    words = ["unshare", "--mount", "sh", "-c", OVERLAY]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return work / "etc" / "upper", (work / "calls").read_text().splitlines()


def test_the_script_may_run_longer_than_systemd_waits(card: Path) -> None:
    """systemd forgets the type of a unit whose file is removed while it runs, and kills it after 90 s."""
    etc, calls = install(card)
    assert (etc / "systemd" / "system" / "fedquilt-install.service").exists()
    assert calls[-2:] == [
        "disable --quiet --no-reload fedquilt-install.service", "restart --no-block fedquilt-agent.service",
    ]  # fmt: skip
    assert calls.index("enable --quiet fedquilt-agent.service") < calls.index(calls[-2])


def test_the_key_is_overwritten_on_the_card(card: Path, tmp_path: Path) -> None:
    """A second name of the same file shows what remains in its blocks."""
    os.link(card / "identity" / "tls.key", tmp_path / "blocks")
    etc, _ = install(card)
    assert (etc / "fedquilt" / "tls.key").read_text().startswith("PRIVATE KEY")
    assert (etc / "fedquilt" / "tls.key").stat().st_mode & 0o777 == 0o640
    assert set((tmp_path / "blocks").read_bytes()) == {0}
    assert sorted(path.name for path in card.iterdir()) == ["fedquilt-agent.service", "install.sh", "wheels"]


def test_an_erased_key_is_never_installed(card: Path) -> None:
    """The power fails while the key is overwritten: the next start goes on, with the key that is installed."""
    etc, _ = install(card)
    shutil.copytree(etc / "fedquilt", card / "erased")
    (card / "erased" / "tls.key").write_bytes(bytes(100))
    install(card)
    assert (etc / "fedquilt" / "tls.key").read_text().startswith("PRIVATE KEY")
    assert not (card / "erased").exists()


def test_a_newer_archive_keeps_the_release_before_for_a_rollback(card: Path, tmp_path: Path) -> None:
    releases = tmp_path / "work" / "opt" / "upper" / "fedquilt" / "releases"
    (first,) = releases.iterdir()
    install(card)
    (card / "wheels" / "requirements.txt").write_text("fedquilt, newer\n")
    second = first.rename(releases / hashlib.sha256(b"fedquilt, newer\n").hexdigest()[:12])
    install(card)
    install(card)
    links = {name: str((releases.parent / name).readlink()) for name in ("current", "previous")}
    assert links == {
        name: f"/opt/fedquilt/releases/{path.name}" for name, path in (("current", second), ("previous", first))
    }
