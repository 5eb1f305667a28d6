"""The modules in the library of a compiled model, and its file."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import ModelError

if TYPE_CHECKING:
    import tvm
    from tvm import relax


def modules_of(library: relax.VMExecutable | tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    """Yield a library and all modules that it imports."""
    modules = [getattr(library, "mod", library)]
    while modules:
        module = modules.pop(0)
        modules += list(module.imports)
        yield module


def executable_of(library: relax.VMExecutable | tvm.runtime.Module) -> tvm.runtime.Module:
    """Return the module that holds the graph and its weights."""
    return next(module for module in modules_of(library) if module.kind == "relax.VMExecutable")


def module_of(library: relax.VMExecutable | tvm.runtime.Module, name: str) -> tvm.runtime.Module | None:
    """Return the module that has the compiled function `name`, or None."""
    return next(
        (m for m in modules_of(library) if m.kind != "relax.VMExecutable" and m.implements_function(name)), None
    )


def library_name() -> str:
    """Return a new file name."""
    return f"module-{uuid.uuid4().hex[:12]}.so"


def copy_library(loaded: Path, path: Path) -> None:
    """Copy the file of a loaded model. Raise ModelError if it is gone."""
    if not loaded.exists():
        hint = "A loaded model holds its weights on the device alone."
        raise ModelError(f"{loaded} is gone: the model that was loaded from it cannot be written again", hint=hint)
    shutil.copyfile(loaded, path)
