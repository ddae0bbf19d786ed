"""Causal self-attention whose heads together may be narrower than the embedding: FedRolex has 8 heads of 12 in 128."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention: each position attends to itself and to earlier ones.

    In a sub-model every head keeps the same part of its dimensions.
    """

    def __init__(self, embed: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(embed, heads * head_dim)
        self.key = nn.Linear(embed, heads * head_dim)
        self.value = nn.Linear(embed, heads * head_dim)
        self.out = nn.Linear(heads * head_dim, embed)

    def forward(self, x: Tensor) -> Tensor:
        """Map embeddings of shape (n, length, embed) to the same shape."""
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
