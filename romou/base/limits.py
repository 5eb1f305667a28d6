"""What a device allows and likes: the facts that schedules look at."""

from __future__ import annotations

from dataclasses import dataclass

# Work-items for each ALU of a core beyond which there is parallelism enough without local memory (Romou paper, table
# 1).
LOCAL_MEMORY_ALPHA = 3.0


@dataclass(frozen=True, kw_only=True)
class SubGroups:
    """What kernels can do with the sub-groups (warps, waves) of a device.

    size: work-items of a sub-group in kernels that use such functions: fixed by the kernel where the driver lets it,
    else the device's only one.
    has_reductions: whether a function sums up over a whole sub-group, and finds its largest and smallest number.
    has_shuffles: whether work-items of a sub-group read each other's registers.
    """

    size: int
    has_reductions: bool
    has_shuffles: bool

    def includes(self, other: SubGroups) -> bool:
        """Whether kernels for `other` run here as well."""
        return (
            self.size == other.size
            and self.has_reductions >= other.has_reductions
            and self.has_shuffles >= other.has_shuffles
        )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the device allows and likes.

    max_work_group_size, local_memory_bytes: of a work group.
    busy_work_items: how many keep all cores busy.
    warp_size: work-items that a core runs in step; 1 where it is not known.
    most_with_local_memory: work-items of a group beyond which local memory is no gain (`LOCAL_MEMORY_ALPHA`); None
    where that is not known.
    registers: 32-bit registers that a work-item can have; None where it is not known.
    registers_of_all: 32-bit registers of all cores, where the work-items in flight share them; None elsewhere, or where
    it is not known.
    max_buffers: that a kernel can bind; None where that is no limit to think of.
    max_buffer_bytes: of a buffer or an image; None where that is not known, or no limit to think of.
    max_image: width, height and layers in texels; None where kernels are to keep to buffers.
    has_fp16_arithmetic: whether it computes with fp16 (cl_khr_fp16); storing fp16 needs no support.
    prefers_fp16: whether that is no slower than fp32; what is loaded needs no conversion then.
    has_vector_arithmetic: whether its language adds and multiplies vectors; else (CUDA) every lane is an operation of
    its own, however products
        are spelled, and the compiler fuses them by itself.
    instructions_per_byte: that all cores issue while the memory gives a byte; where it is not known, more than any
    phone of which both numbers are.
    prefers_images: whether reads of buffers pass by the first-level cache, so that images are the better default.
    has_tensor_cores: whether warps multiply matrices of fp16 (CUDA, compute capability 8.0 and newer).
    has_cooperative_matrices: whether its language multiplies matrices of fp16 that a warp of 32 holds together
    (VK_KHR_cooperative_matrix).
    sub_groups: what kernels can do with sub-groups; None where that is nothing, or not known.
    without: (knob, choice as text) that spaces leave out, because a driver gets them wrong.
    allows_tf32: whether they may do so with fp32, which is rounded to TF32 then.
    """

    max_work_group_size: int
    local_memory_bytes: int
    busy_work_items: int = 1
    warp_size: int = 1
    most_with_local_memory: int | None = None
    registers: int | None = None
    registers_of_all: int | None = None
    max_buffers: int | None = None
    max_buffer_bytes: int | None = None
    max_image: tuple[int, int, int] | None = None
    instructions_per_byte: float = 24.0
    prefers_images: bool = False
    has_fp16_arithmetic: bool = False
    prefers_fp16: bool = False
    has_vector_arithmetic: bool = True
    has_tensor_cores: bool = False
    allows_tf32: bool = False
    has_cooperative_matrices: bool = False
    sub_groups: SubGroups | None = None
    without: tuple[tuple[str, str], ...] = ()
