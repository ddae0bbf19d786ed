"""Files of Wi-Fi networks, and what they become in cloud-init's network configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedquilt_common.errors import ExperimentError
from fedquilt_common.files.yaml_text import dump_yaml_1_1
from fedquilt_server.provisioning.card import Card, Wifi, read_wifi


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ssid: x\npassword: short\n", "password: must have at least 8"), ("password: 12345678\n", "ssid"),
        ("ssid: x\ncountry: Germany\n", "country"), ("- x\n", "write the keys ssid"), ("ssid: x\npsk: y\n", "psk"),
        ("ssid: [\n", "wifi.yaml"), ("ssid: 1234\n", "ssid: put it in quotes"),
        ("ssid: x\npassword: 12345678\n", "password: put it in quotes"),
        (f"ssid: x\npassword: {'g' * 64}\n", "password: must be 8 to 63 printable"),
        ("ssid: x\npassword: \"long\\nenough\"\n", "password: must be 8 to 63 printable"),
        ("ssid:\n", "ssid: is empty"), ("ssid: x\n", "country: is missing"),
        (f"ssid: {'ä' * 17}\ncountry: DE\n", "ssid: has 34 bytes in UTF-8"),
        ('ssid: "a\\e]0;X"\ncountry: DE\n', "ssid: has a control character"),
        ("ssid: x\ncountry: DEU\n", "country: must be two letters, such as DE"),
    ],
)  # fmt: skip
def test_wifi_files_that_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "wifi.yaml").write_text(text)
    with pytest.raises(ExperimentError, match=words) as caught:
        read_wifi(tmp_path / "wifi.yaml")
    assert "short" not in str(caught.value).replace("too_short", "")
    assert "ggg" not in str(caught.value)


@pytest.mark.parametrize("password", ["x" * 8, "x" * 63, "0123456789abcdefABCDEF" + "0" * 42])
def test_passwords_that_can_be(password: str, tmp_path: Path) -> None:
    (tmp_path / "wifi.yaml").write_text(f"ssid: x\npassword: '{password}'\ncountry: DE\n")
    assert read_wifi(tmp_path / "wifi.yaml").password == password


def test_countries_and_networks_that_old_yaml_takes_for_something_else(tmp_path: Path) -> None:
    """cloud-init reads YAML 1.1: Norway is not false."""
    for ssid, password in (("no", "12_345_678"), ("on", "2024-01-01"), ("1e3", "0x12345678")):
        mine = Card("pi", tmp_path, wifi=Wifi(ssid=ssid, password=password, country="NO"))
        network = yaml.safe_load(dump_yaml_1_1(mine.network_config()))["wifis"]["wlan0"]
        assert network["access-points"] == {ssid: {"password": password}}
        assert network["regulatory-domain"] == "NO"
