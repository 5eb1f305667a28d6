"""What a kernel uses of a device: registers, memory traffic of a work group, its size, local memory, images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """What one kernel uses; or what many do, where the fields are arrays that broadcast (`romou.tuner.pruning.form`).

    An iteration is one pass through the innermost loop that both reads memory and multiplies. It is the whole kernel
    where no loop is left, and where the template sums no products (`Template.sums_products`): then everything that the
    kernel reads counts as data.

    registers: 32-bit registers that a compiler gives a work-item, estimated.
    needed_registers: registers without which it would spill or stall (`RegisterEstimate`).
    registers_as_written: the same for compilers that move no load ahead (`RegisterEstimate.as_written`).
    buffer_bytes, image_bytes: distinct bytes of the operator's data and weight that a work group addresses in one
    iteration, in buffers and in images. They
        are those of the first group in the middle iteration. What a condition skips does not count, what an image gives
        as zero does.
    unshared_buffer_bytes, unshared_image_bytes: bytes of one work-item times the group's size (Romou paper, section
    4.2): what work-items share counts for
        each of them. Where the group stages data in local memory, the bytes that one work-item carries there.
    access_width: lanes of the narrowest of these loads; a texel has 4.
    element_bytes: of a number in memory.
    output_bytes: bytes that the launch writes.
    iterations, multiply_adds: iterations of a work-item, and the multiply-adds of one of them, each lane counted.
    Without products one for each number that
        it loads.
    local_loads: bytes of staged data and weight that a work-item reads of local memory in one iteration. With products,
    each counts as often as local memory
        is asked: where neighbours want other words of the same bank, one after another.
    work_group_size, work_groups: work-items of a group, and groups of the launch.
    local_memory_bytes, is_staged: local memory of a work group, and whether data or weight pass through it.
    iterations_ahead: how many iterations before their use copies to local memory begin. Iterations of copies or of use
    alone are not among `iterations`.
    images: "data", "weight", "output" -> whether it lies in an image.
    has_copies: whether scalars are copied into vectors before they are multiplied.
    on_tensor_cores: whether warps sum up together.
    multiplies_fp16: whether fp16 is multiplied as such, by ALUs.
    transform_bytes, transform_registers: what kernels before and after this one read and write, whose work is none of
    its multiply-adds, and the registers
        that one of their work-items needs at least.
    is_prefetched: whether the next iteration's share is on its way while this one sums up: then only what takes longer
    is waited for.
    reread_buffer_bytes, reread_image_bytes: of these bytes those of a tensor that is read again: of data under a window
    of several taps. What streams by,
        as weights do, no cache has to hold.
    padding: numbers that are summed up divided by those that the operator gives, less 1: at 0.25 a fifth of the work is
    for nothing.
    """

    registers: Any
    needed_registers: Any
    buffer_bytes: Any
    image_bytes: Any
    unshared_buffer_bytes: Any
    unshared_image_bytes: Any
    access_width: Any
    output_bytes: Any
    iterations: Any
    multiply_adds: Any
    local_loads: Any
    work_group_size: Any
    work_groups: Any
    local_memory_bytes: Any
    is_staged: Any
    images: Mapping[str, Any]
    has_copies: Any
    padding: Any
    on_tensor_cores: Any = False
    multiplies_fp16: Any = False
    iterations_ahead: Any = 0
    element_bytes: int = 4
    transform_bytes: Any = 0
    transform_registers: Any = 0
    reread_buffer_bytes: Any = 0
    reread_image_bytes: Any = 0
    is_prefetched: Any = False
    registers_as_written: Any = 0
