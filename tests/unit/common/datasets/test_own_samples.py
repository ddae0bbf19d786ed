"""Samples that a board has of its own: four kinds of files and a function, checked against the experiment's form."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedquilt_common.datasets.own_samples import read_own_samples
from fedquilt_common.datasets.shard_files import DatasetForm
from fedquilt_common.errors import DataUnavailableError, ForbiddenImportError

FORM = DatasetForm("own", (2,), "float32", 3)
PRICE = DatasetForm("own", (2,), "float32", 0, "", (1,), "float32")
X = np.array([[1.5, 2.0], [3.0, 4.25], [5.0, 6.0]])
Y = np.array([0, 2, 1])
CSV = "a,b,label\n1.5,2,0\n3,4.25,2\n5,6,1\n"


def write_csv(path: Path) -> str:
    path.with_suffix(".csv").write_text(CSV)
    return str(path.with_suffix(".csv"))


def write_npz(path: Path) -> str:
    np.savez(path.with_suffix(".npz"), x=X, y=Y)
    return str(path.with_suffix(".npz"))


def write_safetensors(path: Path) -> str:
    save_file({"x": X, "y": Y}, str(path.with_suffix(".safetensors")))
    return str(path.with_suffix(".safetensors"))


def write_parquet(path: Path) -> str:
    duckdb = pytest.importorskip("duckdb", reason="duckdb writes the Parquet file of this test")
    pytest.importorskip("pyarrow", reason="pyarrow reads Parquet files")
    write_csv(path)
    duckdb.sql(f"copy (from '{path}.csv') to '{path}.parquet' (format parquet)")
    return f"{path}.parquet"


def write_module(path: Path) -> str:
    (path.parent / "mine.py").write_text(
        "import numpy as np\ndef load():\n    return [[1.5,2],[3,4.25],[5,6]], [0,2,1]\n"
    )
    return "mine:load"


@pytest.mark.parametrize("write", [write_csv, write_npz, write_safetensors, write_parquet, write_module])
def test_each_kind_gives_the_same_samples(
    tmp_path: Path, write: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    found = read_own_samples(write(tmp_path / "own"), FORM, ("mine",))
    np.testing.assert_array_equal(found.x, X.astype(np.float32))
    np.testing.assert_array_equal(found.y, Y)
    assert (found.x.dtype.name, found.y.dtype.name) == ("float32", "int64")


def test_targets_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["label_10", *(f"label_{number}" for number in range(9, -1, -1))]  # as text, 10 would come after 1
    (tmp_path / "t.csv").write_text(f"{','.join(names)},a,b\n{','.join(name[6:] for name in names)},1,2\n")
    found = read_own_samples(str(tmp_path / "t.csv"), DatasetForm("own", (2,), "float32", 0, "", (11,), "float32"))
    assert found.y.tolist() == [[float(number) for number in range(11)]]


@pytest.mark.parametrize("names", ["label,label_0", "label_1,label_01", "label_0,label_1,label_2", "label_0"])
def test_targets_without_a_number_of_their_own_are_refused(names: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{names},a,b\n1,2,3,4\n")
    with pytest.raises(DataUnavailableError, match="'label_0', 'label_1' and so on"):
        read_own_samples(str(tmp_path / "t.csv"), DatasetForm("own", (2,), "float32", 0, "", (2,), "float32"))


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_columns_are_found_by_their_names(write: Callable[[Path], str], tmp_path: Path) -> None:
    source = write(tmp_path / "own")
    assert read_own_samples(source, FORM, (), ("b", "a")).x.tolist() == X[:, ::-1].tolist()
    narrow = DatasetForm("own", (1,), "float32", 3)
    assert read_own_samples(source, narrow, (), ("b",)).x.tolist() == X[:, 1:].tolist()
    (tmp_path / "named.csv").write_text("id,b,label,a\nann,2,1,1.5\n,4,0,3\n")
    found = read_own_samples(str(tmp_path / "named.csv"), FORM, (), ("a", "b"))
    assert (found.x.tolist(), found.y.tolist()) == ([[1.5, 2.0], [3.0, 4.0]], [1, 0])
    with pytest.raises(DataUnavailableError, match=r"lacks the columns c, d of data\.form\.columns"):
        read_own_samples(source, FORM, (), ("c", "d"))


def test_a_suffix_in_capitals_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "T.CSV").write_text("a,b,label\n \n1.5,2,0\n\n")
    assert read_own_samples(str(tmp_path / "T.CSV"), FORM).x.tolist() == [[1.5, 2.0]]


def test_a_table_of_targets(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,a,b\n0.5,1,2\n")
    found = read_own_samples(str(tmp_path / "t.csv"), PRICE)
    assert (found.y.tolist(), found.x.tolist()) == ([[0.5]], [[1.0, 2.0]])


def test_a_package_that_is_not_allowed() -> None:
    with pytest.raises(ForbiddenImportError):
        read_own_samples("mine:load", FORM)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"t.csv: has no samples; write a header"),
        ("a,b\n1,2\n", r"has 2 feature columns and 0 label columns, but the experiment needs 2 features"),
        ("a,label\n1,2\n", r"has 1 feature column and 1 label column, "),
        ("a,b,label\n1,2\n", r"t.csv:2: has 2 columns, the header 3"),
        ("a,b,label\n1,2,0\n\n1,x,0\n", r"t.csv:4: 'x' in the column 'b' is not a finite number"),
        ("a,a,label\n1,2,0\n", r"t.csv:1: has two columns of the same name"),
        ("a,b,label\n", r"t.csv: has no samples"),
        ("a,b,label\n1,2,0\n1,nan,0\n", r"t.csv:3: 'nan' in the column 'b' is not a finite number"),
        ("a,b,label\n1,2,0.5\n", r"t.csv:2: a value of y is not a whole number, but the experiment needs int64"),
        ("a,b,label\n1,2,0\n1,2,3\n1,2,-1\n", r"t.csv:3: the label is not one .* 0 to 2; correct it \(2 samples"),
        ("\n\n", r"t.csv: has no samples"),
        ("a;b;label\n1;2;0\n", r"t.csv:1: its columns are separated by ';'; save it with commas"),
        ("a,b,label\n1_5,2,0\n", r"t.csv:2: '1_5' in the column 'a' is not a finite number"),
        ("a,b,label\n1,2,٣\n", r"t.csv:2: '٣' in the column 'label'"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataUnavailableError, match=reason):
        read_own_samples(str(tmp_path / "t.csv"), FORM)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (X.reshape(3, 1, 2), Y, r"float32 of shape \[1, 2\], but those of the experiment are float32 of shape \[2\]"),
        (X, Y[:2], "has 3 samples and 2 labels"),
        (X[:0], Y[:0], "a.npz: holds no samples; give the client at least one"),
        (X.astype(str), Y, "x holds <U32, not numbers"),
        (np.where(X == 6, np.inf, X), Y, "a.npz, sample 3: a value of x is not finite"),
        (np.where(X == 6, 1e39, X), Y, "a.npz, sample 3: a value of x is too large or too small for float32"),
        (np.array(1.0), Y, "a.npz: x or y is a single value"),
        (X, np.array(1), "a.npz: x or y is a single value"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, x: np.ndarray, y: np.ndarray, reason: str) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataUnavailableError, match=reason):
        read_own_samples(str(tmp_path / "a.npz"), FORM)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.csv"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfenot such a file")
    with pytest.raises(DataUnavailableError, match=name):
        read_own_samples(str(tmp_path / name), FORM)


@pytest.mark.parametrize(
    ("dtype", "x"),
    [
        ("int64", np.array([[0.0, 1e300]])),
        ("int64", np.array([[0.0, 2.0**63]])),
        ("int64", np.array([[0, 2**63]], np.uint64)),
        ("uint8", np.array([[300, 2]])),
        ("uint8", np.array([[3, -2]])),
        ("uint8", np.array([[256.0, 2]])),
        ("uint64", np.array([[3, -2]])),
    ],
)
def test_whole_numbers_that_the_form_cannot_hold(tmp_path: Path, dtype: str, x: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", x=np.concatenate([x * 0, x]), y=Y[:2])
    with pytest.raises(DataUnavailableError, match=f"a.npz, sample 2: a value of x is too large .* for {dtype}"):
        read_own_samples(str(tmp_path / "a.npz"), DatasetForm("own", (2,), dtype, 3))


def test_the_largest_whole_numbers_stay_exact(tmp_path: Path) -> None:
    limits = np.iinfo(np.int64)
    np.savez(tmp_path / "a.npz", x=np.array([[limits.min, limits.max]]), y=Y[:1])
    found = read_own_samples(str(tmp_path / "a.npz"), DatasetForm("own", (2,), "int64", 3))
    assert found.x.tolist() == [[limits.min, limits.max]]


def test_a_compressed_file_with_damaged_contents_is_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(50, 2)), y=np.zeros(50, int))
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    names = int.from_bytes(whole[26:28], "little") + int.from_bytes(whole[28:30], "little")
    whole[30 + names] = 0xFF  # a kind of block that DEFLATE does not have, in the first member
    (tmp_path / "a.npz").write_bytes(whole)
    with pytest.raises(DataUnavailableError, match=r"a\.npz: must hold the arrays x and y"):
        read_own_samples(str(tmp_path / "a.npz"), FORM)


def test_a_single_array_in_a_file_for_several_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DataUnavailableError, match=r"a\.npz: must hold the arrays x and y .*numpy\.savez"):
        read_own_samples(str(tmp_path / "a.npz"), FORM)


@pytest.mark.parametrize("number", range(4))
def test_a_function_that_gives_no_samples_is_named(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = ["return 5", "return [[1, 2], [3]], [0, 1]", "return {}['x']", "raise OSError('gone')"]
    reasons = ["TypeError", "ValueError", "KeyError: 'x'", "OSError: gone"]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"odd{number}.py").write_text(f"def load():\n    {bodies[number]}\n")
    with pytest.raises(DataUnavailableError, match=f"odd{number}:load: gives no arrays .*{reasons[number]}"):
        read_own_samples(f"odd{number}:load", FORM, (f"odd{number}",))


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object), y=Y)
    with pytest.raises(DataUnavailableError, match="must hold the arrays x and y"):
        read_own_samples(str(tmp_path / "a.npz"), FORM)


@pytest.mark.parametrize(("source", "reason"), [("none.csv", "No such file"), ("a.txt", "is neither")])
def test_a_source_that_is_none(source: str, reason: str) -> None:
    with pytest.raises(DataUnavailableError, match=reason):
        read_own_samples(source, FORM)


def test_a_file_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "own")
    first = read_own_samples(source, FORM)
    assert read_own_samples(source, FORM) is first
    Path(source).write_text(CSV + "7,8,0\n")
    assert len(read_own_samples(source, FORM)) == 4


@pytest.mark.parametrize(
    ("column", "held"),
    [
        ("timestamp '2020-01-01' + interval (a) day", r"datetime64\[us\]"), ("a::decimal(4, 2)", "Decimal"),
        ("a::varchar", "str"), ("[a]", "ndarray"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["b", "label"])
def test_a_column_of_a_parquet_file_that_holds_no_numbers_is_named(
    column: str, held: str, name: str, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb writes the Parquet file of this test")
    pytest.importorskip("pyarrow", reason="pyarrow reads Parquet files")
    path, other = tmp_path / "own.parquet", "label" if name == "b" else "b"
    rows = f"from (values (1), (2)) as t(a) select a, {column} as {name}, 1 as {other}"
    duckdb.sql(f"copy ({rows}) to '{path}' (format parquet)")
    with pytest.raises(DataUnavailableError, match=f"own.parquet: the column '{name}' holds {held}, not numbers"):
        read_own_samples(str(path), FORM)
