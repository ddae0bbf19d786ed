"""What an algorithm's ``work`` returns or stores is checked; a mistake is named in its code's words, not numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.test_private_tasks import PRIVATE
from tests.unit.client.test_worker import do

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

CASES = {
    "return None": r"returned None; return a Reply, such as `Reply\(trained",
    "return {'w': 1}": r"returned an object of type dict; return a Reply",
    "return Reply({'w': [1, 2]})": r"Reply.arrays\['w'\] is an object of type list; use a numpy array",
    "return Reply([1, 2])": r"Reply.arrays is an object of type list; it maps names",
    "return Reply({'w': np.array([None])})": r"Reply.arrays\['w'\] cannot be stored or sent: arrays of dtype object",
    "return Reply({5: np.zeros(2)})": r"Reply.arrays\[an object of type int\] has a name that is not text",
    "return Reply({}, '3')": r"Reply.weight is an object of type str; use a number",
    "return Reply({}, 1, {'q': 'x'})": r"Reply.metrics\['q'\] is an object of type str; metrics are numbers by",
    "return Reply({}, 1, [2])": r"Reply.metrics is an object of type list; metrics are numbers by name",
    "ctx.memory['m'] = [1, 2]; return Reply({})": r"ctx.memory\['m'\] is an object of type list; use a numpy array",
    "ctx.memory[5] = np.zeros(2); return Reply({})": r"ctx.memory\[an object of type int\] has a name that is not text",
}
USES = "import numpy as np\nfrom fedquilt import Reply\n"


@pytest.mark.parametrize("code", CASES)
def test_a_mistake_of_work_is_named(kit: Kit, code: str) -> None:
    package = f"mistaken{list(CASES).index(code)}"
    own = kit.package(package, USES + code)
    event = do(kit.job(kit.run(algorithm={"name": own}), allowed=[package]))
    assert event["event"] == "failed"
    assert re.match(rf"{own}\.work, task '\w+': {CASES[code]}", event["reason"]), event["reason"]


def test_a_board_with_privacy_does_not_send_what_work_returned(kit: Kit) -> None:
    own = kit.package("telling", "return 'sample 17 is ill'")
    run = kit.run(**{**PRIVATE, "algorithm": {"name": own}})
    event = do(kit.job(run, allowed=["telling"]))
    assert event["reason"] == "AlgorithmError: see the log of the board's agent"


def test_numbers_of_numpy_and_torch_are_numbers(kit: Kit) -> None:
    code = "import torch\nreturn Reply(task.arrays, np.float32(2), {'t': torch.tensor(1.0), 'n': np.zeros(())})"
    own = kit.package("numeric", USES + code)
    event = do(kit.job(kit.run(algorithm={"name": own}), allowed=["numeric"]))
    assert event["event"] == "done", event


def test_an_error_without_a_text_has_no_colon(kit: Kit) -> None:
    own = kit.package("silent", "raise KeyError")
    event = do(kit.job(kit.run(algorithm={"name": own}), allowed=["silent"]))
    assert re.fullmatch(r"KeyError \(silent\.py line \d+\)", event["reason"])
