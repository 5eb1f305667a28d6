"""The operators of a scheduled model for a bench, with measures of their kernels that need no device."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from romou.base.errors import BuildError
from romou.compiler.task import TunableTask, plain_form, structure_of
from romou.devices.backends.launch import launch_size, thread_extents
from romou.devices.mobile_compilers import Compiler, compile_all, compile_by_vendor
from romou.runtime.module import Argument
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.regression.bench_data import OperatorBench

if TYPE_CHECKING:
    from romou.compiler.assembly.assemble import ScheduledFunction
    from romou.devices.mobile_compilers import KernelStatistics, VendorStatistics
    from romou.devices.targets import Target


def operators_of(
    functions: Iterable[ScheduledFunction],
    calls: Mapping[str, int],
    target: Target,
    nodes: Mapping[str, tuple[str, ...]],
    compiler: Compiler | None = None,
) -> tuple[OperatorBench, ...]:
    """Return each distinct function, untimed.

    Functions of the same structure are one operator with the sum of their calls.

    calls: name of a function in the fused graph -> how often the model calls it.
    nodes: the same names -> its ONNX nodes.
    compiler: mobile compilers that count (`operators.COMPILED`), or None.
    """
    operators: dict[str, OperatorBench] = {}
    kernels_of: dict[str, list[InspectedKernel]] = {}
    for function in functions:
        task = function.task
        plain = plain_form(function.plain) if task is None else task.func
        structure = structure_of(plain)
        key = structure if task is None else task.key
        if key in operators:
            same = operators[key]
            operators[key] = replace(
                same,
                calls=same.calls + calls.get(function.hint, 0),
                nodes=tuple(dict.fromkeys((*same.nodes, *nodes.get(function.hint, ())))),
            )
            continue
        kernels = kernels_of[key] = inspect_function(function.func, target, name=function.name)
        sha256, size = source_mark(kernels)
        arguments = Argument.of_parameters(function.func)
        operators[key] = OperatorBench(
            name=function.task.name if function.task is not None else _name(function.hint, arguments[-1]),
            key=key,
            function=function.name,
            calls=calls.get(function.hint, 0),
            config=dict(function.config),
            arguments=arguments,
            source_sha256=sha256,
            source_bytes=size,
            # Loops of the target "null" are no kernels.
            measures=stable_measures(kernels, function.task, function.config, target) if kernels else {},
            nodes=nodes.get(function.hint, ()),
            structure=structure,
        )
    if compiler is not None:
        for key, counts in zip(kernels_of, _compiled_counts(list(kernels_of.values()), compiler), strict=True):
            operators[key] = replace(operators[key], measures={**operators[key].measures, **counts})
    return _with_unique_names(list(operators.values()))


def _name(hint: str, output: Argument) -> str:
    """Return the name of an operator without TVM's number, which depends on the order in the model.

    "max_pool2d1" with an output of (1, 16, 7, 7, 4)  ->  "max_pool2d_1x16x7x7x4"
    """
    return re.sub(r"(?<=[a-z])\d+(?=_|$)", "", hint) + "_" + "x".join(map(str, output.shape))


def _with_unique_names(operators: list[OperatorBench]) -> tuple[OperatorBench, ...]:
    """Append digits of the structure to the names of operators that differ only in their epilogue.

    Names in files of versions before 0.2.0 have them. From 0.3.0 on, let them be of the key.
    """
    counts = Counter(o.name for o in operators)
    return tuple(o if counts[o.name] == 1 else replace(o, name=f"{o.name}#{o.structure[:6]}") for o in operators)


# Measures by a mobile GPU's compilers, Mesa's and the vendor's: name -> meaning. A higher value is worse. They have no
# noise.
COMPILED: dict[str, str] = {
    "compiled_refusals": "kernels that the compiler refuses. An operator with any has no other counts",
    "compiled_spills": "instructions that access private memory, because of spilled registers or arrays in it",
    "compiled_executed": "instructions that all work-items execute, if the iterations of all loops are known",
    "compiled_instructions": "instructions, loops once",
    "compiled_registers": "32-bit registers of a work-item",
    "compiled_private_bytes": "private memory of a work-item, in bytes",
    "compiled_local_bytes": "local memory of a work group, in bytes",
    "vendor_refusals": "kernels that the vendor's compiler refuses. An operator with any has no other counts of it",
    "vendor_spills": "kernels whose registers the vendor's compiler spills",
    "vendor_registers": "32-bit registers that it gives a work-item",
    "vendor_cycles": "cycles of its busiest unit, loops once",
}
# Counts that can be compared between schedules. The others are traded for one another.
OF_ANY_CONFIG = ("compiled_refusals", "compiled_spills", "compiled_executed", "vendor_refusals", "vendor_spills")
Counts: TypeAlias = "dict[str, int | float]"
# A compiler that is stopped counts as one that refuses. On a busy machine it takes longer.
_TIMEOUT_S = 600.0


def _compiled_counts(functions: Sequence[Sequence[InspectedKernel]], compiler: Compiler) -> list[Counts]:
    """Return the counts of each function: the most registers of any kernel, the sum of everything else."""
    kernels = [kernel for own in functions for kernel in own]
    counts: list[Counts] = [{} for _ in functions]
    if compiler.mesa is not None:
        compiled = compile_all([k.source for k in kernels], compiler.gpu, timeout_s=_TIMEOUT_S)
        first = [answer if isinstance(answer, BuildError) else answer[0] for answer in compiled]
        _add_counts(counts, functions, first, "compiled", _mesa_counts)
    if compiler.vendor is not None:
        said = compile_by_vendor([(k.name, k.source) for k in kernels], compiler.gpu)
        _add_counts(counts, functions, said, "vendor", _vendor_counts)
    return counts


def _add_counts(
    counts: Sequence[Counts],
    functions: Sequence[Sequence[InspectedKernel]],
    answers: Iterable[Any],
    who: str,
    count: Callable[[Sequence[InspectedKernel], list[Any]], Counts],
) -> None:
    """Add a compiler's counts to those of each function: of refused kernels, and of the others if none is refused."""
    answers = iter(answers)
    for own, kernels in zip(counts, functions, strict=True):
        made = [said for said in itertools.islice(answers, len(kernels)) if not isinstance(said, BuildError)]
        if kernels:
            own[f"{who}_refusals"] = len(kernels) - len(made)
        if kernels and len(made) == len(kernels):
            own.update(count(kernels, made))


def _mesa_counts(kernels: Sequence[InspectedKernel], made: list[KernelStatistics]) -> Counts:
    counts: Counts = {
        "compiled_spills": sum(said.spills for said in made),
        "compiled_instructions": sum(said.instructions for said in made),
        "compiled_registers": max(said.registers for said in made),
        "compiled_private_bytes": sum(said.private_memory_bytes for said in made),
        "compiled_local_bytes": sum(said.local_memory_bytes for said in made),
    }
    executed = [kernel.executed_instructions(said) for kernel, said in zip(kernels, made, strict=True)]
    known = [each for each in executed if each is not None]
    if len(known) == len(kernels):
        items = [math.prod(launch_size(thread_extents(kernel.lowered))) for kernel in kernels]
        counts["compiled_executed"] = round(sum(map(operator.mul, items, known)))
    return counts


def _vendor_counts(_kernels: Sequence[InspectedKernel], made: list[VendorStatistics]) -> Counts:
    return {
        "vendor_spills": sum(said.is_spilling for said in made),
        "vendor_registers": max(said.registers for said in made),
        "vendor_cycles": sum(said.cycles for said in made),
    }


# name -> (meaning, measure that it is divided by before two are compared, or None). A higher value is worse for each of
# them.
JUDGED: dict[str, tuple[str, str | None]] = {
    "registers": ("32-bit registers that a compiler gives a work-item, estimated", None),
    "needed_registers": ("32-bit registers without which it would spill or stall, estimated", None),
    "integer_operations_in_loops": ("integer operations in loops, as they stand in the code", None),
    "integer_operations_in_loops_weighted": ("integer operations in loops, times the trips", None),
    "divisions_in_loops": ("divisions and modulos of integers in loops", None),
    "bytes_per_iteration": (
        "bytes that a work-item loads in one iteration of its innermost loop",
        "multiply_adds_per_iteration",
    ),
    "group_bytes_per_iteration": (
        "distinct bytes of data and weight that a work group loads in one iteration",
        "multiply_adds_per_iteration",
    ),
    "local_memory_bytes": ("local memory of a work group, in bytes", None),
    **{name: (meaning, None) for name, meaning in COMPILED.items()},
}


def stable_measures(
    kernels: Sequence[InspectedKernel], task: TunableTask | None, config: Mapping[str, Any], target: Target
) -> dict[str, int]:
    """Return the measures of one operator, over all its kernels: the most registers of any, the sum of everything else.

    task: the operator's task. Without it, `group_bytes_per_iteration` and `local_memory_bytes` are left out.
    """
    measures = {
        "registers": max(round(k.registers.live) for k in kernels),
        "needed_registers": max(round(k.registers.needed) for k in kernels),
        "integer_operations_in_loops": sum(k.operations.in_loops for k in kernels),
        "integer_operations_in_loops_weighted": sum(k.operations.in_loops_weighted for k in kernels),
        "divisions_in_loops": sum(k.operations.divisions_in_loops for k in kernels),
        "bytes_per_iteration": sum(k.traffic.bytes_loaded for k in kernels),
        "multiply_adds_per_iteration": sum(k.traffic.multiply_adds for k in kernels),
    }
    if task is not None:
        usage = task.usage_of(config, target)
        measures["group_bytes_per_iteration"] = int(usage.buffer_bytes) + int(usage.image_bytes)
        measures["local_memory_bytes"] = int(usage.local_memory_bytes)
    return measures


def source_mark(kernels: Sequence[InspectedKernel]) -> tuple[str, int]:
    """Return the SHA-256 of all kernels' sources, and their size in bytes.

    The function's name is left out, because it is numbered among similar functions.
    """
    text = "".join(k.source.replace(k.function, "kernel") for k in kernels).encode()
    return hashlib.sha256(text).hexdigest(), len(text)
