"""Tables and lines of `romou inspect`: a kernel with measures and Mesa's statistics, memory, reasons for a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import mib, print_table, table_of_numbers

if TYPE_CHECKING:
    from romou.base.knob import Choice
    from romou.devices.mobile_compilers import KernelStatistics
    from romou.runtime.module import MemoryPlan, MemoryUse
    from romou.tools.inspection.execute import ExecutedFunction
    from romou.tools.inspection.kernels import InspectedKernel, PassStep
    from romou.tools.inspection.why import DefaultReasons, PricedConfig

# Number of tensors in the table, the largest first.
_SHOWN = 12
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


def executed_lines(function: ExecutedFunction) -> list[str]:
    """Return a line for each executed kernel of a function, and one more if the function could not be executed."""
    error = function.comparison.relative_l2_error if function.comparison is not None else None
    verdict = function.problem or ("equal" if error is None else f"equal (relative L2 error {error:.1e})")
    lines = []
    for place, kernel in enumerate(function.kernels, start=1):
        counts, is_last = kernel.counts, place == len(function.kernels) and function.comparison is not None
        touched = [f"{number} {what} lines" for what, number in sorted(counts.lines.items())]
        touched += [f"{number / 1024:.0f} KiB from {level}" for level, number in counts.bytes_from.items()]
        lines.append(
            f"{kernel.name}: {verdict if is_last else 'executed'}; {kernel.groups} of {kernel.all_groups} work groups,"
            f" {counts.instructions} wave instructions on {counts.lanes:.0f} lanes,"
            f" {', '.join([*touched, f'{counts.divergent_branches} divergent branches'])}"
        )
    return lines if function.comparison is not None else [*lines, f"{function.name}: {verdict}"]


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
        round(registers.live),
        [f"{s.registers} (estimate {registers.error(s.registers):+.0%})" if s.is_adreno else s.registers for s in said],
    )
    row("  needed: what pruning judges", f"{registers.needed:g}", ["" for _ in said])
    row("waves of 64", "", ["" if s.waves is None else s.waves for s in said])
    row("occupancy that registers allow", "", [f"{s.occupancy:.0%}" for s in said])
    row("spills (private memory accesses)", "", [s.spills for s in said])
    row("private memory, bytes", "", [s.private_memory_bytes for s in said])
    row("instructions, loops once", "", [s.instructions for s in said])
    row("cycles, loops once", "", ["" if s.cycles is None else f"{s.cycles:g}" for s in said])
    executed = [kernel.executed_instructions(s) for s in said]
    row("instructions executed, all conditions true", "", ["-" if e is None else e for e in executed])
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


def _print_pass(step: PassStep, out: Console) -> None:
    if not step.has_changed:
        out.print(f"--- {step.name}: changes nothing", markup=False)
        return
    out.file.write(f"--- before {step.name}\n{step.before.strip()}\n--- after {step.name}\n{step.after.strip()}\n")


def memory_table(use: MemoryUse) -> Table:
    """Return a table with a line for each part of a model's memory on its device."""
    table = table_of_numbers("memory on the device", ("MiB",))
    table.add_row("weights", mib(use.weights))
    table.add_row("inputs", mib(use.inputs))
    table.add_row("activations, workspaces and outputs", mib(use.tensors))
    table.add_row("  of them live at once, at most", mib(use.least))
    table.add_row("  largest workspaces of one function", mib(use.workspaces))
    table.add_row("total", mib(use.total))
    return table


def tensor_table(plan: MemoryPlan) -> Table:
    """Return a table with the largest tensors and the calls between which they are live."""
    largest = sorted(plan.tensors, key=lambda tensor: -tensor.bytes)[:_SHOWN]
    table = table_of_numbers(
        "written by",
        ("MiB", "from call", "to call"),
        "shape",
        "ONNX nodes",
        title=f"The largest of {len(plan.tensors)} tensors",
    )
    for tensor in largest:
        shape = "x".join(map(str, tensor.shape)) + f" {tensor.dtype}" + ("" if tensor.scope == "global" else ", image")
        name = tensor.function + (" (workspace)" if tensor.is_workspace else "")
        nodes = escape(nodes_text(plan.nodes[tensor.first])) if tensor.first < len(plan.nodes) else ""
        table.add_row(escape(name), mib(tensor.bytes), str(tensor.first + 1), str(tensor.last + 1), shape, nodes)
    return table


def why_table(reasons: DefaultReasons) -> Table:
    """Return a table with a line for each term of the estimate, and a pair of columns for each config."""
    columns = [column for name in _configs(reasons) for column in (name, "us")]
    table = table_of_numbers("term", columns, title=f"Estimate of {reasons.name}, cycles and us")
    for term in reasons.default.cycles:
        cells = ((f"{priced.cycles[term]:.0f}", f"{priced.us[term]:.1f}") for priced in _configs(reasons).values())
        table.add_row(term, *(cell for pair in cells for cell in pair), end_section=term in ("output", "unrolled"))
    return table


def why_lines(reasons: DefaultReasons) -> list[str]:
    """Return the default config, what the others change in it, and how long each takes by the estimate."""
    default, *others = _configs(reasons).items()
    lines = [f"default: {_spelled(default[1].config)}"]
    for name, priced in others:
        ratio = priced.cycles["all"] / reasons.default.cycles["all"]
        lines.append(f"{name}: {_spelled(priced.changed)}; {ratio:.2f} times the default's estimate")
    return lines


def _configs(reasons: DefaultReasons) -> dict[str, PricedConfig]:
    named = {
        "default": reasons.default,
        "one knob": reasons.neighbour,
        "algorithm": reasons.other,
    }
    return {name: priced for name, priced in named.items() if priced is not None}


def _spelled(choices: Mapping[str, Choice]) -> str:
    return ", ".join(f"{knob} {choice}" for knob, choice in choices.items())
