"""Constants that a program holds once for each memory scope."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm_ffi.structural import structural_map

from romou.compiler.tir.traversal import nodes_in, with_fields

# Shape and type of a constant.
_Form: TypeAlias = tuple[tuple[int, ...], str]


class ScopedConstants:
    """Constants of equal bytes in several memory scopes, kept apart while TVM builds a program.

    TVM's builder keeps one of all constants of equal shape, type and bytes, in one memory scope. A weight that one
    kernel reads from an image and another one from a buffer would be in the wrong memory for one of them. So the
    program gets copies with another first byte for all scopes but the first, until `restore` is called. To be dropped
    when the builder compares memory scopes, too.

    modules: modules of one program, whose graphs are lowered to calls.
    """

    def __init__(self, modules: Sequence[tvm.IRModule]) -> None:
        constants = [const for module in modules for const in _constants(module)]
        scopes: dict[_Form, set[str]] = {}
        for const in constants:
            scopes.setdefault(_form(const), set()).add(_scope(const))
        # Only these are hashed.
        self._forms = {form for form, used in scopes.items() if len(used) > 1}
        # Digest of the bytes -> scope -> the tensor.
        self._tensors: dict[bytes, dict[str, Any]] = {}
        for const in constants:
            if _form(const) in self._forms:
                self._tensors.setdefault(_digest(const.value.numpy()), {}).setdefault(_scope(const), const.value)
        self._originals: list[tuple[Any, Any]] = []
        taken = set(self._tensors)
        for tensors in self._tensors.values():
            for scope in list(tensors)[1:]:
                changed = _unlike(tensors[scope].numpy(), taken)
                taken.add(_digest(changed))
                original, tensors[scope] = tensors[scope], tvm.runtime.tensor(changed)
                self._originals.append((tensors[scope], original))

    def applied(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return `module` with the copies."""
        if not self._originals:
            return module
        functions = {
            var: with_fields(func, body=structural_map(func.body, (tvm.ir.GenericConst, self._replaced)))
            if isinstance(func, relax.Function)
            else func
            for var, func in module.functions_items()
        }
        return tvm.IRModule(functions, attrs=module.attrs, global_infos=dict(module.global_infos))

    def restore(self) -> None:
        """Give the copies, which the built program holds, their values."""
        for copy, original in self._originals:
            copy.copyfrom(original)

    def _replaced(self, const: Any) -> Any:
        if not isinstance(const.value, tvm.runtime.Tensor) or _form(const) not in self._forms:
            return const
        return tvm.ir.GenericConst(self._tensors[_digest(const.value.numpy())][_scope(const)], const.ty)


def _constants(module: tvm.IRModule) -> list[Any]:
    functions = (func for _, func in module.functions_items() if isinstance(func, relax.Function))
    constants = (const for func in functions for const in nodes_in(func.body, tvm.ir.GenericConst))
    return [const for const in constants if isinstance(const.value, tvm.runtime.Tensor)]


def _form(const: Any) -> _Form:
    return tuple(map(int, const.value.shape)), str(const.value.dtype)


def _scope(const: Any) -> str:
    device = getattr(const.ty, "vdevice", None)
    return "global" if device is None else str(device.memory_scope)


def _digest(value: np.ndarray) -> bytes:
    hashed = hashlib.blake2b(f"{value.shape} {value.dtype}".encode())
    hashed.update(np.ascontiguousarray(value).view(np.uint8).data)
    return hashed.digest()


def _unlike(value: np.ndarray, taken: set[bytes]) -> np.ndarray:
    """Return a copy with another first byte whose digest is not `taken`."""
    changed = value.copy()
    first = changed.reshape(-1).view(np.uint8)
    while _digest(changed) in taken:
        first[0] += 1
    return changed
