"""What a simulation needs whose agents run on other machines: a broker for them, and something that hosts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fedquilt_common.files.durable import create_private
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_server.simulate.child_process import ChildSpec

if TYPE_CHECKING:
    from fedquilt_server.simulate.plan import SimulationPlan

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


class AgentHosts(Protocol):
    """Hosts the agents of a simulation elsewhere."""

    def spec(self, plan: SimulationPlan) -> ChildSpec:
        """Describe the process on this machine that starts and watches the agents, and write what it needs."""

    def news(self, plan: SimulationPlan) -> Sequence[str]:
        """Return sentences on what has happened since the last call."""
