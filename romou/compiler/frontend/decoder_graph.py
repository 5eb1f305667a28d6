"""The graph of a language model's decoder: its inputs, its caches, and the product that makes logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from romou.base.errors import ModelError, UsageError
from romou.compiler.frontend.onnx_file import load_onnx
from romou.compiler.frontend.onnx_graph import Graph

# Inputs of a decoder besides its caches.
_KNOWN = ("input_ids", "attention_mask", "position_ids")
# Positions of the inputs and outputs of GroupQueryAttention that are caches.
_CACHES = ((3, 1), (4, 2))
# Products over the last axis, which may be computed for one row only.
_PRODUCTS = ("MatMul", "MatMulBnb4", "MatMulNBits")
# Look-ups of rows of a table: data, indices.
_LOOKUPS = ("Gather", "GatherBlockQuantized")
_DEFAULT_LENGTH = 2048


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A decoder with caches of a fixed length.

    inputs: names of the inputs that are no caches.
    state: name of a past cache -> name of the present one.
    length: tokens that a cache has room for.
    row: name of the input that selects the row whose logits are wanted.
    token: name of the output that has the most likely token.
    words: number of words that token ids select from: of the table, or of the logits. None if both are open.
    """

    proto: onnx.ModelProto
    inputs: tuple[str, ...]
    state: Mapping[str, str]
    length: int
    row: str
    token: str
    words: int | None

    @classmethod
    def of(cls, model: onnx.ModelProto | str | Path, length: int | None = None) -> CachedModel:
        """Read a model. length: see `romou.Decoder`.

        Raises
        ------
        ModelError
            The model has no caches, or inputs that are unknown.
        UsageError
            The rotations do not reach as far as `length`.
        """
        proto = load_onnx(model)
        graph = proto.graph
        given, returned = {value.name for value in graph.input}, {value.name for value in graph.output}
        attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
        state = {
            node.input[past]: node.output[present]
            for node in attentions
            for past, present in _CACHES
            if len(node.input) > past and node.input[past] in given and node.output[present] in returned
        }
        if not state:
            raise ModelError(
                "the model has no caches: no GroupQueryAttention reads one from an input and returns it",
                hint="Export the decoder with onnxruntime-genai's model builder.",
            )
        weights = {tensor.name: tensor for tensor in graph.initializer}
        inputs = tuple(value.name for value in graph.input if value.name not in (*state, *weights))
        if "input_ids" not in inputs or not set(inputs) <= set(_KNOWN):
            raise ModelError(
                f"the model's inputs are {', '.join(inputs)}; a decoder has {', '.join(_KNOWN)} and caches"
            )
        rotations = [rows for node in attentions if (rows := _rotations(node, weights)) is not None]
        declared = [_extent(value, 2) for value in graph.input if value.name in state]
        found = length or min(e or 0 for e in declared) or min([_DEFAULT_LENGTH, *rotations])
        if any(found > rows for rows in rotations):
            raise UsageError(f"length={found}: the model has rotations for {min(rotations)} positions")
        tables = [node for node in graph.node if node.op_type in _LOOKUPS and node.input[1] == "input_ids"]
        words = [int(weights[node.input[0]].dims[0]) for node in tables if node.input[0] in weights]
        # The table may be made from the weights of the last product.
        words += [e for v in graph.output if v.name not in state.values() and (e := _extent(v, 2)) and not words]
        row, token = map(Graph(proto).free, ("last_row", "token"))
        least = min(words, default=None)
        return cls(proto=proto, inputs=inputs, state=state, length=found, row=row, token=token, words=least)

    def for_rows(self, rows: int) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
        """Return the model for a number of tokens in one run, and the shapes of its inputs.

        For several tokens it has one more input, and makes logits of one row only. The place of the largest one is one
        more output.
        """
        shapes: dict[str, tuple[int, ...]] = {
            name: (1, self.length if name == "attention_mask" else rows) for name in self.inputs
        }
        for value in self.proto.graph.input:
            if value.name in self.state:
                extents = [_extent(value, axis) for axis in range(4)]
                if extents[1] is None or extents[3] is None:
                    raise ModelError(f"the cache {value.name!r} leaves its heads or their size open")
                shapes[value.name] = (1, extents[1], self.length, extents[3])
        graph = Graph(self.proto)
        graph.touch()
        (logits,) = (value.name for value in self.proto.graph.output if value.name not in self.state.values())
        if rows > 1:
            self._select_row(graph, logits)
            shapes[self.row] = (1,)
        last = graph.producers[logits]
        graph.replace(last, last, helper.make_node("ArgMax", [logits], [self.token], axis=-1, keepdims=0))
        model = graph.result()
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        if rows > 1:
            model.graph.input.append(helper.make_tensor_value_info(self.row, TensorProto.INT64, [1]))
        model.graph.output.append(helper.make_tensor_value_info(self.token, TensorProto.INT64, None))
        return model, shapes

    def _select_row(self, graph: Graph, logits: str) -> None:
        """Make logits of one row.

        MatMul(x, weight)      ->      MatMul(Gather(x, row), weight)
        """
        last, selected = graph.producers[logits], graph.free(f"{logits}_of_row")
        if last.op_type in _PRODUCTS:
            gather = helper.make_node("Gather", [last.input[0], self.row], [selected], axis=1)
            last.input[0] = selected
            graph.replace(last, gather, last)
        else:
            last.output[list(last.output).index(logits)] = selected
            graph.replace(last, last, helper.make_node("Gather", [selected, self.row], [logits], axis=1))


def _rotations(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> int | None:
    """Return the number of positions that a node has rotations for, or None if it does not rotate."""
    name = node.input[7] if len(node.input) > 7 else ""
    return int(weights[name].dims[0]) if name in weights else None


def _extent(value: onnx.ValueInfoProto, axis: int) -> int | None:
    """Return a static extent, or None."""
    dims = value.type.tensor_type.shape.dim
    is_static = axis < len(dims) and dims[axis].HasField("dim_value")
    return int(dims[axis].dim_value) if is_static else None
