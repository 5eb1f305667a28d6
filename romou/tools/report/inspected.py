"""Tables and lines of `romou inspect`: a kernel with measures and Mesa's statistics, memory, reasons for a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from romou.devices.mobile_compilers.vendor import VendorStatistics
from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import mib, print_table, table_of_numbers

if TYPE_CHECKING:
    from romou.base.knob import Choice
    from romou.base.model_bytes import MemoryUse
    from romou.compiler.graph.memory.memory import MemoryPlan
    from romou.devices.mobile_compilers import KernelStatistics
    from romou.tools.inspection.execute import ExecutedFunction
    from romou.tools.inspection.kernels import InspectedKernel, PassStep
    from romou.tools.inspection.why import DefaultReasons, PricedConfig

Statistics: TypeAlias = "Mapping[str, KernelStatistics | VendorStatistics | str]"
# Number of tensors in the table, the largest first.
_SHOWN = 12
NOT_THE_VENDORS = (
    "Mesa's compilers, not the vendors' that phones run: the numbers compare kernels, they do not predict a phone's."
)


def print_kernel(kernel: InspectedKernel, statistics: Statistics, out: Console, *, has_source: bool = True) -> None:
    """Print a kernel.

    statistics: compiler and GPU, as "Mesa, a630" -> the statistics of the kernel, or the text of the compiler's error.
        Empty if no compiler was run.
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
    for compiler, said in statistics.items():
        if isinstance(said, str):
            out.print(f"{compiler}: {said}", markup=False)
            continue
        longest = said.longest_by_unit if isinstance(said, VendorStatistics) else {}
        for title, cycles in (
            ("cycles by unit, loops once", said.cycles_by_unit),
            ("cycles by unit, longest path", longest),
        ):
            if cycles:
                text = ", ".join(f"{unit} {count:g}" for unit, count in cycles.items())
                out.print(f"{compiler}: {title}: {text}", markup=False)


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


def kernel_table(kernel: InspectedKernel, statistics: Statistics) -> Table:
    """Return a table with a line per measure, and a column for Romou and for each compiler."""
    read = {compiler: said for compiler, said in statistics.items() if not isinstance(said, str)}
    table = table_of_numbers("of one work-item", ("Romou's estimate", *read))

    def row(
        title: str,
        estimate: object,
        of_mesa: Callable[[KernelStatistics], object] = lambda _: None,
        of_vendor: Callable[[VendorStatistics], object] = lambda _: None,
    ) -> None:
        values = [of_vendor(s) if isinstance(s, VendorStatistics) else of_mesa(s) for s in read.values()]
        if estimate != "" or any(v is not None for v in values):
            table.add_row(title, str(estimate), *("" if v is None else str(v) for v in values))

    traffic, operations, text = kernel.traffic, kernel.operations, kernel.text_operations
    registers = kernel.registers

    def registers_of(said: KernelStatistics) -> object:
        error = f" (estimate {registers.error(said.registers):+.0%})" if said.is_adreno else ""
        return f"{said.registers}{error}"

    def executed(said: KernelStatistics) -> object:
        instructions = kernel.executed_instructions(said)
        return "-" if instructions is None else instructions

    def per_multiply_add(said: KernelStatistics) -> object:
        return "-" if (per := said.inner.instructions_per_multiply_add) is None else f"{per:.2f}"

    row("registers (32 bit)", round(registers.live), registers_of, lambda s: s.registers)
    row("  needed: what pruning judges", f"{registers.needed:g}")
    row("  uniform", "", of_vendor=lambda s: s.uniform_registers)
    row("waves of 64", "", lambda s: s.waves)
    row("occupancy that registers allow", "", _occupancy, _occupancy)
    row("spills (private memory accesses)", "", lambda s: s.spills, _spills)
    row("private memory, bytes", "", lambda s: s.private_memory_bytes)
    row("instructions, loops once", "", lambda s: s.instructions)
    row("cycles, loops once", "", lambda s: None if s.cycles is None else f"{s.cycles:g}", _bound)
    row("instructions executed, all conditions true", "", executed)
    row("innermost loop: multiply-adds", traffic.multiply_adds, lambda s: s.inner.multiply_adds)
    row("innermost loop: instructions", "", lambda s: s.inner.instructions)
    row("innermost loop: instructions per multiply-add", "", per_multiply_add)
    row("innermost loop: bytes loaded", traffic.bytes_loaded)
    row(
        "  from buffers, images, local memory",
        f"{traffic.buffer_bytes}, {traffic.image_bytes}, {traffic.local_bytes}",
    )
    row("integer operations in loops", operations.in_loops)
    row("  times trips", operations.in_loops_weighted)
    row("divisions and modulos in loops", operations.divisions_in_loops)
    row("  in the text", text.divisions_in_loops + text.modulos_in_loops)
    return table


def _occupancy(said: KernelStatistics | VendorStatistics) -> object:
    return None if said.occupancy is None else f"{said.occupancy:.0%}"


def _spills(said: VendorStatistics) -> object:
    return "none" if not said.is_spilling else "yes" if said.spill_bytes is None else f"{said.spill_bytes} bytes"


def _bound(said: VendorStatistics) -> object:
    return f"{said.cycles:g} ({', '.join(said.bound_by)})"


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
