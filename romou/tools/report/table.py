"""The per-layer table of a tuned model: time before and after, and the check against the reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from romou.runtime.module.profile import nodes_text
from romou.runtime.module.timed import Timed

if TYPE_CHECKING:
    from romou.base.model_bytes import FloatWeight, MemoryUse
    from romou.runtime.module.profile import Profile
    from romou.runtime.module.summary import LayerRow, Summary


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with fixed digits, or a dash if it was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def mib(number: int) -> str:
    """Return bytes as text in MiB: 1572864 -> "1.50"."""
    return f"{number / 2**20:.2f}"


def memory_text(use: MemoryUse) -> str:
    """Return a model's memory in a sentence, in the parts and the words of `memory_table`."""
    return (
        f"{mib(use.total)} MiB of memory on the device: {mib(use.weights)} weights, {mib(use.inputs)} inputs,"
        f" {mib(use.tensors)} activations, workspaces and outputs."
    )


def filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return (columns, rows) without the columns that have no value in any row. The first column stays."""
    kept = [i for i in range(len(columns)) if i == 0 or not _is_empty(row[i] for row in rows)]
    return tuple(columns[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def _is_empty(cells: Iterable[object]) -> bool:
    return all(str(cell) in ("", "-") for cell in cells)


def table_of_numbers(name: str, numbers: Iterable[str], *texts: str, title: str = "") -> Table:
    """Return an empty table: a column of names, columns of numbers, and columns of text."""
    columns = [
        Column(name, no_wrap=True),
        *(Column(column, justify="right", no_wrap=True) for column in numbers),
        *map(Column, texts),
    ]
    return Table(*columns, title=escape(title) or None)


# Least width of a column of text. A narrower column would have about one word per line.
_LEAST_TEXT = 24


def print_table(table: Table, out: Console) -> None:
    """Print a table without empty columns so that it can be read on a narrow terminal, too.

    If it does not fit, these changes are made in order until it does:

    - The frame is removed.
    - The last columns of text become lines below the table, each with its row's first cell in front.
    - Names wrap after a slash or a space. Parts that are longer than the room wrap after an underscore or a dot.
    """
    if table.row_count:
        table.columns = [column for at, column in enumerate(table.columns) if at == 0 or not _is_empty(column.cells)]
    columns, below = list(table.columns), list[Column]()
    names = list(columns[0].cells)
    if _natural_width(table, out) > out.width:
        table = _of_columns(table, columns)
    while _natural_width(table, out) > out.width and (
        texts := [column for column in columns[1:] if not column.no_wrap]
    ):
        last = texts[-1]
        columns.remove(last)
        table = _of_columns(table, columns)
        # A column has a space on each side.
        if (room := out.width - _natural_width(table, out) - 2) >= _LEAST_TEXT:
            # The column is wide enough to wrap: it moves to the end, and the others do not wrap.
            for column in columns:
                column.min_width = _width(column)
            last.overflow = "fold"
            cells = [c if " " in str(c) else _folded(str(c), room) for c in last.cells]
            table = _of_columns(table, [*columns, last], {len(columns): cells})
            break
        below.append(last)
    else:
        if _natural_width(table, out) > out.width:
            for column in columns[1:]:
                column.min_width = _width(column)
            room = out.width - _natural_width(table, out) + _width(columns[0])
            columns[0].no_wrap, columns[0].overflow = False, "fold"
            table = _of_columns(table, columns, {0: [_folded(str(name), room) for name in names]})
    out.print(table)
    for column in reversed(below):
        out.print(f"{column.header}:", markup=False)
        for name, cell in zip(names, column.cells, strict=True):
            if str(cell):
                out.print(
                    Padding(Text.assemble(Text.from_markup(str(name)), ": ", Text.from_markup(str(cell))), (0, 0, 0, 2))
                )


def _folded(name: str, room: int) -> str:
    """Return a name, which may have markup, in lines of at most `room` characters if its parts allow it."""
    lines = [""]
    for word in re.findall(r"[^/ ]+[/ ]?|[/ ]", Text.from_markup(name).plain):
        for part in [word] if len(word) <= room else re.findall(r"[^_.]+[_.]?|[_.]", word):
            if lines[-1] and len(lines[-1] + part.rstrip()) > room:
                lines.append("")
            lines[-1] += part
    return escape("\n".join(line.rstrip() for line in lines))


def _of_columns(table: Table, columns: Sequence[Column], folded: Mapping[int, Sequence[Any]] | None = None) -> Table:
    """Return the table with some of its columns, without a frame. folded: place of a column -> its cells instead."""
    narrow = Table(
        title=table.title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_footer=table.show_footer
    )
    for column in columns:
        narrow.add_column(
            column.header,
            column.footer,
            justify=column.justify,
            no_wrap=column.no_wrap,
            overflow=column.overflow,
            min_width=column.min_width,
        )
    cells_of = [(folded or {}).get(at, list(column.cells)) for at, column in enumerate(columns)]
    for row, cells in zip(table.rows, zip(*cells_of, strict=True), strict=True):
        narrow.add_row(*cells, style=row.style, end_section=row.end_section)
    return narrow


def _natural_width(table: Table, out: Console) -> int:
    return out.measure(table, options=out.options.update(max_width=10**4)).maximum


def _width(column: Column) -> int:
    return max((Text.from_markup(str(cell)).cell_len for cell in (column.header, *column.cells)), default=0)


def layer_table(rows: Sequence[LayerRow], *, has_kernels: bool = False) -> Table:
    """Return a table with one line per task, the most expensive first, and the sums over all calls.

    A layer is named by its ONNX nodes, if they are known. has_kernels: the last column has the task's name.
    """
    total = _total(rows)
    table = table_of_numbers(
        "layer",
        ("calls", "before", "after", "noise", "faster", "GFLOPS", "trials"),
        *(["kernel"] if has_kernels else []),
        title="Time per layer (ms of one call)",
    )
    table.show_footer = bool(rows)
    calls, trials = (str(sum(getattr(row, field) for row in rows)) for field in ("calls", "trials"))
    footers = (
        "all calls",
        calls,
        total.default_text,
        total.tuned_text,
        "",
        total.speedup_text,
        "",
        trials,
        *([""] if has_kernels else []),
    )
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    for row in sorted(rows, key=lambda r: -(r.default_ms or 0.0) * r.calls):
        table.add_row(
            escape(nodes_text(row.nodes) or row.name),
            str(row.calls),
            row.default_text,
            row.tuned_text,
            row.noise_text,
            row.speedup_text,
            number(row.gflops, 2),
            str(row.trials),
            *([escape(row.name)] if has_kernels else []),
        )
    return table


def profile_table(profile: Profile) -> Table:
    """Return a table with one line per call of a run, in order, and the sum."""
    table = table_of_numbers("layer", ("ms", "share"), "kernel", title=f"Time per call on {profile.device}")
    table.show_footer = True
    for column, footer in zip(table.columns, ("all calls", number(profile.whole_ms), "100%", ""), strict=True):
        column.footer = footer
    for call in profile.calls:
        share = f"{call.ms / profile.whole_ms:.1%}" if profile.whole_ms else "-"
        name = nodes_text(call.nodes) or call.function
        table.add_row(escape(name), number(call.ms), share, escape(call.layer))
    return table


def _total(rows: Sequence[LayerRow]) -> Timed:
    """Return the times of all calls together. Ranges are the sums of the layers' ranges."""

    def ends(side: str) -> tuple[float, float]:
        low = high = 0.0
        for row in rows:
            ms = getattr(row, f"{side}_ms") or 0.0
            # The noise of kernels that both sides have is no difference between them.
            bounds = (getattr(row, f"{side}_range_ms") if row.saved_ms else None) or (ms, ms)
            low, high = low + row.calls * bounds[0], high + row.calls * bounds[1]
        return low, high

    default, tuned = (_total_ms(rows, f"{side}_ms") for side in ("default", "tuned"))
    return Timed(default_ms=default, tuned_ms=tuned, default_range_ms=ends("default"), tuned_range_ms=ends("tuned"))


def _in_a_run(summary: Summary) -> tuple[Sequence[LayerRow], bool]:
    """Return the rows with the times of kernels in a run, and whether all of them could be found.

    A kernel that is repeated by itself has warm caches, so the kernels' own times do not add up to the model's. As in
    `TunedModel.profile`, the model's time is divided in their ratio. If nodes run on the host, it is not theirs alone.
    """
    total_ms = _total_ms(summary.rows, "tuned_ms")
    if not total_ms or not summary.tuned_ms or summary.host:
        return summary.rows, False
    return [row.scaled(summary.tuned_ms / total_ms) for row in summary.rows], True


def _total_ms(rows: Sequence[LayerRow], field: str) -> float | None:
    """Return the sum over all calls in ms. None if any row was not measured, because a partial sum is no total."""
    total = 0.0
    for row in rows:
        value = getattr(row, field)
        if value is None:
            return None
        total += value * row.calls
    return total if rows else None


_INSTEAD = {
    "apart": "each by itself",
    "rules": "TVM's schedule",
    "plain": "TVM's simplest schedule",
    "host": "the host",
}


def device_lines(summary: Summary) -> list[str]:
    """Return lines on exceptional nodes: on the host, moved and why, by TVM's schedules, dequantized to floats.

    Empty if there are none.
    """
    lines = []
    if summary.host:
        time = "" if summary.host_share is None else f", {summary.host_share:.0%} of the time"
        nodes = sum(len(row.nodes) for row in summary.host)
        lines.append(
            f"On the host: {nodes} of {summary.nodes} nodes, {summary.host_flop_share:.0%} of the operations{time}."
        )
        lines += [
            f"on the host, by onnxruntime: {', '.join(row.nodes)}{'' if row.ms is None else f': {row.ms:.3f} ms'}"
            for row in summary.host
        ]
    lines += [
        f"moved to {_INSTEAD.get(row.to, row.to)}: {', '.join(row.nodes)}: {row.reason}"
        for row in summary.moved
        if row.nodes
    ]
    if summary.by_tvm:
        lines.append(f"By a schedule of TVM's: {', '.join(summary.by_tvm)}.")
    if summary.narrowed:
        lines.append(f"In fp32 in place of float64: {', '.join(summary.narrowed)}.")
    return [*lines, *float_lines(summary.floats)]


def float_lines(rows: Sequence[FloatWeight]) -> list[str]:
    """Return lines on quantized weights that became floats: the bytes of all together, and of each."""
    if not rows:
        return []
    floats, packed = (mib(sum(sizes)) for sizes in zip(*((r.float_bytes, r.packed_bytes) for r in rows), strict=True))
    return [
        f"Dequantized at compile time: weights of {len(rows)} nodes take {floats} MiB as floats, {packed} MiB packed.",
        *(
            f"dequantized: {row.node}: {mib(row.float_bytes)} MiB as floats, {mib(row.packed_bytes)} MiB packed"
            for row in rows
        ),
    ]


def shapes_table(summary: Summary) -> Table:
    """Return a table with a line for each shape: the whole model's time, and its memory without the other shapes."""
    columns = ("before", "after", "faster", "error", "MiB alone")
    table = table_of_numbers("shape", columns, title="Whole model by shape (ms)")
    for row in summary.shapes:
        error = "-" if row.relative_l2_error is None else f"{row.relative_l2_error:.1e}"
        memory = "-" if row.memory is None else mib(row.memory.total)
        table.add_row(escape(row.text), row.default_text, row.tuned_text, row.speedup_text, error, memory)
    return table


def shapes_lines(summary: Summary) -> list[str]:
    """Return lines on a size at run time, or on the memory and the padding of a model of several shapes."""
    sizes = [summary.run_time] if summary.run_time else []
    if not summary.shapes or summary.memory is None:
        return sizes
    alone = [row.memory.weights for row in summary.shapes if row.memory is not None]
    together = f"All {len(summary.shapes)} shapes together: {memory_text(summary.memory)}"
    lines = [f"{together} Weights would be {mib(sum(alone))} MiB if each shape had its own."]
    return sizes + lines + ([summary.padding] if summary.padding else [])


def print_summary(summary: Summary, out: Console) -> None:
    """Print the table, the time of the whole model and the check against onnxruntime.

    Of several shapes, layers are those of the largest.
    """
    rows, is_divided = _in_a_run(summary)
    table = layer_table(rows, has_kernels=any(row.nodes for row in rows))
    if _natural_width(_of_columns(table, table.columns), out) > out.width:
        table = layer_table(rows)
    print_table(table, out)
    if summary.default_ms and summary.tuned_ms:
        out.print(f"Whole model: {summary.sentence}.", markup=False)
    if is_divided:
        out.print("Its tuned time is divided among the calls, in the ratio of the kernels' own times.", markup=False)
    if summary.stand_in:
        out.print(summary.stand_in, markup=False)
    if summary.relative_l2_error is not None:
        verdict = "" if summary.is_right is not False else ": TOO LARGE. Please report it with the model"
        out.print(f"Against onnxruntime: relative L2 error {summary.relative_l2_error:.2e}{verdict}.", markup=False)
    else:
        out.print(f"Against onnxruntime: not checked: {summary.unchecked or 'no reason is kept'}.", markup=False)
    if summary.shapes:
        print_table(shapes_table(summary), out)
    elif summary.memory is not None:
        out.print(memory_text(summary.memory), markup=False)
    for line in (*shapes_lines(summary), *device_lines(summary)):
        out.print(line, markup=False)
