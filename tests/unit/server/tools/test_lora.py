"""Air time over LoRa, compared with the designer's guide and Table 4.5 of the FedAKD thesis."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from typer.testing import CliRunner

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.windowed_transfer import draw_transfer
from fedquilt_server.tools.bench_cli import app
from fedquilt_server.tools.lora import Lora


@pytest.mark.parametrize(
    ("spreading", "bandwidth", "coding", "preamble", "size", "milliseconds"),
    [
        (7, 125e3, 1, 8, 10, 41.216),  # 8 + 4.25 + 28 symbols of 1.024 ms, by hand from the guide
        (12, 125e3, 1, 8, 51, 2465.792),
        (12, 125e3, 1, 8, 12, 1155.072),
        (9, 125e3, 1, 8, 20, 185.344),
        (7, 250e3, 1, 8, 50, 48.768),
    ],
)
def test_air_time(spreading: int, bandwidth: float, coding: int, preamble: int, size: int, milliseconds: float) -> None:
    result = Lora(spreading, bandwidth, coding, preamble).air_time(size)
    assert 1000 * result == pytest.approx(milliseconds, abs=1e-6)


@pytest.mark.parametrize(("kilobytes", "minutes"), [(3, 4.8), (12, 20.6), (256, 1178), (638, 2947), (466, 2147)])
def test_table_4_5_to_the_order_of_magnitude(kilobytes: int, minutes: float) -> None:
    """The thesis sends models as text, with 22 useful bytes per packet. Soft labels are within a tenth of its times."""
    result = Lora().seconds(1024 * kilobytes) / 60
    assert minutes / 3 < result < 3 * minutes
    if kilobytes < 100:
        assert result == pytest.approx(minutes, rel=0.1)


def test_the_packet_rate_of_the_thesis() -> None:
    radio = Lora()
    assert radio.packets(6000) / radio.seconds(6000) == pytest.approx(0.17, abs=0.005)


def test_without_losses_acknowledgements_fit_into_the_pause() -> None:
    assert Lora().seconds(1000) == Lora(window=1, timeout=60).seconds(1000)
    assert Lora(pause=0.0).seconds(60) == Lora().air_time(64) + Lora().air_time(4)
    assert Lora().seconds(0) == 0.0


@pytest.mark.parametrize(("loss", "window"), [(0.1, 1), (0.2, 3), (0.5, 3), (0.2, 16)])
def test_lost_packets_cost_tries_and_timeouts(loss: float, window: int) -> None:
    """As counted in many transfers of 5,000 packets, each packet and each acknowledgement lost by itself."""
    radio = Lora(loss=loss, window=window)
    sent, timeouts = draw_transfer(5000, loss, window, random.Random(1))
    drawn = sent * (radio.air_time(64) + 3.0) + timeouts * 3.0
    assert radio.seconds(5000 * 60) == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"spreading": 13},
        {"spreading": 6},
        {"bandwidth": 1},
        {"coding": 5},
        {"payload": 0},
        {"payload": 255},
        {"loss": 1.0},
        {"window": 0},
        {"timeout": -1},
    ],
)
def test_settings_that_the_radio_does_not_have(wrong: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError, match=f"--{next(iter(wrong))}"):
        Lora(**wrong)


def run_bench(*words: str) -> Any:
    done = CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.output) if "--json" in words else done.output


def test_the_command_says_it_of_three_algorithms() -> None:
    result = run_bench("link", "--samples", "100", "--classes", "6", "--json")
    assert {name: row["bytes"] for name, row in result.items()} == {"fedavg": 262_144, "fedmd": 2400, "cfedakd": 648}
    assert result["fedavg"]["seconds"] > 100 * result["fedmd"]["seconds"] > 300 * result["cfedakd"]["seconds"]
    assert "cfedakd" in run_bench("link")
    assert run_bench("link", "--bytes", "648", "--json")["payload"]["packets"] == 11


def test_the_command_names_what_is_wrong() -> None:
    for words in (["--coding", "3/4"], ["--spreading", "99"]):
        with pytest.raises(ExperimentError, match=words[0]):
            CliRunner().invoke(app, ["bench", "link", *words], catch_exceptions=False)
