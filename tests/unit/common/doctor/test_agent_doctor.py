"""What the doctor finds wrong in an agent's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt_common import cli
from fedquilt_common.doctor.agent import check_agent

CONFIG = {"broker": "mqtt://localhost:1", "id": "pi", "clients": "0-1"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": "many"}, "clients 'many' are not valid"),
        ({"clients": None}, "clients"),
        ({"workerz": 3}, "workerz: "),
        ({"max_epsilon": -1}, "max-epsilon: "),
        ({"data": ["1"]}, "data '1' is not valid"),
        ({"data": ["2=mine.csv"]}, "does not host client 2"),
        ({"link": "fast"}, "link"),
        ({"broker": "mqtts://"}, "is not valid"),
        ({"cert": "x"}, "need an mqtts:// address"),
    ],
)
def test_a_file_with_which_the_agent_cannot_start_is_a_failure(changes: dict[str, Any], words: str) -> None:
    (check,) = check_agent({**CONFIG, **changes})
    assert (check.name, check.state) == ("configuration", "fail")
    assert words in check.said
    assert "agent.yaml" in check.advice


@pytest.mark.parametrize("changes", [{}, {"max_epsilon": 2}, {"link": "experiment"}, {"data": ["1=mine.csv"]}])
def test_a_file_that_the_agent_can_use(changes: dict[str, Any]) -> None:
    first, second = check_agent({**CONFIG, **changes})
    assert (first.name, first.state, first.said) == ("configuration", "ok", "pi hosts 2 clients")
    assert second.name == "broker"


def test_the_command_checks_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("broker: mqtt://localhost:1\nid: pi\nclients: 0-1\nworkerz: 3\nmax-epsilon: -1\n")
    assert cli.run(["doctor", "--config", str(config), "--json"]) == 10
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert found["configuration"]["state"] == "fail"
    assert all(word in found["configuration"]["said"] for word in ("workerz", "max-epsilon"))
    assert "disk" in found
