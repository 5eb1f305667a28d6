"""Kernels of a model executed as Adreno's machine code, and their outputs compared with the unscheduled functions'.

The machine code is Mesa's (`romou.devices.mobile_compilers`), not that of Qualcomm's compiler.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from romou.base.errors import BuildError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_unscheduled
from romou.compiler.task import plain_form
from romou.compiler.tir.primitives import image_extents, is_image, tensors_of
from romou.compiler.tir.slices import AXIS, slices_of
from romou.devices.backends.launch import thread_extents
from romou.devices.mobile_compilers.gpus import mobile_gpu
from romou.devices.mobile_compilers.ir3 import (
    Buffer,
    Caches,
    Counts,
    Image,
    Launch,
    Level,
    execute,
    read_program,
)
from romou.tuner.measure.verify import Comparison, compare, poison, random_inputs, shape_of

if TYPE_CHECKING:
    from tvm import tirx

    from romou.compiler.assembly.assemble import ScheduledFunction
    from romou.devices.hardware import HardwareSpec
    from romou.devices.mobile_compilers import KernelStatistics
    from romou.tools.inspection.kernels import InspectedKernel


@dataclass(frozen=True, kw_only=True)
class ExecutedKernel:
    """A kernel that was executed.

    counts: what the waves of its work groups did.
    groups, all_groups: work groups that ran, and those of its grid.
    seconds: of a processor that the simulator took.
    """

    name: str
    counts: Counts
    groups: int
    all_groups: int
    seconds: float

    def of_grid(self, count: int) -> float:
        """Return one of `counts` for all work groups, as if the others did the same."""
        return count * self.all_groups / self.groups


@dataclass(frozen=True, kw_only=True)
class ExecutedFunction:
    """A function of the model, executed kernel by kernel on random inputs.

    name: of the function in the compiled model.
    gpu: whose compiler made the machine code.
    kernels: those that ran, in the order of their launches.
    comparison: of the elements that the executed work groups wrote with those of the unscheduled function. None if a
        kernel could not be executed.
    compared: the number of these elements.
    problem: why the output is wrong or the function could not be executed, None if the output is right.
    """

    name: str
    gpu: str
    kernels: Sequence[ExecutedKernel] = ()
    comparison: Comparison | None = None
    compared: int = 0
    problem: str | None = None


@dataclass(kw_only=True)
class _Arrays:
    """Tensors of a scheduled function by the names of its parameters.

    output: name of the output.
    place: of the output in its tensor, which may be larger.
    shape: of that tensor.
    """

    memory: dict[str, Buffer | Image] = field(default_factory=dict)
    output: str = ""
    place: tuple[slice, ...] = ()
    shape: tuple[int, ...] = ()

    def written(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the output, whether each of its elements was written, and the elements written elsewhere."""
        memory = self.memory[self.output]
        size = 4 if isinstance(memory, Image) else memory.array.itemsize
        flags = np.repeat(memory.is_written, 4) if isinstance(memory, Image) else memory.is_written[::size]
        inside = flags.reshape(self.shape)[self.place]
        return memory.array.reshape(self.shape)[self.place], inside, int(flags.sum() - inside.sum())


def execute_function(
    function: ScheduledFunction,
    kernels: Sequence[InspectedKernel],
    compiled: Mapping[str, list[KernelStatistics] | BuildError],
    gpu: str,
    *,
    spec: HardwareSpec,
    most_items: int | None,
    seed: int = 0,
) -> ExecutedFunction:
    """Run a scheduled function's kernels in the simulator of Adreno's machine code, and compare its output.

    Nothing runs on a GPU. The inputs are random. Of functions with several kernels, all but the last one run in full.

    kernels: all kernels of the function.
    compiled: source of a kernel -> the answer of Mesa's compiler for `gpu`.
    spec: the device, whose caches loads go through.
    most_items: about how many work-items of a kernel run: work groups are left out evenly. None for all.
    """
    done: list[ExecutedKernel] = []
    try:
        arrays, expected = _arrays(function, seed)
        # TVM numbers the kernels of a function in the order of their launches.
        ordered = sorted(kernels, key=lambda kernel: (len(kernel.name), kernel.name))
        for kernel in ordered:
            limit = most_items if kernel is ordered[-1] else None
            answer = compiled[kernel.source]
            if isinstance(answer, BuildError):
                raise answer
            done.append(_execute(kernel, answer[0], arrays.memory, caches_of(spec, answer[0].waves), limit))
        output, is_written, strayed = arrays.written()
        missing = int(is_written.size - is_written.sum())
        problem = None
        if missing and (done[-1].groups == done[-1].all_groups or missing == is_written.size):
            problem = f"{missing} of {is_written.size} elements were not written"
        elif strayed:
            problem = f"{strayed} elements outside of the output were written"
        task = function.task
        precision = task.precision(Config(function.config)) if task is not None else None
        comparison = compare(output[is_written], expected[is_written], precision)
        return ExecutedFunction(
            name=function.name,
            gpu=gpu,
            kernels=done,
            comparison=comparison,
            compared=int(is_written.sum()),
            problem=problem or comparison.problem,
        )
    except BuildError as error:
        return ExecutedFunction(name=function.name, gpu=gpu, kernels=done, problem=str(error))


def count_kernel(kernel: InspectedKernel, statistics: KernelStatistics, *, most_items: int = 2048) -> ExecutedKernel:
    """Run a kernel on zeros in the simulator of Adreno's machine code, for its counts only.

    Loads go through no caches.

    most_items: about how many work-items run, as in `execute_function`.

    Raises
    ------
    BuildError
        The simulator does not know an instruction, or the kernel has memory that is no parameter of its function.
    """
    memory = {str(tensor.name): _memory(tensor, np.zeros(shape_of(tensor), tensor.dtype)) for tensor in kernel.tensors}
    return _execute(kernel, statistics, memory, Caches(), most_items)


def _arrays(function: ScheduledFunction, seed: int) -> tuple[_Arrays, np.ndarray]:
    """Return random tensors for a scheduled function, and the output of the unscheduled one."""
    import tvm

    task = function.task
    plain = task.func if task is not None else plain_form(function.plain)
    if len(tensors_of(function.func)) < len(function.func.params):
        raise BuildError(f"{function.name}: sizes at run time are not executed")
    flops = task.flops if task is not None else 0.0
    key = [seed, int(task.key, 16) & 0xFFFFFFFF] if task is not None else [seed]
    try:
        unscheduled = build_unscheduled(plain)["main"]
    except tvm.error.InternalError as error:
        # TVM's own sorts, for example, have threads in every form.
        raise BuildError(f"{function.name}: it has no unscheduled form to compare with: {error}") from error
    # A root or a logarithm of a negative number is NaN, which compares with nothing.
    for is_positive in (False, True):
        inputs = random_inputs(plain, flops, key, is_positive=is_positive)
        inputs = inputs if task is None else task.template.with_zeros(inputs)
        expected = tvm.runtime.tensor(poison(shape_of(plain.params[-1]), str(plain.params[-1].dtype)))
        unscheduled(*map(tvm.runtime.tensor, inputs), expected)
        if expected.numpy().dtype.kind != "f" or np.isfinite(expected.numpy()).all():
            break
    given = task.arguments(inputs, Config(function.config)) if task is not None else list(inputs)
    output = expected.numpy()
    slices = {slice_.position: slice_ for slice_ in slices_of(function.func)}
    arrays = _Arrays()
    for position, parameter in enumerate(function.func.params):
        shape = shape_of(parameter)
        array = poison(shape, str(parameter.dtype))
        place = tuple(map(slice, shape))
        if position in slices:
            first, extent = slices[position].first, slices[position].extent
            place = (*place[:AXIS], slice(first, first + extent), *place[AXIS + 1 :])
        if position < len(given):
            array[place] = given[position]
        elif position == len(given):
            arrays.output, arrays.place, arrays.shape = str(parameter.name), place, shape
        arrays.memory[str(parameter.name)] = _memory(parameter, array)
    return arrays, output


def _memory(parameter: tirx.Buffer, array: np.ndarray) -> Buffer | Image:
    if not is_image(parameter):
        return Buffer(array)
    width, height, layers = image_extents(array.shape, str(parameter.scope()))
    return Image(array.reshape(layers, height, width, 4))


def _execute(
    kernel: InspectedKernel,
    statistics: KernelStatistics,
    memory: Mapping[str, Buffer | Image],
    caches: Caches,
    most_items: int | None,
) -> ExecutedKernel:
    started = time.process_time()
    extents = thread_extents(kernel.lowered)
    groups = (extents.get("blockIdx.x", 1), extents.get("blockIdx.y", 1), extents.get("blockIdx.z", 1))
    names = [str(parameter.name).removesuffix("_ptr") for parameter in kernel.lowered.params]
    unknown = [name for name in names if name not in memory]
    if unknown:
        raise BuildError(f"{kernel.name}: its parameters {', '.join(unknown)} are no tensors of {kernel.function}")
    launch = Launch(
        program=read_program(statistics.machine_code, kernel.name),
        arguments=[memory[name] for name in names],
        kinds=parameter_kinds(kernel.source),
        groups=groups,
        work_group=kernel.work_group,
        local_memory_bytes=statistics.local_memory_bytes,
        private_memory_bytes=statistics.private_memory_bytes,
        wave=mobile_gpu(statistics.gpu).wave,
    )
    total, chosen = math.prod(groups), None
    if most_items is not None and total * math.prod(kernel.work_group) > most_items:
        count = max(1, most_items // math.prod(kernel.work_group))
        chosen = np.unique(np.linspace(0, total - 1, count).astype(int)).tolist()
    counts = execute(launch, chosen, caches=caches)
    return ExecutedKernel(
        name=kernel.name,
        counts=counts,
        groups=counts.groups,
        all_groups=total,
        seconds=time.process_time() - started,
    )


def caches_of(spec: HardwareSpec, waves: int | None) -> Caches:
    """Return the empty caches of a device, as far as its file has their sizes.

    No file has the ways of a cache: a line may be kept anywhere. waves: those that fit into the registers of a core.
    """

    def level(size: int | None, line: int | None) -> Level | None:
        return Level(bytes=size, line_bytes=line) if size and line else None

    return Caches(
        first=level(spec.l1_texture_cache_bytes, spec.l1_texture_line_bytes),
        second=level(spec.l2_cache_bytes, spec.l2_line_bytes),
        buffers_in_first=bool(spec.l1_buffer_cache_bytes),
        resident_waves=waves or 1,
    )


def parameter_kinds(source: str) -> list[str]:
    """Return the kind of each parameter of a kernel in OpenCL C, as `Launch.kinds` has them."""
    (declared,) = re.findall(r"^__kernel .*?void \w+\((.*?)\) \{", source, re.MULTILINE)
    return [
        "buffer"
        if "*" in parameter
        else ("texture" if "__read_only" in parameter else "image")
        if " image" in parameter
        else "scalar"
        for parameter in declared.split(", ")
    ]
