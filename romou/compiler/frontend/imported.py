"""A model in both forms, ONNX and Relax, with some of its nodes on the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx
import tvm

from romou.compiler.frontend.declared import Settled
from romou.compiler.frontend.host_groups import split
from romou.compiler.frontend.precision import Precision
from romou.compiler.frontend.to_relax import to_relax


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A checked model in both forms.

    mod: Relax module with one function `main`, weights embedded as constants.
    onnx_model: the same model with its input shapes fixed, for the onnxruntime reference, in its own precision; None
    where no ONNX model is the same.
    inputs: name -> (shape, numpy dtype name), in call order.
    outputs: names, in the order in which the module returns them.
    host_groups: names of the nodes that run on the host, by sub-model, see `host_groups.node_name`.
    folded: the model that was imported, before it was split.
    on_host: positions of its nodes that were asked to run on the host.
    precision: what was asked for; of "mixed", `kept` says what stays fp32.
    unconverted: `folded` before it became fp16; None where it did not.
    settled: inputs that declared shapes decide.
    """

    mod: tvm.IRModule
    onnx_model: onnx.ModelProto | None
    inputs: dict[str, tuple[tuple[int, ...], str]]
    outputs: tuple[str, ...]
    folded: onnx.ModelProto
    on_host: frozenset[int] = frozenset()
    host_groups: tuple[tuple[str, ...], ...] = ()
    precision: Precision = field(default_factory=Precision)
    unconverted: onnx.ModelProto | None = None
    settled: tuple[Settled, ...] = ()


def imported_with(imported: ImportedModel, on_host: frozenset[int]) -> ImportedModel:
    """The folded model imported with the nodes of these positions on the host.

    Raises
    ------
    ModelError
        A node cannot be imported, or onnxruntime does not take those on the host.
    """
    parts = split(imported.folded, set(on_host))
    return replace(imported, mod=to_relax(parts.model), on_host=on_host, host_groups=parts.groups)
