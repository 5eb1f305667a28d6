"""Several compiled models as one program: one library, one set of weights, and a function for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm_ffi.structural import structural_equal

from romou.base.errors import as_build_error
from romou.base.model_bytes import MemoryUse
from romou.compiler.assembly.build import Kept, build_executable
from romou.compiler.graph.memory.equal_storage import equalize_storages
from romou.compiler.graph.memory.memory import plan_memory_in_turn
from romou.compiler.graph.relax_rewriter import with_names

if TYPE_CHECKING:
    from romou.compiler.assembly.assemble import CompiledModel

_MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class LinkedModels:
    """A program of several models.

    host: host functions before code generation.
    names: for each model, name of a function in the model -> its name in the program. `main` is the model's entry.
    memory: of all models together.
    """

    executable: relax.VMExecutable
    host: tvm.IRModule
    names: tuple[Mapping[str, str], ...]
    memory: MemoryUse


def link_models(models: Sequence[CompiledModel]) -> LinkedModels:
    """Link models that were compiled for one device.

    Weights of equal bytes and memory scope are one weight of the program. Buffers between kernels have equal sizes in
    all models, so that runs that take turns use the same memory.
    """
    target = models[0].target
    kept = Kept(lowered={key: kernel for model in models for key, kernel in model.kept.lowered.items()})
    scheduled = equalize_storages([model.scheduled for model in models])
    taken: dict[str, tvm.ir.BaseFunc] = {}
    names: list[dict[str, str]] = []
    for mod in scheduled:
        names.append(_names(mod, taken))
    with as_build_error("the model"), target.backend.keeping_programs():
        modules = [
            (with_names(mod, new), model.target) for mod, new, model in zip(scheduled, names, models, strict=True)
        ]
        executable, host = build_executable(modules, kept)
    memory = plan_memory_in_turn(scheduled, has_images=target.limits.prefers_images)
    return LinkedModels(executable=executable, host=host, names=tuple(names), memory=memory)


def _names(mod: tvm.IRModule, taken: dict[str, tvm.ir.BaseFunc]) -> dict[str, str]:
    """Return a name for each function, and add it to `taken`. Equal functions of one name are one function."""
    names: dict[str, str] = {}
    for var, func in mod.functions_items():
        name, number = str(var.name_hint), 1
        free = name
        while free in taken and (name == _MAIN or not structural_equal(taken[free], func)):
            number += 1
            free = f"{name}_{number}"
        names[name] = free
        taken.setdefault(free, func)
    return names
