"""The library of a compiled model: the modules in it, and its file."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import tvm
from tvm import relax

from romou.base.errors import ModelError


def modules_of(library: relax.VMExecutable | tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    """A library and all that it imports."""
    modules = [getattr(library, "mod", library)]
    while modules:
        module = modules.pop(0)
        modules += list(module.imports)
        yield module


def executable_of(library: relax.VMExecutable | tvm.runtime.Module) -> tvm.runtime.Module:
    """The graph and its weights."""
    return next(module for module in modules_of(library) if module.kind == "relax.VMExecutable")


def module_of(library: relax.VMExecutable | tvm.runtime.Module, name: str) -> tvm.runtime.Module | None:
    """The module that has the compiled function `name`."""
    return next(
        (m for m in modules_of(library) if m.kind != "relax.VMExecutable" and m.implements_function(name)), None
    )


def library_name() -> str:
    """A new name for a file."""
    return f"module-{uuid.uuid4().hex[:12]}.so"


def copy_library(loaded: Path, path: Path) -> None:
    """Copy the file of a loaded model. ModelError where it is gone."""
    if not loaded.exists():
        hint = "A loaded model holds its weights on the device alone."
        raise ModelError(f"{loaded} is gone: the model that was loaded from it cannot be written again", hint=hint)
    shutil.copyfile(loaded, path)
