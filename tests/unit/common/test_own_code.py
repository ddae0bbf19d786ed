"""Digests of a user's own modules, which are found without being imported."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.own_code import check_own_code, digest_module, digest_own_code

pytestmark = pytest.mark.quick

NET = b"raise SystemExit('this module must not be imported')\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package ``my_lab`` and the module ``my_net``, on Python's path."""
    package = tmp_path / "my_lab" / "parts"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_bytes(NET)
    (package / "net.py").write_bytes(NET)
    (tmp_path / "my_net.py").write_bytes(NET)
    monkeypatch.syspath_prepend(tmp_path)
    digest_module.cache_clear()
    yield tmp_path
    digest_module.cache_clear()


def experiment(**changes: object) -> Experiment:
    raw = {"name": "own", "rounds": 1, "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"},
           "algorithm": {"name": "fedavg"}, "fleet": [{"kind": "pi", "clients": 2}]}  # fmt: skip
    return Experiment.model_validate({**raw, **changes})


def test_each_own_module_of_an_experiment_has_a_digest(own: Path) -> None:
    digest = hashlib.sha256(NET).hexdigest()
    made = experiment(
        model={"name": "my_net:build"},
        algorithm={"name": "my_lab.parts.net:Algorithm"},
        data={"set": "my_lab.parts:load", "clients": 2, "public": {"set": "my_lab:public"}},
    )
    assert digest_own_code(made) == dict.fromkeys(("my_lab", "my_lab.parts", "my_lab.parts.net", "my_net"), digest)
    assert not {"my_lab", "my_net"} & sys.modules.keys()
    assert own.exists()


@pytest.mark.parametrize("name", ["not_there:build", "my_net.deeper:build", "my_lab.missing.net:build"])
def test_what_is_no_file_has_none(own: Path, name: str) -> None:
    assert digest_own_code(experiment(model={"name": name})) == {}
    assert own.exists()


def test_another_version_is_refused_until_the_process_starts_again(own: Path) -> None:
    made, digest = experiment(model={"name": "my_net:build"}), hashlib.sha256(NET).hexdigest()
    expected = {"my_net": digest, "not_here": digest}
    check_own_code(expected, made, ["my_net"])
    (own / "my_net.py").write_bytes(b"changed\n")
    check_own_code(expected, made, ["my_net"])  # a process keeps the digest, as it keeps the module
    digest_module.cache_clear()
    changed = hashlib.sha256(b"changed\n").hexdigest()
    with pytest.raises(ExperimentError) as caught:
        check_own_code(expected, made, ["*"])
    assert str(caught.value) == (
        f"the code of 'my_net' on this board differs from the coordinator's ({changed[:12]} instead of {digest[:12]}): "
        "make the two files equal, and restart the agent"
    )


def test_a_coordinator_learns_nothing_of_modules_that_the_owner_has_not_allowed(own: Path) -> None:
    assert own.exists()
    check_own_code({"my_net": "0a" * 32, "my_lab": "0a" * 32}, experiment(model={"name": "my_net:build"}), ["my_lab"])
