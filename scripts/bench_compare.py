#!/usr/bin/env python3
"""How often `romou compare` cries wolf, and how often it sees a kernel that really became slower, on this machine as busy as it is.

    python scripts/bench_compare.py                       20 comparisons of equals and 20 with one kernel 10% slower, in turns and as recorded
    python scripts/bench_compare.py --pairs 5 --model squeezenet1_0 --operator conv2d_1x64x27x27_256_3x3_s1 --json result.json

One kernel of the model gets a loop of multiply-adds in front, as long as it takes for the slowdown that is asked for; how slow it really is, is measured
in turns with many pairs and printed. Each comparison, and each bench that it reads, is a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import tvm
from rich.console import Console
from rich.table import Table

import romou
from romou import models
from romou.regression import Bench, time_in_turns
from romou.regression.statistics import Shift, paired_shift
from romou.regression.timing import MODEL

POSTPROC = "tvm_callback_opencl_postproc"
CALIBRATION_PAIRS = 100


def with_extra_work(source: str, function: str, turns: int) -> str:
    """OpenCL source whose kernels of `function` first run `turns` multiply-adds, each of which needs the one before; what they compute stays the same."""

    def add(head: re.Match[str]) -> str:
        output = re.search(r"__global \w+\* (?:restrict )?(\w+)", head[0])
        assert output is not None, "a kernel writes somewhere"
        loop = f"for (int turn = 0; turn < {turns}; ++turn) extra = mad(extra, 0.999f, 0.5f);"
        # Never true, which the compiler cannot know.
        return f"{head[0]}\n  float extra = (float)get_local_id(0);\n  {loop}\n  if (extra < -1.0f) ((__global float*){output[1]})[0] = extra;"

    # A declaration ends with a semicolon; this is the definition.
    return re.sub(rf"__kernel void {re.escape(function)}_kernel\w*\([^)]*\) \{{", add, source)


@contextlib.contextmanager
def slower(function: str, turns: int) -> Iterator[None]:
    """Everything that is compiled inside has the extra work."""
    before = tvm.get_global_func(POSTPROC, allow_missing=True)
    tvm.register_global_func(POSTPROC, lambda source, _target: with_extra_work(source, function, turns), override=True)
    try:
        yield
    finally:
        tvm.register_global_func(POSTPROC, before or (lambda source, _target: source), override=True)


def bench(model: str, target: str, *, function: str, turns: int, repeats: int = 16) -> Bench:
    """The model with extra work in one function; none where turns is 0."""
    with slower(function, turns) if turns else contextlib.nullcontext():
        return romou.bench(models.load(model), target=target, repeats=repeats, label=model)


def really(plain: Bench, other: Bench, operator: str, *, pairs: int, seed: int) -> Shift:
    """How much slower an operator is, by many pairs in turns."""
    assert plain.compiled is not None
    assert other.compiled is not None
    sides = [replace(b, operators=tuple(o for o in b.operators if o.name == operator)) for b in (plain, other)]
    found = time_in_turns(sides[0], sides[1], (plain.compiled, other.compiled), pairs, stages=1, is_open=lambda _: (), seed=seed)
    return paired_shift(*([min(r) for r in rounds] for rounds in found[operator]))


def calibrated_turns(plain: Bench, model: str, target: str, *, operator: str, slowdown: float) -> int:
    """Turns of the extra loop that make the operator `slowdown` slower, by halving: a processor hides the first ones behind the kernel's loads."""
    function = next(o.function for o in plain.operators if o.name == operator)
    low, high = 0, None
    turns = 64
    for _ in range(10):
        extra = really(plain, bench(model, target, function=function, turns=turns, repeats=8), operator, pairs=15, seed=1).ratio - 1
        if 0.9 * slowdown < extra < 1.1 * slowdown:
            break
        low, high = (turns, high) if extra < slowdown else (low, turns)
        turns = 2 * low if high is None else (low + high) // 2
    return turns


def bench_process(path: Path, model: str, target: str, function: str, turns: int) -> Path:
    """`bench` in a process of its own."""
    arguments = ["--model", model, "--target", target, "--save-bench", str(path), "--function", function, "--turns", str(turns)]
    subprocess.run([sys.executable, __file__, *arguments], check=True)
    return path


def compare_process(before: Path, after: Path) -> dict[str, Any]:
    """`romou compare`, in turns, in a process of its own."""
    command = [sys.executable, "-m", "romou.cli", "compare", str(before), str(after), "--json", "--only", "times"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def digest(found: dict[str, Any], operator: str) -> dict[str, Any]:
    """Of a comparison: names of the rows that failed, how slow the operator is, how many rows there are and how many stay open."""
    mine = next(row for row in found["rows"] if row["name"] == operator)["times"]
    return {
        "alarms": [row["name"] for row in found["rows"] if row["is_regression"]],
        "verdict": mine["verdict"],
        "ratio": mine["shift"]["ratio"],
        "rows": len(found["rows"]),
        "undecided": sum(row["times"]["verdict"] == "undecided" for row in found["rows"]),
    }


def run(folder: Path, model: str, target: str, operator: str, slowdown: float, pairs: int, out: Console) -> dict[str, Any]:
    """All comparisons; the numbers as data."""
    plain = bench(model, target, function="", turns=0)
    function = next((o.function for o in plain.operators if o.name == operator), None)
    if function is None:
        raise SystemExit(f"{model} has no operator {operator!r}; it has {', '.join(o.name for o in plain.operators)}")
    turns = calibrated_turns(plain, model, target, operator=operator, slowdown=slowdown)
    slow = bench(model, target, function=function, turns=turns)
    real = really(plain, slow, operator, pairs=CALIBRATION_PAIRS, seed=2)
    out.print(f"{operator}, {turns} turns of extra work: {real.ratio:.3f} times as long (99% bounds {real.low:.3f} to {real.high:.3f})")
    results: dict[str, Any] = {"operator": operator, "turns": turns, "ratio": real.ratio, "low": real.low, "high": real.high, "runs": {}}
    runs = results["runs"] = {"equal, in turns": [], "slower, in turns": [], "equal, recorded": [], "slower, recorded": []}
    files = [bench_process(folder / f"bench{i}.json", model, target, function, 0) for i in range(2)]
    worse = bench_process(folder / "slower.json", model, target, function, turns)
    for i in range(pairs):
        runs["equal, in turns"].append(digest(compare_process(*files), operator))
        runs["slower, in turns"].append(digest(compare_process(files[0], worse), operator))
        print_progress(runs, f"{i + 1}/{pairs}", out)
    before = Bench.load(files[1])
    for i in range(pairs):
        after = Bench.load(bench_process(folder / "bench2.json", model, target, function, 0))
        slower_one = Bench.load(bench_process(folder / "slower.json", model, target, function, turns))
        for name, other in (("equal", after), ("slower", slower_one)):
            found = romou.compare(before, other, is_recorded=True, has_measures=False)
            runs[f"{name}, recorded"].append(digest(found.to_dict(), operator))
        print_progress(runs, f"{i + 1}/{pairs}", out)
        before = after
    return results


def print_progress(runs: dict[str, list[dict[str, Any]]], title: str, out: Console) -> None:
    """A line for the last comparison of each kind."""
    last = {name: done[-1] for name, done in runs.items() if done}
    out.print(f"{title} " + "; ".join(f"{n}: {r['ratio']:.3f} {r['verdict']}, alarms {r['alarms']}" for n, r in last.items()), markup=False)


def has_false_alarm(found: dict[str, Any], operator: str) -> bool:
    """Whether anything failed that had no reason to; with a slower operator, the whole model has one."""
    return bool({*found["alarms"]} - ({operator, MODEL} if operator else set()))


def print_counts(results: dict[str, Any], slowdown: float, out: Console) -> None:
    """One line a kind of comparison."""
    table = Table(title=f"romou compare --fail-over 5%, {results['operator']} made {slowdown:.0%} slower (really {results['ratio'] - 1:.1%})")
    for title in ("comparisons", "number", "with a false alarm", "slower kernel seen", "rows each", "undecided, mean"):
        table.add_column(title)
    for name, runs in results["runs"].items():
        is_equal = name.startswith("equal")
        wrong = sum(has_false_alarm(r, "" if is_equal else results["operator"]) for r in runs)
        seen = "-" if is_equal else str(sum(results["operator"] in r["alarms"] for r in runs))
        table.add_row(name, str(len(runs)), str(wrong), seen, str(runs[0]["rows"]), f"{sum(r['undecided'] for r in runs) / len(runs):.1f}")
    out.print(table)


@click.command()
@click.option("--model", default="mobilenetv1_100", show_default=True, help="A bundled model.")
@click.option("--target", default="opencl", show_default=True)
@click.option("--operator", default="conv2d_1x256x14x14_512_1x1_s1", show_default=True, help="The one that becomes slower.")
@click.option("--slowdown", default=0.10, show_default=True, help="Share by which it becomes slower.")
@click.option("--pairs", default=20, show_default=True, help="Comparisons of each kind.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
@click.option("--save-bench", type=click.Path(path_type=Path), default=None, hidden=True)
@click.option("--function", default="", hidden=True)
@click.option("--turns", default=0, hidden=True)
def main(model: str, target: str, operator: str, slowdown: float, pairs: int, output: Path | None, save_bench: Path | None, function: str, turns: int) -> None:
    """Print the counts; exit code 1 if a comparison in turns raised a false alarm or missed the slower kernel."""
    if save_bench is not None:
        bench(model, target, function=function, turns=turns).save(save_bench)
        return
    out = Console(width=160)
    with tempfile.TemporaryDirectory(prefix="romou-compare-") as folder:
        results = run(Path(folder), model, target, operator, slowdown, pairs, out)
    if output is not None:
        output.write_text(json.dumps(results, indent=1))
    print_counts(results, slowdown, out)
    equal, slower_runs = (results["runs"][f"{name}, in turns"] for name in ("equal", "slower"))
    is_fine = not any(has_false_alarm(r, "") for r in equal) and all(operator in r["alarms"] and not has_false_alarm(r, operator) for r in slower_runs)
    raise SystemExit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
