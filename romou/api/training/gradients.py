"""romou.training.gradients: the loss of a model and its gradients, from its ONNX graph."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax, tirx

from romou.api.training.loss import LABELS, LOSSES, loss_function
from romou.api.training.registered import register_gradients
from romou.base.compat import check_versions
from romou.base.errors import ModelError, UsageError
from romou.compiler.frontend.constants_given import with_constants
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.onnx_file import load_onnx
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph.relax_rewriter import with_main
from romou.compiler.importing import import_onnx
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import static_shape

logger = logging.getLogger("romou")

# Operators whose constants are a model's weights.
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_SHAPE_ONLY = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Dropout")
_MAIN, _ADJOINT = "main", "main_adjoint"


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingStep(ImportedModel):
    """The loss of a model and its gradients, for `romou.tune` and `romou.compile`.

    Its inputs are the model's inputs, the labels, and the differentiated weights. Its outputs are "loss", and
    "NAME.grad" for each of these weights.

    parameters: the values that the weights have in the model, by name.
    """

    parameters: dict[str, np.ndarray] = field(default_factory=dict)


def gradients(
    model: onnx.ModelProto | str | Path,
    *,
    loss: Literal["cross_entropy", "mean_squared_error"] | None = "cross_entropy",
    wrt: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
) -> TrainingStep:
    """Differentiate a model's loss by its weights, with TVM Relax's Gradient pass.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model, with one output.
    loss
        "cross_entropy": the mean over the batch, of outputs (n, classes) before their softmax and an input "labels" of
        n class numbers (int64). "mean_squared_error": of the output and an input "labels" of its shape. None: the
        output is the loss, a single number.
    wrt
        Names of weights (initializers) and inputs to differentiate by. None for all weights of convolutions, matrix
        products and additions.
    shapes
        Shape by name, for inputs whose shape the model leaves open: the batch, say.
    constants
        Value by name, for inputs that become constants of the model, as in `tune`.
    precision
        "float16": weights stay fp32, and kernels convert them when they load them. See `romou docs precision`.

    Raises
    ------
    ModelError
        The model is missing or broken, has several outputs, or an operator between a weight and the loss has no
        gradient, which is named.
    UsageError
        An unknown loss, or a name in `wrt` that is neither a weight nor an input. The message has the nearest name.
    """
    check_versions()
    if loss is not None and loss not in LOSSES:
        raise UsageError(f"loss={loss!r}: expected one of {', '.join(map(repr, LOSSES))}, or None")
    proto = load_onnx(with_constants(model, constants))
    if len(proto.graph.output) != 1:
        raise ModelError(
            f"the model has {len(proto.graph.output)} outputs ({', '.join(o.name for o in proto.graph.output)}); a loss"
            " is made of one"
        )
    if loss == "cross_entropy":
        _warn_of_softmax(proto)
    names = _chosen(proto, wrt)
    proto, parameters = _with_inputs(proto, names)
    imported = import_onnx(proto, shapes, Precision.checked(precision, None, None))
    if imported.host_groups:
        nodes = [name for group in imported.host_groups for name in group]
        raise ModelError(f"no gradient for {', '.join(nodes)}, which would run on the host", nodes=nodes)
    mod, inputs = _with_loss(imported, loss)
    positions = [list(inputs).index(name) for name in names]
    return TrainingStep(
        **{f.name: getattr(imported, f.name) for f in fields(ImportedModel)}
        | {
            "mod": _differentiated(mod, positions),
            "inputs": inputs,
            "outputs": ("loss", *(f"{name}.grad" for name in names)),
            "onnx_model": None,
        },
        parameters=parameters,
    )


def _warn_of_softmax(proto: onnx.ModelProto) -> None:
    """Log a warning if the output is that of a Softmax, which the loss would apply a second time."""
    node_of = {name: node for node in proto.graph.node for name in node.output}
    node = node_of.get(proto.graph.output[0].name)
    while node is not None and node.op_type in _SHAPE_ONLY:
        node = node_of.get(node.input[0])
    if node is not None and node.op_type == "Softmax":
        text = (
            "the model ends in a Softmax (%s), and cross_entropy has one of its own: gradients are small and training"
            " is slow; take the model without it, or another loss"
        )
        logger.warning(text, node.name or node.output[0])


def _chosen(proto: onnx.ModelProto, wrt: Sequence[str] | None) -> list[str]:
    weights = {t.name for t in proto.graph.initializer if t.data_type in _FLOATS}
    if wrt is None:
        read = [
            name for node in proto.graph.node if node.op_type in _WEIGHTED for name in node.input if name in weights
        ]
        return list(dict.fromkeys(read))
    names = weights | {i.name for i in proto.graph.input}
    for name in wrt:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"wrt: the model has no weight or input {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return list(wrt)


def _with_inputs(proto: onnx.ModelProto, names: Iterable[str]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model with these weights as inputs, and their values."""
    opened = onnx.ModelProto()
    opened.CopyFrom(proto)
    wanted = set(names)
    weight_of = {t.name: t for t in proto.graph.initializer if t.name in wanted}
    kept = [t for t in proto.graph.initializer if t.name not in wanted]
    declared = {i.name for i in proto.graph.input}
    del opened.graph.initializer[:]
    opened.graph.initializer.extend(kept)
    opened.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for name, t in weight_of.items()
        if name not in declared
    )
    return opened, {name: numpy_helper.to_array(tensor) for name, tensor in weight_of.items()}


def _with_loss(
    imported: ImportedModel, loss: str | None
) -> tuple[tvm.IRModule, dict[str, tuple[tuple[int, ...], str]]]:
    """Return (module, inputs). The module's `main` returns only the loss."""
    result = imported.mod[_MAIN].ret_ty
    if isinstance(result, relax.TupleType):
        raise ModelError("the model returns a tuple; a loss is made of one tensor")
    shape, dtype = tuple(int(d) for d in result.shape.values), str(result.dtype)
    if loss is None:
        if int(np.prod(shape)) != 1:
            raise ModelError(
                f"the output has the shape {shape}; without a loss it has to be a single number",
                hint='loss="cross_entropy"',
            )
        return imported.mod, dict(imported.inputs)
    function, labels = loss_function(loss, shape, dtype)
    if LABELS in imported.inputs:
        raise ModelError(f"the model has an input {LABELS!r} of its own; rename it")
    mod = relax.training.utils.AppendLoss(_MAIN, function, new_func_name="with_loss")(imported.mod)
    return with_main(imported.mod, mod["with_loss"].with_attr("global_symbol", _MAIN)), {
        **imported.inputs,
        LABELS: labels,
    }


def _differentiated(mod: tvm.IRModule, positions: Sequence[int]) -> tvm.IRModule:
    """Return the module with a new `main`: it returns (loss, gradient, ...) for the parameters at these indices."""
    register_gradients()
    main = mod[_MAIN]
    variables = [main.params[position] for position in positions]
    _refuse_without_gradient(main, variables)
    differentiated = relax.transform.Gradient(_MAIN, require_grads=variables)(mod)
    adjoint = differentiated[_ADJOINT]
    loss, grads = adjoint.body.body.fields
    results = relax.Tuple([loss, *(grads.fields if isinstance(grads, relax.Tuple) else [grads])])
    flat = relax.Function(
        adjoint.params,
        relax.SeqExpr(adjoint.body.blocks, results),
        relax.TupleType([result.ty for result in results.fields]),
    )
    kernels = {
        var: function for var, function in differentiated.functions_items() if isinstance(function, tirx.PrimFunc)
    }
    gradients_module = with_main(tvm.IRModule(kernels), flat.with_attr("global_symbol", _MAIN))
    return relax.transform.DeadCodeElimination()(gradients_module)


def _refuse_without_gradient(main: relax.Function, variables: Sequence[relax.Var]) -> None:
    """Raise ModelError if an operator between a variable and the loss has no registered gradient."""
    depends = set(variables)
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        value = binding.value
        read = [var for var in relax.analysis.free_vars(value) if var in depends]
        if not read:
            continue
        depends.add(binding.var)
        name = op_name(value) if isinstance(value, relax.Call) else ""
        if isinstance(value, relax.Call) and (
            not isinstance(value.op, tvm.ir.Op) or value.op.get_attr("FPrimalGradient") is None
        ):
            shapes = ", ".join(str(static_shape(var)) for var in read)
            raise ModelError(
                f"the operator {name.removeprefix('relax.') or value.op} (of {shapes}) has no gradient", operator=name
            )
