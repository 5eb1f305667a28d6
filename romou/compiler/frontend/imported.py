"""A model in ONNX and in Relax, with some of its nodes on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx
import tvm

from romou.base.headline import Headline
from romou.base.inputs import random_inputs, signature_text
from romou.base.model_bytes import FloatWeight
from romou.compiler.frontend.declared import Settled
from romou.compiler.frontend.host_groups import split
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.frontend.precision import Precision
from romou.compiler.frontend.reference import time_onnxruntime
from romou.compiler.frontend.to_relax import to_relax
from romou.compiler.frontend.work import flops_by_node


@dataclass(frozen=True, kw_only=True, repr=False)
class ImportedModel(Headline):
    """A checked model in ONNX and in Relax.

    mod: Relax module with one function `main` and weights as constants.
    onnx_model: the model with fixed input shapes and its original precision, for onnxruntime. None if there is none.
    inputs: name -> (shape, numpy dtype name), in call order.
    outputs: names, in the order of the results of `main`.
    short_outputs: name -> numpy dtype name, of outputs that kernels store as integers (`tvm_patches.short_types`).
    host_groups: names of the nodes of each sub-model that runs on the host, see `host_groups.node_name`.
    folded: the model that was imported, before it was split.
    on_host: positions of nodes of `folded` that have to run on the host.
    precision: the requested precision. For "mixed", `kept` holds the nodes that stay fp32.
    unconverted: `folded` before its conversion to fp16, or None if it was not converted.
    settled: inputs that declared shapes determine.
    float_weights: quantized weights that became floats.
    has_sizes: whether it stands for a model with sizes at run time.
    narrowed: names of float64 nodes that became fp32.
    suffix: end of the names of its kernels, which differ from those of another shape's.
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
    short_outputs: Mapping[str, str] = field(default_factory=dict)
    float_weights: tuple[FloatWeight, ...] = ()
    has_sizes: bool = False
    narrowed: tuple[str, ...] = ()
    suffix: str = ""

    @property
    def headline(self) -> str:
        """Inputs and outputs."""
        return f"{signature_text(self.inputs)} -> {', '.join(self.outputs)}"

    @cached_property
    def flops(self) -> dict[str, int]:
        """First output of each node of `folded` -> its operations, estimated from shapes."""
        return flops_by_node(self.folded)

    def cpu_ms(self) -> float | None:
        """Return the time of a run by onnxruntime on this machine's CPU, None if onnxruntime cannot run the model."""
        if self.onnx_model is None:
            return None
        settled = {each.name: each.array for each in self.settled}
        return time_onnxruntime(self.onnx_model, random_inputs(self.inputs, 0, draws_of(self.folded)) | settled)


def imported_with(imported: ImportedModel, on_host: frozenset[int]) -> ImportedModel:
    """Import the folded model again, with the nodes at positions `on_host` on the host.

    Raises
    ------
    ModelError
        A node cannot be imported, or onnxruntime rejects the nodes on the host.
    """
    parts = split(imported.folded, set(on_host))
    return replace(imported, mod=to_relax(parts.model), on_host=on_host, host_groups=parts.groups)
