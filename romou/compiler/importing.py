"""Import an ONNX model as a Relax module: the rules of `pipeline.ONNX`, then TVM's importer.

Shapes are fixed first, so that the shape arithmetic that depends on them can be folded. Relax folds the batch norms
that remain. Nodes in `host_table.py` run on the host, and so do nodes that cannot be imported. The latter are searched
for only after the import of the whole model has failed, so other models pay nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import tvm

from romou.base.errors import ModelError
from romou.compiler.frontend.float_weights import float_weights
from romou.compiler.frontend.host_groups import SHORT
from romou.compiler.frontend.host_table import unserved
from romou.compiler.frontend.imported import ImportedModel, imported_with
from romou.compiler.frontend.onnx_file import graph_inputs, load_onnx
from romou.compiler.frontend.onnx_graph import type_name
from romou.compiler.frontend.onnx_import import check_types
from romou.compiler.frontend.precision import AS_GIVEN, Precision, fp32_nodes
from romou.compiler.frontend.quantized import check_products
from romou.compiler.frontend.sizes import check_ranges, check_sizes
from romou.compiler.frontend.to_host import with_more_on_host
from romou.compiler.pipeline import ONNX, rewrite
from romou.compiler.stages import OnnxContext, part


def import_onnx(
    model: onnx.ModelProto | str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: Precision | None = None,
) -> ImportedModel:
    """Read, check and import an ONNX model.

    model: path of an ONNX file, or a loaded model.
    shapes: shape by input name, for inputs whose shape the model leaves open (or to override it).
    precision: precision to compute with. None: the precision of the model.

    Raises
    ------
    ModelError
        The file is missing or broken, or holds an operator that TVM's importer lacks.
    UsageError
        An input stays dynamic, or `shapes` names an unknown input or has another rank.
    """
    asked = precision or Precision()
    context = OnnxContext(shapes=shapes or {}, precision=asked)
    inlined = rewrite(part(ONNX, last="with_vectors_of_axes"), load_onnx(model), context)
    check_types(inlined)
    check_ranges(inlined)
    fixed = rewrite(part(ONNX, "fix_shapes", "fix_shapes"), inlined, context)
    check_products(fixed)
    check_sizes(fixed)
    given = rewrite(part(ONNX, "with_fp16_borders", "with_fp16_borders"), fixed, context)
    products = rewrite(part(ONNX, "with_standard_definitions", "with_packed_weights_of_few_rows"), given, context)
    folded = rewrite(part(ONNX, "with_own_outputs", "merge_products"), products, context)
    inputs = _inputs_of(given)
    unconverted = None
    if asked.kind != AS_GIVEN:
        unconverted = folded
        asked = replace(asked, kept=fp32_nodes(unconverted, asked, inputs))
        folded = rewrite(part(ONNX, "with_fp16"), unconverted, replace(context, precision=asked))
    on_host = frozenset(unserved(folded))
    imported = ImportedModel(
        mod=tvm.IRModule(),
        onnx_model=given,
        inputs=inputs,
        outputs=tuple(o.name for o in given.graph.output),
        folded=folded,
        on_host=on_host,
        precision=asked,
        unconverted=unconverted,
        settled=tuple(context.settled),
        narrowed=tuple(context.narrowed),
        short_outputs=_short_outputs(given),
        float_weights=float_weights(products, folded, asked),
    )
    try:
        return imported_with(imported, on_host)
    except ModelError as error:
        return with_more_on_host(imported, error)


def _short_outputs(proto: onnx.ModelProto) -> dict[str, str]:
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
    return {name: type_name(kind) for name, kind in kinds.items() if kind in SHORT}


def _inputs_of(proto: onnx.ModelProto) -> dict[str, tuple[tuple[int, ...], str]]:
    signature = {}
    for value in graph_inputs(proto):
        tensor = value.type.tensor_type
        signature[value.name] = (tuple(d.dim_value for d in tensor.shape.dim), type_name(tensor.elem_type))
    return signature
