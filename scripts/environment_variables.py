"""The environment variables that people set, for the page of docs/reference/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedquilt_common.datasets import FOLDER_VARIABLE as DATA
from fedquilt_common.datasets.cache import CACHE_VARIABLE
from fedquilt_common.process.watchdog import ALIVE
from fedquilt_common.wire.broker_url import BROKER_PASSWORD
from fedquilt_server.fleet.homeassistant_cli import PASSWORD
from fedquilt_server.provisioning.cli import FOLDER_VARIABLE as FEDERATION
from fedquilt_server.runs.page_address import TOKEN_VARIABLE
from fedquilt_server.runs.run import VALIDATE
from fedquilt_server.simulate.mosquitto import MOSQUITTO_VARIABLE


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Args:
        name: its name.
        words: the commands that read it, and its meaning, in Markdown.
    """

    name: str
    words: tuple[str, str]


_WORDS: Final = {
    DATA: ("all that read data", "[the folder of data sets](../datasets.md), one folder each"),
    CACHE_VARIABLE: (
        "all that read data",
        "[the cache of prepared data sets](../datasets.md#the-cache-of-prepared-data-sets)",
    ),
    BROKER_PASSWORD: (
        "`agent`, `relay`, `coordinator`, `sweep`, `watch`, `doctor`",
        "[the broker's password](../experiments.md#simulate-with-another-broker), where the address has none",
    ),
    TOKEN_VARIABLE: (
        "`coordinator`, `page`, `watch`, `simulate`",
        "[the token of the status page](../machine.md#controlling-a-run)",
    ),
    FEDERATION: (
        "`federation`, `provision`, `revoke`, `flash`, `boards`, `upgrade`, `homeassistant`",
        "[the folder of a federation](../deploy.md#1-a-federation), instead of `./federation`",
    ),
    PASSWORD: (
        "`homeassistant`",
        "[the password of Home Assistant's broker](../deploy.md#home-assistant)",
    ),
    MOSQUITTO_VARIABLE: (
        "`simulate`, `demo`, `bench`, `federation broker`",
        "the Mosquitto program, if it is not on the `PATH`",
    ),
    ALIVE: ("`agent`, `relay`", "a file that is touched while the process works, for health checks"),
    VALIDATE: (
        "`coordinator`, `simulate`",
        "`1` checks [the machine's invariants](../machine.md) after every event, as the tests do",
    ),
}


def list_variables() -> list[Variable]:
    """Return the variables in the order of the page."""
    return [Variable(name, words) for name, words in _WORDS.items()]
