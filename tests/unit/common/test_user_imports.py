"""Names to objects, and never more imported than was allowed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.errors import ForbiddenImportError, UnknownNameError
from fedquilt_common.user_imports import describe_error, find_place, package_of, resolve, suggest

TABLE = {"dumps": "json:dumps", "root": "math:sqrt"}


def test_short_names_come_from_the_table() -> None:
    assert resolve("dumps", TABLE, "thing") is json.dumps
    assert resolve("root", TABLE, "thing", allowed=()) is math.sqrt


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="thing 'dump' is unknown; did you mean 'dumps'"):
        resolve("dump", TABLE, "thing")


@pytest.mark.parametrize("allowed", [["json"], ["other", "*"]])
def test_own_factory_if_allowed(allowed: list[str]) -> None:
    assert resolve("json.decoder:JSONDecoder.decode", {}, "thing", allowed) is json.JSONDecoder.decode


@pytest.mark.parametrize("allowed", [[], ["jso"], ["json.decoder"]])
def test_own_factory_is_not_imported_unless_allowed(
    allowed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jsonx_evil.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ForbiddenImportError, match="--allow-import jsonx_evil"):
        resolve("jsonx_evil:make", {}, "model", allowed)
    assert "jsonx_evil" not in sys.modules


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_such_package_here:make", "ModuleNotFoundError"),
        ("json:dump_s", "json has no 'dump_s'; did you mean 'dumps'"),
        ("colorsys:qqq", "colorsys has no 'qqq'; choose one of: hls_to_rgb, hsv_to_rgb,"),
        ("json:__name__", "is not callable"),
        ("json:", "does not have the form"),
        (":x", "does not have the form"),
        ("a:b:c", "does not have the form"),
        ("../x:y", "does not have the form"),
        ("json:dumps\n", "does not have the form"),
    ],
)
def test_reasons(name: str, expected: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve(name, {}, "model", allowed=["*"])
    assert expected in str(caught.value)


def test_whatever_a_users_module_raises_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_users_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownNameError, match="ZeroDivisionError: division by zero"):
        resolve("broken_users_module:make", {}, "model", ["broken_users_module"])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys\n\nsys.exit(3)", "importing {} called sys.exit(3) ({}.py line 3); remove that call"),
        ("\nexit('no')", "importing {} called sys.exit('no') ({}.py line 2); remove that call"),
        ("x = 1\ndef make(:", "SyntaxError: invalid syntax ({}.py line 2); correct it"),
        ("x = 1\nraise RuntimeError('boom')", "failed with RuntimeError: boom ({}.py line 2); correct it"),
        ("import absent_package", "({}.py line 1); install absent_package where this program runs"),
    ],
)
def test_an_error_at_import_has_its_place_and_advice_that_fits(
    code: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = f"users_module_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownNameError) as caught:
        resolve(f"{module}:make", {}, "model", [module])
    assert expected.replace("{}", module) in str(caught.value)


def test_a_name_with_the_ending_of_a_file_is_corrected() -> None:
    with pytest.raises(UnknownNameError, match=r"write colorsys:rgb_to_yiq, without \.py"):
        resolve("colorsys.py:rgb_to_yiq", {}, "model", ["*"])


def test_an_interrupt_while_a_module_is_imported_is_no_error_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted_users_module.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        resolve("interrupted_users_module:make", {}, "model", ["*"])


def test_suggest_lists_all_when_nothing_is_near() -> None:
    assert suggest("qqq", ["b", "a"]) == "choose one of: a, b"


def wrap(function: Callable[[], object]) -> None:
    """Call a user's function, and raise another error if it fails."""
    try:
        function()
    except ValueError as error:
        raise RuntimeError("wrapped") from error


@pytest.mark.parametrize("call", [lambda function: function(), wrap])
def test_the_place_of_an_error_is_the_last_one_in_the_users_package(
    call: Callable[[Callable[[], object]], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jsonx_wrong.py").write_text("import json\n\ndef load():\n    json.loads('{')\n")
    monkeypatch.syspath_prepend(tmp_path)
    load = resolve("jsonx_wrong:load", {}, "model", ["jsonx_wrong"])
    with pytest.raises((ValueError, RuntimeError)) as raised:
        call(load)
    assert find_place(raised.value, package_of("jsonx_wrong:load")) == "jsonx_wrong.py line 4"


def test_the_place_of_an_error_elsewhere_is_the_last_one_in_code_that_is_not_installed() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    assert find_place(raised.value, "absent").startswith("test_user_imports.py line ")


def test_an_array_that_must_not_change_is_explained() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only") as raised:
        array += 1
    assert describe_error(raised.value).endswith("read-only; change a copy: np.array(x)")
