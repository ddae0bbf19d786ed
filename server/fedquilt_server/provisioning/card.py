"""What a card holds for its first start: files for cloud-init, the software, the unit; as pure data.

cloud-init's own pages say how these files are read: NoCloud data source, cloud-config, network configuration version 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.files.yaml_text import dump_yaml_1_1, load_yaml, read_text
from fedquilt_server.provisioning.names import hostname_of

FOLDER: Final = "fedquilt"
"""In the boot partition."""
IDENTITY: Final = ("agent.yaml", "ca.crt", "tls.crt", "tls.key")
ON_BOARD: Final = "/etc/fedquilt"
_COUNTRY: Final = "cfg80211.ieee80211_regdom="


class Wifi(BaseModel):
    """A wireless network: a YAML file with these keys. ``password``: 8 to 63 printable ASCII characters, or a key of 64
    hexadecimal digits (IEEE 802.11i). ``country``: two letters, which radio rules hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ssid: str = Field(min_length=1, max_length=32)
    password: str | None = Field(None, min_length=8, max_length=64, pattern=r"^([ -~]{0,63}|[0-9a-fA-F]{64})$")
    country: str | None = Field(None, pattern=r"^[A-Za-z]{2}$")
    hidden: bool = False


@dataclass(frozen=True)
class Card:
    """``bundle``: the board's folder with its ``IDENTITY``. ``wheels``: the folder of a wheelhouse, if there is one.
    ``keys``: public SSH keys of those who may log in as ``user``."""

    board: str
    bundle: Path
    wifi: Wifi | None = None
    wheels: Path | None = None
    user: str = ""
    keys: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        """The board's name as far as it can be one."""
        return hostname_of(self.board)

    def identity(self) -> dict[str, str]:
        """Name and text of each file. Raises FederationError where one is missing."""
        try:
            return {name: (self.bundle / name).read_text(encoding="utf-8") for name in IDENTITY}
        except OSError as error:
            raise FederationError(f"the identity of {self.board} is not whole: {error}; provision it anew") from None

    def user_data(self, firstboot: str) -> str:
        """cloud-config that puts the identity in place and runs ``install.sh`` from ``firstboot``, the folder as the
        board sees it."""
        files = [
            {"path": f"{ON_BOARD}/{name}", "content": text, "permissions": "0600" if name.endswith("key") else "0644"}
            for name, text in self.identity().items()
        ]
        said: dict[str, Any] = {"hostname": self.hostname, "manage_etc_hosts": True, "ssh_pwauth": False}
        if self.keys:
            said["users"] = [{
                "name": self.user, "groups": ["sudo"], "sudo": "ALL=(ALL) NOPASSWD:ALL", "shell": "/bin/bash",
                "lock_passwd": True, "ssh_authorized_keys": list(self.keys),
            }]  # fmt: skip
        login = [["sh", "-c", "systemctl enable --now ssh || true"]] if self.keys else []  # Raspberry Pi OS has it off
        said |= {"write_files": files, "runcmd": [*login, ["sh", "-c", _find_and_run(firstboot)]]}
        return "#cloud-config\n# Written by fedquilt flash: who this board is.\n" + dump_yaml_1_1(said)

    def meta_data(self) -> str:
        """The serial of its certificate makes the instance: a card that is flashed anew is set up anew."""
        from cryptography import x509

        serial = x509.load_pem_x509_certificate(self.identity()["tls.crt"].encode()).serial_number
        return dump_yaml_1_1({"instance-id": f"fedquilt-{self.hostname}-{serial:x}", "local-hostname": self.hostname})

    def network_config(self) -> str:
        """Addresses by DHCP, by cable and, if there is a ``wifi``, without; a start does not wait for either."""
        said: dict[str, Any] = {
            "version": 2, "ethernets": {"eth0": {"match": {"name": "e*"}, "dhcp4": True, "optional": True}},
        }  # fmt: skip
        if self.wifi is not None:
            point: dict[str, Any] = {"password": self.wifi.password} if self.wifi.password else {}
            point |= {"hidden": True} if self.wifi.hidden else {}
            said["wifis"] = {"wlan0": {"dhcp4": True, "optional": True, "access-points": {self.wifi.ssid: point}}}
            if self.wifi.country:
                said["wifis"]["wlan0"]["regulatory-domain"] = self.wifi.country.upper()
        return dump_yaml_1_1(said)

    def cmdline(self, old: str) -> str:
        """The kernel's command line with the radio's country, which network configuration cannot always give."""
        if self.wifi is None or self.wifi.country is None:
            return old
        words = [word for word in old.split() if not word.startswith(_COUNTRY)]
        return " ".join([*words, _COUNTRY + self.wifi.country.upper()]) + "\n"

    def texts(self) -> dict[str, str]:
        """Path in the boot partition and text of all files but the wheels."""
        return {
            "user-data": self.user_data("/boot/firmware"),
            "meta-data": self.meta_data(),
            "network-config": self.network_config(),
            **self.software(),
        }

    def software(self) -> dict[str, str]:
        """What installs the agent and keeps it running."""
        names = ("install.sh", "fedquilt-agent.service")
        return {f"{FOLDER}/{name}": _resource(name) for name in names}

    def container(self) -> dict[str, str]:
        """What makes an image of the agent on the board, where its own Python is too old."""
        return {f"{FOLDER}/Dockerfile": _resource("Dockerfile.jetson")}

    def wheel_files(self) -> dict[str, Path]:
        """Path in the boot partition and source of each file of the wheelhouse."""
        if self.wheels is None:
            return {}
        return {f"{FOLDER}/wheels/{path.name}": path for path in sorted(self.wheels.iterdir()) if path.is_file()}


def _find_and_run(boot: str) -> str:
    """Where the boot partition is mounted differs between releases."""
    return f"for b in {boot} /boot; do if [ -d $b/{FOLDER} ]; then exec sh $b/{FOLDER}/install.sh; fi; done; exit 1"


def read_wifi(path: Path) -> Wifi:
    """Raises ExperimentError for a file that does not say which network."""
    values = load_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ExperimentError(f"{path}: must hold ssid, password and country, one to a line")
    try:
        return Wifi.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {_words(one)}" for one in error.errors())
        raise ExperimentError(f"{path}: {wrong}") from None  # without the values: one of them is a password


def _words(error: Any) -> str:
    """What is wrong with a value, without it."""
    if error["input"] is None:
        return "is empty"
    if error["type"] == "string_type":
        return "put it in quotes, or YAML takes it for something else than text"
    if error["loc"] == ("password",) and error["type"] == "string_pattern_mismatch":
        return "neither 8 to 63 printable ASCII characters nor a key of 64 hexadecimal digits"
    return str(error["msg"])


def read_wheels(folder: Path) -> Path:
    """The folder itself. Raises FederationError where it is no wheelhouse."""
    if not (folder / "requirements.txt").is_file() or not list(folder.glob("pip-*.whl")):
        raise FederationError(f"{folder} is no wheelhouse: make one with `make wheelhouse` (docs/deploy.md)")
    return folder


def _resource(name: str) -> str:
    return resources.files("fedquilt_server.provisioning").joinpath(name).read_text(encoding="utf-8")
