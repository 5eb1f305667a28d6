"""Functions of subgroups in GLSL (GL_KHR_shader_subgroup), for kernels with the calls of `SUB_GROUP_CALL`.

The work group of such a kernel is one row, and the number of a work-item comes from the driver, as in kernels with
cooperative matrices (`matrices.py`):

    int item = int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID);

Groups are multiples of a subgroup, and the runtime requests full subgroups of the size that the driver reports. If that
size is not the kernel's, results are NaN, which every check rejects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

ITEM = "int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID)"
_IS_NAN = "(floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u"
_NAN = "uintBitsToFloat(0x7FC00000u)"
# Operation -> its value, and the extensions of GLSL that it needs besides the basic one.
_VALUES = {
    "add": ("subgroupAdd(x)", ("arithmetic",)),
    "max": ("subgroupMax(x)", ("arithmetic",)),
    "min": ("subgroupMin(x)", ("arithmetic",)),
    "max_with_nan": (f"subgroupAny({_IS_NAN}) ? {_NAN} : subgroupMax(x)", ("arithmetic", "vote")),
    "min_with_nan": (f"subgroupAny({_IS_NAN}) ? {_NAN} : subgroupMin(x)", ("arithmetic", "vote")),
    "shuffle_xor": ("subgroupShuffleXor(x, uint(lanes))", ("shuffle",)),
}


def extensions(called: Collection[tuple[str, int]]) -> list[str]:
    """Return the extensions of GLSL that functions need. called: (operation, size)."""
    parts = sorted({part for operation, _ in called for part in _VALUES[operation][1]})
    return [f"GL_KHR_shader_subgroup_{part}" for part in ["basic", *parts]]


def definitions(called: Collection[tuple[str, int]]) -> Iterator[str]:
    """Define the functions."""
    for operation, size in sorted(called):
        lanes = ", int lanes" if operation == "shuffle_xor" else ""
        value = f"gl_SubgroupSize == {size}u ? ({_VALUES[operation][0]}) : {_NAN}"
        yield f"float sub_group_{operation}_of_{size}(float x{lanes}) {{ return {value}; }}"
