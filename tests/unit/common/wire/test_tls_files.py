"""Files of TLS that cannot be used: the message names the file and the cause, and nothing asks for a passphrase."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.tls import tls_context
from fedquilt_server.provisioning.federation import make_federation

BAD = ("empty", "der", "damaged", "locked", "other")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a board, and bad ones of each kind."""
    federation = make_federation(tmp_path_factory.mktemp("f") / "f", "lab", ["localhost"])
    for name in ("pi", "desk"):
        federation.provision(name, "pi4")
    own = federation.board_folder("pi")
    der = ssl.PEM_cert_to_DER_cert((own / "tls.crt").read_text())
    key = serialization.load_pem_private_key((own / "tls.key").read_bytes(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (own / "locked.key").write_bytes(key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"x")))
    lock = serialization.BestAvailableEncryption(b"x")
    (own / "old.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, lock))
    (own / "der.key").write_bytes(key.private_bytes(serialization.Encoding.DER, pkcs8, serialization.NoEncryption()))
    (own / "other.key").write_bytes((federation.board_folder("desk") / "tls.key").read_bytes())
    for kind in ("crt", "key"):
        text = (own / f"tls.{kind}").read_text()
        (own / f"empty.{kind}").write_text("\n")
        (own / f"damaged.{kind}").write_text(text[:60] + text[100:])
        (own / f"text.{kind}").write_text("hello")
    (own / "der.crt").write_bytes(der)
    return own


@pytest.mark.parametrize(
    ("role", "file", "words"),
    [
        *((role, "empty.crt", "is empty") for role in ("ca", "cert")),
        *((role, "der.crt", "openssl x509 -inform der") for role in ("ca", "cert")),
        *((role, "damaged.crt", "is damaged") for role in ("ca", "cert")),
        *((role, "text.crt", "holds no certificate") for role in ("ca", "cert")),
        *((role, "tls.key", "holds no certificate") for role in ("ca", "cert")),
        ("ca", "none.crt", "No such file"),
        ("cert", ".", "Is a directory"),
        ("key", "empty.key", "is empty"),
        ("key", "der.key", "openssl pkey -inform der"),
        ("key", "damaged.key", "is damaged"),
        ("key", "locked.key", "has a passphrase"),
        ("key", "old.key", "has a passphrase"),
        ("key", "tls.crt", "holds no key"),
        ("key", "other.key", "does not belong to the certificate"),
    ],
)
def test_the_file_and_the_cause_are_named(role: str, file: str, words: str, folder: Path) -> None:
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key", role: file}
    address = parse_broker_url("mqtts://localhost").with_files(*(str(folder / name) for name in files.values()))
    with pytest.raises(ExperimentError, match=r"the TLS files for mqtts://localhost:8883 cannot be used: ") as raised:
        tls_context(address)
    assert f"{folder / file}" in str(raised.value)
    assert words in str(raised.value)
    assert "_ssl.c" not in str(raised.value)


def test_a_key_may_be_in_the_certificates_file(folder: Path) -> None:
    (folder / "both.pem").write_text((folder / "tls.key").read_text() + (folder / "tls.crt").read_text())
    tls_context(parse_broker_url("mqtts://localhost").with_files("", str(folder / "both.pem"), ""))
