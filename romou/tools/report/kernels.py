"""A kernel for a person: its source, Romou's measures, and the output of Mesa's mobile compilers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from romou.tools.report.table import print_table, table_of_numbers

if TYPE_CHECKING:
    from romou.devices.mobile_compilers import KernelStatistics
    from romou.tools.inspection.kernels import InspectedKernel, PassStep

NOT_THE_VENDORS = (
    "Mesa's compilers, not the vendors' that phones run: the numbers compare kernels, they do not predict a phone's."
)


def print_kernel(
    kernel: InspectedKernel, statistics: Mapping[str, KernelStatistics | str], out: Console, *, has_source: bool = True
) -> None:
    """Print a kernel.

    statistics: GPU's name -> its compiler's statistics of the kernel, or the text of its error. Empty if no compiler
        was run.
    """
    out.rule(kernel.name, align="left")
    if kernel.task:
        out.print(f"task {kernel.task}: " + ", ".join(f"{k}={v}" for k, v in kernel.config.items()), markup=False)
    else:
        out.print("TVM's default schedule", markup=False)
    if kernel.nodes:
        out.print(f"ONNX nodes: {', '.join(kernel.nodes)}", markup=False)
    for step in kernel.passes:
        _print_pass(step, out)
    if has_source:
        # The source is written without wrapping, which would change its text.
        out.file.write(kernel.source.strip() + "\n")
    print_table(kernel_table(kernel, statistics), out)
    for gpu, said in statistics.items():
        if isinstance(said, str):
            out.print(f"{gpu}: {said}", markup=False)


def kernel_table(kernel: InspectedKernel, statistics: Mapping[str, KernelStatistics | str]) -> Table:
    """Return a table with a line per measure, and a column for Romou and for each GPU's compiler."""
    read = {gpu: said for gpu, said in statistics.items() if not isinstance(said, str)}
    table = table_of_numbers("of one work-item", ("Romou's estimate", *(f"Mesa, {gpu}" for gpu in read)))

    def row(title: str, estimate: object, values: Sequence[object]) -> None:
        if estimate != "" or any(v != "" for v in values):
            table.add_row(title, str(estimate), *map(str, values))

    said = list(read.values())
    traffic, operations, text = kernel.traffic, kernel.operations, kernel.text_operations
    registers = kernel.registers
    row(
        "registers (32 bit)",
        round(registers.allocated),
        [f"{s.registers} (estimate {registers.error(s.registers):+.0%})" if s.is_adreno else s.registers for s in said],
    )
    row("  needed: what pruning judges", f"{registers.needed:g}", ["" for _ in said])
    row("waves of 64", "", ["" if s.waves is None else s.waves for s in said])
    row("occupancy that registers allow", "", [f"{s.occupancy:.0%}" for s in said])
    row("spills (private memory accesses)", "", [s.spills for s in said])
    row("private memory, bytes", "", [s.private_memory_bytes for s in said])
    row("instructions, loops once", "", [s.instructions for s in said])
    row("cycles, loops once", "", ["" if s.cycles is None else f"{s.cycles:g}" for s in said])
    row("instructions executed, all conditions true", "", [_executed(kernel, s) for s in said])
    row("innermost loop: multiply-adds", traffic.multiply_adds, [s.inner.multiply_adds for s in said])
    row("innermost loop: instructions", "", [s.inner.instructions for s in said])
    per = [s.inner.instructions_per_multiply_add for s in said]
    row("innermost loop: instructions per multiply-add", "", ["-" if p is None else f"{p:.2f}" for p in per])
    row("innermost loop: bytes loaded", traffic.bytes_loaded, ["" for _ in said])
    row(
        "  from buffers, images, local memory",
        f"{traffic.buffer_bytes}, {traffic.image_bytes}, {traffic.local_bytes}",
        ["" for _ in said],
    )
    row("integer operations in loops", operations.in_loops, ["" for _ in said])
    row("  times trips", operations.in_loops_weighted, ["" for _ in said])
    row("divisions and modulos in loops", operations.divisions_in_loops, ["" for _ in said])
    row("  in the text", text.divisions_in_loops + text.modulos_in_loops, ["" for _ in said])
    return table


def _executed(kernel: InspectedKernel, said: KernelStatistics) -> object:
    from romou.compiler.operators.analysis.executed import UnknownTripCountError, executed_instructions, trip_loops

    try:
        executed = executed_instructions(said.code, trip_loops(kernel.lowered))
    except UnknownTripCountError:
        executed = None
    return "-" if executed is None else executed.instructions


def _print_pass(step: PassStep, out: Console) -> None:
    if not step.has_changed:
        out.print(f"--- {step.name}: changes nothing", markup=False)
        return
    out.file.write(f"--- before {step.name}\n{step.before.strip()}\n--- after {step.name}\n{step.after.strip()}\n")
