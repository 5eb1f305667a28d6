#!/usr/bin/env python3
"""Counts the false alarms of `romou compare`, and how often it detects a kernel that really became slower.

    python benchmarks/bench_compare.py                       20 comparisons of equals and 20 with one kernel 10% slower, in turns and as recorded
    python benchmarks/bench_compare.py --pairs 5 --model resnet18 --nodes 0 --operator conv2d_1x128x28x28_256_1x1_s2 --json result.json

It runs on this machine under its present load. One kernel of the model does a tenth more iterations of its reduction.
Many alternating pairs measure how slow that really makes it, and the result is printed. Each comparison in turns loads
both models anew. Each recorded one reads two benches that were compiled and timed one after the other.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import onnx
import tvm
import tvm_ffi
from rich.console import Console
from rich.table import Table

import romou
from romou import models
from romou.tools.regression import Bench, Comparison, time_in_turns
from romou.tools.regression.statistics import Shift, paired_shift
from romou.tools.regression.timing import MODEL

POSTPROC = "tvm_callback_opencl_postproc"
# The reduction loop of a kernel, which follows the zeros of its sums.
LOOP = re.compile(r"^( +)for \(int (\w+) = 0; \2 < (\d+); \+\+\2\) \{\n.*?^\1\}\n", re.DOTALL | re.MULTILINE)
ZERO = re.compile(r"^ +(\w+\[\d+\]) = \(\(float4\)\(0\.0+e\+00f(?:, 0\.0+e\+00f)*\)\);\n", re.MULTILINE)


def with_extra_work(source: str, share: float) -> str:
    """Return a kernel that repeats a share of its reduction and computes the same output.

    With a share of 0 it repeats one iteration. A compiler treats a kernel with a second loop differently, so the kernel
    to compare with has one too.

    for (i < 128) sum += ...   ->   for (i < 14) sum += ...;  if (sum != 1.2345e-30f) sum = 0;  for (i < 128) sum += ...
    """
    loop = LOOP.search(source)
    assert loop is not None, "a reduction has a loop"
    zeros = list(ZERO.finditer(source, 0, loop.start()))
    assert zeros, "sums start at zero"
    counter, turns = loop[2], int(loop[3])
    more = min(turns, round((turns + 1) * (1 + share)) - turns)
    extra = loop[0].replace(f"{counter} < {turns};", f"{counter} < {more};", 1)
    # Always true, but the compiler cannot prove it.
    again = f"  if ({zeros[0][1]}.s0 != 1.2345e-30f) {{\n" + "".join(zero[0] for zero in zeros) + "  }\n"
    return source[: loop.start()] + extra + again + source[loop.start() :]


@contextlib.contextmanager
def slower(function: str, share: float) -> Iterator[None]:
    """Add a share of extra work to one function of everything compiled inside the block (`with_extra_work`)."""

    def rewrite(source: str, _target: tvm.target.Target) -> str:
        # The text before the first kernel holds declarations. Transforms of a function have no sums.
        kernels = re.split(r"^(?=__kernel void )", source, flags=re.MULTILINE)
        is_sum = re.compile(rf"__kernel void {function}_kernel(_\d+)?\([^;]*{{\n")
        return "".join(with_extra_work(k, share) if is_sum.match(k) and LOOP.search(k) else k for k in kernels)

    before = tvm.get_global_func(POSTPROC, allow_missing=True)
    tvm.register_global_func(POSTPROC, rewrite, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm_ffi.registry.remove_global_func(POSTPROC)
        else:
            tvm.register_global_func(POSTPROC, before, override=True)


def tail(name: str, nodes: int) -> onnx.ModelProto:
    """Return the last nodes of a bundled model, from one tensor on, or all of it if `nodes` is 0."""
    model = models.load(name)
    if not nodes:
        return model
    first = model.graph.node[-nodes].input[0]
    model = onnx.shape_inference.infer_shapes(model)
    # The names of inputs become the names of kernel parameters.
    for value in model.graph.value_info:
        value.name = value.name.replace(first, "data")
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["data" if name == first else name for name in names]
    return onnx.utils.Extractor(model).extract_model(["data"], [o.name for o in model.graph.output])


def bench(model: onnx.ModelProto, target: str, *, function: str, share: float = 0.0) -> Bench:
    """Measure the model with a share of extra work in one function."""
    with slower(function, share):
        return romou.bench(model, target=target)


def really(plain: Bench, other: Bench, operator: str, *, pairs: int, seed: int) -> Shift:
    """Return how much slower an operator is, measured by many pairs in turns."""
    assert plain.compiled is not None
    assert other.compiled is not None
    sides = [replace(b, operators=tuple(o for o in b.operators if o.name == operator)) for b in (plain, other)]
    rounds_of = time_in_turns(
        sides[0], sides[1], (plain.compiled, other.compiled), pairs, stages=1, is_open=lambda _: (), seed=seed
    )
    return paired_shift(*([min(r) for r in rounds] for rounds in rounds_of[operator]))


def loaded(path: Path) -> Bench:
    """Load a saved bench with its compiled model in its initial state."""
    return replace(Bench.load(path), compiled=romou.load(path.with_suffix(".romou")))


def digest(comparison: Comparison, operator: str) -> dict[str, Any]:
    """Return the main numbers of a comparison.

    They are the failed rows, the operator's slowdown, and the counts of all rows and of undecided ones.
    """
    mine = next(row for row in comparison.rows if row.name == operator).times
    assert mine is not None
    return {
        "timing": comparison.timing,
        "alarms": [row.name for row in comparison.regressions],
        "verdict": mine.verdict,
        "ratio": mine.shift.ratio,
        "rows": len(comparison.rows),
        "undecided": len(comparison.undecided),
    }


def run(
    folder: Path,
    model: onnx.ModelProto,
    target: str,
    operator: str,
    slowdown: float,
    pairs: int,
    real_pairs: int,
    out: Console,
) -> dict[str, Any]:
    """Run all comparisons and return their numbers as data."""
    operators = romou.bench(model, target=target, times=False).operators
    function = next((o.function for o in operators if o.name == operator), None)
    if function is None:
        raise SystemExit(f"there is no operator {operator!r}; there are {', '.join(o.name for o in operators)}")
    plain = bench(model, target, function=function)
    slow = bench(model, target, function=function, share=slowdown)
    real = really(plain, slow, operator, pairs=real_pairs, seed=2)
    out.print(
        f"{operator}, {slowdown:.0%} more work: {real.ratio:.3f} times as long (99% bounds {real.low:.3f} to"
        f" {real.high:.3f})"
    )
    files = [
        made.save(folder / f"{name}.json")
        for name, made in (("before", plain), ("equal", bench(model, target, function=function)), ("slower", slow))
    ]
    runs: dict[str, list[dict[str, Any]]] = {}
    for i in range(pairs):
        for name, file in (("equal, in turns", files[1]), ("slower, in turns", files[2])):
            runs.setdefault(name, []).append(
                digest(romou.compare(loaded(files[0]), loaded(file), measures=False, seed=i), operator)
            )
        print_progress(runs, f"{i + 1}/{pairs}", out)
    before = bench(model, target, function=function)
    for i in range(pairs):
        equal = bench(model, target, function=function)
        for name, after in (
            ("equal, recorded", equal),
            ("slower, recorded", bench(model, target, function=function, share=slowdown)),
        ):
            runs.setdefault(name, []).append(
                digest(romou.compare(before, after, recorded=True, measures=False), operator)
            )
        print_progress(runs, f"{i + 1}/{pairs}", out)
        before = equal
    return {"operator": operator, "ratio": real.ratio, "low": real.low, "high": real.high, "runs": runs}


def print_progress(runs: dict[str, list[dict[str, Any]]], title: str, out: Console) -> None:
    """Print a line for the last comparison of each kind."""
    last = {name: done[-1] for name, done in runs.items() if done}
    out.print(
        f"{title} " + "; ".join(f"{n}: {r['ratio']:.3f} {r['verdict']}, alarms {r['alarms']}" for n, r in last.items()),
        markup=False,
    )


def has_false_alarm(digested: dict[str, Any], operator: str) -> bool:
    """Return whether anything failed without a reason. With a slower operator, the whole model may fail."""
    return bool({*digested["alarms"]} - ({operator, MODEL} if operator else set()))


def print_counts(results: dict[str, Any], slowdown: float, out: Console) -> None:
    """Print one line for each kind of comparison."""
    table = Table(
        title=(
            f"romou compare --fail-over 5%, {results['operator']} with {slowdown:.0%} more work (really"
            f" {results['ratio'] - 1:.1%} slower)"
        )
    )
    for title in ("comparisons", "number", "with a false alarm", "slower kernel seen", "rows each", "undecided, mean"):
        table.add_column(title)
    for name, runs in results["runs"].items():
        is_equal = name.startswith("equal")
        wrong = sum(has_false_alarm(r, "" if is_equal else results["operator"]) for r in runs)
        seen = "-" if is_equal else str(sum(results["operator"] in r["alarms"] for r in runs))
        table.add_row(
            name,
            str(len(runs)),
            str(wrong),
            seen,
            str(runs[0]["rows"]),
            f"{sum(r['undecided'] for r in runs) / len(runs):.1f}",
        )
    out.print(table)


@click.command()
@click.option("--model", default="squeezenet1_0", show_default=True, help="A bundled model.")
@click.option("--nodes", default=11, show_default=True, help="Only so many nodes at its end; 0: all.")
@click.option("--target", default="opencl", show_default=True)
@click.option(
    "--operator", default="conv2d_1x512x13x13_64_1x1_s1", show_default=True, help="The one that becomes slower."
)
@click.option("--slowdown", default=0.10, show_default=True, help="Share of work that it does more.")
@click.option("--pairs", default=20, show_default=True, help="Comparisons of each kind.")
@click.option(
    "--real-pairs",
    default=50,
    show_default=True,
    help="Alternate measurements of how much slower the kernel really is.",
)
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(
    model: str,
    nodes: int,
    target: str,
    operator: str,
    slowdown: float,
    pairs: int,
    real_pairs: int,
    output: Path | None,
) -> None:
    """Print the counts.

    The exit code is 1 if a comparison in turns raised a false alarm or missed the slower kernel.
    """
    out = Console(width=160)
    with tempfile.TemporaryDirectory(prefix="romou-compare-") as folder:
        results = run(Path(folder), tail(model, nodes), target, operator, slowdown, pairs, real_pairs, out)
    if output is not None:
        output.write_text(json.dumps(results, indent=1))
    print_counts(results, slowdown, out)
    equal, slower_runs = (results["runs"][f"{name}, in turns"] for name in ("equal", "slower"))
    is_fine = not any(has_false_alarm(r, "") for r in equal) and all(
        operator in r["alarms"] and not has_false_alarm(r, operator) for r in slower_runs
    )
    raise SystemExit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
