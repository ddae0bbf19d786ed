"""``import fedquilt as fq``: every name exists, editors know it, and the import costs an idle agent nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_origin

import pytest
from tests.support.tables import each

import fedquilt as fq
from fedquilt_common import __version__, algorithm_api, errors
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.errors import FedquiltError, PackageMissingError

SOURCE = Path(fq.__file__)
HEAVY = ("numpy", "torch", "pydantic", "yaml", "httpx", "rich", "fedquilt_server", "fedquilt_client")


def loaded_after(code: str) -> set[str]:
    """The heavy modules that a fresh process holds after ``code``."""
    text = f"{code}\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import fedquilt", set()),
        ("import fedquilt; dir(fedquilt); fedquilt.FedquiltError, fedquilt.Task, fedquilt.derive_seed", set()),
        ("import fedquilt; fedquilt.Experiment", {"pydantic", "yaml"}),
        ("import fedquilt; fedquilt.FedAvg, fedquilt.mean", {"numpy"}),
    ],
)
def test_a_name_loads_only_what_it_needs(code: str, loaded: set[str]) -> None:
    assert loaded_after(code) == loaded


def test_what_is_loaded_would_be_seen() -> None:
    assert {"numpy", "fedquilt_server"} <= loaded_after("import fedquilt; fedquilt.simulate; fedquilt.FedAvg")


@each(fq.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(fq, name) is not None


def test_an_editor_is_offered_the_public_names_only() -> None:
    assert dir(fq) == sorted(fq.__all__)


def test_editors_and_mypy_see_the_same_names_from_the_same_modules() -> None:
    blocks = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    assert len(blocks) == 1
    seen = {
        (node.module, alias.name)
        for node in blocks[0].body if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    assert seen == {(module, name) for name, module in fq._HOMES.items()}
    assert set(fq.__all__) == {"__version__", *fq._HOMES}
    assert len(fq.__all__) == len(set(fq.__all__))


def test_every_error_and_every_algorithm_is_public() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedquiltError)]
    assert {kind.__name__ for kind in kinds} <= set(fq.__all__)
    assert {kind.__name__ for kind in ALGORITHMS.values()} <= set(fq.__all__)
    assert all(getattr(fq, kind.__name__) is kind for kind in [*kinds, *ALGORITHMS.values()])


def test_everything_an_algorithm_meets_is_public() -> None:
    names = {name: getattr(algorithm_api, name) for name in algorithm_api.__all__}
    own = {name for name, each in names.items() if isinstance(each, type) or get_origin(each) is not None}
    assert own <= set(fq.__all__)
    assert {"Algorithm", "Declaration", "OutputViews", "Round"} <= own


def test_the_version_is_the_programs() -> None:
    assert fq.__version__ == __version__


def test_an_unknown_name_is_an_attribute_error_with_advice() -> None:
    with pytest.raises(AttributeError, match=r"fedquilt has no 'simulat'; did you mean 'simulate'\?"):
        fq.simulat  # noqa: B018
    assert not hasattr(fq, "xyzzy")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(fq), "simulate", raising=False)
    monkeypatch.delitem(sys.modules, "fedquilt.simulation", raising=False)
    monkeypatch.setitem(sys.modules, "fedquilt_common.experiment_file", None)
    with pytest.raises(
        PackageMissingError, match=r"fedquilt.simulate needs .*: run `pip install 'fedquilt\[server\]'`"
    ):
        fq.simulate  # noqa: B018


def test_the_wheel_has_every_package() -> None:
    root = SOURCE.parents[2]
    (line,) = re.findall(r"^packages = (.+)$", (root / "pyproject.toml").read_text(), re.MULTILINE)
    there = [path.parent for side in ("common", "server", "client") for path in (root / side).glob("*/__init__.py")]
    assert set(ast.literal_eval(line)) == {str(path.relative_to(root)) for path in there}
    assert all((path / "py.typed").exists() for path in there)
