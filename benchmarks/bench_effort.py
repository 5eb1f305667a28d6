#!/usr/bin/env python3
"""Counts the code that is written once, and the code that each backend needs.

This is MetaGPU's measure of programming effort, in lines of code. Needs no device.

    python benchmarks/bench_effort.py
    python benchmarks/bench_effort.py --json effort.json

Empty lines, comments and docstrings do not count. `source` is the operator's file in romou/compiler/operators/families,
which defines a whole space of kernels and contains nothing of any backend. The columns beside it count the lines of the
default config's kernels on each backend, in the variant of Boda that the paper's row names, and the distinct lines of
all three. `host` adds the distinct lines of the C++ that launches kernels on OpenCL and Vulkan. CUDA's is TVM's, in the
wheel, and counts as none.

    effort           source / unique * 100, the paper's equation 1 with kernels only
    effort, host     source / (unique + host) * 100, as the paper counts: kernels with the host code of each API

The paper has host code for each operator, Romou one for all, so `host` is a larger share of the lines than there.
The second table counts the Python that each backend takes, and what all of them share.
"""

from __future__ import annotations

import io
import json
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from romou.base.errors import RomouError
from romou.compiler.operators.families.dense import Dense
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.compiler.typical import typical_tasks
from romou.devices.backends import installed
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function

ROMOU = Path(__file__).resolve().parents[1] / "romou"


@dataclass(frozen=True)
class Row:
    """An operator, and the row of the paper's table 5 beside it.

    family: file in romou/compiler/operators/families.
    task: the operator on a target.
    variant: of Boda, which the target is kept to.
    paper: lines of MetaGPU, of CUDA, OpenCL and Vulkan, unique lines, effort in percent.
    """

    family: str
    task: Callable[[Target], TunableTask]
    variant: str | None = None
    paper: tuple[int, int, int, int, int, float] | None = None


def _pool(target: Target) -> TunableTask:
    return next(task for task in typical_tasks(target) if task.name.startswith("pool_"))


_WINDOW = conv(64, (28, 28), 96, (3, 3), padding=(1, 1, 1, 1))
OPERATORS = {
    "direct": Row("convolution", lambda _: task_of(_WINDOW), "conv", (113, 562, 631, 1137, 2330, 4.84)),
    "tiled": Row("convolution", lambda _: task_of(_WINDOW), "tconv", (115, 548, 618, 1119, 2285, 5.03)),
    "gemm": Row("dense", lambda _: task_of(Dense(m=128, k=256, n=96)), None, (89, 1103, 1172, 1666, 3941, 2.25)),
    "1x1": Row(
        "convolution", lambda _: task_of(conv(64, (28, 28), 96, (1, 1))), "k1conv", (160, 1190, 1259, 1761, 4210, 3.8)
    ),
    "pool": Row("pool", _pool),
}
# A device for each kind, if a device file describes one.
DEVICES = ("adreno640", "nvidia_h200")
_RUNTIMES = ("device_runtime", "opencl_runtime", "vulkan_runtime")


def lines_of(path: Path) -> int:
    """Count the lines of code of a Python or C++ file."""
    text = path.read_text(encoding="utf-8")
    return python_lines(text) if path.suffix == ".py" else len(kernel_lines(text))


def python_lines(text: str) -> int:
    """Count the lines that hold code, docstrings left out."""
    code_lines: set[int] = set()
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            before = before if token.type in (tokenize.COMMENT, tokenize.NL) else tokenize.NEWLINE
            continue
        if token.type != tokenize.STRING or before != tokenize.NEWLINE:
            code_lines.update(range(token.start[0], token.end[0] + 1))
        before = token.type
    return len(code_lines)


def kernel_lines(text: str) -> list[str]:
    """Return the lines of a kernel or of C++, without empty lines and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("//", "/*", "*"))]


def kinds() -> Iterator[Target]:
    """Yield a target of each kind that has kernels, for a device that a file describes."""
    for kind in installed():
        for device in DEVICES:
            try:
                target = Target(f"{kind} -device={device}")
            except RomouError:
                continue
            if target.backend.has_kernels:
                yield target
                break


def operator_row(name: str, targets: list[Target]) -> dict[str, Any]:
    """Count the lines of an operator's source, and of its default config's kernels on each target."""
    row = OPERATORS[name]
    kernels: dict[str, list[str]] = {}
    for plain in targets:
        target = plain if row.variant is None else plain.with_options(variant=row.variant)
        task = row.task(target)
        mod = task.schedule(task.default_config(target), target)
        inspected = [
            kernel
            for var, func in mod.functions_items()
            for kernel in inspect_function(func, target, name=var.name_hint)
        ]
        kernels[target.kind] = [line for kernel in inspected for line in kernel_lines(kernel.source)]
    source = lines_of(ROMOU / "compiler/operators/families" / f"{row.family}.py")
    unique = {line for lines in kernels.values() for line in lines}
    both = unique | host_lines()
    counts = {kind: len(lines) for kind, lines in kernels.items()}
    *lines, effort = row.paper or (None,)
    return {
        "row": name,
        "source": source,
        **counts,
        "unique": len(unique),
        "host": len(both) - len(unique),
        "effort": round(100 * source / len(unique), 2),
        "effort, host": round(100 * source / len(both), 2),
        "paper's lines": lines,
        "paper's effort": effort,
    }


def host_lines() -> set[str]:
    """Return the distinct lines of the C++ that allocates, copies and launches on OpenCL and Vulkan."""
    paths = [path for folder in _RUNTIMES for path in _sources(ROMOU.parent / "tvm_patches" / folder, ".cc", ".h")]
    return {line for path in paths for line in kernel_lines(path.read_text(encoding="utf-8"))}


def _sources(folder: Path, *suffixes: str) -> Iterator[Path]:
    for suffix in suffixes:
        yield from (path for path in folder.rglob(f"*{suffix}") if "shim" not in path.parts)


def backend_rows(targets: list[Target]) -> list[dict[str, Any]]:
    """Count the lines that all backends share, and the Python and C++ lines of each backend."""

    def count(folder: Path, *suffixes: str) -> int:
        return sum(map(lines_of, _sources(folder, *suffixes)))

    shared = [
        ("schedules", ROMOU / "compiler/operators"),
        ("passes", ROMOU / "compiler/passes"),
        ("runtimes, shared", ROMOU.parent / "tvm_patches/device_runtime"),
    ]
    rows: list[dict[str, Any]] = [
        {"part": name, "python": count(folder, ".py"), "c++": count(folder, ".cc", ".h")} for name, folder in shared
    ]
    for target in targets:
        runtime = ROMOU.parent / "tvm_patches" / f"{target.kind}_runtime"
        rows.append(
            {
                "part": f"{target.kind} adds",
                "python": count(ROMOU / "devices/backends" / target.kind, ".py"),
                "c++": count(runtime, ".cc", ".h"),
            }
        )
    return rows


def print_rows(rows: list[dict[str, Any]], title: str) -> None:
    """Print rows as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console(width=160).print(table)


def _cell(value: Any) -> str:
    """Return a value as a cell of a table."""
    if value is None:
        return "-"
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)


@click.command()
@click.option(
    "--operator", "names", type=click.Choice(list(OPERATORS)), multiple=True, default=list(OPERATORS), show_default=True
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write every number here.")
def main(names: tuple[str, ...], output: Path | None) -> None:
    """Print both tables."""
    targets = list(kinds())
    operators, backends = [operator_row(name, targets) for name in names], backend_rows(targets)
    print_rows(
        operators,
        "Lines and effort in percent; the paper's lines: MetaGPU; CUDA, OpenCL, Vulkan; unique",
    )
    print_rows(backends, "Lines that all backends share, and that each adds")
    if output is not None:
        output.write_text(json.dumps({"operators": operators, "backends": backends}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
