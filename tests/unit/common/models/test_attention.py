"""Attention: causal, correct, and narrower per head than the embedding asks for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedquilt_common.models import build_model
from fedquilt_common.models.attention import Attention


def example(length: int = 5, embed: int = 8) -> Tensor:
    return torch.randn((2, length, embed), generator=torch.Generator().manual_seed(1))


def by_hand(attention: Attention, x: Tensor, head_dim: int) -> Tensor:
    """Head by head, with an explicit mask."""
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    outputs = []
    for head in range(attention.heads):
        own = slice(head * head_dim, (head + 1) * head_dim)
        query, key, value = (
            part(x)[..., own] for part in (attention.query, attention.key, attention.value)
        )  # fmt: skip
        scores = (query @ key.transpose(1, 2) / head_dim**0.5).masked_fill(hidden, float("-inf"))
        outputs.append(scores.softmax(dim=2) @ value)
    return attention.out(torch.cat(outputs, dim=2))  # type: ignore[no-any-return]


def test_is_attention() -> None:
    attention = Attention(8, heads=3, head_dim=5)
    assert attention(example()).shape == (2, 5, 8)
    torch.testing.assert_close(attention(example()), by_hand(attention, example(), 5))


def test_sees_nothing_that_comes_later() -> None:
    attention, x = Attention(8, 2, 4), example()
    changed = x.clone()
    changed[:, 3:] += 1
    torch.testing.assert_close(attention(x)[:, :3], attention(changed)[:, :3])
    assert not torch.allclose(attention(x)[:, 3:], attention(changed)[:, 3:])


def test_follows_narrower_heads() -> None:
    """Cut to part of every head, it is the attention of narrower heads: nothing in it remembers ``head_dim``."""
    attention, narrow = Attention(8, heads=3, head_dim=5), Attention(8, heads=3, head_dim=2)
    kept = torch.cat([head * 5 + torch.arange(2) for head in range(3)])
    for part in ("query", "key", "value"):
        layer = getattr(attention, part)
        layer.weight = torch.nn.Parameter(layer.weight[kept])
        layer.bias = torch.nn.Parameter(layer.bias[kept])
    attention.out.weight = torch.nn.Parameter(attention.out.weight[:, kept])
    narrow.load_state_dict(attention.state_dict())
    torch.testing.assert_close(attention(example()), narrow(example()))


@pytest.mark.parametrize("other", [[2, 1, 3, 4], [1, 2, 3, 5], [5, 2, 3, 4]])
def test_transformer_tells_every_word_and_the_order(other: list[int]) -> None:
    """What comes next depends on the last word, on those before it, and on where they stand."""
    torch.manual_seed(0)
    sizes = {"embed": 8, "hidden": 16, "heads": 2, "head_dim": 3, "layers": 1}
    module = build_model("transformer", sizes, (4,), 11)().eval()
    one, changed = module(torch.tensor([[1, 2, 3, 4], other]))
    assert not torch.allclose(one, changed)
