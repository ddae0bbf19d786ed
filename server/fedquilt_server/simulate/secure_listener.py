"""The listener of a broker that agents on other machines reach."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fedquilt_common.files.durable import create_private
from fedquilt_common.wire.broker_url import BrokerAddress

USER: Final = "run"
"""The only user of the broker of a run."""
CA_FILE: Final = "ca.crt"


@dataclass(frozen=True)
class SecureListener:
    """Where the broker of a run listens for other machines: one address, with TLS and a password.

    Attributes:
        host: the address; nothing listens at any other.
        password: of ``USER``.
        ca: the certificate authority in PEM, which has signed ``certificate`` only.
        certificate: of the broker, in PEM.
        key: of the certificate, in PEM.
        password_line: of Mosquitto's password file.
    """

    host: str
    ca: str
    certificate: str
    password: str = field(repr=False)
    key: str = field(repr=False)
    password_line: str = field(repr=False)

    def address(self, port: int, folder: Path) -> BrokerAddress:
        """Return the broker's address for this machine; ``folder`` has its files."""
        address = BrokerAddress(self.host, port, tls=True, username=USER, password=self.password)
        return replace(address, ca=str(folder.resolve() / CA_FILE))

    def write(self, folder: Path) -> None:
        """Write the files of the broker, readable only for their owner."""
        texts = {CA_FILE: self.ca, "broker.crt": self.certificate, "broker.key": self.key, "users": self.password_line}
        for name, text in texts.items():
            create_private(folder / name).write_text(text, encoding="ascii")

    def config(self, folder: Path, port: int) -> list[str]:
        """Return the lines of Mosquitto's configuration that replace those of an open loopback listener."""
        where = folder.resolve()
        return [
            f"listener {port} {self.host}",
            f"certfile {where / 'broker.crt'}",
            f"keyfile {where / 'broker.key'}",
            "tls_version tlsv1.2",
            "allow_anonymous false",
            f"password_file {where / 'users'}",
        ]
