"""Check tensor sizes early, before anything is computed from tensors that no kernel can index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx

from romou.base.errors import ModelError
from romou.compiler.frontend.onnx_graph import constant_tensors

# Kernels index elements with 32 bits.
MOST_ELEMENTS = 2**31 - 1


def check_sizes(proto: onnx.ModelProto) -> None:
    """Check every tensor of a graph with inferred shapes.

    Raises
    ------
    ModelError
        A tensor has more elements than kernels can index, or a negative extent: a window exceeds its input.
    """
    _check(proto, (*_tensors(proto.graph), *_ranges(proto.graph)))


def check_ranges(proto: onnx.ModelProto) -> None:
    """Check Range nodes of constants before inference computes all of their elements. Errors as in `check_sizes`."""
    _check(proto, _ranges(proto.graph))


def _check(proto: onnx.ModelProto, tensors: Iterable[tuple[str, int, tuple[int, ...]]]) -> None:
    makers = {name: f" ({node.op_type})" for node in proto.graph.node for name in node.output}
    for name, element, shape in tensors:
        what = f"tensor {name!r}{makers.get(name, '')} has the shape {'x'.join(map(str, shape))}"
        if any(extent < 0 for extent in shape):
            raise ModelError(f"{what}: its input is smaller than its window; give larger input shapes")
        count = math.prod(shape)
        if count > MOST_ELEMENTS:
            size = (
                ""
                if element == onnx.TensorProto.STRING
                else f" ({count * onnx.helper.tensor_dtype_to_np_dtype(element).itemsize / 1e9:.3g} GB)"
            )
            raise ModelError(
                f"{what}, {count:.4g} elements{size}; kernels index at most {MOST_ELEMENTS}. Give smaller input shapes,"
                " or split the tensor"
            )


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield name, element type and shape of each tensor of known shape."""
    for weight in graph.initializer:
        yield weight.name, weight.data_type, tuple(weight.dims)
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            yield value.name, tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim)


def _ranges(graph: onnx.GraphProto) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield the outputs of Range nodes with constant operands. Inference leaves their shapes open."""
    constants = constant_tensors(graph)
    for node in graph.node:
        if node.op_type == "Range" and all(name in constants for name in node.input):
            start, limit, delta = (onnx.numpy_helper.to_array(constants[name]).item() for name in node.input)
            yield (
                node.output[0],
                constants[node.input[0]].data_type,
                (max(0, math.ceil((limit - start) / delta)) if delta else 0,),
            )
