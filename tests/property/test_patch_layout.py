"""Slices, patches and masked averages: nothing is sent twice, everybody gets exactly what is theirs."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import SubModelUpdate, aggregate, mean
from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.errors import PayloadError, SliceError
from fedquilt_common.submodels.adaptivefl_pool import make_pool
from fedquilt_common.submodels.patch_layout import (
    MOST_BLOCKS,
    MOST_PATCHES,
    MOST_SLICES,
    AssembledArrays,
    patch_layout,
    patch_size,
    write_patch,
)
from fedquilt_common.submodels.selection import prefix, random_subset, window
from fedquilt_common.submodels.slices import (
    Anatomy,
    ArrayAnatomy,
    Group,
    IndexSet,
    Segment,
    Slice,
    anatomy_of_slice,
    cut,
    full_slice,
    relative_slice,
)
from fedquilt_common.types import Precision
from fedquilt_server.coordinator.publications import plan_publications


def A(inner: int = 1) -> Segment:  # noqa: N802
    return Segment(0, inner)


def B(inner: int = 1) -> Segment:  # noqa: N802
    return Segment(1, inner)


def C(inner: int = 1) -> Segment:  # noqa: N802
    return Segment(2, inner)


def FIXED(size: int) -> tuple[Segment, ...]:  # noqa: N802
    return (Segment(None, size),)


NET = Anatomy(
    (Group("a", 8, 0), Group("b", 5, 1), Group("c", 3, 1)),
    {
        "conv": ArrayAnatomy((8, 3, 2), "float32", ((A(),), FIXED(3), FIXED(2))),
        "norm": ArrayAnatomy((8,), "float32", ((A(),),)),
        "steps": ArrayAnatomy((), "int64", ()),
        "flat": ArrayAnatomy((5, 16), "float32", ((B(),), (A(2),))),
        "joined": ArrayAnatomy((16, 13), "float32", ((A(), B(), C()), (B(), A()))),
        "gates": ArrayAnatomy((10, 5), "float32", ((B(), B()), (B(),))),
        "head": ArrayAnatomy((4, 5), "float32", (FIXED(4), (B(),)), 0),
        "exit": ArrayAnatomy((4, 3), "float32", (FIXED(4), (C(),)), 0),
        "columns": ArrayAnatomy((5, 4, 2), "float32", ((B(),), FIXED(4), FIXED(2)), 1),
        "experts": ArrayAnatomy((2, 5, 4), "float32", (FIXED(2), (B(),), FIXED(4)), 2),
    },
)


@functools.cache  # hypothesis examines each strategy anew
def index_sets(size: int) -> st.SearchStrategy[IndexSet]:
    prefixes = st.integers(1, size).map(lambda n: IndexSet.prefix(size, n))
    windows = st.builds(IndexSet.window, st.just(size), st.integers(0, size - 1), st.integers(1, size))
    orders = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).permutation(size))
    any_order = st.builds(lambda order, n: IndexSet.of(size, order[:n]), orders, st.integers(1, size))
    return st.one_of(prefixes, windows, any_order)


KEPT = st.tuples(*(index_sets(group.size) for group in NET.groups))
SLICES = st.builds(Slice, st.just(NET), KEPT, st.sampled_from([frozenset(), frozenset({"exit"})]))


def numbers(seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        name: np.array(seed) if array.dtype == "int64" else rng.standard_normal(array.shape).astype(np.float32)
        for name, array in NET.arrays.items()
    }


def places(part: Slice, name: str) -> list[list[int]]:
    """Global indices of each dimension."""
    return [list(range(s.start, s.stop)) if isinstance(s, slice) else s.tolist() for s in part.selectors[name]]


@given(st.lists(SLICES, min_size=1, max_size=5, unique=True), st.sampled_from(["fp32", "fp16", "bf16"]))
@settings(max_examples=40)
def test_every_client_rebuilds_exactly_its_slice_from_its_patches(parts: list[Slice], precision: Precision) -> None:
    whole = numbers(3)
    patches = patch_layout(parts)
    with TemporaryDirectory() as folder:
        files = [write_patch(Path(folder) / str(n), whole, patch, precision) for n, patch in enumerate(patches)]
        for place, part in enumerate(parts):
            mine = [file.path for file, patch in zip(files, patches, strict=True) if place in patch.needed_by]
            rebuilt, expected = AssembledArrays(part, parts, mine, precision), cut(whole, part)
            assert rebuilt.keys() == expected.keys()
            for name, x in expected.items():
                tolerance = 0 if precision == "fp32" or x.dtype.kind == "i" else 0.01
                np.testing.assert_allclose(rebuilt[name], x, rtol=tolerance)
    assert [file.size for file in files] == [patch_size(patch, NET.arrays, precision) for patch in patches]


@given(st.lists(SLICES, min_size=1, max_size=6, unique=True))  # more could have too many patches: see below
def test_no_entry_is_published_twice_and_none_that_nobody_wants(parts: list[Slice]) -> None:
    patches = patch_layout(parts)
    for name, array in NET.arrays.items():
        sent = np.zeros(array.shape, int)
        wanted = np.zeros(array.shape, int)
        for patch in patches:
            for block in patch.blocks:
                if block.name == name:
                    axes = [np.r_[s] if isinstance(s, slice) else s for s in block.selectors]
                    sent[np.ix_(*axes)] += 1
        for part in parts:
            if name not in part.absent:
                wanted[np.ix_(*places(part, name))] = 1
        np.testing.assert_array_equal(sent, wanted)


def test_too_many_pieces_become_one_patch_that_covers_all() -> None:
    rng = np.random.default_rng(5)
    groups = (Group("a", 64, 0), Group("b", 64, 1))
    net = Anatomy(groups, {"w": ArrayAnatomy((64, 64), "float32", ((A(),), (B(),)))})
    parts = [random_subset(net, 0.3, rng) for _ in range(20)]
    (patch,) = patch_layout(parts)
    assert len(parts) <= MOST_SLICES
    assert patch.entries <= net.entries
    check_rebuilt(parts)


def check_rebuilt(parts: list[Slice]) -> None:
    """Each client rebuilds its slice from the patches that it needs."""
    rng, patches = np.random.default_rng(6), patch_layout(parts)
    whole = {
        name: rng.standard_normal(array.shape).astype(np.float32) for name, array in parts[0].anatomy.arrays.items()
    }
    with TemporaryDirectory() as folder:
        files = [write_patch(Path(folder) / str(n), whole, patch, "fp32").path for n, patch in enumerate(patches)]
        for position, part in enumerate(parts):
            own = [file for file, patch in zip(files, patches, strict=True) if position in patch.needed_by]
            found, expected = AssembledArrays(part, parts, own, "fp32"), cut(whole, part)
            assert found.keys() == expected.keys()
            for name, values in expected.items():
                np.testing.assert_array_equal(found[name], values)


LINE = Anatomy((Group("a", 80, 0),), {name: ArrayAnatomy((80,), "float32", ((A(),),)) for name in ("w", "exit")})


def prefixes(count: int, net: Anatomy = LINE) -> list[Slice]:
    """Return slices with the first 1, 2 ... ``count`` of group a; none of the smaller half has the array ``exit``."""
    sizes = range(1, count + 1)
    none: frozenset[str] = frozenset({"exit"} & net.arrays.keys())
    return [Slice(net, (IndexSet.prefix(80, size),), none if 2 * size <= count else frozenset()) for size in sizes]


def test_more_slices_than_bits_become_one_patch_that_covers_all() -> None:
    """Those beyond would get nothing. The patch has each array that any of them has."""
    check_rebuilt(prefixes(MOST_SLICES))
    assert len(patch_layout(prefixes(MOST_SLICES))) > 1
    (patch,) = patch_layout(prefixes(MOST_SLICES + 1))
    assert {block.name for block in patch.blocks} == {"w", "exit"}
    check_rebuilt(prefixes(MOST_SLICES + 1))


def test_few_patches_of_too_many_pieces_become_one() -> None:
    """Nested slices need one patch each, but 11 of them cut three dimensions into 1,331 blocks."""
    cube = Anatomy((Group("a", 80, 0),), {"w": ArrayAnatomy((80, 80, 80), "float32", ((A(),), (A(),), (A(),)))})
    assert len(patch_layout(prefixes(10, cube))) == 10 <= MOST_PATCHES
    assert 10**3 <= MOST_BLOCKS < 11**3
    assert len(patch_layout(prefixes(11, cube))) == 1
    check_rebuilt(prefixes(11, cube))


def deep_net(depth: int = 6, size: int = 256) -> Anatomy:
    groups = tuple(Group(f"fc{i}", size, i) for i in range(depth))
    arrays = {}
    for i in range(depth + 1):
        rows = (Segment(i, 1),) if i < depth else FIXED(10)
        columns = (Segment(i - 1, 1),) if i else FIXED(64)
        shape = (size if i < depth else 10, size if i else 64)
        arrays[f"fc{i}.weight"] = ArrayAnatomy(shape, "float32", (rows, columns))
    return Anatomy(groups, arrays)


WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
DEEP = deep_net()
ROUNDS = {
    "fedrolex": [window(DEEP, w, "floor", lambda group: 11) for w in WIDTHS],
    "heterofl": [prefix(DEEP, w, "ceil") for w in WIDTHS],
    "adaptivefl": [member.part for member in make_pool(DEEP, {"M": 0.66, "S": 0.4}, (3, 1))],
}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_of_mixed_widths_sends_one_global_model_and_each_client_its_slice(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    whole = {n: rng.standard_normal(a.shape).astype(np.float32) for n, a in DEEP.arrays.items()}
    parts = ROUNDS[name]
    tasks = {client: Task("train", whole, slice=parts[client % len(parts)]) for client in range(20)}
    made = plan_publications(tasks)
    sizes = [patch_size(p.patch, DEEP.arrays, "fp32") for p in made.patches if p.patch]
    assert len(sizes) == len(made.patches)
    model = 4 * DEEP.entries
    manifest = json.dumps([[k.encode() for k in entry.part.kept] for entry in made.slices])
    assert sum(sizes) + len(manifest) <= 1.02 * model
    assert {client for group in made.groups for client in group.clients} == set(range(20))
    for group in made.groups:
        assert group.task.slice is not None
        assert sum(sizes[place] for place in group.patches) == 4 * group.task.slice.entries


@given(SLICES, st.integers(0, 99))
def test_a_file_of_another_size_or_number_is_refused(part: Slice, extra: int) -> None:
    with TemporaryDirectory() as folder:
        path = write_patch(Path(folder) / "p", numbers(1), patch_layout([part])[0], "fp32").path
        path.write_bytes(path.read_bytes() + bytes(extra + 1))
        with pytest.raises(PayloadError, match="different models"):
            AssembledArrays(part, [part], [path], "fp32")
        with pytest.raises(PayloadError, match="there are 2 files"):
            AssembledArrays(part, [part], [path, path], "fp32")


@given(st.data())
def test_index_sets_survive_a_message(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 300))
    kept = data.draw(index_sets(size))
    assert IndexSet.decode(size, json.loads(json.dumps(kept.encode()))) == kept
    assert kept.indices.tolist() == [i for start, stop in kept.runs for i in range(start, stop)]
    assert kept.is_within(IndexSet.full(size))


@pytest.mark.parametrize(
    ("text", "words"),
    [([], "at least one"), ([0, 9], "out of range"), ([-1, 3], "out of range"), ([3, 3], "out of range"),
     ([0, 4, 3, 6], "twice"), ([0], "1 run bounds"), ("AA==", "at least one"), ("%", "base64"), ("AAAA", "bytes"),
     ("gA==", "out of range")],
)  # fmt: skip
def test_hostile_index_sets_are_refused(text: Any, words: str) -> None:
    with pytest.raises(SliceError, match=words):
        IndexSet.decode(7, text)


def test_a_width_that_rounds_to_nothing_is_refused() -> None:
    with pytest.raises(SliceError, match="keeps none of 8"):
        IndexSet.prefix(8, 0)
    with pytest.raises(SliceError, match="'fc1' none of its 256 channels"):
        make_pool(DEEP, {"S": 0.003}, (1,))
    with pytest.raises(SliceError, match="no layer from 9 on can be cut"):
        make_pool(DEEP, {"S": 0.5}, (9,))


@given(SLICES)
def test_contiguous_windows_are_views(part: Slice) -> None:
    whole = numbers(2)
    for name, x in cut(whole, part).items():
        if all(isinstance(s, slice) for s in part.selectors[name]) and x.ndim:
            assert np.shares_memory(x, whole[name])
        np.testing.assert_array_equal(x, whole[name][np.ix_(*places(part, name))])


@given(SLICES, SLICES)
def test_a_slice_of_a_slice_is_the_slice_itself(outer: Slice, inner: Slice) -> None:
    whole = numbers(4)
    if not inner.is_within(outer):
        with pytest.raises(SliceError, match="not nested"):
            relative_slice(inner, outer)
        return
    twice = cut(cut(whole, outer), relative_slice(inner, outer))
    for name, x in cut(whole, inner).items():
        np.testing.assert_array_equal(twice[name], x)


def test_a_slice_of_a_slice_keeps_multiples_of_the_unit() -> None:
    anatomy = Anatomy((Group("heads", 16, 0, unit=4),), {"w": ArrayAnatomy((16,), "float32", ((A(),),))})
    half = prefix(anatomy, 0.5, "floor")
    assert anatomy_of_slice(half).groups == (Group("heads", 8, 0, unit=4),)
    assert prefix(anatomy_of_slice(half), 0.75, "floor").kept[0].count == 4


@st.composite
def pieces(draw: st.DrawFn) -> dict[int, SubModelUpdate]:
    made = {}
    for client in range(draw(st.integers(1, 5))):
        part = draw(SLICES)
        trained = {n: np.asarray(x + client + 1) for n, x in cut(numbers(client), part).items()}
        held = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=4, max_size=4).map(np.array)))
        made[client] = SubModelUpdate(trained, part, draw(st.sampled_from([1.0, 2.5, 40.0])), held)
    return made


@settings(max_examples=40)
@given(pieces())
def test_the_masked_average_is_that_of_a_loop_over_the_entries(given_pieces: dict[int, SubModelUpdate]) -> None:
    whole = numbers(9)
    found = aggregate(whole, given_pieces)
    for name, array in NET.arrays.items():
        total, weight = np.zeros(array.shape), np.zeros(array.shape)
        for piece in given_pieces.values():
            if name in piece.part.absent:
                continue
            axes = places(piece.part, name)
            for local in np.ndindex(*map(len, axes)):
                at = tuple(axis[i] for axis, i in zip(axes, local, strict=True))
                if array.outputs is not None and piece.held is not None and not piece.held[at[array.outputs]]:
                    continue
                total[at] += float(piece.arrays[name][local]) * piece.weight
                weight[at] += piece.weight
        average = total / np.where(weight > 0, weight, 1)
        if array.dtype == "int64":
            average = np.rint(average)
        np.testing.assert_array_equal(found[name], np.where(weight > 0, average, whole[name]).astype(array.dtype))
        assert found[name].dtype == whole[name].dtype


def test_full_pieces_are_averaged_as_whole_replies_to_the_bit() -> None:
    whole, part = numbers(0), full_slice(NET)
    arrays = {client: numbers(client + 1) for client in range(3)}
    weights = {0: 3.0, 1: 11.0, 2: 0.7}
    sewn = aggregate(whole, {c: SubModelUpdate(arrays[c], part, weights[c]) for c in arrays})
    averaged = mean({c: Reply(arrays[c], weights[c]) for c in arrays}, like=whole)
    for name in whole:
        assert sewn[name].tobytes() == averaged[name].tobytes()


@given(SLICES)
def test_cut_and_sew_are_inverses(part: Slice) -> None:
    whole = numbers(5)
    back = aggregate(whole, {0: SubModelUpdate(cut(whole, part), part)})
    assert all(np.array_equal(back[name], whole[name]) for name in whole)
    assert part.entries == sum(math.prod(shape) for shape in part.shapes.values())


def test_a_slice_of_another_model_is_refused() -> None:
    with pytest.raises(SliceError, match="the model's are"):
        Slice(NET, (IndexSet.full(8),))
    with pytest.raises(SliceError, match="does not have"):
        Slice(NET, full_slice(NET).kept, frozenset({"nothing"}))
    with pytest.raises(SliceError, match="does not fit"):
        IndexSet.window(5, 5, 1)
