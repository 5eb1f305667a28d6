"""What a kernel uses of a device, read off its lowered TIR: registers, memory traffic of a work group, its size, local memory, images.

Every address is evaluated for all work-items of a work group, so bytes that work-items share count once. No device is needed, and nothing is estimated
but the registers (`romou.analysis.registers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import tirx

from romou.analysis.accesses import GroupAccesses
from romou.analysis.expressions import parameter_name
from romou.analysis.registers import estimate_registers
from romou.analysis.structure import KernelStructure, images_of

if TYPE_CHECKING:
    from romou.schedules.base import Template


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """What one kernel uses; or what many do, where the fields are arrays that broadcast (`romou.pruning.form`).

    An iteration is one pass through the innermost loop that both reads memory and multiplies. It is the whole kernel where no loop is left, and where the
    template sums no products (`Template.sums_products`): then everything that the kernel reads counts as data.

    registers: 32-bit registers that a compiler gives a work-item, estimated.
    needed_registers: registers without which it would spill or stall (`RegisterEstimate`).
    buffer_bytes, image_bytes: distinct bytes of the operator's data and weight that a work group addresses in one iteration, in buffers and in images. They
        are those of the first group in the middle iteration. What a condition skips does not count, what an image gives as zero does.
    unshared_buffer_bytes, unshared_image_bytes: bytes of one work-item times the group's size (Romou paper, section 4.2): what work-items share counts for
        each of them. Where the group stages data in local memory, the bytes that one work-item carries there.
    access_width: lanes of the narrowest of these loads; a texel has 4.
    output_bytes: bytes that the launch writes.
    iterations, multiply_adds: iterations of a work-item, and the multiply-adds of one of them, each lane counted. Without products one for each number that
        it loads.
    local_loads: bytes of staged data and weight that a work-item reads of local memory in one iteration. With products, each counts as often as local memory
        is asked: where neighbours want other words of the same bank, one after another.
    work_group_size, work_groups: work-items of a group, and groups of the launch.
    local_memory_bytes, is_staged: local memory of a work group, and whether data or weight pass through it.
    iterations_ahead: how many iterations before their use copies to local memory begin. Iterations of copies or of use alone are not among `iterations`.
    images: "data", "weight", "output" -> whether it lies in an image.
    has_copies: whether scalars are copied into vectors before they are multiplied.
    on_tensor_cores: whether warps sum up together.
    transform_bytes, transform_registers: what kernels before and after this one read and write, whose work is none of its multiply-adds, and the registers
        that one of their work-items needs at least (`romou.schedules.base.Traffic`).
    is_prefetched: whether the next iteration's share is on its way while this one sums up: then only what takes longer is waited for.
    is_streamed: whether inputs are read through once, so that no cache has to hold what a work group reads.
    padding: numbers that are summed up divided by those that the operator gives, less 1: at 0.25 a fifth of the work is for nothing.
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
    iterations_ahead: Any = 0
    transform_bytes: Any = 0
    transform_registers: Any = 0
    is_streamed: Any = False
    is_prefetched: Any = False


def read_usage(kernels: Sequence[tirx.PrimFunc], template: Template, config: Mapping[str, Any]) -> KernelUsage:
    """Read the lowered device functions of a template under a config. Of several, the one that reads the weight counts: the others transform.

    BuildError where an address is made with an operation that is not known here.

    kernels: as the code generator gets them (`InspectedKernel.lowered`).
    template: the template that made it. It names data, weight and output (what the epilogue reads is no part of the reduction's traffic), and says how large a
        number is in memory (registers may hold fp16 as single precision) and how many the operator gives, whole texels counted.
    """
    names, traffic = template.names, template.traffic(config)
    outputs, number_bytes = traffic.outputs, traffic.operands
    (func,) = (f for f in kernels if len(kernels) == 1 or names["weight"] in map(parameter_name, f.params))
    kernel = KernelStructure(func, number_bytes, has_main_loop=template.sums_products)
    group = GroupAccesses(kernel, names["output"])
    registers = estimate_registers(func)
    numbers_of_one, size = group.numbers_of_one(), kernel.group_size

    def unshared_bytes(is_image: bool) -> int:
        return size * sum(number_bytes[tensor] * numbers for (tensor, in_image), numbers in numbers_of_one.items() if in_image == is_image)

    return KernelUsage(
        registers=registers.allocated,
        needed_registers=registers.needed,
        buffer_bytes=group.distinct_bytes(number_bytes, is_image=False),
        image_bytes=group.distinct_bytes(number_bytes, is_image=True),
        unshared_buffer_bytes=unshared_bytes(False),
        unshared_image_bytes=unshared_bytes(True),
        access_width=min((load.lanes for load in group.loads if template.sums_products or load.tensor == names["data"]), default=1),
        output_bytes=outputs * template.element_bytes,
        iterations=kernel.iterations,
        multiply_adds=kernel.multiply_adds if template.sums_products else sum(numbers_of_one.values()),
        local_loads=group.local_loads,
        work_group_size=size,
        work_groups=kernel.groups,
        local_memory_bytes=kernel.local_memory_bytes,
        is_staged=kernel.is_staged,
        images={role: any(name in images_of(f) for f in kernels) for role, name in names.items()},
        has_copies=kernel.has_copies,
        padding=(kernel.summed_outputs if template.sums_products else kernel.groups * group.stored_by_a_group()) / outputs - 1,
        on_tensor_cores=kernel.on_tensor_cores,
        iterations_ahead=kernel.iterations_ahead,
        transform_bytes=traffic.transform_bytes,
        transform_registers=traffic.transform_registers,
        is_streamed=not template.sums_products,
        is_prefetched=group.is_prefetched,
    )
