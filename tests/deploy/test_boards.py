"""The tables of boards in docs/deploy.md match the estimator."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()


def test_the_tables_are_what_the_estimator_says() -> None:
    spec = importlib.util.spec_from_file_location("board_table", ROOT / "scripts" / "board_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "\n".join(module.rows()) in DEPLOY, "python scripts/board_table.py prints the new ones"


def test_every_playbook_and_script_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?:ansible-playbook |scripts/)([a-z_]+\.(?:yml|py))", DEPLOY))
    assert named == {"site.yml", "upgrade.yml", "rollback.yml", "remove.yml", "board_table.py"}
    for name in named:
        assert (ROOT / ("scripts" if name.endswith(".py") else "ansible") / name).exists()
