"""A coordinator or an agent with the name or the certificate of somebody else, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import warm
from tests.support.peers import bare_broker
from tests.support.runs import PATIENCE

from fedquilt_client.agent import Agent
from fedquilt_client.settings import AgentSettings
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, Incoming, PublicationRefused, Transport, Will
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.tools.bench import bench_experiment

if TYPE_CHECKING:
    from tests.faults.conftest import Stage

TOPICS = Topics("lab")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = make_federation(tmp_path_factory.mktemp("f") / "f", "lab", ["localhost"], free_port())
    made.provision("pi", "pi4")
    with bare_broker(made.folder, made.record.port):
        yield made


def run_coordinator(federation: Federation, identity: Path, name: str, folder: Path) -> tuple[int, str]:
    """Run ``fedquilt coordinator`` with an identity and the name of a federation; returns exit code and message."""
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(1, 1, 0.01, 1)))
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    options = [word for option, file in files.items() for word in (f"--{option}", str(identity / file))]
    where = ["--broker", federation.record.url, "--federation", name, "--out", str(folder / "run"), "--no-page"]
    ended = warm.fedquilt("coordinator", str(experiment), *where, *options, where=folder, patience=PATIENCE)
    return ended.returncode, ended.stderr


def test_another_federation_than_that_of_the_inventory(federation: Federation, tmp_path: Path) -> None:
    code, message = run_coordinator(federation, federation.folder / "coordinator", "labx", tmp_path)
    assert code == 4
    assert f"the federation is 'labx', but the inventory {federation.folder / 'inventory.yml'} is of" in message
    assert "give --federation lab, or" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("identity", "name", "user"), [("boards/pi", "lab", "pi"), ("elsewhere", "labx", "coordinator")]
)
def test_a_certificate_that_may_not_write_in_the_federation(
    federation: Federation, tmp_path: Path, identity: str, name: str, user: str
) -> None:
    """A board's certificate, and that of a coordinator away from its inventory."""
    (federation.folder / "elsewhere").symlink_to(federation.folder / "coordinator")
    try:
        code, message = run_coordinator(federation, federation.folder / identity, name, tmp_path)
    finally:
        (federation.folder / "elsewhere").unlink()
    assert code == 3
    assert f"refused the coordinator's presence on {Topics(name).coordinator}: Not authorized" in message
    assert f"as the user {user!r} with the certificate {federation.folder / identity / 'tls.crt'}" in message
    assert f"Check --federation (it is {name})" in message
    assert not (tmp_path / "run" / "begun.json").exists()  # the right command needs no --resume


def test_an_agent_with_the_certificate_of_another_one_logs_its_names_once(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = federation.board_folder("pi")
    files = [str(own / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    address = parse_broker_url(federation.record.url).with_files(*files)
    settings, refused = AgentSettings("desk", (0,), tmp_path, "lab"), list[PublicationRefused]()

    def connect(deliver: Deliver, will: Will) -> Transport:
        def note(incoming: Incoming) -> None:
            refused.extend([incoming] if isinstance(incoming, PublicationRefused) else [])
            deliver(incoming)

        return MqttTransport(address, agent_client_id("lab", "desk", "x"), note, will=will)

    agent = Agent(settings, connect)

    def is_over() -> bool:
        if len(refused) < 4:
            agent._presence.publish()  # more often than an agent does
        return len(refused) >= 4

    agent.execute(is_over)
    topic = TOPICS.presence("desk")
    found = [message for message in caplog.messages if topic in message]
    first, second = sorted(found, key=len)
    assert first.startswith(f"the broker refused a message on {topic}: Not authorized")
    assert f"as the user 'pi' with the certificate {own / 'tls.crt'}. Check --id (it is desk;" in second


def test_a_refusal_in_the_middle_of_a_run_does_not_end_it(stage: Stage, undisturbed: str) -> None:
    """A broker can restart with the wrong ACL, and then with the right one."""
    stage.arrive()
    coordinator = stage.coordinator()
    refused = [PublicationRefused(TOPICS.coordinator, "Not authorized", BrokerAddress("localhost", 1883))]

    def turn() -> bool:
        if refused and coordinator.machine.round == 1:
            coordinator._deliver(refused.pop())
        return stage.turn()

    with stage.closing(coordinator):
        coordinator.execute(turn)
        assert coordinator.run.folder.finished
    assert (refused, stage.sha256) == ([], undisturbed)
