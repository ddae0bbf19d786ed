"""Which versions of Mosquitto can reload their files."""

from __future__ import annotations

import pytest

from fedquilt_common.wire.mosquitto_version import Version, can_reload, name_version, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mosquitto version 2.0.11\n\nmosquitto is an MQTT broker.", (2, 0, 11)),
        ("mosquitto version 2.1.2", (2, 1, 2)),
        ("EMQX 5.0", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_mosquitto_prints(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, False), ((2, 0, 11), False), ((2, 0, 21), False), ((2, 0, 99), False), ((2, 1), True), ((2, 1, 2), True)],
)
def test_only_versions_with_the_mend_can_reload(version: Version | None, expected: bool) -> None:
    assert can_reload(version) is expected


def test_an_unknown_version_has_a_name() -> None:
    assert name_version((2, 0, 11)) == "Mosquitto 2.0.11"
    assert name_version(None) == "a broker of unknown version"
