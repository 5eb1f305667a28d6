"""Padding of windows from auto_pad, as numbers: the wheel pads in a separate kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_patches.onnx_converters.node import Node, converter


def same_pads(
    auto_pad: str, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (padding before, padding after) of each axis under SAME_UPPER or SAME_LOWER.

    There are ceil(extent / stride) windows. A stride may leave elements over. The padding is then zero, whereas
    onnxruntime lets windows start inside the input.
    """
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    total = [max(0, (-(-e // s) - 1) * s + span - e) for e, s, span in zip(extents, strides, spans, strict=True)]
    smaller = tuple(t // 2 for t in total)
    larger = tuple(t - t // 2 for t in total)
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def transposed_pads(attributes: Mapping[str, Any], extents: Sequence[int], kernel: Sequence[int]) -> list[int] | None:
    """Return the padding of a transposed convolution that gives the requested shape, or the extents times the strides.
    None if neither is requested.

    A requested shape that is larger than the windows reach has negative padding. Without a requested shape, padding is
    not negative, as in onnxruntime.
    """
    ones = [1] * len(extents)
    strides, dilations = (attributes.get(name, ones) for name in ("strides", "dilations"))
    more, auto_pad, wanted = (
        attributes.get("output_padding", [0] * len(extents)),
        attributes["auto_pad"],
        attributes.get("output_shape"),
    )
    if wanted is None and not auto_pad.startswith("SAME"):
        return None
    # A shape may have been given with batch and channels.
    shape = wanted[-len(extents) :] if wanted is not None else [e * s for e, s in zip(extents, strides, strict=True)]
    reach = [
        s * (e - 1) + a + (k - 1) * d + 1
        for s, e, a, k, d in zip(strides, extents, more, kernel, dilations, strict=True)
    ]
    total = [r - o if wanted is not None else max(0, r - o) for r, o in zip(reach, shape, strict=True)]
    before = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
    return before + [t - b for t, b in zip(total, before, strict=True)]


def with_pads(node: Node, kernel: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of a convolution with `pads` instead of `auto_pad`."""
    attributes = dict(node.attributes)
    auto_pad, extents = attributes.pop("auto_pad", "NOTSET"), node.shape()[2:]
    ones = [1] * len(extents)
    if auto_pad.startswith("SAME"):
        before, after = same_pads(
            auto_pad, extents, kernel, attributes.get("strides", ones), attributes.get("dilations", ones)
        )
        attributes["pads"] = [*before, *after]
    elif auto_pad == "VALID":
        attributes.pop("pads", None)
    return attributes


@converter("Conv")
def conv(node: Node) -> relax.Expr:
    return node.wheel(**with_pads(node, node.shape(1)[2:]))
