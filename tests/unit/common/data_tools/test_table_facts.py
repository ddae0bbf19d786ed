"""``fedquilt data inspect FOLDER``: the rows, headers and classes of tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedquilt_common.data_tools import folder_facts
from fedquilt_common.data_tools.folder_facts import describe_folder


@pytest.mark.parametrize(
    ("name", "text", "what", "classes"),
    [
        ("a.csv", "x,label\n1,2\n\n \n", "1 row below a header, 2 columns", {"2": 1}),
        ("a.csv", "\nx,y\n1,2\n3,\n,\n", "3 rows below a header, 2 columns", {}),
        ("a.csv", "", "0 rows, 0 columns", {}),
        ("a.csv", "1,2\n3,4\n\n", "2 rows, 2 columns", {}),
        ("a.csv", "0,label,2020\n0,3,1.5\n", "1 row below a header, 3 columns", {"3": 1}),
        ("a.csv", "0,x,2020\n0,3,1.5\n", "1 row below a header, 3 columns", {}),
        ("a.csv", "1600,A,25.2\n1600,B,25.3\n", "2 rows, 3 columns", {}),
        ("a.csv", "nan,1.5\n2.5,?\n", "2 rows, 2 columns", {}),
        ("a.csv", "?,1\n2,3\n", "2 rows, 2 columns", {}),
        ("a.csv", "id, Label\n1,a\n2,b\n3,a\n", "3 rows below a header, 2 columns", {"a": 2, "b": 1}),
        ("a.tsv", "x y\tclass\n1 2\t5\n", "1 row below a header, 2 columns", {"5": 1}),
        ("a.txt", "1 2\n3 4\n\n", "2 rows, 2 columns", {}),
        ("a.txt", "label of\n2 things\n", "1 row below a header, 2 columns", {"2": 1}),
        ("a.txt", "one label\nis enough\n", "2 rows, 2 columns", {}),
        ("a.txt", "chapter one\n1 2\n", "2 rows, 2 columns", {}),
    ],
)
def test_rows_of_a_table(name: str, text: str, what: str, classes: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (found,) = describe_folder(tmp_path)
    assert (found.what, found.classes) == (what, classes)


def write_many(folder: Path, count: int = 9) -> None:
    for number in range(count):
        text = "x,label\n" + f"1,{number % 2}\n" * (number + 1)
        (folder / f"{number}.csv.gz").write_bytes(gzip.compress(text.encode()))


def test_many_tables_are_counted_together(tmp_path: Path) -> None:
    write_many(tmp_path)
    (found,) = describe_folder(tmp_path)
    assert (found.files, found.what) == (9, "45 rows below headers, 2 columns")
    assert found.classes == {"0": 25, "1": 20}
    (tmp_path / "3.csv.gz").write_bytes(gzip.compress(b"1,2,3\n4,5,6\n"))
    (found,) = describe_folder(tmp_path)
    assert found.what == "43 rows, 2 to 3 columns"


def test_a_damaged_one_of_many_tables_is_named(tmp_path: Path) -> None:
    write_many(tmp_path)
    (tmp_path / "7.csv.gz").write_bytes(b"no gzip")
    (found,) = describe_folder(tmp_path)
    assert found.what.startswith("7.csv.gz: is damaged (")


def test_tables_that_are_large_together_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_many(tmp_path)
    monkeypatch.setattr(folder_facts, "_LARGEST", 9 * (tmp_path / "0.csv.gz").stat().st_size - 1)
    (found,) = describe_folder(tmp_path)
    assert (found.files, found.what, found.classes) == (9, "not looked into, because of its size", {})
