"""A model as it was built: a library, the tensors of its function, and what a run checks. It is saved and loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from romou.base.schema import Range, made_of
from romou.compiler.frontend.declared import Settled
from romou.devices.targets import Target
from romou.runtime.module.machine import MAIN

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from romou.compiler.assembly.assemble import CompiledModel

# Name -> (shape, numpy dtype name)
Tensors: TypeAlias = Mapping[str, tuple[tuple[int, ...], str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model as it was built for a target.

    executable: the compiled executable, or the shared library that it was saved as.
    inputs: in call order.
    outputs: names, in the order of `run`.
    output_types: of every output. The type is the device's.
    short_outputs: name -> numpy dtype name, of outputs that kernels store as integers (`tvm_patches.short_types`).
    host_code: host functions before code generation. None: those in the folder that the model was saved in.
    settled: inputs whose values are checked in each run, because the model's declared shapes determine them.
    entry: the function of the library that computes the model.
    program: what the executable was built from, to link it with others. None if it is not kept.
    """

    executable: relax.VMExecutable | tvm.runtime.Module | Path
    target: Target
    inputs: Tensors
    outputs: tuple[str, ...]
    output_types: Tensors = dataclasses.field(default_factory=dict)
    short_outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    host_code: tvm.IRModule | None = None
    settled: tuple[Settled, ...] = ()
    entry: str = MAIN
    program: CompiledModel | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of all but the library, its host code and its program."""
        return {
            "target": self.target.to_json(),
            "inputs": {name: [list(shape), dtype] for name, (shape, dtype) in self.inputs.items()},
            "outputs": list(self.outputs),
            "output_types": {name: [list(shape), dtype] for name, (shape, dtype) in self.output_types.items()},
            **({} if self.entry == MAIN else {"entry": self.entry}),
            **({"short_outputs": dict(self.short_outputs)} if self.short_outputs else {}),
            "settled": [entry.to_dict() for entry in self.settled],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], library: Path) -> BuiltModel:
        """Return the model of a library with the data of `to_dict`. Raise many types for other data."""
        short = made_of(dict[str, str], data.get("short_outputs", {}))
        return cls(
            executable=library,
            target=Target.from_json(data["target"]),
            inputs=_tensors(data["inputs"]),
            outputs=made_of(tuple[str, ...], data["outputs"]),
            output_types=_tensors(data["output_types"]),
            short_outputs={name: np.dtype(dtype).name for name, dtype in short.items()},
            settled=tuple(Settled.from_dict(entry) for entry in data["settled"]),
            entry=made_of(str, data.get("entry", MAIN)),
        )

    @property
    def library(self) -> Path | None:
        """The shared library of a model that was saved. None for one that was compiled in this process."""
        return self.executable if isinstance(self.executable, Path) else None

    @property
    def stored_outputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each output as kernels store it."""
        types = self.output_types.items()
        return {name: (shape, self.short_outputs.get(name, dtype)) for name, (shape, dtype) in types}


def _tensors(data: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name -> (shape, type) of tensors. ValueError or TypeError for anything else."""
    tensors = made_of(dict[str, tuple[tuple[Annotated[int, Range(0)], ...], str]], data)
    return {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in tensors.items()}
