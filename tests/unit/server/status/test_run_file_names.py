"""The names of a run folder's files are written in one module."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from fedquilt_server.status import run_file_names
from fedquilt_server.status.run_file_names import EXPERIMENT, JOURNAL, MODEL, RESULT, RunFile

SERVER = Path(run_file_names.__file__).parents[1]


def test_no_other_module_writes_them() -> None:
    names = {EXPERIMENT, JOURNAL, MODEL, RESULT, *get_args(RunFile)}
    written = {
        f"{path.relative_to(SERVER)}: {node.value!r}"
        for path in SERVER.rglob("*.py")
        if path.name != "run_file_names.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert not written
