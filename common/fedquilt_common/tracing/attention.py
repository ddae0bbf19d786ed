"""``nn.MultiheadAttention`` cut to a sub-model, where the heads are narrower than the embedding divided by them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CutAttention(nn.Module):
    """Takes over the (already cut) parameters of ``attention`` under the same names, and computes the same.

    in_proj_weight (3 * heads * d, embedding), out_proj.weight (embedding out, heads * d); scores are scaled by
    1 / sqrt(d) with the d that is left, as the published HeteroFL and FedRolex do.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.batch_first = attention.batch_first
        self.dropout = attention.dropout
        self.in_proj_weight = attention.in_proj_weight
        self.in_proj_bias = attention.in_proj_bias
        self.out_proj = attention.out_proj

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention`` with batches: (n, length, embedding) if ``batch_first``."""
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = _masked(scores, attn_mask, key_padding_mask, self.num_heads)
        weights = torch.softmax(scores, dim=-1)
        mixed = functional.dropout(weights, self.dropout, self.training) @ v
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(dim=1) if average_attn_weights else weights

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Query, key and value as (n, heads, length, d)."""
        weights = self.in_proj_weight.chunk(3)
        biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else [None] * 3
        flat = [functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
        return [x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(1, 2) for x in flat]


def _masked(scores: Tensor, mask: Tensor | None, padding: Tensor | None, heads: int) -> Tensor:
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(-1, heads, *mask.shape[1:])
    for one in (mask, None if padding is None else padding[:, None, None, :]):
        if one is not None:
            scores = scores.masked_fill(one, float("-inf")) if one.dtype == torch.bool else scores + one
    return scores
