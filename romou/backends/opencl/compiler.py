"""What OpenCL's compilers are told beside the kernels that TVM's code generator writes: the work group that each kernel is launched with.

    __kernel void conv(...)      ->      __kernel __attribute__((reqd_work_group_size(16, 4, 1))) void conv(...)

A compiler that does not know it keeps registers for the largest work group of the device. Mesa's for Adreno then lets fewer waves run at a time.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


@functools.cache
def install() -> None:
    """Have TVM's OpenCL modules name the work groups of their kernels."""
    import tvm
    import tvm_ffi

    generate = tvm.get_global_func("target.build.opencl")
    create = tvm.get_global_func("ffi.Module.create.opencl", allow_missing=True)
    if create is None:
        return  # Romou's runtime could not be loaded, which `romou doctor` and the first use of a device report.

    def build(mod: tvm.IRModule, target: Any) -> Any:
        _building.work_groups = {str(func.attrs["global_symbol"]): _work_group(func) for _, func in mod.functions_items()}
        try:
            return generate(mod, target)
        finally:
            _building.work_groups = {}

    def create_named(data: Any, text_format: Any, functions: Any, texts: Any) -> Any:
        named = {key: _with_work_groups(str(text), _building.work_groups) for key, text in texts.items()}
        return create(_with_work_groups(bytes(data).decode(), _building.work_groups).encode(), text_format, functions, named)

    tvm_ffi.register_global_func("target.build.opencl", build, override=True)
    tvm_ffi.register_global_func("ffi.Module.create.opencl", create_named, override=True)


class _Building(threading.local):
    """work_groups: sides of the work groups of the kernels that this thread has TVM write right now, by their names."""

    work_groups: Mapping[str, tuple[int, int, int]] = MappingProxyType({})


_building = _Building()


def _work_group(func: Any) -> tuple[int, int, int]:
    """Sides of a lowered kernel's work group; 1 along an axis that it does not use, as at its launch."""
    from tvm import tirx
    from tvm_ffi.structural import structural_walk

    sides = {"threadIdx.x": 1, "threadIdx.y": 1, "threadIdx.z": 1}

    def read(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent" and str(stmt.node.thread_tag) in sides:
            sides[str(stmt.node.thread_tag)] = int(stmt.value)

    structural_walk(func.body, (tirx.AttrStmt, read))
    return sides["threadIdx.x"], sides["threadIdx.y"], sides["threadIdx.z"]


def _with_work_groups(source: str, work_groups: Mapping[str, tuple[int, int, int]]) -> str:
    def with_attribute(found: re.Match[str]) -> str:
        sides = work_groups.get(found[1])
        return found[0] if sides is None else f"__kernel __attribute__((reqd_work_group_size({', '.join(map(str, sides))}))) void {found[1]}("

    return re.sub(r"__kernel void (\w+)\(", with_attribute, source)
