"""A model's memory plan, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import NODE_CHARACTERS, mib, table_of_numbers

if TYPE_CHECKING:
    from romou.runtime.module import MemoryPlan, MemoryUse

# Number of tensors in the table, the largest first.
_SHOWN = 12


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
        nodes = escape(nodes_text(plan.nodes[tensor.first], NODE_CHARACTERS)) if tensor.first < len(plan.nodes) else ""
        table.add_row(escape(name), mib(tensor.bytes), str(tensor.first + 1), str(tensor.last + 1), shape, nodes)
    return table
