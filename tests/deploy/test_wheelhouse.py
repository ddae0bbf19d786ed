"""The wheelhouse: what a board needs is chosen by what holds on the board, and everything has a hash."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "wheelhouse.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, *needs: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in needs)]
        archive.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(lines) + "\n")
    return path


def test_markers_are_those_of_the_board(script: Any, tmp_path: Path) -> None:
    own = wheel(
        tmp_path, "fedquilt", "numpy>=1.26", "torch>=2.1; extra == 'client'", "fastapi; extra == 'server'",
        "zeroconf; extra == 'mdns'", "old; python_version < '3.11'", "arm; platform_machine == 'aarch64'",
    )  # fmt: skip
    asked = {
        ("aarch64", "3.11", "client", ()): ["numpy>=1.26", "torch>=2.1", "arm"],
        ("x86_64", "3.10", "client", ("torch",)): ["numpy>=1.26", "old"],
        ("x86_64", "3.13", "server", ()): ["numpy>=1.26", "fastapi"],
        ("x86_64", "3.13", "server,mdns", ()): ["numpy>=1.26", "fastapi", "zeroconf"],
    }
    for (arch, python, extra, without), expected in asked.items():
        assert script.requirements(own, arch, python, extra, without) == expected
    lines = ["# words", "a==2; python_version >= '3.11'", "a==1; python_version < '3.11'", "b==3", ""]
    assert script.select_for_board(lines, "3.10", "aarch64") == ["a==1", "b==3"]


def test_libraries_for_gpus_are_refused(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not fit on a card; the wheelhouse that is there stays."""
    out = tmp_path / "wheels"
    out.mkdir()
    (out / "old").touch()

    def collect(folder: Path, *_: object) -> None:
        (folder / "nvidia_cublas-13.0-py3-none-linux_aarch64.whl").touch()

    monkeypatch.setattr(script, "collect", collect)
    monkeypatch.setattr(sys, "argv", ["wheelhouse.py", "--out", str(out)])
    with pytest.raises(SystemExit, match=r"libraries for NVIDIA GPUs .* Set PIP_EXTRA_INDEX_URL"):
        script.main()
    assert [path.name for path in tmp_path.rglob("*") if path != out] == ["old"]
    monkeypatch.setattr(sys, "argv", ["wheelhouse.py", "--out", str(out), "--gpu"])
    script.main()
    assert [path.name for path in out.iterdir()] == ["nvidia_cublas-13.0-py3-none-linux_aarch64.whl"]


def test_our_own_constraints_hold_for_every_python(script: Any) -> None:
    """One version of each project, whichever Python a board has."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    for python in ("3.10", "3.11", "3.12", "3.13"):
        names = [line.partition("==")[0].lower() for line in script.select_for_board(lines, python, "aarch64")]
        assert len(names) == len(set(names)) > 50


def test_every_wheel_but_pip_is_pinned_with_its_hash(script: Any, tmp_path: Path) -> None:
    for name in ("pip", "Some_Name", "other.thing"):
        wheel(tmp_path, name)
    digest = hashlib.sha256((tmp_path / "Some_Name-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    lines = script.pin_wheels(tmp_path).splitlines()[1:]
    assert f"some-name==1.0 --hash=sha256:{digest}" in lines
    assert [line.partition("==")[0] for line in lines] == ["some-name", "other-thing"]


def test_what_is_needed_and_not_there_is_noticed(script: Any, tmp_path: Path) -> None:
    """pip on a newer Python does not see what only an older one needs."""
    wheel(tmp_path, "anyio", "exceptiongroup; python_version < '3.11'", "idna", "torch", "x; extra == 'test'")
    wheel(tmp_path, "idna")
    assert script.find_missing(tmp_path, "aarch64", "3.10", ["torch"]) == {"exceptiongroup"}
    assert script.find_missing(tmp_path, "aarch64", "3.11", []) == {"torch"}
    wheel(
        tmp_path, "fedquilt", "idna", "torch; extra == 'dp'", "opacus; extra == 'secure'", "fastapi; extra == 'server'"
    )
    assert script.find_missing(tmp_path, "aarch64", "3.11", ["torch"]) == {"opacus"}


@pytest.mark.parametrize(
    ("without", "expected"),
    [([], {"numpy", "torch", "opacus", "opt-einsum", "pip"}), (["torch"], {"numpy", "opacus", "opt-einsum", "pip"})],
)
def test_every_wheelhouse_has_what_privacy_needs_but_no_torch_that_was_left_out(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: list[str], expected: set[str]
) -> None:
    own = ["numpy", *(f"torch; extra == '{extra}'" for extra in ("client", "dp")), "opacus>=1.5; extra == 'dp'"]
    needs = {"fedquilt": own, "opacus": ["torch>=2.6", "opt-einsum"]}

    def download(names: list[str], alone: bool) -> None:
        for name in names:
            made = wheel(tmp_path, name.replace("-", "_"), *needs.get(name, []))
            if not alone and name != "fedquilt":
                download([script.project(need) for need in script.requirements(made, "aarch64", "3.13", "", [])], False)

    def pip(*words: str) -> None:
        asked = words[words.index("--constraint") + 2 :] if "download" in words else ("fedquilt",)
        names = [script.project(word) for word in asked if word != "--no-deps"]
        download(names, "--no-deps" in words)

    monkeypatch.setattr(script, "pip", pip)
    script.collect(tmp_path, "aarch64", "3.13", "client", without)
    assert {script.project(path.name.split("-")[0]) for path in tmp_path.glob("*.whl")} == expected | {"fedquilt"}
    assert "opt-einsum==1.0 --hash" in (tmp_path / "requirements.txt").read_text()


def test_wheels_for_the_c_library_of_a_board(script: Any) -> None:
    found = script.platforms("aarch64")
    assert found[0] == "manylinux_2_35_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"} <= set(found)


@pytest.mark.skipif(
    os.environ.get("FEDQUILT_TEST_BOARDS") != "1", reason="downloads wheels: set FEDQUILT_TEST_BOARDS=1 to run it"
)
def test_a_wheelhouse_for_this_machine_installs_without_a_network(tmp_path: Path) -> None:
    """The real thing, without the largest wheels."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    words = [sys.executable, str(SCRIPT), "--arch", "x86_64", "--python", python, "--out", str(tmp_path / "wheels")]
    told = subprocess.run(
        [*words, "--without", "torch", "scipy", "scikit-learn"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert "MiB  in " in told.stdout
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (pip,) = (tmp_path / "wheels").glob("pip-*.whl")
    board = str(tmp_path / "env" / "bin" / "python")
    done = subprocess.run(
        [board, f"{pip}/pip", "install", "--quiet", "--no-index", "--no-deps", "--require-hashes", "--no-cache-dir",
         f"--find-links={tmp_path / 'wheels'}", "-r", str(tmp_path / "wheels" / "requirements.txt")],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    version = subprocess.run(
        [str(tmp_path / "env" / "bin" / "fedquilt"), "agent", "--help"], capture_output=True, check=False
    )
    assert version.returncode == 0
