"""A stage of the compiler: a pass, the reason for it, and the parts of the context that it reads.

`pipeline.py` lists all stages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import tvm
from onnx import TensorProto

from romou.base.errors import unknown_name
from romou.compiler.frontend.declared import Settled
from romou.compiler.frontend.precision import AS_GIVEN, FP16, Precision
from romou.compiler.graph.join_chains import Chain
from romou.compiler.graph.origins import Rungs
from romou.compiler.operators.schedule_template import StoredWeight

if TYPE_CHECKING:
    from romou.devices.targets import Target


class Kernels(Protocol):
    """The configs of a model. `schedule` fills in how its kernels read their weights.

    stored: function name -> position of the weight, and the conversion of its values.
    scopes: function name -> position of an argument -> memory scope.
    """

    stored: dict[str, tuple[int, StoredWeight]]
    scopes: dict[str, dict[int, str]]

    def schedule(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return `mod` with a kernel for each function."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of stages besides the module.

    has_sizes: whether extents are sizes at run time, so that no kernel may depend on a remainder of them.
    rungs: nodes computed in a simpler way, see `romou.compiler.fallback`.
    chains: functions that share a kernel.
    operators: the graph before operators were grouped. `run` fills it in.
    kernels: configs. Only stages of a module read them.
    """

    target: Target
    has_sizes: bool = False
    rungs: Rungs = field(default_factory=dict)
    chains: Sequence[Chain] = ()
    operators: tvm.IRModule | None = None
    kernels: Kernels | None = None

    @property
    def stored_weights(self) -> Mapping[str, tuple[int, StoredWeight]]:
        """Weights that the scheduled kernels read in another form."""
        assert self.kernels is not None, "`schedule_kernels` comes first"
        return self.kernels.stored

    @property
    def image_scopes(self) -> Mapping[str, Mapping[int, str]]:
        """Weights that the scheduled kernels read from images."""
        assert self.kernels is not None, "`schedule_kernels` comes first"
        return self.kernels.scopes

    @property
    def max_buffers(self) -> int | None:
        """Most buffers that a kernel binds on the target."""
        return self.target.limits.max_buffers


@dataclass(frozen=True, kw_only=True)
class OnnxContext:
    """Inputs of stages of ONNX besides the model.

    shapes: shape by input name.
    precision: precision to compute with. `kept` is known before the last stage.
    settled: inputs that declared shapes determine. `settle_declared` fills it in.
    narrowed: names of float64 nodes that became fp32. `without_doubles` fills it in.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    settled: list[Settled] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)

    @property
    def is_as_given(self) -> bool:
        """Whether the model's types stay."""
        return self.precision.kind == AS_GIVEN

    @property
    def has_fp16_borders(self) -> bool:
        """Whether inputs and outputs are fp16."""
        return self.precision.io == FP16

    @property
    def sum_type(self) -> int:
        """Type of the sums that may overflow: the model's fp16, or the fp32 that becomes fp16."""
        return int(TensorProto.FLOAT16 if self.is_as_given else TensorProto.FLOAT)

    @property
    def fp32_nodes(self) -> frozenset[str]:
        """First outputs of the nodes that stay fp32."""
        return self.precision.kept


@dataclass(frozen=True)
class Stage:
    """A pass with its reason.

    run: a pass of TVM, or a function of a module and of the fields `reads` of the context.
    keeps: field of the context that keeps the result for later stages.
    level, number: of the file that a dump of the stage is written to.
    """

    run: Callable[..., tvm.IRModule]
    reason: str
    reads: tuple[str, ...] = ()
    keeps: str = ""
    level: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """The name of the pass or the function."""
        if isinstance(self.run, tvm.transform.Pass):
            return str(self.run.info.name).rsplit(".", 1)[-1]
        return self.run.__name__

    @property
    def file_name(self) -> str:
        """Name of its dump, without the ending."""
        return "-".join(part for part in (f"{self.number:02}", self.level, self.name) if part)

    def followed_by(self, name: str) -> Stage:
        """Return a stage that is not a pass and only has a place in the numbering."""

        def unchanged(mod: tvm.IRModule) -> tvm.IRModule:
            return mod

        unchanged.__name__ = name
        return Stage(unchanged, "", level=self.level, number=self.number + 1)

    def __call__(self, mod: tvm.IRModule, context: Context | None) -> tvm.IRModule:
        if not isinstance(self.run, tvm.transform.Pass):
            return self.run(mod, *(getattr(context, name) for name in self.reads))
        with contextlib.nullcontext() if context is None else context.target.tvm_target:
            # Only a sequence skips the passes that the surrounding PassContext disables.
            return tvm.transform.Sequential([self.run])(mod)


def schedule_kernels(mod: tvm.IRModule, kernels: Kernels) -> tvm.IRModule:
    """Return `mod` with a kernel for each function (`romou/compiler/assembly/kernels.py`)."""
    return kernels.schedule(mod)


def stage(run: Callable[..., tvm.IRModule], reason: str, *reads: str, keeps: str = "") -> Stage:
    """Return the stage that runs `run` with the fields `reads` of the context."""
    return Stage(run, reason, reads, keeps)


def listed(level: str, *stages: Stage, after: Sequence[Stage] = ()) -> tuple[Stage, ...]:
    """Return the stages of a level, numbered behind the stages in `after`."""
    first = after[-1].number + 1 if after else 1
    return tuple(replace(each, level=level, number=number) for number, each in enumerate(stages, first))


def part(stages: Sequence[Stage], first: str | None = None, last: str | None = None) -> Sequence[Stage]:
    """Return the stages from `first` to `last`, both included."""
    names = [each.name for each in stages]
    for name in (first, last):
        if name is not None and name not in names:
            raise unknown_name("stage", name, names)
    return stages[names.index(first) if first else 0 : names.index(last) + 1 if last else None]
