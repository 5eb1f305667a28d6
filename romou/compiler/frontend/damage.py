"""Check the weights of a model for damage that onnx.checker does not find and importers do not survive."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.numpy_helper

from romou.base.errors import ModelError


def check_weights(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError for a weight of unknown type, of external data, or of data that does not fit its shape."""
    for tensor in _weights(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{where}: the data of weight {tensor.name!r} lies in another file; give the path of the model, not"
                " what was read of it"
            )
        if tensor.data_type not in onnx.TensorProto.DataType.values():
            raise ModelError(
                f"{where}: weight {tensor.name!r} is of the unknown type {tensor.data_type}; export the model again"
            )
        if tensor.data_type == onnx.TensorProto.STRING:
            continue
        try:
            onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
            reason = str(error).strip() or type(error).__name__
            raise ModelError(
                f"{where}: weight {tensor.name!r} of shape {tuple(tensor.dims)} is damaged: {reason}; export the model"
                " again"
            ) from error


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield all weights, with the values of Constant nodes and the weights of subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _weights(inner)
