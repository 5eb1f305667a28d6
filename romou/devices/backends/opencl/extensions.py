"""Extensions of OpenCL with sub-groups, dot products and images over buffers, by their names in a driver's list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Each of them has the functions. Intel's runtime for the CPU lists only its own.
REDUCTIONS, SHUFFLES = (
    ("cl_khr_subgroups", "cl_intel_subgroups"),
    ("cl_khr_subgroup_shuffle", "cl_qcom_subgroup_shuffle"),
)
# With this extension kernels for Adreno choose a sub-group size, by these words since Adreno 6xx.
QUALCOMM_SIZED, QUALCOMM_SIZES = "cl_qcom_reqd_sub_group_size", {64: "half", 128: "full"}
# Dot products of four bytes with four bytes.
KHRONOS_DOT, QUALCOMM_DOT, ARM_DOT = (
    "cl_khr_integer_dot_product",
    "cl_qcom_dot_product8",
    "cl_arm_integer_dot_product_int8",
)
# Images of any type over a buffer.
IMAGES_OVER_BUFFERS = "cl_ext_image_from_buffer"


def has_any(facts: Mapping[str, Any], *extensions: str) -> bool:
    """Return whether an attached device has one of the extensions. facts: its entry of `list_devices`."""
    return not set(extensions).isdisjoint(facts["extensions"].split())
