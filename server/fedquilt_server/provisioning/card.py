"""Build the files of a card for a board's first start: those of cloud-init, the software and the systemd unit.

The files are plain data here; ``flash`` writes them. cloud-init's documentation describes its files: NoCloud data
source, cloud-config, network configuration version 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unicodedata import category

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedquilt_common.errors import ExperimentError, FederationError, ImageError
from fedquilt_common.files.yaml_text import dump_yaml_1_1, load_yaml, read_text
from fedquilt_common.rejections import explain
from fedquilt_server.provisioning.image_system import ImageSystem
from fedquilt_server.provisioning.names import hostname_of
from fedquilt_server.provisioning.packaged_files import read_packaged

FOLDER: Final = "fedquilt"
"""Folder in the boot partition."""
IDENTITY: Final = ("agent.yaml", "ca.crt", "tls.crt", "tls.key")
_NETPLAN: Final = "/etc/netplan/50-cloud-init.yaml"
"""cloud-init's own file. It writes the file once, before ours, and requires the cable there."""
_CPYTHON: Final = re.compile(r"-cp3(\d+)-cp3\1t?-[^-]+\.whl$")
"""The name of a wheel for one version of Python only; abi3 wheels also fit later versions."""
_COUNTRY: Final = "cfg80211.ieee80211_regdom="

_LONGEST_SSID: Final = 32
"""Bytes of the name of a network (IEEE 802.11)."""


class Wifi(BaseModel):
    """A wireless network, from a YAML file with these keys.

    Args:
        ssid: name of the network: 1 to 32 bytes in UTF-8, without control characters.
        password: 8 to 63 printable ASCII characters, or a key of 64 hexadecimal digits (IEEE 802.11i).
        country: country code of two letters, for the radio rules. Raspberry Pi OS keeps the radio off without one.
        hidden: whether the network hides its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ssid: str = Field(min_length=1)
    password: str | None = Field(None, min_length=8, max_length=64, pattern=r"^([ -~]{0,63}|[0-9a-fA-F]{64})$")
    country: str = Field(pattern=r"^[A-Za-z]{2}$")
    hidden: bool = False

    @field_validator("ssid")
    @classmethod
    def _check_ssid(cls, value: str) -> str:
        size = len(value.encode())
        if size > _LONGEST_SSID:
            raise ValueError(f"has {size} bytes in UTF-8; a network's name has at most {_LONGEST_SSID}")
        if any(category(char) == "Cc" for char in value):
            raise ValueError("has a control character; remove it")
        return value


@dataclass(frozen=True)
class Card:
    """The card of one board.

    Args:
        board: name of the board.
        bundle: folder with the board's ``IDENTITY`` files.
        wifi: wireless network, if any.
        wheels: folder of a wheelhouse, if any.
        user: the user who can log in over SSH.
        keys: public SSH keys of that user.
    """

    board: str
    bundle: Path
    wifi: Wifi | None = None
    wheels: Path | None = None
    user: str = ""
    keys: tuple[str, ...] = ()

    @property
    def hostname(self) -> str:
        """The board's host name."""
        return hostname_of(self.board)

    def identity(self) -> dict[str, str]:
        """Return the text of each identity file by name.

        Raises:
            FederationError: a file is missing.
        """
        try:
            return {name: (self.bundle / name).read_text(encoding="utf-8") for name in IDENTITY}
        except OSError as error:
            raise FederationError(
                f"the identity of {self.board} is incomplete: {error}; run `fedquilt provision {self.board} --renew`"
            ) from None

    def user_data(self, system: ImageSystem | None) -> str:
        """Return the cloud-config that sets the board up and runs ``install.sh``; it holds no key.

        cloud-init keeps copies of this text on the board, so the identity has files of its own.
        """
        config: dict[str, Any] = {"hostname": self.hostname, "manage_etc_hosts": True, "ssh_pwauth": False}
        commands = [["sh", "-c", _install_command("/boot/firmware")]]
        if self.keys:
            config["users"] = [{
                "name": self.user, "groups": ["sudo"], "sudo": "ALL=(ALL) NOPASSWD:ALL", "shell": "/bin/bash",
                "lock_passwd": True, "ssh_authorized_keys": list(self.keys),
            }]  # fmt: skip
            commands.insert(0, ["sh", "-c", "systemctl enable --now ssh || true"])  # off in Raspberry Pi OS
        if self.wifi is not None and system is not None and not system.reads_network_config:
            netplan = dump_yaml_1_1({"network": self.network_config()})
            config["write_files"] = [{"path": _NETPLAN, "content": netplan, "permissions": "0600"}]
            commands.insert(0, ["systemd-run", "--no-block", "netplan", "apply"])  # it may wait long for the radio
        return "#cloud-config\n# Written by fedquilt flash.\n" + dump_yaml_1_1({**config, "runcmd": commands})

    def meta_data(self) -> str:
        """Return cloud-init's meta-data.

        The instance id contains the certificate's serial number. After a card is flashed with a new certificate,
        cloud-init therefore sets the board up again.
        """
        from cryptography import x509

        serial = x509.load_pem_x509_certificate(self.identity()["tls.crt"].encode()).serial_number
        return dump_yaml_1_1({"instance-id": f"fedquilt-{self.hostname}-{serial:x}", "local-hostname": self.hostname})

    def network_config(self) -> dict[str, Any]:
        """Return the network configuration, version 2: DHCP by cable and, if set, ``wifi``.

        The start waits for the one that is not optional. If both were, systemd-networkd-wait-online of Debian 12 and
        Ubuntu 22.04 would fail after 120 s, at every start.
        """
        cable: dict[str, Any] = {"match": {"name": "e*"}, "dhcp4": True}
        config: dict[str, Any] = {"version": 2, "ethernets": {"eth0": cable}}
        if self.wifi is not None:
            cable["optional"] = True
            point: dict[str, Any] = {"password": self.wifi.password} if self.wifi.password else {}
            point |= {"hidden": True} if self.wifi.hidden else {}
            config["wifis"] = {"wlan0": {"dhcp4": True, "access-points": {self.wifi.ssid: point}}}
            config["wifis"]["wlan0"]["regulatory-domain"] = self.wifi.country.upper()
        return config

    def cmdline(self, old: str) -> str:
        """Return the kernel's command line with the radio's country.

        The network configuration alone does not set the country on every system.
        """
        if self.wifi is None:
            return old
        words = [word for word in old.split() if not word.startswith(_COUNTRY)]
        return " ".join([*words, _COUNTRY + self.wifi.country.upper()]) + "\n"

    def boot_files(self, system: ImageSystem | None) -> dict[str, str]:
        """Return the text of each file except the wheels, by its path in the boot partition of this system."""
        return {
            "user-data": self.user_data(system),
            "meta-data": self.meta_data(),
            "network-config": dump_yaml_1_1(self.network_config()),
            **self.install_files(),
        }

    def install_files(self) -> dict[str, str]:
        """Return the installer, the systemd unit and the identity, by path."""
        names = ("install.sh", "fedquilt-agent.service")
        identity = {f"{FOLDER}/identity/{name}": text for name, text in self.identity().items()}
        return {f"{FOLDER}/{name}": read_packaged(name) for name in names} | identity

    def container_files(self) -> dict[str, str]:
        """Return the Dockerfile that builds an image of the agent on a board whose own Python is too old."""
        return {f"{FOLDER}/Dockerfile": read_packaged("Dockerfile.jetson")}

    def wheel_files(self) -> dict[str, Path]:
        """Return the source of each file of the wheelhouse, by its path in the boot partition."""
        if self.wheels is None:
            return {}
        return {f"{FOLDER}/wheels/{path.name}": path for path in sorted(self.wheels.iterdir()) if path.is_file()}


def _install_command(boot: str) -> str:
    """Return the command that runs the installer. Releases mount the boot partition in different folders."""
    return f"for b in {boot} /boot; do if [ -d $b/{FOLDER} ]; then exec sh $b/{FOLDER}/install.sh; fi; done; exit 1"


def read_wifi(path: Path) -> Wifi:
    """Read a wireless network from a YAML file.

    Raises:
        ExperimentError: the file cannot be read, or its keys are wrong.
    """
    values = load_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ExperimentError(f"{path}: write the keys ssid, password and country, one per line")
    try:
        return Wifi.model_validate(values)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {_wifi_error(item)}" for item in error.errors())
        raise ExperimentError(f"{path}: {details}") from None  # without the values: one of them is a password


def _wifi_error(error: Any) -> str:
    """Describe what is wrong with a value, without the value."""
    if error["input"] is None:
        return "is empty"
    if error["type"] == "string_type":
        return "put it in quotes; without them, YAML does not read it as text"
    if error["loc"] == ("password",) and error["type"] == "string_pattern_mismatch":
        return "must be 8 to 63 printable ASCII characters, or a key of 64 hexadecimal digits"
    if error["loc"] == ("country",) and error["type"] in ("missing", "string_pattern_mismatch"):
        return f"{'is missing; write' if error['type'] == 'missing' else 'must be'} two letters, such as DE"
    return explain(error)


def read_wheels(folder: Path) -> Path:
    """Check that ``folder`` is a wheelhouse and return it.

    Raises:
        ImageError: it is not a wheelhouse.
    """
    if not (folder / "requirements.txt").is_file() or not list(folder.glob("pip-*.whl")):
        raise ImageError(
            f"{folder} is not a wheelhouse, which the board needs to install fedquilt: build one with "
            "`make wheelhouse` (docs/deploy.md), or use --no-wheels and install fedquilt with Ansible"
        )
    return folder


def wheelhouse_python(folder: Path) -> tuple[int, int] | None:
    """Return the version of Python that a wheelhouse is for; None if all its wheels fit any version."""
    tags = {match[1] for wheel in folder.glob("*.whl") if (match := _CPYTHON.search(wheel.name))}
    return min(((3, int(tag)) for tag in tags), default=None)
