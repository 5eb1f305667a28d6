"""The graph of a language model's decoder: its inputs, its caches, and the product that makes logits."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from romou.base.errors import ModelError, UsageError, first_line
from romou.compiler.frontend.decoder_form import DecoderForm
from romou.compiler.frontend.onnx_file import graph_inputs, load_onnx
from romou.compiler.frontend.onnx_graph import MOVES, Graph, attributes_of
from romou.compiler.frontend.onnxruntime_session import cpu_session

# Inputs of a decoder besides its caches.
_KNOWN = ("input_ids", "attention_mask", "position_ids")
# Positions of the inputs and outputs of GroupQueryAttention that are caches.
_CACHES = ((3, 1), (4, 2))
# Axis of the tokens of a cache.
_TOKENS = 2
# Products over the last axis, which may be computed for one row only.
_PRODUCTS = ("MatMul", "MatMulBnb4", "MatMulNBits")
# Look-ups of rows of a table: data, indices.
_LOOKUPS = ("Gather", "GatherBlockQuantized")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_DEFAULT_LENGTH = 2048
_EXPORT = (
    "Export it as optimum 1.14 and later do for text-generation-with-past, or with onnxruntime-genai's model builder."
)
# What rounding may change, besides what it changes without padding: machine epsilons of the largest logit.
_TOLERANCE = 64
# Share of the largest logit: no rounding changes more.
_MOST = 0.1


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A decoder with caches of a fixed length, in one of two forms.

    GroupQueryAttention writes tokens to their places in a cache, from the first on. Other exporters append them, and a
    cache grows with each run. Such a cache gets a fixed length by padding on the left: the next run reads the last
    entries, so the first ones are dropped, and the mask excludes entries without a token. The device copies each cache
    once more for that.

        present = Concat(past, k)      ->      all = Concat(past, Where(is_token, k, 0)); present = Slice(all, rows)
    """

    proto: onnx.ModelProto
    form: DecoderForm

    @classmethod
    def of(cls, model: onnx.ModelProto | str | Path, length: int | None = None, chunk: int = 1) -> CachedModel:
        """Read a model. length, chunk: see `romou.Decoder`.

        Raises
        ------
        ModelError
            The model has no caches, inputs that are unknown, or positions that padding on the left would change.
        UsageError
            The positions that it knows do not reach as far as `length`.
        """
        proto = load_onnx(model)
        graph, given = Graph(proto), {value.name: value for value in graph_inputs(proto)}
        if "use_cache_branch" in given:
            raise ModelError("the model is two decoders, between which use_cache_branch chooses", hint=_EXPORT)
        attentions = [node for node in graph.nodes if node.op_type == "GroupQueryAttention"]
        written = {
            node.input[past]: node.output[present]
            for node in attentions
            for past, present in _CACHES
            if len(node.input) > past and node.input[past] in given and node.output[present] in graph.returned
        }
        state = written or _grown_caches(graph, given)
        if not state:
            raise ModelError(
                "the model has no caches: no GroupQueryAttention reads one from an input and returns it, and no Concat"
                " appends to one",
                hint=_EXPORT,
            )
        inputs = tuple(name for name in given if name not in state)
        needed = {"input_ids"} if written else {"input_ids", "attention_mask"}
        if not needed <= set(inputs) <= set(_KNOWN):
            raise ModelError(
                f"the model's inputs are {', '.join(inputs)}; a decoder has {', '.join(_KNOWN)} and caches"
            )
        logits = [value for value in proto.graph.output if value.name not in state.values()]
        if [value.name in graph.producers for value in logits] != [True]:
            others = ", ".join(value.name for value in logits)
            raise ModelError(f"the model's outputs besides caches are {others}; a decoder computes only logits")
        positions = [rows for node in attentions if (rows := _rotations(node, graph.weights)) is not None]
        positions += _rows_of_tables(graph, "position_ids")
        declared = [_extent(given[name], _TOKENS) for name in state]
        found = length or min(e or 0 for e in declared) or min([_DEFAULT_LENGTH, *positions])
        if found > min(positions, default=found):
            raise UsageError(f"length={found}: the model knows {min(positions)} positions")
        # The table may be made from the weights of the last product.
        words = _rows_of_tables(graph, "input_ids") or [e for e in [_extent(logits[0], 2)] if e]
        form = DecoderForm(
            inputs=inputs,
            state=state,
            row=graph.free("last_row"),
            token=graph.free("token"),
            words=min(words, default=None),
            length=found,
            chunk=min(chunk, found),
            is_left_padded=not written,
        )
        cached = cls(proto=proto, form=form)
        if form.is_left_padded:
            cached._check_padding(logits[0].name)
        return cached

    def for_rows(self, rows: int) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
        """Return the model for a number of tokens in one run, and the shapes of its inputs.

        For several tokens it makes logits of one row only, which one more input selects unless it is the last one. The
        place of the largest one is one more output.
        """
        form, graph = self.form, Graph(self.proto)
        graph.touch()
        (logits,) = (value.name for value in self.proto.graph.output if value.name not in form.state.values())
        if form.is_left_padded:
            self._keep_lengths(graph, rows)
        if rows > 1:
            row = graph.define(form.row, np.array([rows - 1])) if form.is_left_padded else form.row
            self._select_row(graph, logits, row)
        last = graph.producers[logits]
        graph.replace(last, last, helper.make_node("ArgMax", [logits], [form.token], axis=-1, keepdims=0))
        model = graph.result()
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        shapes = form.shapes(rows, self._caches(form.length))
        if form.row in shapes:
            model.graph.input.append(helper.make_tensor_value_info(form.row, TensorProto.INT64, [1]))
        model.graph.output.append(helper.make_tensor_value_info(form.token, TensorProto.INT64, None))
        return model, shapes

    def _caches(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of caches."""
        shapes: dict[str, tuple[int, ...]] = {}
        for value in self.proto.graph.input:
            if value.name in self.form.state:
                heads, size = _extent(value, 1), _extent(value, 3)
                if heads is None or size is None:
                    raise ModelError(f"the cache {value.name!r} leaves its heads or their size open")
                shapes[value.name] = (1, heads, length, size)
        return shapes

    def _keep_lengths(self, graph: Graph, rows: int) -> None:
        """Make caches that grow keep their length, see `CachedModel`.

        A row of padding may attend to nothing. What it adds to a cache is then NaN, which no weight of 0 hides.
        """
        ends = {"first": np.array([rows]), "last": np.array([2**63 - 1]), "axis": np.array([_TOKENS])}
        after = [graph.constant(f"cache_{name}", value) for name, value in ends.items()]
        is_token = graph.free("is_token")
        if rows > 1:
            graph.order([*_is_token(graph, is_token, rows), *graph.nodes])
        for past, present in self.form.state.items():
            concat, whole = graph.producers[present], graph.free(f"{present}_whole")
            graph.redirect(present, whole)
            concat.output[0] = whole
            nodes = [concat, helper.make_node("Slice", [whole, *after], [present])]
            if rows > 1:
                new, token = concat.input[1], graph.free(f"{present}_new")
                zero = graph.constant(f"{present}_zero", np.zeros((), self._dtypes[past]))
                concat.input[1] = token
                nodes.insert(0, helper.make_node("Where", [is_token, new, zero], [token]))
            graph.replace(concat, *nodes)

    @property
    def _dtypes(self) -> dict[str, np.dtype[Any]]:
        inputs = self.proto.graph.input
        return {each.name: helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in inputs}

    def _check_padding(self, logits: str) -> None:
        """Raise ModelError if padding on the left or chunks change the logits, by onnxruntime.

        Tokens are read one by one, in chunks, and in chunks with caches of a fixed length. What chunks change by a
        little is rounding, as of quantized activations. UsageError: a token at the end of the caches cannot be read,
        as without a position.
        """
        short = replace(self.form, length=9, chunk=min(self.form.chunk, 4))  # so that padding remains in the caches
        ids = np.random.default_rng(0).integers(0, short.words or 2, 7).tolist()
        ends = short.ends(len(ids))
        cases: list[tuple[onnx.ModelProto, DecoderForm | None, Sequence[int]]] = [
            (self.proto, None, range(1, len(ids) + 1)),
            (self.proto, None, ends),
            (self.for_rows(short.chunk)[0], short, ends),
        ]
        try:
            results = [np.array([*self._logits_by(model, logits, ids, form, ends)]) for model, form, ends in cases]
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ModelError(
                f"the decoder cannot be checked with caches of a fixed length: {first_line(error)}", hint=_EXPORT
            ) from error
        single, grown, padded = (each.astype(np.float64) for each in results)
        single = single[[end - 1 for end in ends]]
        kinds = {np.dtype("float32"), *(kind for kind in self._dtypes.values() if kind.kind == "f")}
        epsilon = max(float(np.finfo(kind).eps) for kind in kinds)
        largest = np.abs(single).max()
        allowed = min(_TOLERANCE * epsilon * largest + 8 * np.abs(grown - single).max(), _MOST * largest)
        if not np.abs(padded - single).max() <= allowed:
            raise ModelError(
                "the model's logits depend on the length of its caches, or on the number of tokens in a run: its"
                " positions follow from that length, or its mask is made for one token",
                hint=f"{_EXPORT} It then has the input position_ids. A mask for one token needs a chunk of 1.",
            )
        length = self.form.length
        try:
            last = replace(self.form, length=length - 1, chunk=1)
            next(self._logits_by(self.proto, logits, [0] * length, last, [length], length - 1))
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise UsageError(f"length={length}: the model reads no token at the end: {first_line(error)}") from error

    def _logits_by(
        self,
        model: onnx.ModelProto,
        logits: str,
        ids: list[int],
        form: DecoderForm | None,
        ends: Sequence[int],
        begin: int = 0,
    ) -> Iterator[np.ndarray]:
        """Yield onnxruntime's last logits of runs that end with given tokens. form: None if caches grow."""
        session = cpu_session(model)
        random, dtypes = np.random.default_rng(1), self._dtypes
        names = [output.name for output in session.get_outputs()]
        shapes = self._caches(form.length if form else 0).items()
        caches = {name: random.standard_normal(shape).astype(dtypes[name]) for name, shape in shapes}
        for start, end in itertools.pairwise((begin, *ends)):
            at, rows = (form, form.chunk) if form else (replace(self.form, length=start), end - start)
            values = at.values(ids[start:end], start, rows).items()
            given = {name: value.astype(dtypes[name]) for name, value in values}
            outputs = dict(zip(names, session.run(None, {**given, **caches}), strict=True))
            yield outputs[logits][0, -1]
            caches = {past: outputs[present] for past, present in self.form.state.items()}

    def _select_row(self, graph: Graph, logits: str, row: str) -> None:
        """Make logits of one row.

        MatMul(x, weight)      ->      MatMul(Gather(x, row), weight)
        """
        last, selected = graph.producers[logits], graph.free(f"{logits}_of_row")
        if last.op_type == "Cast" and graph.only_reader(last.input[0]) is last:
            self._select_row(graph, last.input[0], row)
            return
        if last.op_type in _PRODUCTS:
            gather = helper.make_node("Gather", [last.input[0], row], [selected], axis=1)
            last.input[0] = selected
            graph.replace(last, gather, last)
        else:
            last.output[list(last.output).index(logits)] = selected
            graph.replace(last, last, helper.make_node("Gather", [selected, row], [logits], axis=1))


def _grown_caches(graph: Graph, given: Collection[str]) -> dict[str, str]:
    """Return the caches of floats that Concat appends to: the input's name -> the output's."""
    return {
        node.input[0]: node.output[0]
        for node in graph.nodes
        if node.op_type == "Concat"
        and attributes_of(node).get("axis") in (_TOKENS, _TOKENS - 4)
        and len(node.input) == 2
        if node.input[0] in given and node.output[0] in graph.returned
        if graph.elements[node.input[0]] in _FLOATS
    }


def _is_token(graph: Graph, name: str, rows: int) -> list[onnx.NodeProto]:
    """Return nodes that make a condition of (1, 1, rows, 1) of the mask: whether a row is a token, no padding."""
    constants = {"first": [-rows], "last": [2**63 - 1], "axis": [1], "shape": [1, 1, rows, 1]}
    first, last, axis, shape = (graph.constant(f"{name}_{each}", np.array(v)) for each, v in constants.items())
    new, is_set = graph.free(f"{name}_new"), graph.free(f"{name}_set")
    return [
        helper.make_node("Slice", ["attention_mask", first, last, axis], [new]),
        helper.make_node("Cast", [new], [is_set], to=TensorProto.BOOL),
        helper.make_node("Reshape", [is_set, shape], [name]),
    ]


def _rows_of_tables(graph: Graph, name: str) -> list[int]:
    """Return the number of rows of the tables whose rows an input selects."""
    names, rows = {name}, []
    for node in graph.nodes:
        if node.op_type in (*MOVES, "Cast") and node.input[0] in names:
            names.add(node.output[0])
        if node.op_type in _LOOKUPS and node.input[1] in names and node.input[0] in graph.weights:
            rows.append(int(graph.weights[node.input[0]].dims[0]))
    return rows


def _rotations(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> int | None:
    """Return the number of positions that a node has rotations for, or None if it does not rotate."""
    name = node.input[7] if len(node.input) > 7 else ""
    return int(weights[name].dims[0]) if name in weights else None


def _extent(value: onnx.ValueInfoProto, axis: int) -> int | None:
    """Return a static extent, or None."""
    dims = value.type.tensor_type.shape.dim
    is_static = axis < len(dims) and dims[axis].HasField("dim_value")
    return int(dims[axis].dim_value) if is_static else None
