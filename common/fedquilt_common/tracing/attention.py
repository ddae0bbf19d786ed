"""``nn.MultiheadAttention`` in a sub-model, whose heads may be narrower than the embedding divided by their number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CutAttention(nn.Module):
    """Computes what ``attention`` does, with its parameters, which are cut already, under the same names.

    ``in_proj_weight`` has shape (3 * heads * d, embedding), ``out_proj.weight`` (embedding out, heads * d). Scores are
    scaled by 1 / sqrt(d) with the d of the sub-model, as in the published code of HeteroFL and FedRolex.

    Args:
        attention: its ``embed_dim`` and ``head_dim`` are those of the sub-model already: the embedding and d.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim = attention.embed_dim
        self.num_heads = attention.num_heads
        self.head_dim = attention.head_dim
        self.batch_first = attention.batch_first
        self.dropout = attention.dropout
        self.in_proj_weight = attention.in_proj_weight
        self.in_proj_bias = attention.in_proj_bias
        self.out_proj = attention.out_proj
        self._qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from its kernel for whole heads

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
        """Attend as ``nn.MultiheadAttention`` does, with batches: shape (n, length, embedding) if ``batch_first``."""
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = _apply_masks(scores, attn_mask, key_padding_mask, self.num_heads)
        weights = torch.softmax(scores, dim=-1)
        mixed = functional.dropout(weights, self.dropout, self.training) @ v
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(dim=1) if average_attn_weights else weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        """Project to query, key and value, each of shape (n, heads, length, d)."""
        weights = self.in_proj_weight.chunk(3)
        biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else [None] * 3
        flat = [functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
        return [x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(1, 2) for x in flat]


def _apply_masks(scores: Tensor, mask: Tensor | None, padding: Tensor | None, heads: int) -> Tensor:
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(-1, heads, *mask.shape[1:])
    for added in (mask, None if padding is None else padding[:, None, None, :]):
        if added is not None:
            scores = scores.masked_fill(added, float("-inf")) if added.dtype == torch.bool else scores + added
    return scores
