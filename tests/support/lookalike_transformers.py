"""Small transformers that are written as the published ones are."""

from __future__ import annotations

import torch
from tests.support.lookalikes import Permute
from torch import Tensor, nn
from torch.nn import functional


class EncoderBlock(nn.Module):
    """The block of torchvision's vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torchvision
        """Keep the shape."""
        torch._assert(input.dim() == 3, f"Expected (batch_size, seq_length, hidden_dim) got {input.shape}")  # type: ignore[no-untyped-call]
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + input
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class VisionTransformer(nn.Module):
    """torchvision's vision transformer."""

    def __init__(self, size: int = 6, patch: int = 2, width: int = 8) -> None:
        super().__init__()
        self.image_size, self.patch_size, self.hidden_dim = size, patch, width
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(EncoderBlock(width, 2), EncoderBlock(width, 2))
        self.ln = nn.LayerNorm(width)
        self.heads = nn.Sequential(nn.Linear(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        n, _c, h, w = x.shape
        p = self.patch_size
        torch._assert(h == self.image_size, f"Wrong image height! Expected {self.image_size} but got {h}!")  # type: ignore[no-untyped-call]
        n_h, n_w = h // p, w // p
        x = self.conv_proj(x)
        x = x.reshape(n, self.hidden_dim, n_h * n_w)
        x = x.permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))[:, 0]
        out: Tensor = self.heads(x)
        return out


def drop_path(x: Tensor, drop_prob: float, training: bool) -> Tensor:
    """Drop whole samples, with the body that many repositories have."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = keep_prob + torch.rand(shape, dtype=x.dtype, device=x.device)
    random_tensor.floor_()
    return x.div(keep_prob) * random_tensor


class OwnAttention(nn.Module):
    """Attention whose query, key and value are one linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        n, length, width = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attention = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        x = (attention @ v).transpose(1, 2).reshape(n, length, width)
        return drop_path(self.proj(x), 0.1, self.training)


class OwnTransformer(nn.Module):
    """A vision transformer with ``OwnAttention``."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 2, 2)
        self.cls_token, self.pos_embed = (nn.Parameter(torch.zeros(1, n, width)) for n in (1, 10))
        self.norm1, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.head = OwnAttention(width, 2), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        x = x + self.attn(self.norm1(x))
        out: Tensor = self.head(self.norm(x)[:, 0])
        return out


class Windows(nn.Module):
    """Swin's attention in shifted windows, with its table of relative positions."""

    index: Tensor

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        apart = places[:, None] - places[None] + window - 1
        self.register_buffer("index", (apart[..., 0] * (2 * window - 1) + apart[..., 1]).flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (n, height, width, channels)."""
        n, height, width, channels = x.shape
        m, shortcut = self.window, x
        x = torch.roll(self.norm(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x.view(n, height // m, m, width // m, m, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, channels)
        qkv = self.qkv(x).reshape(x.size(0), x.size(1), 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        bias = self.table[self.index].view(m * m, m * m, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        attention = functional.softmax(q.matmul(k.transpose(-2, -1)) + bias, dim=-1)
        x = self.proj(attention.matmul(v).transpose(1, 2).reshape(x.size(0), m * m, channels))
        x = x.view(n, height // m, width // m, m, m, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(n, height, width, channels)
        x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        return shortcut + x


def swin() -> nn.Module:
    """Return two blocks under a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 1), Permute([0, 2, 3, 1]), Windows(8, 2, 3, 0), Windows(8, 2, 3, 1), nn.LayerNorm(8),
        Permute([0, 3, 1, 2]), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(8, 5),
    )  # fmt: skip


class Encoders(nn.Module):
    """torch's transformer layers, one by itself and two in an encoder."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu", norm_first=norm_first), 2,
            norm=nn.LayerNorm(8), enable_nested_tensor=False,
        )  # fmt: skip
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        out: Tensor = self.fc(self.encoder(self.layer(self.embed(x))).mean(1))
        return out


class Decoders(nn.Module):
    """torch's decoder layers, one by itself and two in a decoder, with a memory of another length."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.embed, self.remember = nn.Linear(6, 8), nn.Linear(6, 8)
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(8, 2, 10, batch_first=True, activation="gelu", norm_first=norm_first), 2,
            norm=nn.LayerNorm(8),
        )  # fmt: skip
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        memory = self.remember(x[:, :4])
        out: Tensor = self.fc(self.decoder(self.layer(self.embed(x), memory=memory), memory).mean(1))
        return out


class TiedEncoder(nn.Module):
    """Attention, layer norm, tied weights, positions that are a buffer outside the state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.fc1, self.fc2 = nn.Linear(16, 24), nn.Linear(24, 16)
        self.decoder = nn.Linear(16, 10, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("places", torch.ones(1, 7, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.embedding(x) + self.places
        x = self.norm(x + self.attention(x, x, x)[0])
        x = x + self.fc2(functional.gelu(self.fc1(x)))
        out: Tensor = self.decoder(x)[:, -1]
        return out


class ShortHeads(nn.Module):
    """Attention by products of batches, with more heads than each has channels."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.fc = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 5)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], 6, 2).transpose(1, 2).reshape(x.shape[0] * 6, x.shape[1], 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        q, k = self._by_head(self.q(x)), self._by_head(self.k(x))
        mixed = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), k)
        mixed = mixed.view(x.shape[0], 6, x.shape[1], 2).transpose(1, 2).reshape(x.shape[0], x.shape[1], 12)
        out: Tensor = self.fc(mixed.mean(1))
        return out
