"""Models that sub-models are cut from: each with the shape of its samples, and named by what is special in it."""

from __future__ import annotations

from typing import Any

import torch
from tests.support import lookalike_transformers, lookalikes, renamed_layers
from tests.support.user_modules import Build, conv, linear, module
from tests.support.wrapped import Wrapping
from torch import Tensor, nn
from torch.nn import functional

from fedquilt_common.models import build_model

IMAGE, SERIES, WORDS = (3, 6, 6), (7, 6), (7,)


def residual(s: Any, x: Tensor) -> Any:
    x = torch.relu(s.a(x))
    x = x + functional.relu(s.norm(s.b(x)))
    return s.head(s.depthwise(s.c(x)).view(x.size(0), -1))


def concatenated(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    x = torch.cat([x, s.b(x)], 1)
    return s.head(s.up(s.grouped(s.c(s.norm(x)))).mean((2, 3)))


def by_head(s: Any, x: Tensor) -> Any:
    q, k = (part(x).view(-1, 4, 4, 6).transpose(1, 2) for part in (s.q, s.k))
    return s.head(((q @ k.transpose(-2, -1)) @ k).transpose(1, 2).reshape(-1, 4, 24))[:, -1]


def gated(s: Any, x: Tensor) -> Any:
    a, b = s.a(x).chunk(2, 1)
    return s.head(torch.max(a * torch.sigmoid(b), a).mean([2, 3]))


def named_as_in_numpy(s: Any, x: Tensor) -> Any:
    along: dict[str, Any] = {"axis": 1}
    one, two = torch.chunk(input=s.a(x), chunks=2, **along)
    x = s.b(torch.cat([torch.relu(input=one), two, s.c(x)], **along))
    first, second = x[:, :2], x[:, 2:]
    x = torch.stack([first.sum(**along).unsqueeze(1), second.softmax(**along).amax(1, True)], **along)
    return s.head(x.unbind(**along)[0].mean((2, 3)))


def split_at_places(s: Any, x: Tensor) -> Any:
    one, two, three = torch.tensor_split(s.a(x), (3, 5), 1)
    x = torch.cat([torch.relu(one), two, torch.tanh(three)], 1)
    one, two = x.tensor_split(2, dim=1)
    return s.head((one * two).mean((2, 3)))


def projected_if_sizes_differ(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    y = s.b(torch.relu(x))
    grows = s.b.out_channels / s.a.out_channels > 1
    return s.head((y + (s.short(x) if grows else x)).mean((2, 3)))


def unflattened(s: Any, x: Tensor) -> Any:
    flat = s.a(x.mean((2, 3)))
    x = s.pictures(flat) + s.pictures(torch.relu(flat)) + s.gain.expand(size=(-1, 12, 2, 2))
    by_name: dict[str, Any] = {"sizes": (7, 4, 4), "dim": 1}
    x = s.up(x).flatten(1).unflatten(**by_name)
    x = torch.reshape(input=x, shape=(-1, 7, 4, 4)).flatten(1)
    x = torch.unflatten(x, 1, (7, 4, 4))
    return s.head(x.norm(1, dim=3).norm(2, 2))


def choosing(s: Any, x: Tensor) -> Any:
    x = s.a(x).mean((2, 3))
    y = torch.sigmoid(s.b(x))
    return s.head(torch.cat([s.rows(x.argmax(1)), y.prod(1, keepdim=True)], 1))


def choosing_two(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return s.head(s.rows(x.max(1)[1]) + s.rows(torch.min(x, 1).indices) + s.b(x))


def channel_by_channel(s: Any, x: Tensor) -> Any:
    return s.head(s.body(s.b(torch.relu(s.a(x))).flatten(2))[0].mean(1))


def with_positions(s: Any, x: Tensor) -> Any:
    n, length, _ = x.shape
    x = s.a(x) + s.positions[:length]
    x = x.masked_fill(s.mask[:length, :1] == 0, 0.5)  # forward would compute it once, when it is traced
    return s.head(functional.avg_pool1d(s.b(x), 3, 1, 1).mean(1).view(n, 6))


def in_turn(s: Any, x: Tensor) -> Any:
    for layer in s.layers:
        x = layer(x)
    return x


def twice(s: Any, x: Tensor) -> Any:
    return s.head(s.same(torch.tanh(s.same(s.a(x)))))


def scaled(s: Any, x: Tensor) -> Any:
    return s.head(functional.linear(s.a(x), s.weight) * s.gain)


def recurrent(s: Any, x: Tensor) -> Any:
    return s.head(s.body(x)[0][:, -1])


def with_first_state(s: Any, x: Tensor) -> Any:
    return s.head(s.body(x, hx=s.first(x[:, 0]).unsqueeze(0))[0][:, -1])


def step_by_step(s: Any, x: Tensor) -> Any:
    hidden, (kept, cell) = s.plain(x[:, 0]), s.gated(x[:, 1])
    for place in range(2, 7):
        hidden = s.body(x[:, place], hidden)
        kept, cell = s.gated(x[:, place], (kept, cell))
    return s.head(torch.cat([hidden, kept, cell], 1))


def shuffled(s: Any, x: Tensor) -> Any:
    x = s.up(s.b(s.swap(s.a(x))))
    return s.head(s.down(s.c(x)).repeat_interleave(2, dim=1).mean((2, 3)))


def repeated_by_shape(s: Any, x: Tensor) -> Any:
    x = s.b(s.a(x))
    return s.head(x.repeat_interleave(x.shape[1], 1))


def shuffled_by_functions(s: Any, x: Tensor) -> Any:
    x = functional.pixel_shuffle(s.b(functional.channel_shuffle(s.a(x), 2)), upscale_factor=2)
    return s.head(torch.repeat_interleave(functional.pixel_unshuffle(s.c(x), 2), 2, 1).mean((2, 3)))


def placewise(s: Any, x: Tensor) -> Any:
    return s.out(functional.interpolate(functional.max_pool2d(s.a(x), 2), scale_factor=2))


def channels_last(s: Any, x: Tensor) -> Any:
    return s.head(s.b(s.a(x).permute(0, 2, 3, 1)).flatten(1, 2).sum(1))


def kernels(s: Any, x: Tensor) -> Any:
    x = functional.relu(functional.conv2d(x, s.first, s.shift, padding=1))
    return s.head(functional.conv2d(x, s.second).mean((2, 3)))


def flipped(s: Any, x: Tensor) -> Any:
    return s.head(s.b(s.a(x).flip(2, 1)).mean((2, 3)))


def halved(s: Any, x: Tensor) -> Any:
    x = s.b(s.gate(s.a(x)))
    return s.head(functional.glu(x, 1).view_as(x[:, :4]))


def cropped(s: Any, x: Tensor) -> Any:
    return s.head(s.b(s.pad(s.a(x))).mean((2, 3)))


def doubled(s: Any, x: Tensor) -> Any:
    return s.head(s.a(x).view(-1, 8) * torch.tensor([2.0]))


def viewed_in_evaluation(s: Any, x: Tensor) -> Any:
    x = s.a(x)
    return s.head(x if s.training else x.view(-1, 8))


def pictured(s: Any, x: Tensor) -> Any:
    x = s.shrink(torch.relu(s.a(x)).view(-1, 4, 4, 4))
    return s.head(s.up(functional.conv2d(s.b(x), s.kernel)).mean((2, 3)))


def shortcut_by_doubling(s: Any, x: Tensor) -> Any:
    x = torch.relu(s.a(x))
    return s.head(s.b(s.grouped(x) + torch.cat([x, x], 1)).mean((2, 3)))


def with_registers(s: Any, x: Tensor) -> Any:
    x = torch.cat([s.registers.expand(x.shape[0], -1, -1), s.a(x)], 1)
    weights = torch.softmax(x @ s.b(x).transpose(1, 2), -1)
    return s.head(s.last(weights @ x).mean(1))


def masked_encoder(s: Any, x: Tensor) -> Any:
    x = s.encoder(x, s.mask, src_key_padding_mask=0 * x.sum(2))
    return s.head(s.layer(x, src_mask=s.mask).mean(1))


def masked_attention(s: Any, x: Tensor) -> Any:
    x = s.a(x) + s.attention(s.a(x), s.a(x), s.a(x), attn_mask=s.mask, need_weights=False)[0]
    return s.head(functional.scaled_dot_product_attention(x, x, x, s.mask).mean(1))


def untouched(s: Any, x: Tensor) -> Any:
    return s.head(s.a(x).squeeze(-1).squeeze(-1)[:, None, :].flatten(1))


def renamed(s: Any, x: Tensor) -> Any:
    x = s.first(s.b(s.pool(s.norm(s.a(x)))))
    return s.head(s.body(x.flatten(2).transpose(1, 2))[0][:, -1])


MASKED: dict[str, tuple[Build, tuple[int, ...]]] = {
    "mlp": (build_model("mlp", {"hidden": [9, 7]}, IMAGE, 5), IMAGE),
    "layers by other names": (module(
        renamed, a=conv(3, 8, 3), norm=lambda: renamed_layers.Norm(8), pool=renamed_layers.Pool, b=conv(8, 6, 1),
        first=lambda: renamed_layers.FirstNorm(6), body=lambda: renamed_layers.Recurrence(6, 4),
        head=linear(4, 5)), IMAGE),
    "convnet": (build_model("convnet", {"width": 0.1}, (3, 16, 16), 5), (3, 16, 16)),
    "vgg16": (build_model("vgg16", {"width": 0.05}, (3, 32, 32), 5), (3, 32, 32)),
    "resnet18": (build_model("resnet18", {"width": 0.08}, (3, 12, 12), 5), (3, 12, 12)),
    "mobilenet-v2": (build_model("mobilenet-v2", {"width": 0.15}, (3, 12, 12), 5), (3, 12, 12)),
    "epic-resnet18": (build_model("epic-resnet18", {"width": 0.08}, (1, 16, 20), 5), (1, 16, 20)),
    "wisdm-lstm": (build_model("wisdm-lstm", {"hidden": 9}, SERIES, 5), SERIES),
    "casas-bilstm": (build_model("casas-bilstm", {"vocabulary": 10, "units": 6}, WORDS, 5), WORDS),
    "aep-mlp": (build_model("aep-mlp", {"hidden": [9, 7]}, (6,), 0), (6,)),
    "residual": (module(
        residual, a=conv(3, 8, 3, padding=1), b=conv(8, 8, 3, padding=1), norm=lambda: nn.BatchNorm2d(8),
        c=conv(8, 12, 1), depthwise=conv(12, 12, 3, groups=12), head=linear(12 * 16, 5)), IMAGE),
    "concatenated": (module(
        concatenated, a=conv(3, 8, 3, padding=1), b=conv(8, 6, 3, padding=1), norm=lambda: nn.BatchNorm2d(14),
        c=conv(14, 10, 1), grouped=conv(10, 20, 3, groups=2, padding=1),
        up=lambda: nn.ConvTranspose2d(20, 6, 2, stride=2, groups=2), head=linear(6, 5)), IMAGE),
    "many conv groups": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Conv2d(3, 12, 3), nn.Conv2d(12, 24, 3, groups=6), nn.Flatten(), nn.Linear(24 * 4, 5)])), IMAGE),
    "multiplied depthwise": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Conv2d(3, 6, 3), nn.Conv2d(6, 18, 3, groups=6), nn.Flatten(), nn.Linear(18 * 4, 5)])), IMAGE),
    "whole norm groups": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Conv2d(3, 12, 3), nn.GroupNorm(6, 12), nn.Flatten(), nn.Linear(12 * 16, 5)])), IMAGE),
    "lstm": (module(recurrent, body=lambda: nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True),
                    head=linear(16, 5)), SERIES),
    "gru": (module(recurrent, body=lambda: nn.GRU(6, 8, batch_first=True), head=linear(8, 5)), SERIES),
    "gru with a first state by name": (module(
        with_first_state, first=linear(6, 8), body=lambda: nn.GRU(6, 8, batch_first=True), head=linear(8, 5)), SERIES),
    "recurrent cells": (module(
        step_by_step, plain=lambda: nn.RNNCell(6, 8, bias=False), body=lambda: nn.GRUCell(6, 8),
        gated=lambda: nn.LSTMCell(6, 7), head=linear(22, 5)), SERIES),
    "pixel and channel shuffle": (module(
        shuffled, a=conv(3, 12, 1), swap=lambda: nn.ChannelShuffle(3), b=conv(12, 24, 1), up=lambda: nn.PixelShuffle(2),
        c=conv(6, 7, 1), down=lambda: nn.PixelUnshuffle(3), head=linear(126, 5)), IMAGE),
    "as many repetitions as channels": (module(
        repeated_by_shape, a=linear(6, 8), b=linear(8, 4), head=linear(16, 5)), (6,)),
    "shuffles as functions": (module(
        shuffled_by_functions, a=conv(3, 8, 1), b=conv(8, 12, 1), c=conv(3, 7, 1), head=linear(56, 5)), IMAGE),
    "views by head": (module(by_head, q=linear(6, 24), k=linear(6, 24), head=linear(24, 5)), (4, 6)),
    "gated": (module(gated, a=conv(3, 16, 1), head=linear(8, 5)), IMAGE),
    "named as in numpy": (module(
        named_as_in_numpy, a=conv(3, 8, 1), c=conv(3, 5, 1), b=conv(13, 7, 1), head=linear(1, 5)), IMAGE),
    "split at places": (module(split_at_places, a=conv(3, 8, 1), head=linear(4, 5)), IMAGE),
    "projected if sizes differ": (module(
        projected_if_sizes_differ, a=conv(3, 4, 3), b=conv(4, 8, 1), short=conv(4, 8, 1), head=linear(8, 5)), IMAGE),
    "unflattened": (module(
        unflattened, a=linear(3, 48), pictures=lambda: nn.Unflatten(1, (12, 2, 2)),
        gain=lambda: nn.Parameter(torch.zeros(1, 12, 1, 1)), up=lambda: nn.ConvTranspose2d(12, 7, 2, 2),
        head=linear(7, 5)), IMAGE),
    "places and products of channels": (module(
        choosing, a=conv(3, 8, 3), rows=lambda: nn.Embedding(8, 6), b=linear(8, 7), head=linear(7, 5)), IMAGE),
    "places of the largest and the smallest": (module(
        choosing_two, a=linear(6, 8), rows=lambda: nn.Embedding(8, 7), b=linear(8, 7), head=linear(7, 5)), (6,)),
    "channels as steps": (module(
        channel_by_channel, a=conv(3, 8, 1), b=conv(8, 6, 1), body=lambda: nn.GRU(36, 5, batch_first=True),
        head=linear(5, 5)), IMAGE),
    "parts of buffers": (module(
        with_positions, a=linear(6, 8), positions=lambda: torch.zeros(9, 8), b=linear(8, 6), head=linear(6, 5),
        mask=lambda: torch.triu(torch.ones(9, 9, dtype=torch.int64), -2)), SERIES),
    "one layer twice": (module(twice, a=linear(6, 8), same=linear(8, 8), head=linear(8, 5)), (6,)),
    "bare parameters": (module(
        scaled, a=linear(6, 8), weight=lambda: nn.Parameter(torch.zeros(9, 8)),
        gain=lambda: nn.Parameter(torch.zeros(9)), head=linear(9, 5)), (6,)),
    "places as outputs": (module(placewise, a=conv(3, 8, 3, padding=1), out=conv(8, 2, 1)), IMAGE),
    "channels last": (module(channels_last, a=conv(3, 8, 3), b=linear(8, 9), head=linear(9, 5)), IMAGE),
    "squeezed": (module(untouched, a=conv(3, 8, 6), head=linear(8, 5)), IMAGE),
    "no spatial norm": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Linear(6, 9), nn.BatchNorm1d(9), nn.PReLU(9), nn.Dropout(), nn.Linear(9, 5)])), (6,)),
    "padded": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.ReflectionPad2d(1), nn.Conv2d(3, 7, 3, padding_mode="circular", padding=1), nn.AvgPool2d(2),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(28, 5)])), IMAGE),
    "maxout": (lookalikes.Maxout, (6,)),
    "samples joined with channels": (lookalikes.JoinedSamples, IMAGE),
    "resnet20, option A": (lookalikes.ResNet20, (3, 12, 12)),
    "channels padded by a layer": (lookalikes.PaddedByLayer, IMAGE),
    "divided channels": (lookalikes.Divided, IMAGE),
    "shufflenet": (lookalikes.shufflenet, (3, 8, 8)),
    "efficientnet": (lookalikes.efficientnet, (3, 8, 8)),
    "googlenet": (lookalikes.GoogLeNet, IMAGE),
    "stochastic depth as one operation": (lambda: Wrapping(windows=False), (6,)),
    "named tuples": (lookalikes.Paired, (6,)),
    "pictures made by a linear layer": (module(
        pictured, a=linear(6, 64), shrink=lambda: nn.MaxPool2d(2), b=conv(4, 6, 1), head=linear(7, 5),
        up=lambda: nn.ConvTranspose2d(5, 7, 2), kernel=lambda: nn.Parameter(torch.zeros(5, 6, 1, 1))), (6,)),
    "channels that meet themselves": (module(
        shortcut_by_doubling, a=conv(3, 6, 1), grouped=conv(6, 12, 3, groups=6, padding=1), b=conv(12, 9, 1),
        head=linear(9, 5)), IMAGE),
    "learned tokens": (module(
        with_registers, a=linear(6, 8), b=linear(8, 8), registers=lambda: nn.Parameter(torch.zeros(1, 4, 8)),
        last=linear(8, 9), head=linear(9, 5)), (7, 6)),
    "functional convolutions": (module(
        kernels, first=lambda: nn.Parameter(torch.zeros(8, 3, 3, 3)), shift=lambda: nn.Parameter(torch.zeros(8)),
        second=lambda: nn.Parameter(torch.zeros(7, 8, 3, 3)), head=linear(7, 5)), IMAGE),
    "flipped channels": (module(flipped, a=conv(3, 8, 1), b=conv(8, 7, 1), head=linear(7, 5)), IMAGE),
    "gated linear units": (module(
        halved, a=linear(6, 12), gate=lambda: nn.GLU(1), b=linear(6, 8), head=linear(4, 5)), (6,)),
    "padded channels of cropped places": (module(
        cropped, a=conv(3, 4, 1), b=conv(8, 7, 1), pad=lambda: nn.ConstantPad3d((-1, -1, 0, 0, 2, 2), 0.5),
        head=linear(7, 5)), IMAGE),
    "a written size and a constant": (module(doubled, a=linear(6, 8), head=linear(8, 5)), (6,)),
    "a written size in evaluation": (module(viewed_in_evaluation, a=linear(6, 8), head=linear(8, 5)), (6,)),
}  # fmt: skip
"""Where a missing channel is the same as one that is 0 everywhere."""


MASK = torch.triu(torch.full((7, 7), -9.0), 1)


def encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)


GROUPED = {"width": 0.15, "norm": "group"}
TRAINED: dict[str, tuple[Build, tuple[int, ...]]] = {
    "encoder": (lookalike_transformers.TiedEncoder, WORDS),
    "transformer": (build_model("transformer", {"embed": 16, "hidden": 20, "heads": 2, "head_dim": 6}, WORDS, 10),
                    WORDS),
    "preact": (build_model("preact-resnet18", {"width": 0.08}, (3, 12, 12), 5), (3, 12, 12)),
    "vgg16, group norm": (build_model("vgg16", GROUPED, (3, 32, 32), 5), (3, 32, 32)),
    "resnet18, group norm": (build_model("resnet18", GROUPED, (3, 12, 12), 5), (3, 12, 12)),
    "preact, group norm": (build_model("preact-resnet18", GROUPED, (3, 12, 12), 5), (3, 12, 12)),
    "epic-resnet18, group norm": (build_model("epic-resnet18", GROUPED, (1, 16, 20), 5), (1, 16, 20)),
    "mobilenet-v2, group norm": (build_model("mobilenet-v2", GROUPED, (3, 12, 12), 5), (3, 12, 12)),
    "resnet18-gn, amplitudes": (build_model("resnet18-gn", {"width": 0.15}, (2, 14, 64), 5), (2, 14, 64)),
    "resnet18-gn, profiles": (build_model("resnet18-gn", {"width": 0.15}, (3, 8, 8), 5), (3, 8, 8)),
    "within norm groups": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Conv2d(3, 12, 3), nn.GroupNorm(2, 12), nn.Flatten(), nn.Linear(12 * 16, 5)])), IMAGE),
    "one norm group": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Conv2d(3, 12, 3), nn.GroupNorm(1, 12), nn.Flatten(), nn.Linear(12 * 16, 5)])), IMAGE),
    "softmax": (module(in_turn, layers=lambda: nn.ModuleList([
        nn.Linear(6, 8), nn.Softmax(dim=1), nn.Linear(8, 5)])), (6,)),
    "convnext": (lookalikes.convnext, (3, 8, 8)),
    "vision transformer": (lookalike_transformers.VisionTransformer, IMAGE),
    "vision transformer with its own attention": (lookalike_transformers.OwnTransformer, IMAGE),
    "short heads joined with the samples": (lookalike_transformers.ShortHeads, SERIES),
    "swin": (lookalike_transformers.swin, IMAGE),
    "densenet with standardised weights": (lookalikes.densenet, IMAGE),
    "encoders": (lookalike_transformers.Encoders, SERIES),
    "decoders": (lookalike_transformers.Decoders, SERIES),
    "decoders, norm first": (lambda: lookalike_transformers.Decoders(norm_first=True), SERIES),
    "masked encoders": (module(
        masked_encoder, encoder=lambda: nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False),
        layer=encoder_layer, head=linear(6, 5), mask=lambda: MASK), SERIES),
    "masked attention": (module(
        masked_attention, a=linear(6, 8), attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        head=linear(8, 5), mask=lambda: MASK), SERIES),
    "encoders, norm first": (lambda: lookalike_transformers.Encoders(norm_first=True), SERIES),
}  # fmt: skip
"""Where the channels that are left know how many there are."""
ALL = MASKED | TRAINED
