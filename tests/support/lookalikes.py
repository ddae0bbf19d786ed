"""Small convolutional models that are written as the published ones are, with what makes them hard to cut."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Option(nn.Module):
    """ResNet's option A for CIFAR: the shortcut drops places and pads channels with zeros."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.added = outside - inside
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (n, outside, places...)."""
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.added:
            side = self.added // 2
            x = functional.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, side, self.added - side), "constant", 0
            )
        out += x
        return functional.relu(out)


class ResNet20(nn.Module):
    """Nine blocks of option A are three here."""

    def __init__(self, width: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.layers = nn.Sequential(
            Option(width, width, 1), Option(width, 2 * width, 2), Option(2 * width, 3 * width, 2)
        )
        self.fc = nn.Linear(3 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.layers(functional.relu(self.bn(self.conv(x))))
        out: Tensor = self.fc(functional.avg_pool2d(x, x.size()[3]).view(x.size(0), -1))
        return out


class PaddedByLayer(nn.Module):
    """Channels are padded by a layer, and by what the shapes differ by."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 7, 1), nn.Conv2d(7, 9, 1)
        self.pad = nn.ConstantPad3d((0, 0, 0, 0, 1, 2), 0.5)
        self.fc = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        x = self.b(x) + self.pad(x)
        wide = self.c(x)
        x = wide + functional.pad(x, pad=[0, 0, 0, 0, 0, wide.shape[1] - x.shape[1]])
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Divided(nn.Module):
    """Channels are divided by slices, split and narrow, and concatenated again; dropout is functional."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 10, 1), nn.Conv2d(4, 6, 1), nn.Conv2d(12, 12, 1)
        self.fc = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        x = torch.cat([self.b(x[:, :4]), x[:, 4:]], dim=1)
        x = functional.dropout(self.c(x), 0.5, self.training)
        one, two, three = torch.split(x, [3, 4, 5], dim=1)
        x = torch.cat([two, three, one[..., :]], 1).narrow(1, 2, 9)
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Shuffle(nn.Module):
    """ShuffleNet's unit: half of the channels pass, and the halves are interleaved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(width // 2, width // 2, 1), nn.BatchNorm2d(width // 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        one, two = x.chunk(2, dim=1)
        x = torch.cat((one, self.branch(two)), dim=1)
        n, channels, height, wide = x.size()
        x = x.view(n, 2, channels // 2, height, wide)
        return torch.transpose(x, 1, 2).contiguous().view(n, channels, height, wide)


def shufflenet() -> nn.Module:
    """Return two units under a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), Shuffle(16), Shuffle(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    )


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """Drop whole samples, with the body of torchvision's function of this name."""
    if not training or p == 0.0:
        return x
    survival_rate = 1.0 - p
    size = [x.shape[0]] + [1] * (x.ndim - 1) if mode == "row" else [1] * x.ndim
    noise = torch.empty(size, dtype=x.dtype, device=x.device)
    noise = noise.bernoulli_(survival_rate)
    if survival_rate > 0.0:
        noise.div_(survival_rate)
    return x * noise


class StochasticDepth(nn.Module):
    """The function as a layer."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return stochastic_depth(x, self.p, self.mode, self.training)


class SqueezeExcitation(nn.Module):
    """Scale channels by what a small network makes of their means."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(width, squeezed, 1), nn.Conv2d(squeezed, width, 1)
        self.activation, self.scale_activation = nn.SiLU(inplace=True), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        scale: Tensor = self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return scale * x


class MBConv(nn.Module):
    """EfficientNet's block."""

    def __init__(self, inside: int, outside: int, expand: int) -> None:
        super().__init__()
        wide = inside * expand
        self.block = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(inplace=True),
            SqueezeExcitation(wide, 3), nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.use_res_connect = inside == outside
        self.stochastic_depth = StochasticDepth(0.2, "row")

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (n, outside, places...)."""
        result: Tensor = self.block(x)
        if self.use_res_connect:
            result = self.stochastic_depth(result)
            result += x
        return result


def efficientnet() -> nn.Module:
    """Return two blocks under a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), MBConv(6, 6, 2), MBConv(6, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(8, 5),
    )  # fmt: skip


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    """Reorder dimensions."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        """Return the dimensions in their new order."""
        return torch.permute(x, self.dims)


class CNBlock(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width), Permute([0, 2, 3, 1]), nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), Permute([0, 3, 1, 2]),
        )  # fmt: skip
        self.layer_scale = nn.Parameter(torch.ones(width, 1, 1) * 1e-2)
        self.stochastic_depth = StochasticDepth(0.1, "row")

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        result: Tensor = self.layer_scale * self.block(x)
        result = self.stochastic_depth(result)
        result += x
        return result


def convnext() -> nn.Module:
    """Return two stages under a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 2, 2), LayerNorm2d(6, eps=1e-6), CNBlock(6), LayerNorm2d(6, eps=1e-6), nn.Conv2d(6, 8, 2, 2),
        CNBlock(8), nn.AdaptiveAvgPool2d(1), LayerNorm2d(8, eps=1e-6), nn.Flatten(1), nn.Linear(8, 5),
    )  # fmt: skip


class GoogLeNetOutputs(NamedTuple):
    """What GoogLeNet returns in training."""

    logits: Tensor
    aux_logits1: Tensor | None


class Inception(nn.Module):
    """Branches that are concatenated."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.branch1 = nn.Sequential(nn.Conv2d(inside, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.branch2 = nn.Sequential(nn.Conv2d(inside, 3, 1), nn.ReLU(), nn.Conv2d(3, 5, 3, padding=1))
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.Conv2d(inside, 3, 1))

    def _forward(self, x: Tensor) -> list[Tensor]:
        return [self.branch1(x), self.branch2(x), self.branch3(x)]

    def forward(self, x: Tensor) -> Tensor:
        """Return 12 channels."""
        return torch.cat(self._forward(x), 1)


class GoogLeNet(nn.Module):
    """GoogLeNet with or without its auxiliary head."""

    def __init__(self, aux_logits: bool = False) -> None:
        super().__init__()
        self.aux_logits = aux_logits
        self.conv, self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), Inception(6), Inception(12)
        self.aux1 = nn.Linear(12, 5) if aux_logits else None
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Any:
        """Return logits, in training with those of the auxiliary head."""
        x = self.one(self.conv(x))
        aux = self.aux1(x.mean((2, 3))) if self.aux1 is not None and self.training else None
        logits = self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.two(x), 1), 1))
        return GoogLeNetOutputs(logits, aux) if self.training and self.aux_logits else logits


class Pair(NamedTuple):
    """Two results."""

    wide: Tensor
    narrow: Tensor


class Sometimes(nn.Module):
    """Training leaves a layer out at random; zeros are concatenated to channels."""

    def __init__(self, sized: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 1)
        self.fc, self.sized = nn.Linear(8, 5), sized

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        if not self.training or torch.rand(1).item() > 0.6:
            x = x + self.b(x)
        x = self.c(x) + torch.cat([x, torch.zeros_like(x)], 1)
        x = x.mean((2, 3))
        out: Tensor = self.fc(x.view(-1, 8) if self.sized else x)
        return out


class StandardConv(nn.Conv2d):
    """A convolution that standardises its weights."""

    def forward(self, x: Tensor) -> Tensor:  # as published for weight standardisation
        """Return shape (n, outputs, places...)."""
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Dense(nn.Module):
    """DenseNet's block: each layer takes all results before it, as a list."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(inside + n * growth) for n in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(inside + n * growth, growth, 3, padding=1) for n in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return inside + 3 * growth channels."""
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(functional.relu(norm(torch.cat(features, 1)))))
        return torch.cat(features, 1)


def densenet() -> nn.Module:
    """Return one block under a classifier."""
    return nn.Sequential(
        StandardConv(3, 5, 3, padding=1), Dense(5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(14, 5)
    )


class Paired(nn.Module):
    """A named tuple, and torch's own, on the way through a model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 5)

    def _pair(self, x: Tensor) -> Pair:
        x = self.a(x)
        return Pair(x, self.b(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        pair = self._pair(x)
        best = torch.stack([pair.narrow, pair[1]]).max(dim=0)
        out: Tensor = self.fc(best.values)
        return out


class Maxout(nn.Module):
    """The greatest of two pieces (Goodfellow et al. 2013), three layers that arrange them in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = nn.Linear(6, 16), nn.Linear(8, 12), nn.Linear(6, 15), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        n, c = x.shape
        x = self.b(x.view(n, c // 2, 2).max(2).values)
        x = self.c(torch.unflatten(x, 1, (-1, 2)).amax(2))
        out: Tensor = self.fc(x.view(-1, 5, 3).amax(-1))
        return out


class JoinedSamples(nn.Module):
    """Pooling of each channel of each sample by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 7, 1), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.a(x)
        n, c, h, w = x.shape
        x = nn.functional.avg_pool2d(x.reshape(n * c, 1, h, w), 2).reshape(n, c, h // 2, w // 2)
        x = self.b(torch.relu(x.reshape(n * c, -1, w // 2)).reshape(n, c, h // 2, w // 2))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out
