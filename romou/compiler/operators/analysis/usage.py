"""Kernel usage: registers, memory traffic of a work group, its size, local memory, images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """The usage of one kernel, or of many if the fields are arrays that broadcast (`Form.usage`).

    An iteration is one pass through the innermost loop that both reads memory and multiplies. If there is no such
    loop, or the template sums no products (`Template.sums_products`), it is the whole kernel, and everything that it
    reads is data.

    registers: most 32-bit values of a work-item that are live at the same time (`RegisterEstimate.live`)
    needed_registers: the same in the unit of device files (`RegisterEstimate.needed`)
    registers_as_written: the same for compilers that move no load ahead (`RegisterEstimate.as_written`)
    buffer_bytes, image_bytes: distinct bytes of data and weight that the first work group reads in the middle
        iteration, in buffers and in images. Reads skipped by a condition do not count. Zeros outside an image do.
    unshared_buffer_bytes, unshared_image_bytes: bytes of one work-item times the group's size (Romou paper, section
        4.2), so shared bytes count for each work-item. If data is staged, the bytes that one work-item stages.
    access_width: lanes of the narrowest of these loads. A texel has 4
    element_bytes: bytes of a number in memory
    output_bytes: bytes that the launch writes
    iterations, multiply_adds: iterations of a work-item, and multiply-adds of one iteration, each lane counted.
        Without products, one for each loaded number.
    local_loads: bytes of staged data and weight that a work-item reads from local memory in one iteration. With
        products, bank conflicts are included.
    work_group_size, work_groups: work-items of a group, and groups of the launch
    local_memory_bytes, is_staged: local memory of a work group, and whether data or weight are staged in it
    iterations_ahead: number of iterations that copies to local memory run ahead. Prologue and epilogue iterations are
        not counted in `iterations`.
    images: "data", "weight", "output" -> whether it is stored in an image
    has_copies: whether scalars are copied into vectors before they are multiplied
    on_tensor_cores, matrix_instructions: whether tensor cores compute the sums, and their instructions for each product
        of the size of fp16's
    multiplies_fp16: whether ALUs multiply in fp16
    transform_bytes, transform_registers: bytes that the kernels before and after this one read and write, and the
        registers that one of their work-items needs at least
    is_prefetched: whether the next iteration's data is loaded during this one
    reread_buffer_bytes, reread_image_bytes: bytes that a later iteration reads again: data under a window of several
        taps. No cache has to hold the others.
    is_data_shared: whether other work groups read the same data, as those of other output channels do
    padding: computed numbers divided by the operator's numbers, minus 1: at 0.25 a fifth of the work is padding
    """

    registers: Any
    needed_registers: Any
    buffer_bytes: Any
    unshared_buffer_bytes: Any
    access_width: Any
    output_bytes: Any
    iterations: Any
    multiply_adds: Any
    work_group_size: Any
    work_groups: Any
    images: Mapping[str, Any]
    padding: Any
    image_bytes: Any = 0
    unshared_image_bytes: Any = 0
    local_loads: Any = 0
    local_memory_bytes: Any = 0
    is_staged: Any = False
    has_copies: Any = False
    on_tensor_cores: Any = False
    matrix_instructions: Any = 1
    multiplies_fp16: Any = False
    iterations_ahead: Any = 0
    element_bytes: int = 4
    transform_bytes: Any = 0
    transform_registers: Any = 0
    reread_buffer_bytes: Any = 0
    reread_image_bytes: Any = 0
    is_prefetched: Any = False
    is_data_shared: Any = True
    registers_as_written: Any = 0
