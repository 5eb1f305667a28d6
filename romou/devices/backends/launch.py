"""The launch of a lowered device function, and memory scopes that change its text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from romou.base.errors import BuildError

if TYPE_CHECKING:
    from tvm import tirx

# Scope of weights: images of one layer. No read is outside, so OpenCL kernels read an image2d_t at integer coordinates
# (`romou.devices.backends.opencl.source_attributes`).
PLAIN_IMAGE = "global.texture-2d"
# Scope of matrices whose last axis is divided into texels. Rows of the image are rows of the tensor, over all outer
# axes. No read is outside.
ROWS_IMAGE = "global.texture-rows"
# Scope of a reshape's input or output if the other one has the scope above, and of activations whose image has one
# layer. The last two axes together are a row of texels.
JOINED_ROWS_IMAGE = "global.texture-rows-joined"
# Scope of matrices -> the number of last axes of the tensor that form a row of the image.
ROW_AXES = {ROWS_IMAGE: 1, JOINED_ROWS_IMAGE: 2}
# Scope of activations. Then two scopes of lowered kernels (`romou.compiler.passes.image_addressing`): activations that
# are never read outside, and activations of one layer that may be.
IMAGE, INSIDE_IMAGE, SLICE_IMAGE = "global.texture", "global.texture-inside", "global.texture-slice"
# Memory scope -> how many leading axes make layers and rows: all but the last of them are layers, the last one is the
# row. The rest, less the lanes, makes the column. The runtimes place images by the same rule
# (tvm_patches/device_runtime/image_shape.h). Matrices (..., columns) are images of (rows, columns / 4, 4). Their last
# two axes may make the columns (`ROW_AXES`).
SEPARATORS = {
    IMAGE: -2,
    INSIDE_IMAGE: -2,
    SLICE_IMAGE: -2,
    "global.texture-weight": 1,
    "global.texture-nhwc": 2,
    PLAIN_IMAGE: 1,
    **dict.fromkeys(ROW_AXES, 1),
}
# Attribute of a function: lines that name the dimensions of its kernel (`romou.compiler.passes.kernel_attributes`).
DIMENSIONS = "romou.dimensions"

# Attribute of a function and of its kernels: a choice of the knob `wave`. The first choice marks buffers at whose
# elements all work-items of a wave load the same. The second one also copies such elements into a wave's memory, to
# which a call of `WAVE_MEMORY` gives the kernel access (`romou.devices.backends.opencl.waves`).
WAVE_KIND, UNIFORM, COPIED, WAVE_MEMORY = "romou.wave", "uniform", "copied", "WAVE_MEMORY"
# The memory of the waves that run on a core at once, and how many these are.
WAVE_MEMORY_BYTES, WAVES = 6144, 12


def dimension_comment(func: tirx.PrimFunc) -> str:
    """Return the comment above a device function's kernel that names its dimensions, or an empty text."""
    lines = str(func.attrs[DIMENSIONS]).splitlines() if func.attrs and DIMENSIONS in func.attrs else []
    return "".join(f"// {line}\n" for line in lines)


def thread_extents(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the extents of a lowered device function's launch.

    "blockIdx.x" -> work groups, "threadIdx.x" -> work-items of a group

    A number of groups that depends on a size at run time is left out.

    Raises
    ------
    BuildError
        The work-items of a group are no constant. The text of a kernel declares their number.
    """
    from tvm import tirx
    from tvm_ffi.structural import structural_walk

    extents = {}

    def read(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key != "thread_extent":
            return
        tag = str(stmt.node.thread_tag)
        if isinstance(stmt.value, tirx.IntImm):
            extents[tag] = int(stmt.value)
        elif tag.startswith("threadIdx"):
            name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else "a kernel"
            raise BuildError(
                f"{name}: the work group has {stmt.value} work-items along {tag}, which is no constant",
                hint="Bind a loop of a constant extent.",
            )

    structural_walk(func.body, (tirx.AttrStmt, read))
    return extents


def work_group(func: tirx.PrimFunc) -> tuple[int, int, int]:
    """Return the sides (x, y, z) of a lowered device function's work group, in work-items. Unused axes have 1."""
    extents = thread_extents(func)
    return extents.get("threadIdx.x", 1), extents.get("threadIdx.y", 1), extents.get("threadIdx.z", 1)


def launch_size(extents: Mapping[str, int]) -> tuple[int, int]:
    """Return (work groups of a launch, work-items of a group)."""
    groups, items = (
        math.prod(extent for tag, extent in extents.items() if tag.startswith(kind))
        for kind in ("blockIdx", "threadIdx")
    )
    return groups, items
