"""Constants that a program holds once for each memory scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm_ffi.structural import structural_map

from romou.compiler.tir.traversal import nodes_in, with_fields


class ScopedConstants:
    """Constants of equal bytes in several memory scopes, kept apart while TVM builds a program.

    TVM's builder keeps one of all constants of equal shape, type and bytes, in one memory scope. A weight that one
    kernel reads from an image and another one from a buffer would be in the wrong memory for one of them. So bytes of
    constants in images are masked, by random bytes for each scope, until `restore` is called. To be dropped when the
    builder compares memory scopes, too.

    modules: modules of one program, whose graphs are lowered to calls.
    """

    def __init__(self, modules: Sequence[tvm.IRModule]) -> None:
        scopes: dict[object, set[str]] = {}
        for func in (func for module in modules for _, func in module.functions_items()):
            for const in nodes_in(func.body, tvm.ir.GenericConst) if isinstance(func, relax.Function) else ():
                scopes.setdefault(_form(const), set()).add(_scope(const))
        # Shape and type of constants in several scopes.
        self._forms = {form for form, used in scopes.items() if form is not None and len(used) > 1}
        self._masked: list[tuple[Any, Any]] = []

    def applied(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return `module` with masked constants."""
        functions = {
            var: with_fields(func, body=structural_map(func.body, (tvm.ir.GenericConst, self._with_mask)))
            if self._forms and isinstance(func, relax.Function)
            else func
            for var, func in module.functions_items()
        }
        return tvm.IRModule(functions, attrs=module.attrs, global_infos=dict(module.global_infos))

    def restore(self) -> None:
        """Give the masked constants, which the built program holds, their values."""
        for masked, original in self._masked:
            masked.copyfrom(original)

    def _with_mask(self, const: Any) -> Any:
        scope = _scope(const)
        if _form(const) not in self._forms or scope == "global":
            return const
        value = np.ascontiguousarray(const.value.numpy())
        mask = np.random.default_rng([*scope.encode()]).integers(256, size=value.nbytes, dtype=np.uint8)
        masked = (value.reshape(-1).view(np.uint8) ^ mask).view(value.dtype).reshape(value.shape)
        self._masked.append((tvm.runtime.tensor(masked), const.value))
        return tvm.ir.GenericConst(self._masked[-1][0], const.ty)


def _form(const: Any) -> object:
    """Return the shape and type of a tensor, or None for other constants."""
    is_tensor = isinstance(const.value, tvm.runtime.Tensor)
    return (tuple(map(int, const.value.shape)), str(const.value.dtype)) if is_tensor else None


def _scope(const: Any) -> str:
    device = getattr(const.ty, "vdevice", None)
    return "global" if device is None else str(device.memory_scope)
