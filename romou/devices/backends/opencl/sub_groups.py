"""Functions of sub-groups in OpenCL C, for kernels with the calls of `SUB_GROUP_CALL`.

The driver chooses which work-items form a sub-group, so such kernels compute their number in the group from it:

    get_sub_group_id() * get_max_sub_group_size() + get_sub_group_local_id()

Their work groups have one row, because some drivers form no sub-group of several rows. The size of a work group is a
multiple of the sub-group's, so that all sub-groups are full. An attribute fixes the sub-group size, if the driver
supports one. If sub-groups have another size even so, results are NaN, which every check rejects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from romou.devices.backends.dialect import SUB_GROUP_CALL
from romou.devices.backends.opencl.extensions import QUALCOMM_SIZED, QUALCOMM_SIZES

_HEAD = """#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#define SUB_GROUP_ITEM ((int)(get_sub_group_id() * get_max_sub_group_size() + get_sub_group_local_id()))
"""
# Adreno has the shuffle only under Qualcomm's name.
_SHUFFLE_HEAD = """#ifdef cl_qcom_subgroup_shuffle
#pragma OPENCL EXTENSION cl_qcom_subgroup_shuffle : enable
#define SHUFFLE_XOR(x, lanes) qcom_sub_group_shuffle_xor(x, lanes, CLK_SUB_GROUP_SHUFFLE_WIDTH_WAVE_SIZE_QCOM, x)
#else
#ifdef cl_khr_subgroup_shuffle
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#endif
#define SHUFFLE_XOR(x, lanes) sub_group_shuffle_xor(x, lanes)
#endif
"""
_VALUES = {
    "add": "sub_group_reduce_add(x)",
    "max": "sub_group_reduce_max(x)",
    "min": "sub_group_reduce_min(x)",
    "max_with_nan": "sub_group_any(isnan(x)) ? NAN : sub_group_reduce_max(x)",
    "min_with_nan": "sub_group_any(isnan(x)) ? NAN : sub_group_reduce_min(x)",
    "shuffle_xor": "SHUFFLE_XOR(x, lanes)",
}


def size_of(text: str) -> int | None:
    """Return the size of the sub-groups that a kernel is written for. None for a kernel without sub-groups."""
    return next((int(size) for _, size in SUB_GROUP_CALL.findall(text)), None)


def definitions(texts: Sequence[str]) -> str:
    """Return the text in front of kernels that call functions of sub-groups. "" if none does."""
    called = sorted({call for text in texts for call in SUB_GROUP_CALL.findall(text)})
    if not called:
        return ""
    sizes = sorted({int(size) for _, size in called})
    shuffles = _SHUFFLE_HEAD if any(name == "shuffle_xor" for name, _ in called) else ""
    return (
        _HEAD + shuffles + "".join(map(_attribute, sizes)) + "".join(_definition(name, size) for name, size in called)
    )


def attribute_name(size: int) -> str:
    """Return the attribute in a kernel's declaration that fixes the size of its sub-groups."""
    return f"SUB_GROUPS_OF_{size}"


def numbered_by_sub_groups(body: str) -> str:
    """Return a kernel's body that computes the number of each work-item from its sub-group."""
    return re.sub(r"\bget_local_id\(0\)", "SUB_GROUP_ITEM", body)


def _attribute(size: int) -> str:
    name, word = attribute_name(size), QUALCOMM_SIZES.get(size)
    qualcomm = (
        f"#pragma OPENCL EXTENSION {QUALCOMM_SIZED} : enable\n#define {name}"
        f' __attribute__((qcom_reqd_sub_group_size("{word}")))\n'
        if word
        else ""
    )
    return (
        f"#if defined(cl_intel_required_subgroup_size)\n#define {name}"
        f" __attribute__((intel_reqd_sub_group_size({size})))\n"
        + (f"#elif defined({QUALCOMM_SIZED})\n{qualcomm}" if word else "")
        + f"#else\n#define {name}\n#endif\n"
    )


def _definition(name: str, size: str) -> str:
    lanes = ", int lanes" if name == "shuffle_xor" else ""
    return (
        f"float sub_group_{name}_of_{size}(float x{lanes}) {{ return get_max_sub_group_size() == {size} ?"
        f" ({_VALUES[name]}) : NAN; }}\n"
    )
