"""The inventory that `fedquilt provision` writes, as the coordinator reads it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.files.yaml_text import MAX_CHARACTERS
from fedquilt_common.types import Assignments
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.provisioning.owners import InventoryFile, check_inventory, find_inventory, read_assignments

ROOT = Path(__file__).parents[4]


def test_what_provision_writes_is_what_the_coordinator_reads(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    federation = make_federation(folder, "lab", ["localhost"], 8883)
    federation.provision("pi-1", "pi4", "0-1,4")
    path = find_inventory(str(folder / "coordinator" / "tls.crt"))
    assert path == folder / "inventory.yml"
    file = InventoryFile(path)
    first = file.assignments()
    assert first == Assignments({0: "pi-1", 1: "pi-1", 4: "pi-1"}, relays={})
    assert file.assignments() is first
    federation.provision("pi-2", "jetson-nano")
    assert file.assignments() == Assignments({**first.owners, 2: "pi-2"}, relays={})
    federation.revoke("pi-1")
    assert file.assignments() == Assignments({2: "pi-2"}, frozenset({"pi-1"}), {})
    federation.provision("pi-1", clients="0")
    assert file.assignments() == Assignments({0: "pi-1", 2: "pi-2"}, relays={})


def test_boards_whose_names_resemble_numbers(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "federation", "7e2", ["localhost"], 8883)
    for name in ("1e3", "0o17"):
        federation.provision(name, "pi4")
    path = federation.folder / "inventory.yml"
    check_inventory(path, "7e2")
    assert read_assignments(path).owners == {0: "1e3", 1: "0o17"}


def test_the_files_of_a_large_fleet_are_read(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "federation", "lab", ["localhost"], 8883)
    federation.provision("pi-1", "pi4")
    for name in ("federation.yaml", "inventory.yml"):
        path = federation.folder / name
        path.write_text(path.read_text() + f"# {'x' * 1000}\n" * (MAX_CHARACTERS // 1000))
    assert list(federation.record.boards) == ["pi-1"]
    assert read_assignments(federation.folder / "inventory.yml").owners == {0: "pi-1"}


def test_an_inventory_is_of_one_federation(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("all: {vars: {fedquilt_federation: lab}}")
    check_inventory(path, "lab")
    with pytest.raises(ExperimentError, match=r"inventory.yml is of .*'lab': give --federation lab"):
        check_inventory(path, "loft")
    path.write_text("all: {children: {}}")
    check_inventory(path, "loft")


@pytest.mark.parametrize("certificate", ["", "elsewhere/tls.crt", "other/coordinator/tls.crt"])
def test_other_certificates_have_no_inventory(
    certificate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yml").write_text("all:")
    assert find_inventory(certificate) is None


def test_without_a_certificate_the_working_folder_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert find_inventory("") is None


def test_the_documented_inventory_is_read() -> None:
    assert read_assignments(ROOT / "ansible" / "inventory.example.yml") == Assignments(
        {0: "kitchen", 1: "desk"}, frozenset({"cellar"}), relays={"hall-relay": "hall"}
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "inventory.yml"),
        ("[boards]\npi ansible_host=pi.local", "inventory.yml"),
        ("- a", "no groups"),
        ("all: {children: {agents: {hosts: {pi: {fedquilt_clients: many}}}}}", "'many' are not valid"),
        (
            "all: {children: {agents: {hosts: {a: {fedquilt_clients: 1}, b: {fedquilt_clients: 0-3}}}}}",
            "client 1 belongs to a and to b",
        ),
        ("all: {hosts: {pi-0: 5}}", "the host pi-0 has 5 where"),
        ("all: {hosts: {pi-0: [fedquilt_clients]}}", "the host pi-0 has ['fedquilt_clients'] where"),
        ("all: {vars: {fedquilt_revoked: pi-0}}", "`fedquilt_revoked` has 'pi-0' where a list of boards belongs"),
        ("all: {vars: [pi-0]}", "`vars` has ['pi-0'] where"),
        ("all: {hosts: [pi-0]}", "`hosts` has ['pi-0'] where"),
    ],
)
def test_what_is_no_inventory(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FederationError, match=r"the inventory .*inventory.yml cannot be used: .*Correct it") as caught:
        InventoryFile(path)
    assert words in str(caught.value)


def test_a_damaged_inventory_leaves_the_last_valid_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("all: {hosts: {pi: {fedquilt_clients: 0}, desk:}, vars: {x: 1}}")
    file = InventoryFile(path)
    assert file.assignments() == Assignments({0: "pi"}, relays={})
    path.write_text("all: {")
    with caplog.at_level(logging.WARNING):
        assert file.assignments() == Assignments({0: "pi"}, relays={})
        assert file.assignments() == Assignments({0: "pi"}, relays={})
        path.unlink()
        assert file.assignments() == Assignments({0: "pi"}, relays={})
    assert [record.message.endswith("that it has read before") for record in caplog.records] == [True, True]
