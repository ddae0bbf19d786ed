"""Parse broker addresses such as ``mqtt://user:password@host:1883`` and ``mqtts://host``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from fedquilt_common.address_text import hide_password
from fedquilt_common.errors import ExperimentError

BROKER_PASSWORD = "FEDQUILT_BROKER_PASSWORD"  # noqa: S105 - the name of an environment variable
_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is and how to authenticate.

    Attributes:
        host: its name or IP address.
        port: its TCP port.
        tls: whether to connect with TLS.
        username: MQTT user; empty: none.
        password: MQTT password; never printed.
        ca: path of the CA certificates (PEM); empty: the system's CAs.
        cert: path of the client certificate (PEM); empty: none.
        key: path of the certificate's key (PEM); empty: none.
    """

    host: str
    port: int
    tls: bool = False
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"

    def without_password(self) -> str:
        """The URL with the user but without the password, for a command line that other users can read."""
        scheme, _, rest = str(self).partition("://")
        return f"{scheme}://{quote(self.username, safe='')}@{rest}" if self.username else str(self)

    def with_files(self, ca: str, cert: str, key: str) -> BrokerAddress:
        """The same address with TLS files.

        Raises:
            ExperimentError: a file is given, but the address is not mqtts://.
        """
        if (ca or cert or key) and not self.tls:
            raise ExperimentError(f"--ca, --cert and --key need an mqtts:// address, not {self}")
        return replace(self, ca=ca, cert=cert, key=key)

    def with_password(self, password: str) -> BrokerAddress:
        """The same address with ``password``, if it has a user without a password."""
        return self if self.password or not self.username else replace(self, password=password)


def parse_broker_url(url: str) -> BrokerAddress:
    """Parse a broker's URL; the scheme defaults to mqtt, the port to 1883 (mqtt) or 8883 (mqtts).

    Raises:
        ExperimentError: the text is not such a URL; the message shows the form.
    """
    form = "write mqtt://host[:1883] or mqtts://[user:password@]host[:8883]"
    shown = hide_password(url)
    try:
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        port = parts.port
    except ValueError:
        raise ExperimentError(f"broker address {shown!r} has no valid host and port: {form}") from None
    extra = parts.path not in ("", "/") or parts.query or parts.fragment or port == 0
    if parts.scheme not in _PORTS or not parts.hostname or extra:
        raise ExperimentError(f"broker address {shown!r} is not valid: {form}")
    return BrokerAddress(
        parts.hostname,
        port or _PORTS[parts.scheme],
        tls=parts.scheme == "mqtts",
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )
