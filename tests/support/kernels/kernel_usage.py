"""The use of a device by a kernel, read off its lowered TIR, to check the formulas of `romou.tuner.pruning`.

Every address is evaluated for all work-items of a work group, so bytes that work-items share count once. No device is
needed, and nothing is estimated except the registers (`romou.compiler.operators.analysis.registers`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from romou.compiler.operators.algorithms.algorithm import DIRECT, WinogradAlgorithm
from romou.compiler.operators.algorithms.winograd.convolution import TRANSFORMED
from romou.compiler.operators.analysis.registers import estimate_registers
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.families.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.compiler.operators.kernels.streaming.template import StreamingTemplate
from romou.compiler.operators.schedule_template import Template
from romou.compiler.tir.primitives import LANES
from support.kernels.kernel_accesses import GroupAccesses
from support.kernels.kernel_structure import KernelStructure, images_of, parameter_name


def read_usage(kernels: Sequence[tirx.PrimFunc], template: Template, config: Mapping[str, Any]) -> KernelUsage:
    """Read the use of the lowered device functions of a template under a config. If there are several, the one that
    reads the weight counts: the others transform.

    BuildError if an address is computed by an unknown operation.

    kernels: in the form that the code generator receives (`InspectedKernel.lowered`)
    template: the template of the kernels. It names data, weight and output (the epilogue's inputs are no part of the
    reduction's traffic). It also gives the size of a number in memory (registers may hold fp16 as single precision) and
    the size of the output in whole texels.
    """
    names = template.names
    if isinstance(template, ContractionTemplate):
        algorithm = template.algorithms[str(config.get("algorithm", DIRECT))]
        data = TRANSFORMED if isinstance(algorithm, WinogradAlgorithm) else names["data"]
        windows = [str(template.window_weight.name)] if isinstance(template, DepthwisePointwiseTemplate) else []
        number_bytes = dict.fromkeys((data, names["weight"], *windows), template.element_bytes)
        if data == names["data"]:
            number_bytes |= {data: template.number_bytes["data"], names["weight"]: template.number_bytes["weight"]}
        outputs = math.prod(algorithm.contraction(flat=True).extents) * LANES
        transform_bytes, transform_registers = algorithm.transform_bytes, algorithm.transform_registers
        # A channel of a depthwise window is read for its own outputs only.
        is_data_shared = algorithm.contraction(flat=True).lhs_varies != "by lane"
        has_window = math.prod(list(algorithm.contraction(flat=True).reduce.values())[1:-1]) > 1
        reread = {**dict.fromkeys(number_bytes, 0), data: number_bytes[data] * has_window}
    else:
        assert isinstance(template, StreamingTemplate)
        number_bytes, outputs, transform_bytes, transform_registers = template.inputs, template.elements, 0, 0
        reread, is_data_shared = dict.fromkeys(number_bytes, 0), True
    # If there are several kernels, one may only pack the weight.
    (func,) = (f for f in kernels if len(kernels) == 1 or {names["weight"], data} <= set(map(parameter_name, f.params)))
    kernel = KernelStructure(func, number_bytes, has_main_loop=template.sums_products)
    group = GroupAccesses(kernel, names["output"])
    registers = estimate_registers(func)
    numbers_of_one, size = group.numbers_of_one(), kernel.group_size

    def unshared_bytes(is_image: bool) -> int:
        return size * sum(
            number_bytes[tensor] * numbers
            for (tensor, in_image), numbers in numbers_of_one.items()
            if in_image == is_image
        )

    counted = [load for load in group.loads if template.sums_products or load.tensor == names["data"]]
    if not template.sums_products:
        # The first work-item reads no single number behind the whole vectors of a row, but it may read only the first
        # of the tensors that a kernel puts side by side.
        counted = [load for load in counted if load.places_of_one[0].size] or counted
    return KernelUsage(
        registers=registers.live,
        needed_registers=registers.needed,
        registers_as_written=registers.as_written,
        buffer_bytes=group.distinct_bytes(number_bytes, is_image=False),
        image_bytes=group.distinct_bytes(number_bytes, is_image=True),
        unshared_buffer_bytes=unshared_bytes(False),
        unshared_image_bytes=unshared_bytes(True),
        access_width=min((load.lanes for load in counted), default=1),
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
        padding=(kernel.summed_outputs if template.sums_products else kernel.groups * group.stored_by_a_group())
        / outputs
        - 1,
        on_tensor_cores=kernel.on_tensor_cores,
        matrix_instructions=kernel.matrix_instructions,
        multiplies_fp16=kernel.multiplies_fp16,
        iterations_ahead=kernel.iterations_ahead,
        element_bytes=template.element_bytes,
        transform_bytes=transform_bytes,
        transform_registers=transform_registers,
        is_prefetched=group.is_prefetched,
        is_data_shared=is_data_shared,
        reread_buffer_bytes=group.distinct_bytes(reread, is_image=False),
        reread_image_bytes=group.distinct_bytes(reread, is_image=True),
    )
