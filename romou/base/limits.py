"""The limits of a device and the facts that schedules depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from romou.base.preset import Preset

# Work-items per ALU of a core beyond which local memory is no gain (Romou paper, table 1).
LOCAL_MEMORY_ALPHA = 3.0


@dataclass(frozen=True, kw_only=True)
class SubGroups:
    """The functions of sub-groups (warps, waves) that a device has.

    size: work-items of a sub-group in kernels that call them: the kernel's choice if the driver allows one, else the
        device's only size.
    has_reductions: whether a function finds the sum, maximum and minimum of a sub-group.
    has_shuffles: whether work-items of a sub-group read each other's registers.
    """

    size: int
    has_reductions: bool
    has_shuffles: bool

    def includes(self, other: SubGroups) -> bool:
        """Return whether kernels written for `other` run here as well."""
        return (
            self.size == other.size
            and self.has_reductions >= other.has_reductions
            and self.has_shuffles >= other.has_shuffles
        )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that kernels have to keep to, and the facts that default configs depend on.

    max_work_group_size, local_memory_bytes: of a work group.
    preset: numbers of default configs, fitted to the device.
    family: family of the device (romou/devices/hardware/families). None if it is not known.
    is_mobile: whether the device is a mobile GPU.
    is_cpu: whether the device is known to be a CPU.
    busy_work_items: work-items that keep all cores busy.
    warp_size: work-items that a core runs in lockstep. 1 if it is not known.
    most_with_local_memory: work-items of a group beyond which local memory is no gain (`LOCAL_MEMORY_ALPHA`). None if
        it is not known.
    registers: 32-bit registers that a work-item can have. None if it is not known.
    registers_of_all: 32-bit registers of all cores, if the work-items in flight share them and the number is known.
    max_buffers: buffers that a kernel can bind. None if there is no practical limit.
    max_buffer_bytes: bytes of a buffer or an image. None if it is not known, or if there is no practical limit.
    max_image: width, height and layers in texels. None if kernels keep to buffers.
    image_pitch_texels: texels that a row of an image over a buffer takes a multiple of. None if images have memory of
        their own.
    has_fp16_arithmetic: whether the device computes in fp16 (cl_khr_fp16). Storing fp16 needs no support.
    prefers_fp16: whether fp16 arithmetic is no slower than fp32, so that loads need no conversion.
    has_vector_arithmetic: whether the language adds and multiplies vectors. In CUDA each lane is an operation, and the
        compiler fuses multiply-adds however they are spelled.
    vector_lanes: lanes of the language's widest vectors.
    dot_products: bytes that the device's integer dot products multiply with signed bytes: "signed" or "mixed", which
        are unsigned. None if it has none, or if they are known to be slow.
    has_dot_fallback: whether the language's compiler takes four products where there is no dot product (OpenCL).
    has_word_images: whether images may hold integers of 32 bits (OpenCL).
    instructions_per_byte: instructions that all cores issue while the memory delivers a byte. None if not known.
    prefers_images: whether images are read faster than buffers and may be used.
    has_native_functions: whether the language has functions that compile to single instructions of a GPU, less exact.
    gains_by_autobroadcast: whether a product of vector and scalar is known to be faster than one of vectors (the
        criterion `broadcast`).
    asked_local_memory_bytes: local memory of a work group that asks for more than is usual, if the language can ask.
        None if it cannot.
    has_tensor_cores: whether kernels may have PTX, in which warps multiply matrices together (CUDA and NVIDIA's OpenCL,
        compute capability 8.0 and newer).
    has_warp_groups: whether four warps multiply matrices together, one of which is in local memory (CUDA, compute
        capability 9.0: wgmma).
    allows_tf32: whether tensor cores may multiply fp32, rounded to TF32.
    has_cooperative_matrices: whether the language multiplies matrices of fp16 that a warp of 32 holds together
        (VK_KHR_cooperative_matrix).
    has_waiting_groups: whether work groups of a launch, one on a core, may wait for each other (CUDA).
    sub_groups: the sub-group functions that kernels may call. None if there are none or they are not known.
    searches_waves: whether spaces have the knob `wave` (Qualcomm's OpenCL).
    without: (knob, choice as text) that spaces leave out because a driver miscompiles it.
    variant: name of Boda's variant that operators keep to, if they have it (romou/base/variants.py). None for all.
    """

    max_work_group_size: int
    local_memory_bytes: int
    preset: Preset
    family: str | None = None
    is_mobile: bool = False
    is_cpu: bool = False
    busy_work_items: int = 1
    warp_size: int = 1
    most_with_local_memory: int | None = None
    registers: int | None = None
    registers_of_all: int | None = None
    max_buffers: int | None = None
    max_buffer_bytes: int | None = None
    max_image: tuple[int, int, int] | None = None
    image_pitch_texels: int | None = None
    has_word_images: bool = False
    instructions_per_byte: float | None = None
    prefers_images: bool = False
    has_fp16_arithmetic: bool = False
    prefers_fp16: bool = False
    has_vector_arithmetic: bool = True
    vector_lanes: int = 4
    dot_products: Literal["signed", "mixed"] | None = None
    has_dot_fallback: bool = False
    has_native_functions: bool = False
    gains_by_autobroadcast: bool = False
    asked_local_memory_bytes: int | None = None
    has_tensor_cores: bool = False
    has_warp_groups: bool = False
    allows_tf32: bool = False
    has_cooperative_matrices: bool = False
    has_waiting_groups: bool = False
    sub_groups: SubGroups | None = None
    searches_waves: bool = False
    without: tuple[tuple[str, str], ...] = ()
    variant: str | None = None

    @property
    def shuffled(self) -> int:
        """Return the size of sub-groups whose work-items exchange values. 1 if there are none."""
        return self.sub_groups.size if self.sub_groups is not None and self.sub_groups.has_shuffles else 1

    @property
    def cores(self) -> int:
        """Return the cores that `busy_work_items` fill. 1 if their number is not known."""
        return max(self.busy_work_items // self.max_work_group_size, 1)
