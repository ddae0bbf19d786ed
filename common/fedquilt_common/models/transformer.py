"""FedRolex's modified 3-layer Transformer for next-word prediction (thesis, section 3.3).

A vocabulary of 10,000 words, embeddings of 128, feed-forward networks of 2048 with ReLU, 8 attention heads of 12;
normalisation after each part, as in Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.attention import Attention
from fedquilt_common.models.shapes import check_size
from fedquilt_common.models.words import embed_words

LogitPlaces = Literal["last", "each"]


class Positions(nn.Module):
    """Sines and cosines of the position (Vaswani et al., section 3.5)."""

    table: Tensor

    def __init__(self, length: int, embed: int) -> None:
        super().__init__()
        angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, embed, 2) / embed)
        table = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(length, -1)[:, :embed]
        self.register_buffer("table", torch.from_numpy(table.astype(np.float32)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the positions to embeddings of shape (n, length, embed)."""
        return x + self.table


class Layer(nn.Module):
    """Attention and feed-forward network, each added to its input and then normalised."""

    def __init__(self, embed: int, heads: int, head_dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(embed, heads, head_dim)
        self.dropout1 = nn.Dropout(dropout)
        self.norm1 = nn.LayerNorm(embed)
        self.fc1 = nn.Linear(embed, hidden)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(hidden, embed)
        self.dropout2 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(embed)

    def forward(self, x: Tensor) -> Tensor:
        """Map embeddings of shape (n, length, embed) to the same shape."""
        x = self.norm1(x + self.dropout1(self.attention(x)))
        out: Tensor = self.norm2(x + self.dropout2(self.fc2(self.relu(self.fc1(x)))))
        return out


class Transformer(nn.Module):
    """Predicts the next word of a sequence, or the next word at each of its places."""

    def __init__(
        self, length: int, words: int, embed: int, layers: int, parts: tuple[int, int, int, float], outputs: LogitPlaces
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.embedding = embed_words(words, embed)
        self.positions = Positions(length, embed)
        self.layers = nn.Sequential(*(Layer(embed, *parts) for _ in range(layers)))
        self.decoder = nn.Linear(embed, words)

    def forward(self, x: Tensor) -> Tensor:
        """Map word numbers, int64 of shape (n, length), to logits of shape (n, words) or (n, length, words)."""
        hidden = self.layers(self.positions(self.embedding(x)))
        out: Tensor = self.decoder(hidden if self.outputs == "each" else hidden[:, -1])
        return out


def build(
    input_shape: tuple[int, ...],
    classes: int,
    embed: int = 128,
    hidden: int = 2048,
    heads: int = 8,
    head_dim: int = 12,
    layers: int = 3,
    dropout: float = 0.1,
    outputs: LogitPlaces = "last",
) -> nn.Module:
    """Build the network: input (n, length) of word numbers, output (n, classes) or (n, length, classes).

    Args:
        input_shape: (length,) of a sequence.
        classes: size of the vocabulary.
        embed: length of an embedding.
        hidden: width of the feed-forward networks.
        heads: number of attention heads.
        head_dim: width of a head.
        layers: how many.
        dropout: after attention and after the feed-forward network.
        outputs: ``last``: the word after the sequence, for classification, or for ``next-word`` with a loss of the last
            place alone. ``each``: the word after each place, for ``next-word``; attention sees earlier places only.

    Raises:
        ExperimentError: the samples are no sequences, or a size is not positive.
    """
    if len(input_shape) != 1 or classes < 2:
        raise ExperimentError(
            f"model.name = transformer: samples of shape {tuple(input_shape)} with {classes} classes are no sequences "
            "of words with a word to predict; choose another model, such as mlp"
        )
    if outputs not in ("last", "each"):
        raise ExperimentError(f"model.outputs = {outputs!r}: must be last or each")
    for name, size in {
        "embed": embed,
        "hidden": hidden,
        "heads": heads,
        "head_dim": head_dim,
        "layers": layers,
    }.items():
        check_size(name, size)
    return Transformer(input_shape[0], classes, embed, layers, (heads, head_dim, hidden, dropout), outputs)
