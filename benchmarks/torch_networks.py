"""Popular networks that Romou does not bundle, as PyTorch modules with random weights and as exported ONNX graphs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F


class ConvUnit(nn.Module):
    """A convolution, batch norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, window: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))


class C2f(nn.Module):
    """The block of YOLOv8: split, residual pairs of 3x3 convolutions, everything concatenated."""

    def __init__(self, inputs: int, outputs: int, repeats: int, *, adds: bool = True) -> None:
        super().__init__()
        self.half, self.adds = outputs // 2, adds
        self.first, self.last = ConvUnit(inputs, outputs), ConvUnit((2 + repeats) * self.half, outputs)
        self.pairs = nn.ModuleList(
            nn.Sequential(ConvUnit(self.half, self.half, 3), ConvUnit(self.half, self.half, 3)) for _ in range(repeats)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).split(self.half, 1))
        for pair in self.pairs:
            y = pair(parts[-1])
            parts.append(parts[-1] + y if self.adds else y)
        return self.last(torch.cat(parts, 1))


class Sppf(nn.Module):
    """Spatial pyramid pooling: a window of 5 three times, all results concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = ConvUnit(channels, channels // 2), ConvUnit(channels * 2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """YOLOv8n: backbone, feature pyramid both ways, decoupled heads, boxes decoded from distributions."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(ConvUnit(3, 16, 3, 2), ConvUnit(16, 32, 3, 2), C2f(32, 32, 1))
        self.p3 = nn.Sequential(ConvUnit(32, 64, 3, 2), C2f(64, 64, 2))
        self.p4 = nn.Sequential(ConvUnit(64, 128, 3, 2), C2f(128, 128, 2))
        self.p5 = nn.Sequential(ConvUnit(128, 256, 3, 2), C2f(256, 256, 1), Sppf(256))
        self.up4, self.up3 = C2f(384, 128, 1, adds=False), C2f(192, 64, 1, adds=False)
        self.down3, self.down4 = ConvUnit(64, 64, 3, 2), ConvUnit(128, 128, 3, 2)
        self.out4, self.out5 = C2f(192, 128, 1, adds=False), C2f(384, 256, 1, adds=False)
        self.boxes, self.scores = nn.ModuleList(), nn.ModuleList()
        for channels in (64, 128, 256):
            for heads, width, outputs in ((self.boxes, 64, 64), (self.scores, classes, classes)):
                heads.append(
                    nn.Sequential(ConvUnit(channels, width, 3), ConvUnit(width, width, 3), nn.Conv2d(width, outputs, 1))
                )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = self.up3(torch.cat([F.interpolate(n4, scale_factor=2.0), p3], 1))
        n4 = self.out4(torch.cat([self.down3(n3), n4], 1))
        levels = (n3, n4, self.out5(torch.cat([self.down4(n4), p5], 1)))
        sides = torch.cat([head(level).flatten(2) for head, level in zip(self.boxes, levels, strict=True)], 2)
        scores = torch.cat([head(level).flatten(2) for head, level in zip(self.scores, levels, strict=True)], 2)
        distances = (sides.view(1, 4, 16, -1).softmax(2) * torch.arange(16.0, device=x.device).view(1, 1, 16, 1)).sum(2)
        centers, strides = self._anchors([int(level.shape[-1]) for level in levels], x)
        low, high = centers - distances[:, :2], centers + distances[:, 2:]
        return torch.cat([(low + high) / 2 * strides, (high - low) * strides, scores.sigmoid()], 1)

    def _anchors(self, sides: Sequence[int], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centers, strides = [], []
        for side in sides:
            at = torch.arange(side, dtype=x.dtype, device=x.device) + 0.5
            y, x_ = torch.meshgrid(at, at, indexing="ij")
            centers.append(torch.stack([x_, y]).flatten(1))
            strides.append(torch.full((1, side * side), x.shape[-1] / side, dtype=x.dtype, device=x.device))
        return torch.cat(centers, 1)[None], torch.cat(strides, 1)


class DenseBlock(nn.Module):
    """Five convolutions that each read all earlier outputs, and a scaled residual."""

    def __init__(self, channels: int = 64, growth: int = 32) -> None:
        super().__init__()
        sizes = [(channels + i * growth, growth if i < 4 else channels) for i in range(5)]
        self.convs = nn.ModuleList(nn.Conv2d(inputs, outputs, 3, 1, 1) for inputs, outputs in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for conv in list(self.convs)[:4]:
            parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.convs[4](torch.cat(parts, 1))


class Esrgan(nn.Module):
    """Real-ESRGAN with six residual dense blocks: four times the size of a picture."""

    def __init__(self, channels: int = 64, blocks: int = 6) -> None:
        super().__init__()
        self.first, self.body_end = nn.Conv2d(3, channels, 3, 1, 1), nn.Conv2d(channels, channels, 3, 1, 1)
        self.blocks = nn.ModuleList(nn.Sequential(*(DenseBlock(channels) for _ in range(3))) for _ in range(blocks))
        self.ups = nn.ModuleList(nn.Conv2d(channels, channels, 3, 1, 1) for _ in range(3))
        self.last = nn.Conv2d(channels, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = y = self.first(x)
        for block in self.blocks:
            y = y + 0.2 * block(y)
        x = x + self.body_end(y)
        for up in list(self.ups)[:2]:
            x = F.leaky_relu(up(F.interpolate(x, scale_factor=2.0)), 0.2)
        return self.last(F.leaky_relu(self.ups[2](x), 0.2))


class Residual(nn.Module):
    """A residual block of a diffusion model.

    It has group norm, SiLU and convolution twice, with the step's embedding added in between.
    """

    def __init__(self, inputs: int, outputs: int, steps: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.step = nn.Linear(steps, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.step(F.silu(step))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class PixelAttention(nn.Module):
    """Attention between all pixels of a map, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, c, h * w).unbind(1)
        weights = torch.softmax(q.transpose(1, 2) @ k * c**-0.5, -1)
        return x + self.out((v @ weights.transpose(1, 2)).view(n, c, h, w))


class Denoiser(nn.Module):
    """The network of DDPM for pictures of 32x32: three levels of two residual blocks, attention at 16x16."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width, steps = width, 4 * width
        self.embed = nn.Sequential(nn.Linear(width, steps), nn.SiLU(), nn.Linear(steps, steps))
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, channels = [width], width
        for level, outputs in enumerate((width, 2 * width, 2 * width)):
            for _ in range(2):
                self.down.append(
                    nn.ModuleList(
                        [Residual(channels, outputs, steps), PixelAttention(outputs) if level == 1 else nn.Identity()]
                    )
                )
                channels = outputs
                kept.append(channels)
            if level < 2:
                self.down.append(nn.Conv2d(channels, channels, 3, 2, 1))
                kept.append(channels)
        self.middle = nn.ModuleList(
            [Residual(channels, channels, steps), PixelAttention(channels), Residual(channels, channels, steps)]
        )
        for level, outputs in enumerate((2 * width, 2 * width, width)):
            for _ in range(3):
                self.up.append(
                    nn.ModuleList(
                        [
                            Residual(channels + kept.pop(), outputs, steps),
                            PixelAttention(outputs) if level == 1 else nn.Identity(),
                        ]
                    )
                )
                channels = outputs
            if level < 2:
                self.up.append(nn.Conv2d(channels, channels, 3, 1, 1))
        self.norm, self.last = nn.GroupNorm(32, width), nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-9.210340371976184 / half * torch.arange(half, dtype=torch.float32, device=x.device))
        angles = time[:, None].float() * rates[None]
        step = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.first(x)
        kept = [x]
        for layer in self.down:
            x = layer(x) if isinstance(layer, nn.Conv2d) else layer[1](layer[0](x, step))
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, step)), step)
        for layer in self.up:
            x = (
                layer(F.interpolate(x, scale_factor=2.0))
                if isinstance(layer, nn.Conv2d)
                else layer[1](layer[0](torch.cat([x, kept.pop()], 1), step))
            )
        return self.last(F.silu(self.norm(x)))


class WindowAttention(nn.Module):
    """Attention within windows of 7x7. The map is shifted in every second block."""

    def __init__(self, channels: int, heads: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift = heads, shift
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        at = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None, :] + 6
        self.register_buffer("index", (apart[0] * 13 + apart[1]).flatten(), persistent=False)
        self.bias = nn.Parameter(torch.randn(169, heads) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, -w % 7, 0, -h % 7))
        tall, wide = x.shape[1], x.shape[2]
        shift = self.shift if tall > 7 else 0
        if shift:
            x = torch.roll(x, (-shift, -shift), (1, 2))
        windows = x.view(n, tall // 7, 7, wide // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)
        q, k, v = self.qkv(windows).view(-1, 49, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.index].view(49, 49, self.heads).permute(2, 0, 1)
        scores = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1) + bias
        if shift:
            scores = scores.view(n, -1, self.heads, 49, 49) + self._mask(tall, wide, shift, x)[:, None]
            scores = scores.view(-1, self.heads, 49, 49)
        mixed = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 49, c))
        mixed = mixed.view(n, tall // 7, wide // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(n, tall, wide, c)
        if shift:
            mixed = torch.roll(mixed, (shift, shift), (1, 2))
        return mixed[:, :h, :w]

    @staticmethod
    def _mask(tall: int, wide: int, shift: int, x: torch.Tensor) -> torch.Tensor:
        """Return a mask for each window: -100 between pixels that only the shift made neighbours."""
        regions = np.zeros((tall, wide), np.int64)
        for i, rows in enumerate((slice(0, -7), slice(-7, -shift), slice(-shift, None))):
            for j, columns in enumerate((slice(0, -7), slice(-7, -shift), slice(-shift, None))):
                regions[rows, columns] = 3 * i + j
        cut = regions.reshape(tall // 7, 7, wide // 7, 7).transpose(0, 2, 1, 3).reshape(-1, 49)
        return torch.tensor(np.where(cut[:, None] == cut[:, :, None], 0.0, -100.0), dtype=x.dtype, device=x.device)


class SwinBlock(nn.Module):
    """Layer norm and window attention, layer norm and a perceptron, each beside a residual."""

    def __init__(self, channels: int, heads: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(channels), WindowAttention(channels, heads, shift)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Merging(nn.Module):
    """Merges four pixels into one with twice the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Swin-T for pictures of 224x224."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 96, 4, 4), nn.LayerNorm(96)
        layers: list[nn.Module] = []
        for level, depth in enumerate((2, 2, 6, 2)):
            channels = 96 * 2**level
            layers += [Merging(channels // 2)] if level else []
            layers += [SwinBlock(channels, 3 * 2**level, 3 * (i % 2)) for i in range(depth)]
        self.layers, self.last, self.head = nn.Sequential(*layers), nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.norm(self.patches(x).permute(0, 2, 3, 1)))
        return self.head(self.last(x).mean((1, 2)))


class Attention(nn.Module):
    """Attention between all rows. Several heads may share keys and values, and queries and keys may be rotated."""

    def __init__(self, channels: int, heads: int, groups: int, *, is_causal: bool, has_bias: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.is_causal, self.size = heads, groups, is_causal, channels // heads
        self.q = nn.Linear(channels, channels, bias=has_bias)
        self.k, self.v = (nn.Linear(channels, groups * self.size, bias=has_bias) for _ in range(2))
        self.out = nn.Linear(channels, channels, bias=has_bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None = None) -> torch.Tensor:
        n, rows, channels = x.shape
        q = self.q(x).view(n, rows, self.heads, self.size).transpose(1, 2)
        k, v = (part(x).view(n, rows, self.groups, self.size).transpose(1, 2) for part in (self.k, self.v))
        if angles is not None:
            q, k = (_rotated(part, angles) for part in (q, k))
        shared = self.heads // self.groups
        if shared > 1:
            k, v = (part.repeat_interleave(shared, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(mixed.transpose(1, 2).reshape(n, rows, channels))


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class EncoderLayer(nn.Module):
    """Layer norm and attention, layer norm and a perceptron, each beside a residual."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = Attention(channels, heads, heads, is_causal=False, has_bias=True)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """ViT-S/16 for pictures of 224x224: twelve layers of 197 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.first, self.places = (nn.Parameter(torch.randn(1, rows, 384) * 0.02) for rows in (1, 197))
        self.layers = nn.Sequential(*(EncoderLayer(384, 6) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = self.layers(torch.cat([self.first, rows], 1) + self.places)
        return self.head(self.norm(rows[:, 0]))


class SpeechEncoder(nn.Module):
    """The encoder of Whisper tiny: two convolutions over 30 s of sound, four layers of 1,500 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(80, 384, 3, padding=1), nn.Conv1d(384, 384, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.randn(1, 1500, 384) * 0.02)
        self.layers, self.norm = nn.Sequential(*(EncoderLayer(384, 6) for _ in range(4))), nn.LayerNorm(384)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.second(F.gelu(self.first(sound)))).transpose(1, 2)
        return self.norm(self.layers(x + self.places))


class RmsNorm(nn.Module):
    """A row over its root mean square."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class DecoderLayer(nn.Module):
    """A layer of a language model: rotated queries and keys, shared keys and values, a gated perceptron."""

    def __init__(self, channels: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(channels), RmsNorm(channels)
        self.attention = Attention(channels, heads, groups, is_causal=True, has_bias=False)
        self.gate, self.up = (nn.Linear(channels, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, channels, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), angles)
        rows = self.norm2(x)
        return x + self.down(F.silu(self.gate(rows)) * self.up(rows))


class DecoderLayers(nn.Module):
    """Two layers of a decoder of half a billion parameters over 128 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(DecoderLayer(896, 14, 2, 4864) for _ in range(2)), RmsNorm(896)
        angles = torch.arange(128)[:, None] * 10000 ** (-torch.arange(32) / 32)
        self.register_buffer("angles", torch.cat([angles, angles], -1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.norm(x)


class Recurrent(nn.Module):
    """One recurrent layer over 52 steps, with as many inputs as units."""

    def __init__(self, layer: Callable[[int, int], nn.Module], units: int) -> None:
        super().__init__()
        self.layer = layer(units, units)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Demucs(nn.Module):
    """The network `demucs` of onnx_networks.py."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 128)
        pairs = zip((2, *widths), widths, strict=False)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1)) for a, b in pairs
        )
        self.between, self.linear = nn.LSTM(128, 128, 2, bidirectional=True), nn.Linear(256, 128)
        outputs = zip(reversed(widths), (128, 64, 32, 2), strict=True)
        self.up = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(a, 2 * a, 3, 1, 1), nn.GLU(1), nn.ConvTranspose1d(a, b, 8, 4, 2)),
                nn.ReLU() if b > 2 else nn.Identity(),
            )
            for a, b in outputs
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        x = self.linear(self.between(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for layer in self.up:
            x = layer(x + skips.pop())
        return x


def _pictures(size: int) -> dict[str, tuple[int, ...]]:
    return {"image": (1, 3, size, size)}


# name -> (module, shape of each input)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = {
    "detector": (Detector, _pictures(320)),
    "esrgan": (Esrgan, _pictures(48)),
    "denoiser": (Denoiser, {**_pictures(32), "time": (1,)}),
    "swin": (Swin, _pictures(224)),
    "vit": (VisionTransformer, _pictures(224)),
    "speech": (SpeechEncoder, {"sound": (1, 80, 3000)}),
    "decoder_2layer": (DecoderLayers, {"rows": (1, 128, 896)}),
    "demucs": (Demucs, {"x": (1, 2, 16384)}),
    **{
        f"{name}_{units}": (partial(Recurrent, layer, units), {"x": (52, 1, units)})
        for name, layer in (("lstm", nn.LSTM), ("gru", nn.GRU))
        for units in (64, 128, 512)
    },
}


def network(name: str) -> nn.Module:
    """Build a network with seeded weights, and batch norms in their initial state."""
    torch.manual_seed(0)
    return NETWORKS[name][0]().eval()


def exported(name: str) -> onnx.ModelProto:
    """Return the network as PyTorch's exporter writes it."""
    shapes: dict[str, Any] = NETWORKS[name][1]
    arguments = tuple(torch.zeros(shape) for shape in shapes.values())
    file = io.BytesIO()
    torch.onnx.export(
        network(name),
        arguments,
        file,
        input_names=list(shapes),
        output_names=["output"],
        opset_version=18,
        dynamo=False,
    )
    return onnx.load_from_string(file.getvalue())
