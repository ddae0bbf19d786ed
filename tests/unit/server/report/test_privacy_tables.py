"""The privacy of the clients in reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.recorded_runs import make_rounds, write_run

from fedquilt_server.report.contents import make_contents
from fedquilt_server.report.sources import gather_runs
from fedquilt_server.report.text_formats import to_markdown
from fedquilt_server.status.results import CentralSpent, PrivacySpent

USED_UP = "the privacy budget is used up"


def spent(client: int, epsilon: float | None, **changes: Any) -> PrivacySpent:
    return PrivacySpent.model_validate({"client": client, "epsilon": epsilon, "budget": 20.0, "delta": 1e-5, **changes})


def test_each_client_has_what_it_spent_and_equal_ones_share_a_row(tmp_path: Path) -> None:
    rows = [spent(0, 19.9912), spent(1, 19.9914), spent(2, 2.5, budget=3.0), spent(3, 19.99), spent(4, 1.0),
            spent(5, None, declined=USED_UP)]  # fmt: skip
    write_run(tmp_path / "a", privacy=rows)
    write_run(tmp_path / "ended", status="stopped", privacy=[spent(0, 4.0)])  # what it has spent is spent
    made = make_contents(gather_runs([tmp_path]))
    assert made.tables["privacy"].rows == (
        ("a", "0–1, 3", "19.99", "20", "1e-5", None), ("a", "2", "2.5", "3", "1e-5", None),  # noqa: RUF001
        ("a", "4", "1", "20", "1e-5", None), ("a", "5", "–", "20", "1e-5", USED_UP),  # noqa: RUF001
        ("ended", "0", "4", "20", "1e-5", None),
    )  # fmt: skip
    assert made.tables["privacy-clients"].rows[1] == ("a", "1", 19.9914, 20.0, 1e-5, None)
    assert len(made.tables["privacy-clients"].rows) == 7
    text = to_markdown(made)
    assert "## Privacy" in text
    assert "Privacy by client" not in text


def test_the_privacy_of_the_coordinator_is_a_row_of_its_own(tmp_path: Path) -> None:
    spent = CentralSpent(epsilon=4.25, epsilon_known=7.5, budget=20.0, delta=0.001, noise=1.5, clip=0.5)
    rounds = [row.model_copy(update={"central_privacy": spent}) for row in make_rounds((0.5, 0.8))]
    write_run(tmp_path / "a", rounds=rounds)
    rows = make_contents(gather_runs([tmp_path])).tables["privacy"].rows
    known = "the one asked most often, for those who know which clients took part"
    assert rows == (
        ("a", "each, by the coordinator", "4.25", "20", "0.001", None), ("a", known, "7.5", "20", "0.001", None),
    )  # fmt: skip


def test_runs_without_privacy_have_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    assert not {"privacy", "privacy-clients"} & make_contents(gather_runs([tmp_path])).tables.keys()
