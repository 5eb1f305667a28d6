"""ConvTranspose with `output_shape`, or padded to the strides: the wheel returns a tensor of another shape."""

from __future__ import annotations

from tvm import relax

from tvm_patches.onnx_converters.node import Node, converter
from tvm_patches.onnx_converters.padding import transposed_pads


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    """Convert ConvTranspose(output_shape=s) to ConvTranspose(pads=p) with this shape."""
    attributes = dict(node.attributes)
    pads = transposed_pads(attributes, node.shape(0)[2:], node.shape(1)[2:])
    auto_pad = attributes.pop("auto_pad")
    attributes.pop("output_shape", None)
    if pads is not None:
        attributes["pads"] = pads
    elif auto_pad == "VALID":
        attributes.pop("pads", None)
    return node.wheel(**attributes)
