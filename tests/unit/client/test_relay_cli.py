"""``fedquilt relay``: its settings, its errors, and the real process beside a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agents import presences, telemetry
from tests.support.runs import FEDQUILT
from tests.support.warm import ForkedProgram

from fedquilt_common import cli
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.wire.messages import AgentPresence, CoordinatorPresence, EndMessage, RunMessage
from fedquilt_server.tools.bench import bench_experiment

if TYPE_CHECKING:
    from tests.unit.client.conftest import Peer

Wait = Callable[..., Any]


def test_the_relay_of_a_site_is_named_after_it_unless_it_has_a_name() -> None:
    assert RelayConfig(broker="b", site="hall").name == "hall-relay"
    assert RelayConfig(broker="b", site="hall", id="adder").name == "adder"


def test_the_clients_of_each_board_are_read_and_checked() -> None:
    assert RelayConfig(broker="b", site="hall").owners is None
    assert RelayConfig(broker="b", site="hall", boards={"a": "0-1", "b": 2}).owners == {0: "a", 1: "a", 2: "b"}
    with pytest.raises(ExperimentError, match="client 1 belongs to a and to b"):
        _ = RelayConfig(broker="b", site="hall", boards={"a": "0-1", "b": 1}).owners


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--site", "hall"], "relay: --broker is missing"),
        (["--broker", "mqtt://h"], "relay: --site is missing"),
        (["--broker", "mqtt://h", "--site", "a b"], "relay: site: "),
        (["--config", "absent.yaml"], "absent.yaml"),
    ],
)
def test_what_is_wrong_with_the_settings_is_named(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["relay", *options]) == ExperimentError.exit_code
    assert words in capsys.readouterr().err


def test_a_relay_presents_itself_reports_that_it_lives_and_leaves_with_the_run(
    peer: Peer, tmp_path: Path, wait_for: Wait
) -> None:
    federation = peer.topics.federation
    options = ["--broker", f"mqtt://127.0.0.1:{peer.port}", "--federation", federation, "--site", "hall", "--once"]
    with ForkedProgram([*FEDQUILT, "relay", *options, "--state", str(tmp_path / "relay")]) as process:
        wait_for(lambda: presences(peer))
        (here, *_) = presences(peer)
        assert (here.agent, here.site, here.site_relay, here.clients) == ("hall-relay", "hall", True, [])
        wait_for(lambda: telemetry(peer))
        other = AgentPresence(agent="hall-relay", online=False, boot=1)
        peer.publish(peer.topics.presence("hall-relay"), other)
        wait_for(lambda: sum(found.online for found in presences(peer)) > 1)
        peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=1, run="run-1"))
        peer.publish(peer.topics.inbox("hall-relay"), b"{", retain=False)
        experiment = bench_experiment(1, 1, 0.01, 1).model_dump(mode="json")
        peer.publish(peer.topics.run, RunMessage(run="run-1", experiment=experiment))
        peer.publish(peer.topics.end, EndMessage(run="run-1", reason="done"))
        assert process.wait(60) == 0
    wait_for(lambda: not presences(peer)[-1].online)
