"""The rounds and metrics in CONTRIBUTING.md's guide for authors of algorithms run as they are printed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.server.round.test_machine import Driver, asked, labs

from fedquilt_common.algorithm_api import Algorithm, State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.user_imports import resolve
from fedquilt_server.lab.checked_algorithm import CheckedAlgorithm
from fedquilt_server.round.policy import Policy

GUIDE = Path(__file__).parents[4] / "CONTRIBUTING.md"


HEAD = """from dataclasses import replace
from fedquilt import *
from fedquilt_common.algorithm_api import Round
from fedquilt_common.algorithms.fedavg import FedAvg
import numpy as np
class Own(FedAvg):
"""

Printed = Callable[[str], Algorithm]


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Printed:
    """Returns FedAvg with a method that the guide prints, with the coordinator's checks around it."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    monkeypatch.syspath_prepend(tmp_path)

    def load(method: str) -> Algorithm:
        (block,) = (one for one in blocks if one.startswith(f"def {method}("))
        module = f"printed_{method}"
        (tmp_path / f"{module}.py").write_text(HEAD + textwrap.indent(block, "    "))
        own = resolve(f"{module}:Own", {}, "algorithm", [module])
        return CheckedAlgorithm(own(), "own:Own", lambda: [{}], "")

    return load


def test_ages_of_replies_to_tasks_that_go_on(printed: Printed) -> None:
    driver = Driver(Policy(rounds=2, clients=3, quorum=1), printed("round"))
    driver.join(0, 0, 1, 2)
    driver.reply(1, 0, value=1.0)
    driver.reply(2, 1, value=3.0)
    assert driver.value == 2.0
    assert asked(driver) == [0, 1]
    assert driver.machine.working == {2: (1, 0)}
    driver.reply(3, 2, value=8.0)  # to the task of round 1
    driver.reply(4, 0, round=2, value=2.0)
    assert driver.checkpoints[1].state.report == {"ages": {"0": 0, "2": 1}}
    assert driver.value == pytest.approx((2.0 + 0.5 * 8.0) / 1.5)


def test_a_metric_of_the_authors_own(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "evaluate", lambda *_: {"accuracy": 0.5})
    state = State({"w": np.array([3.0, 4.0], np.float32)})
    assert printed("evaluate").evaluate(state, labs(1)(1, {}, 0.0, {})) == {"accuracy": 0.5, "model_norm": 5.0}
