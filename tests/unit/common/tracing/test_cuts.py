"""Cut a model and compare it with the whole one whose missing channels are masked out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.cut_models import ALL, MASKED, SERIES, WORDS
from tests.support.lookalike_transformers import TiedEncoder
from tests.support.user_modules import linear, module
from torch import Tensor, nn

from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.selectors import mesh
from fedquilt_common.submodels.slices import Anatomy, IndexSet, Slice, cut, full_slice
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.graph_check import check_graph
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.trace import Blueprint, blueprint_for

pytestmark = pytest.mark.usefixtures("plain_convolutions")


def samples(shape: tuple[int, ...], count: int = 3) -> Tensor:
    return torch.randint(0, 10, (count, *shape)) if shape == WORDS else torch.randn(count, *shape)


@functools.cache
def blueprint(name: str) -> Blueprint:
    return blueprint_for(ALL[name][0], samples(ALL[name][1]).numpy())


@functools.cache
def built(name: str) -> nn.Module:
    return ALL[name][0]().eval()


@functools.cache  # hypothesis examines each strategy anew
def channels(size: int) -> st.SearchStrategy[IndexSet]:
    return st.sets(st.integers(0, size - 1), min_size=1).map(lambda chosen: IndexSet.of(size, sorted(chosen)))


def slices(anatomy: Anatomy) -> st.SearchStrategy[Slice]:
    """Any channels of each group, in any order of ascent."""
    return st.tuples(*(channels(group.size) for group in anatomy.groups)).map(lambda kept: Slice(anatomy, kept))


def random_state(name: str) -> dict[str, NDArray[Any]]:
    state, module = {}, built(name)
    for key, tensor in module.state_dict().items():
        values = torch.rand_like(tensor) + 0.5 if key.endswith("var") else torch.randn_like(tensor.float()) * 0.3
        state[key] = (values if tensor.is_floating_point() else tensor.clone()).to(tensor.dtype).numpy()
    tied: dict[int, str] = {}
    for key, parameter in module.named_parameters(remove_duplicate=False):
        state[key] = state[tied.setdefault(id(parameter), key)]
    return state


def loaded(module: nn.Module, state: Mapping[str, NDArray[Any]]) -> nn.Module:
    module.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in state.items()})
    return module


def masked(state: dict[str, NDArray[Any]], part: Slice) -> dict[str, NDArray[Any]]:
    """The whole model with 0 wherever the part has nothing."""
    result = {}
    for name, x in state.items():
        kept = np.zeros_like(x)
        kept[mesh(part.selectors[name])] = x[mesh(part.selectors[name])]
        result[name] = np.where(kept == 0, 1, kept).astype(x.dtype) if name.endswith("var") else kept
    return result


@pytest.mark.parametrize("name", MASKED)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_cut_model_computes_what_the_masked_whole_one_does(name: str, data: st.DataObject) -> None:
    build, shape = ALL[name]
    torch.manual_seed(data.draw(st.integers(0, 2**31), label="seed"))
    plan, state = blueprint(name), random_state(name)
    part = data.draw(slices(plan.anatomy))
    small = loaded(cut_module(build, plan, part).eval(), cut(state, part))
    whole = loaded(built(name), masked(state, part))
    x = samples(shape)
    expected = whole(x).detach()
    torch.testing.assert_close(small(x), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max() + 1))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_cut_model_has_the_slices_shapes_and_can_be_trained(name: str, data: st.DataObject) -> None:
    (build, shape), plan = ALL[name], blueprint(name)
    part = data.draw(slices(plan.anatomy))
    small = cut_module(build, plan, part)
    assert {n: tuple(t.shape) for n, t in small.state_dict().items()} == dict(part.shapes)
    loaded(small, cut(random_state(name), part)).train()
    small(samples(shape, 4)).square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in small.parameters())


@pytest.mark.parametrize("name", ALL)
def test_the_full_slice_is_the_model_itself(name: str) -> None:
    build, shape = ALL[name]
    plan, state = blueprint(name), random_state(name)
    part = full_slice(plan.anatomy)
    assert part.is_full
    small, whole = loaded(cut_module(build, plan, part).eval(), state), loaded(built(name), state)
    x = samples(shape)
    torch.testing.assert_close(small(x), whole(x), rtol=1e-4, atol=1e-5)
    assert all(np.shares_memory(cut(state, part)[n], state[n]) for n in state if state[n].size and state[n].ndim)


@pytest.mark.parametrize("name", ALL)
def test_kernels_are_never_cut(name: str) -> None:
    arrays = blueprint(name).anatomy.arrays
    kernels = {n: a.axes[2:] for n, a in arrays.items() if 3 <= len(a.shape) <= 5 and a.shape[0] > 1}
    assert not {n for n, axes in kernels.items() if any(segment.group is not None for axis in axes for segment in axis)}


@pytest.mark.parametrize("name", ALL)
def test_half_of_each_model_passes_the_check_before_the_run(name: str) -> None:
    build, shape = ALL[name]
    check_cut(build, blueprint(name), samples(shape).numpy())


def sizes(name: str) -> dict[str, int]:
    return {group.name: group.size for group in blueprint(name).anatomy.groups}


def test_groups_are_those_that_must_share_an_index_set() -> None:
    assert sizes("residual") == {"a": 8, "c": 12}  # both sides of the addition; the depthwise filter
    assert sizes("encoder") == {"embedding": 16, "attention": 4, "fc1": 24}  # 4 heads of 4: cut within each head
    assert sizes("lstm") == {"body": 8}
    assert sizes("whole norm groups") == {"layers.1": 6}  # six groups of two: whole groups go
    assert sizes("within norm groups") == {"layers.0": 6}  # two groups of six: each keeps the same part
    assert sizes("one norm group") == {"layers.0": 12}
    assert sizes("wisdm-lstm") == {"lstm": 6, "fc1": 9}
    assert sizes("resnet18-gn, profiles")["conv"] == 4  # of eight channels in two groups
    assert list(sizes("resnet18, group norm").values())[-1] == 38  # of 76 channels in two groups


def test_each_channel_owns_its_places_when_a_convolution_is_flattened() -> None:
    plan = blueprint("residual")
    part = Slice(plan.anatomy, (IndexSet.full(8), IndexSet.of(12, [2, 5])))
    (rows, columns) = part.selectors["head.weight"]
    assert rows == slice(0, 5)
    assert isinstance(columns, np.ndarray)
    assert columns.tolist() == [*range(32, 48), *range(80, 96)]


def test_tied_weights_stay_one_tensor() -> None:
    plan = blueprint("encoder")
    part = Slice(plan.anatomy, (IndexSet.of(16, [1, 2, 9]), IndexSet.of(4, [0, 3]), IndexSet.prefix(24, 5)))
    small: Any = cut_module(TiedEncoder, plan, part)
    assert small.decoder.weight is small.embedding.weight
    assert tuple(small.attention.in_proj_weight.shape) == (3 * 4 * 2, 3)


def attending(s: Any, x: Tensor) -> Any:
    x = s.a(x) / s.attention.embed_dim
    return s.head(s.attention(x * s.attention.head_dim**-0.5, x, x)[0].mean(1))


def attending_if_large(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    if s.attention.embed_dim > 10 and s.attention.head_dim == 4:
        x = x + s.attention(x, x, x)[0]
    return s.head(x.mean(1))


@pytest.mark.parametrize(("forward", "runs_graph"), [(attending, False), (attending_if_large, True)])
def test_forward_may_read_the_sizes_of_attention(forward: Any, runs_graph: bool) -> None:
    build = module(forward, a=linear(6, 12), attention=lambda: nn.MultiheadAttention(12, 3, batch_first=True),
                   head=linear(12, 5))  # fmt: skip
    x = samples(SERIES).numpy()
    plan = blueprint_for(build, x)
    assert bool(plan.passes) == runs_graph
    check_cut(build, plan, x)
    check_graph(build, plan, x)
    small: Any = cut_module(build, plan, prefix(plan.anatomy, 0.5, "floor"))
    assert (small.attention.embed_dim, small.attention.head_dim) == (6, 2)
    assert tuple(small.attention.in_proj_weight.shape) == (3 * 3 * 2, 6)


def test_attention_keeps_its_hooks() -> None:
    seen: list[str] = []

    def hooked() -> nn.Module:
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        attention.register_forward_hook(lambda *given: seen.append("forward"))
        attention.register_full_backward_hook(lambda *given: seen.append("backward"))
        return attention

    def forward(s: Any, x: Tensor) -> Any:
        x = s.a(x)
        return s.head(s.attention(x, x, x)[0].mean(1))

    build = module(forward, a=linear(6, 8), attention=hooked, head=linear(8, 5))
    plan = blueprint_for(build, samples((7, 6)).numpy())
    small = cut_module(build, plan, prefix(plan.anatomy, 0.5, "floor"))
    seen.clear()
    small(samples((7, 6))).sum().backward()
    assert seen == ["forward", "backward"]
