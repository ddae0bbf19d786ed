"""A renewal withdraws the old certificates of the workstation's users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509
from tests.unit.server.provisioning.test_federation_folder import killed_before

from fedquilt_common import cli
from fedquilt_common.errors import FederationError
from fedquilt_common.wire.topics import RESERVED
from fedquilt_server.provisioning.authority import certificate_serial, expiry
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.record import write_record


@pytest.fixture
def made(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "f", "lab", ["localhost"])


def serials(federation: Federation) -> dict[str, str]:
    """Return the serial number in the file of each user of the workstation."""
    return {user: certificate_serial(federation.folder / user / "tls.crt") for user in RESERVED}


def listed(folder: Path) -> set[str]:
    """Return the serial numbers of the revocation list in a broker's folder."""
    entries = x509.load_pem_x509_crl((folder / "revoked.crl").read_bytes())
    return {f"{entry.serial_number:x}" for entry in entries}


def forget_users(federation: Federation) -> None:
    """Let the record be as an earlier version wrote it."""
    write_record(federation.folder, federation.record.model_copy(update={"users": {}}))
    assert "users" not in (federation.folder / "federation.yaml").read_text()


def test_the_record_has_the_certificates_of_the_workstations_users(made: Federation) -> None:
    assert {user: entry.serial for user, entry in made.record.users.items()} == serials(made)
    assert not made.record.withdrawn
    for user, entry in made.record.users.items():
        certificate = x509.load_pem_x509_certificate((made.folder / user / "tls.crt").read_bytes())
        assert entry.until == expiry(certificate)


@pytest.mark.parametrize("earlier_version", [False, True])
def test_a_renewal_withdraws_the_old_certificates_and_not_the_new_ones(made: Federation, earlier_version: bool) -> None:
    made.add_site("hall", ["hall.example"])
    broker, first = certificate_serial(made.broker_folder / "broker.crt"), serials(made)
    if earlier_version:
        forget_users(made)
    made.renew()
    second = serials(made)
    assert listed(made.broker_folder) == listed(made.site_folder("hall")) == set(first.values())
    assert [(entry.board, entry.serial) for entry in made.record.withdrawn] == list(first.items())
    assert {user: entry.serial for user, entry in made.record.users.items()} == second
    made.renew()
    assert listed(made.broker_folder) == {*first.values(), *second.values()}
    assert not listed(made.broker_folder) & {broker, *serials(made).values()}


def test_a_certificate_whose_file_is_lost_is_withdrawn_by_the_record(made: Federation) -> None:
    first = serials(made)
    (made.folder / "coordinator" / "tls.crt").unlink()
    (made.folder / "watch" / "tls.crt").write_text("damaged")
    made.renew()
    assert listed(made.broker_folder) == set(first.values())


@pytest.mark.parametrize("earlier_version", [False, True])
def test_no_certificate_of_killed_renewals_stays_valid(made: Federation, earlier_version: bool) -> None:
    if earlier_version:
        forget_users(made)
    issued, writes = set(serials(made).values()), 0
    while killed_before(writes, made.renew):  # before the first write, the second, ...
        writes += 1
        issued |= set(serials(made).values())
    assert writes > 12
    valid = set(serials(made).values())
    assert {entry.serial for entry in made.record.withdrawn} == issued - valid
    assert listed(made.broker_folder) == issued - valid


def test_the_command_prints_who_loses_the_connection(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    made.add_site("hall", ["hall.example"])
    renew = ["federation", "renew", "--folder", str(made.folder)]
    assert cli.run(renew) == 0
    text = capsys.readouterr().out
    assert "The old certificates of coordinator, watch, homeassistant are withdrawn" in text
    assert f"loses its connection. It connects again by itself if it reads its files in {made.folder}/coor" in text
    assert "The broker of the site hall needs new files" in text
    assert "is known" not in text
    assert cli.run([*renew, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["withdrawn"], row["sites"]) == (list(RESERVED), ["hall"])
    assert "A running coordinator then loses its connection" in " ".join(row["notes"])


def test_the_command_names_users_without_an_old_certificate(
    made: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_users(made)
    (made.folder / "homeassistant" / "tls.crt").unlink()
    renew = ["federation", "renew", "--folder", str(made.folder)]
    assert cli.run(renew) == 0
    text = capsys.readouterr().out
    assert "The old certificates of coordinator, watch are withdrawn" in text
    assert "No old certificate of homeassistant is known, so none is withdrawn." in text
    assert cli.run([*renew, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["withdrawn"] == list(RESERVED)


@pytest.mark.parametrize("user", RESERVED)
def test_a_user_of_the_workstation_is_renewed_instead_of_revoked(made: Federation, user: str) -> None:
    with pytest.raises(FederationError, match=rf"{user} is a user .*: `fedquilt federation renew` withdraws"):
        made.revoke(user)
