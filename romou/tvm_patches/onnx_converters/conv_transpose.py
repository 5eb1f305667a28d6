"""ConvTranspose with the attribute `output_shape`, or padded to the strides: the wheel gives a tensor of another shape."""

from __future__ import annotations

from tvm import relax

from romou.tvm_patches.onnx_converters.node import Node, converter


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    """ConvTranspose(output_shape=s) -> ConvTranspose(pads=p) of that shape."""
    attributes = dict(node.attributes)
    extents, kernel = node.shape(0)[2:], node.shape(1)[2:]
    ones = [1] * len(extents)
    strides, dilations, more = (
        list(attributes.get(name, default)) for name, default in (("strides", ones), ("dilations", ones), ("output_padding", [0] * len(ones)))
    )
    auto_pad, wanted = attributes.pop("auto_pad"), attributes.pop("output_shape", None)
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    if wanted is not None:
        # A shape may have been given with batch and channels.
        wanted = wanted[-len(extents) :]
        total = [s * (i - 1) + a + (k - 1) * d + 1 - o for s, i, a, k, d, o in zip(strides, extents, more, kernel, dilations, wanted, strict=True)]
        before = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
        attributes["pads"] = before + [t - b for t, b in zip(total, before, strict=True)]
    elif auto_pad == "VALID":
        attributes.pop("pads", None)
    return node.wheel(**attributes)
