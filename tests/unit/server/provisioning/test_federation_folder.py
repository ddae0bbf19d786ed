"""The folder of a federation: its boards, its names and its certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from tests.unit.server.provisioning.test_federation import Knock, board_context, broker_of

from fedquilt_common import cli
from fedquilt_common.errors import ExperimentError, FederationError, FolderInUseError
from fedquilt_common.experiment.agent_config import AgentConfig, read_agent_config
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.provisioning import federation as module
from fedquilt_server.provisioning.authority import certificate_serial, expiry, make_authority
from fedquilt_server.provisioning.broker_process import reload_broker
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.record import read_record, write_record
from fedquilt_server.simulate.mosquitto import free_port


def test_boards_in_the_inventory(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["10.0.0.1", "box.local"], 9999)
    federation.provision("kitchen", "pi4", host="10.0.0.7", user="me")
    federation.provision("desk", "jetson-orin-nano", "4-6", workers=2, budget="256MiB")
    federation.provision("gone", "pi3b")
    federation.revoke("gone")
    found = yaml.safe_load((federation.folder / "inventory.yml").read_text())["all"]
    assert found["vars"] == {
        "fedquilt_federation": "lab", "fedquilt_broker": "mqtts://10.0.0.1:9999", "fedquilt_revoked": ["gone"],
        "fedquilt_relays": {},
    }  # fmt: skip
    assert found["children"]["agents"]["hosts"] == {
        "kitchen": {"ansible_host": "10.0.0.7", "ansible_user": "me", "fedquilt_kind": "pi4", "fedquilt_clients": "0"},
        "desk": {"ansible_host": "desk.local", "ansible_user": "ubuntu", "fedquilt_kind": "jetson-orin-nano",
                 "fedquilt_clients": "4-6"},
    }  # fmt: skip
    assert list(found["children"]["jetsons"]["hosts"]) == ["desk"]
    assert found["children"]["sites"] == found["children"]["relays"] == {"hosts": {}}
    config = AgentConfig.model_validate(read_agent_config(federation.board_folder("desk") / "agent.yaml"))
    assert (config.broker, config.workers, config.budget) == ("mqtts://10.0.0.1:9999", 2, 256 << 20)


def test_no_client_is_given_to_two_boards(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    assert federation.provision("a", "pi4", "0-1,3").clients == "0-1,3"
    assert [federation.provision(name, "pi4").clients for name in "bc"] == ["2", "4"]
    with pytest.raises(FederationError, match="a already hosts client 3: choose other clients for d"):
        federation.provision("d", "pi4", "3-5")
    federation.revoke("a")
    assert federation.provision("d", "pi4", "3").clients == "3"
    with pytest.raises(FederationError, match="d already hosts client 3"):
        federation.provision("a", "pi4")


def test_what_cannot_be_provisioned_changes_nothing(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.provision("a", "pi4")
    before = {path: path.read_bytes() for path in federation.folder.rglob("*") if path.is_file()}
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: federation.provision("a", "pi4"), FederationError, "--renew"),
        (lambda: federation.provision("coordinator", "pi4"), FederationError, "reserved name"),
        (
            lambda: federation.provision("Agents", "pi4"),
            FederationError,
            "reserved name of the broker or of Ansible",
        ),
        (lambda: federation.provision("A", "pi4"), FederationError, "host name would be 'a', the same as that of a:"),
        (lambda: make_federation(tmp_path / "g", "l" * 60, ["y"]), FederationError, "room for 48 at most"),
        (lambda: make_federation(tmp_path / "g", "lab", ["10.0.0.1:8883"]), FederationError, "without a port"),
        (lambda: make_federation(tmp_path / "g", "lab", ["b\u00fcro.local"]), FederationError, "must be a host name"),
        (lambda: federation.renew(["a b"]), FederationError, "must be a host name"),
        (lambda: federation.provision("../x", "pi4"), FederationError, "cannot be used in a topic"),
        (lambda: federation.provision("b", "pi 4"), FederationError, "'pi 4' is not a kind"),
        (lambda: federation.provision("b", "pi4", "x"), ExperimentError, "write them as 0-3"),
        (lambda: federation.provision("b", "pi4", workers=0), ExperimentError, "board b: workers"),
        (lambda: federation.provision("b", "pi4", budget="much"), ExperimentError, "board b: budget"),
        (lambda: federation.provision("b", "pi4", host="a b"), FederationError, "--host 'a b'"),
        (lambda: federation.provision("b", "pi4", user="Me: x"), FederationError, "--user"),
        (lambda: federation.provision("b", "pi4", renew=True), FederationError, "no board 'b' to renew"),
        (lambda: make_federation(tmp_path / "g", "lab", ["192.168.1.300"]), FederationError, "must be a host name"),
        (lambda: federation.revoke("b"), FederationError, r"no board 'b' .*boards: a"),
        (lambda: make_federation(federation.folder, "x", ["y"]), FederationError, "holds the federation 'lab'"),
        (lambda: make_federation(tmp_path / "g", "a/b", ["y"]), FederationError, "federation 'a/b'"),
    ]
    for act, error, words in cases:
        with pytest.raises(error, match=words):
            act()
    assert {path: path.read_bytes() for path in federation.folder.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "g").exists()


def test_renewing_withdraws_the_old_certificate(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    old = federation.provision("a", "pi4", "7")
    new = federation.provision("a", "pi4", renew=True, days=30)
    assert (new.clients, new.serial != old.serial) == ("7", True)
    assert timedelta(days=29) < new.until - datetime.now(timezone.utc) <= timedelta(days=30)
    assert [entry.serial for entry in federation.record.withdrawn] == [old.serial]


def test_no_certificate_outlives_the_authority_which_signs_no_further_ones(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    authority = x509.load_pem_x509_certificate((federation.folder / "authority" / "ca.crt").read_bytes())
    assert federation.provision("a", "pi4", days=12_000).until == expiry(authority)
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)


class Killed(BaseException):
    """Stands for a kill."""


def write_until_killed(left: Iterator[int], write: Callable[..., None], *content: Any) -> None:
    if next(left, None) is None:
        raise Killed
    write(*content)


def killed_before(write: int, act: Callable[[], object]) -> bool:
    """Act, killed before the write with this number; returns whether there was one."""
    left = iter(range(write))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_private", "write_durably", "write_record"):
            patch.setattr(module, name, partial(write_until_killed, left, getattr(module, name)))
        try:
            act()
        except Killed:
            return True
        return False


def renew_until_killed(federation: Federation, writes: int) -> bool:
    """Renew the board ``a``, killed before one of the writes; returns whether it was."""
    return killed_before(writes, lambda: federation.provision("a", renew=True))


@pytest.mark.parametrize("then", ["revoke", "renew"])
def test_no_certificate_of_killed_renewals_stays_valid(then: str, tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.provision("a", "jetson-nano")
    tls = federation.board_folder("a") / "tls.crt"
    issued, writes = {certificate_serial(tls)}, 0
    while renew_until_killed(federation, writes):  # before the first write, the second, ...
        writes += 1
        issued.add(certificate_serial(tls))
    assert writes > 8
    issued.add(certificate_serial(tls))
    renew_until_killed(federation, writes - 1)
    issued.add(certificate_serial(tls))
    if then == "revoke":
        federation.revoke("a")
    else:
        federation.provision("a", renew=True)
    assert {entry.serial for entry in federation.record.withdrawn} == issued
    listed = x509.load_pem_x509_crl((federation.broker_folder / "revoked.crl").read_bytes())
    assert {f"{entry.serial_number:x}" for entry in listed} == issued


def test_a_new_board_whose_command_was_killed_is_provisioned_again(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    before = federation.record
    lost = federation.provision("a", "pi4").serial
    write_record(federation.folder, before)
    federation.provision("a", "pi4")
    assert [entry.serial for entry in federation.record.withdrawn] == [lost]


def test_a_certificate_that_the_record_does_not_know_is_not_flashed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.provision("a", "jetson-nano")
    flash = ["flash", "--board", "a", "--no-wheels", "--out", str(tmp_path / "a.tar"), "--folder", str(tmp_path / "f")]
    assert cli.run(flash) == 0
    record = federation.record
    federation.provision("a", renew=True)
    write_record(federation.folder, record)
    assert cli.run(flash) == 8
    assert "run `fedquilt provision a --renew`" in capsys.readouterr().err
    federation.provision("a", renew=True)
    assert cli.run(flash) == 0


def test_a_certificate_that_a_killed_renewal_has_withdrawn_is_not_flashed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    serial = federation.provision("a", "jetson-nano").serial
    flash = ["flash", "--board", "a", "--no-wheels", "--out", str(tmp_path / "a.tar"), "--folder", str(tmp_path / "f")]
    assert renew_until_killed(federation, 4)  # the record is written, the new certificate is not
    assert (
        serial == certificate_serial(federation.board_folder("a") / "tls.crt") == federation.record.boards["a"].serial
    )
    assert cli.run(flash) == 8
    assert "run `fedquilt provision a --renew`" in capsys.readouterr().err


def test_the_list_of_withdrawn_certificates_is_valid_as_long_as_the_authority(tmp_path: Path) -> None:
    """A broker rejects every client if its list has expired."""
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    listed = x509.load_pem_x509_crl((federation.broker_folder / "revoked.crl").read_bytes())
    authority = x509.load_pem_x509_certificate((federation.folder / "authority" / "ca.crt").read_bytes())
    assert listed.next_update_utc == expiry(authority)


def test_renewing_keeps_what_else_the_configuration_says(tmp_path: Path) -> None:
    """For example the private profile, and keys that the user added."""
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.provision("a", "pi4", profile="private", workers=2, budget="64MiB", max_epsilon=8.0)
    path = federation.board_folder("a") / "agent.yaml"
    path.write_text(path.read_text() + "allow-import: [mine]\n")
    federation.provision("a", "pi5", renew=True, workers=3)
    config = AgentConfig.model_validate(read_agent_config(path))
    assert (config.kind, config.profile, config.workers, config.budget, config.max_epsilon, config.allow_import) == (
        "pi5", "private", 3, 64 << 20, 8.0, ["mine"],
    )  # fmt: skip


def test_renewing_changes_every_setting(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    topic = "mqtt://plug.local/tele/plug/SENSOR#ENERGY.Power"
    federation.provision("a", "pi4", max_epsilon=8.0, power_command="meter --one")

    def renewed(**settings: Any) -> tuple[float | None, str | None, str | None]:
        federation.provision("a", renew=True, **settings)
        path = federation.board_folder("a") / "agent.yaml"
        config = AgentConfig.model_validate(read_agent_config(path))
        return config.max_epsilon, config.power_command, config.power_topic

    assert renewed(max_epsilon=2.0, power_command="meter --two") == (2.0, "meter --two", None)
    assert renewed(power_topic=topic) == (2.0, None, topic)
    assert renewed(workers=2) == (2.0, None, topic)
    assert renewed(power_command="meter") == (2.0, "meter", None)
    with pytest.raises(ExperimentError, match="both given"):
        renewed(power_command="meter", power_topic=topic)


def test_names_that_other_programs_take_for_something_else(tmp_path: Path) -> None:
    """Ansible reads YAML 1.1, where ``on`` is true. Host names cannot have an underscore."""
    federation = make_federation(tmp_path / "f", "no", ["localhost"])
    for name in ("on", "living_room", "1_000"):
        federation.provision(name, "pi4")
    found = yaml.safe_load((federation.folder / "inventory.yml").read_text())["all"]
    assert set(found["children"]["agents"]["hosts"]) == {"on", "living_room", "1_000"}
    assert found["vars"]["fedquilt_federation"] == "no"
    assert found["children"]["agents"]["hosts"]["living_room"]["ansible_host"] == "living-room.local"
    with pytest.raises(FederationError, match="host name would be 'living-room', the same as that of living_room"):
        federation.provision("living-room", "pi4")


@pytest.mark.parametrize("content", ["thesis.tex", ".git/config", "authority/ca.crt"])
def test_a_folder_of_something_else_is_not_changed(content: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    path = folder / content
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    folder.chmod(0o755)
    with pytest.raises(FederationError, match=rf"mine is not empty \(it holds {path.relative_to(folder).parts[0]}"):
        make_federation(folder, "lab", ["localhost"])
    assert [found for found in folder.rglob("*") if found.is_file()] == [path]
    assert (path.read_text(), folder.stat().st_mode & 0o777) == ("mine", 0o755)


def test_what_an_interrupted_init_leaves_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "authority").mkdir()
    for name in (".lock", ".gitignore", "authority/ca.key"):
        (tmp_path / name).write_text("old")
    federation = make_federation(tmp_path, "lab", ["localhost"])
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".gitignore").read_text() == "old"
    assert federation.provision("a", "pi4").clients == "0"


def test_a_folder_that_has_been_moved(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    assert (federation.folder / ".gitignore").read_text() == "*\n"
    moved = Federation(federation.folder.rename(tmp_path / "g"))
    moved.write_broker_config()
    with broker_of(moved) as port:
        assert Knock(port, board_context(moved.folder / "coordinator")).inside


def test_the_broker_can_get_another_name(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    old = (federation.folder / "coordinator" / "tls.crt").read_text()
    federation.renew(["box.local", "127.0.0.1"])
    assert federation.record.url == f"mqtts://box.local:{federation.record.port}"
    assert (federation.folder / "coordinator" / "tls.crt").read_text() != old
    with broker_of(federation) as port:
        assert Knock(port, board_context(federation.folder / "coordinator")).inside


def test_a_host_may_be_longer_than_a_common_name(tmp_path: Path) -> None:
    hosts = [".".join(["a" * 63] * 3 + ["b" * 61])]
    federation = make_federation(tmp_path / "f", "lab", hosts)
    federation.add_site("hall", hosts)
    for folder in (federation.broker_folder, federation.site_folder("hall")):
        certificate = x509.load_pem_x509_certificate((folder / "broker.crt").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName)[0] == hosts[0]


def test_damaged_folders_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="holds no federation"):
        _ = Federation(tmp_path).record
    assert not list(tmp_path.iterdir())
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    (federation.folder / "authority" / "ca.key").write_text("nothing")
    with pytest.raises(FederationError, match="cannot read the certificate and its key"):
        federation.provision("a", "pi4")
    other = make_authority("lab", datetime.now(timezone.utc))
    (federation.folder / "authority" / "ca.key").write_text(other.key_pem)
    with pytest.raises(FederationError, match="the key does not belong to the certificate"):
        federation.provision("a", "pi4")
    (federation.folder / "authority" / "ca.key").unlink()
    with pytest.raises(FederationError, match="cannot be read"):
        federation.provision("a", "pi4")
    head = "name: x\nhosts: [y]\n"
    board = "boards: {a: {kind: pi4, clients: '0', host: a, serial: 1f, until: 2031-01-01T00:00:00%s}}"
    withdrawn = "withdrawn: [{serial: '%s', board: a, at: 2026-01-01T00:00:00Z}]"
    for text, words in (
        ("name: [1", "federation.yaml:"), ("name: x\n", "hosts: is missing; add it"),
        (head + board % "", r"federation.yaml: boards.a.until: must have a time zone, such as .*Z"),
        *((head + withdrawn % serial, r"federation.yaml: withdrawn.0.serial: must be .*hexadecimal")
          for serial in ("zz", "0", "0a", "f" * 40)),
    ):  # fmt: skip
        (federation.folder / "federation.yaml").write_text(text)
        with pytest.raises(FederationError, match=words):
            read_record(federation.folder)


def test_one_command_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    monkeypatch.setattr(module, "lock_folder", lambda folder: lock_folder(folder, 0.1))
    with lock_folder(federation.folder), pytest.raises(FolderInUseError):
        federation.provision("a", "pi4")
    assert federation.record.boards == {}


def test_a_command_of_ones_own_reloads_the_broker(tmp_path: Path) -> None:
    done = tmp_path / "done"
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], reload=f"touch '{done}'")
    federation.provision("a", "pi4")
    assert federation.revoke("a") == f"`touch '{done}'` succeeded"
    assert done.exists()
    record = federation.record
    for command, words in (
        ("false", "ended with exit code 1"),
        ("no-such-program", "No such file"),
        ("'", "quotation"),
    ):
        with pytest.raises(FederationError, match=words):
            reload_broker(federation.broker_folder, record.model_copy(update={"reload": command}))
