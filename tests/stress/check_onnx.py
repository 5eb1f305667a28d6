#!/usr/bin/env python3
"""Checks every ONNX operator: ONNX's own backend node tests and the bundled graphs are compiled, run and compared.

    python tests/stress/check_onnx.py --jobs 2                      all tests on the first OpenCL device
    python tests/stress/check_onnx.py --only 'resize' --every 3     every third of the tests with a name or operator that matches
    python tests/stress/check_onnx.py --jobs 2 --json run.json      all, kept as data
    python tests/stress/check_onnx.py --from run.json --docs        the page docs/evidence/onnx_coverage.md of that run
    python tests/stress/check_onnx.py --from run.json --again --json run.json        repeats the tests that were not all kernels in it

Each case has one of these outcomes: kernels (right, all by Romou's kernels), plain schedule (right, some kernels by
TVM's own rules), on the host (right, but some of its nodes ran there), refused (one RomouError), wrong, traceback,
crash, over time. --docs also writes the outcomes to tests/stress/onnx_origins.json. A test of the suite compares a
sample with that file, so that no operator leaves the kernels unnoticed. Cases run in child processes, which survive a
crash of one. The exit code is 1 if any was wrong, a traceback, a crash or over time.
"""  # noqa: E501

from __future__ import annotations

import importlib.metadata
import json
import queue
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import onnx

from onnx_cases import (
    CRASH,
    FAULTS,
    HOST,
    KERNEL,
    ON_DEVICE,
    OUTCOMES,
    OVER_TIME,
    REFUSED,
    TRACEBACK,
    WRONG,
    Case,
    Result,
    bundled_cases,
    compile_case,
    node_cases,
    run_case,
)
from romou.base.errors import RomouError
from romou.devices.targets import Target
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import ChildBugError

PAGE = Path(__file__).parents[2] / "docs/evidence/onnx_coverage.md"
ORIGINS = Path(__file__).parent / "onnx_origins.json"
INTRODUCTION = """# ONNX coverage

Every backend node test of onnx {onnx} and the bundled graphs, compiled by `romou.compile(model, target={target!r})`{how}
Device: {device}. `python tests/stress/check_onnx.py --docs` writes this page.

{total}

- kernels: all outputs are computed by Romou's kernels; or nothing is left to compute.
- plain schedule: on the device, with at least one kernel that no family takes: TVM's own rules schedule it, and nothing tunes it.
- on the host: at least one node has no right kernel and runs on the host, by onnxruntime {onnxruntime} or by onnx's reference, between kernels.
- with constants: of those on the host, how many end in kernels when their small inputs (axes, a shape, scales), all but the first, are constants of the model
  instead, as models have them. They count as on the host in every other column and share.
- refused: one error that names the reason; they are listed below the table.
- Tests of a function's body, written out, count for the function. Values drawn at random are compared in dtype and shape only.
"""  # noqa: E501
DIFFERENCES = """## Differences to onnxruntime that are kept

| operator | Romou | reason |
|---|---|---|
| Conv, pools with auto_pad=SAME_* | no padding where strides leave elements over | ONNX's is at least 0; onnxruntime starts inside the input, or fails |
| ArgMax, ArgMin, Hardmax of NaN | NaN is passed over, wherever it is | ONNX does not say; in onnxruntime it depends on whether NaN comes first |
| GlobalMaxPool, ReduceMax of NaN | NaN is the maximum | as in NumPy; onnxruntime drops NaN by its position |
| Cast of NaN and of numbers out of range to integers | NaN and infinity are 0, others lose their high bits | ONNX leaves it undefined; onnxruntime's is the processor's |
| Resize with align_corners and scales | places by the scale times the extent | what ONNX's own tests expect; onnxruntime takes the whole number of elements |
| integers computed in floats: Resize, ReduceL2, ReduceLogSum, ReduceLogSumExp, Cast | an element may be one less or more | a number that is whole but for its rounding is cut off to the one below or above |
| ReduceMean, ReduceL2, ReduceLogSumExp of int64 above 2**53 | the last bits may differ | sums in double precision, in another order |
| Resize of infinities | an element that no position is between does not count | onnxruntime multiplies it by zero, which is NaN |
| Resize to the nearest element | positions in double precision, as in ONNX's reference | onnxruntime's fp32 may be on the other side of a half |
| ReduceSum, ReduceProd, ReduceL1, ReduceSumSquare of integers that overflow | wraps around, as in ONNX's reference | ONNX does not say; onnxruntime gives the nearest number of the type |
| MeanVarianceNormalization with a deviation far below the mean, or zero | the mean of squared differences, ONNX's formula | onnxruntime subtracts the squared mean from the mean of squares, which leaves rounding, or NaN |
| InstanceNormalization with a deviation far below the mean, or zero | (x - mean) / deviation * scale + bias, as in ONNX's reference | onnxruntime adds two large terms, which leaves rounding |
| LRN of numbers of other magnitude | a sum for each window, as in ONNX's reference | onnxruntime moves one sum along the channels, with the rounding of all before |
| LogSoftmax in double precision of a row with NaN or infinity | NaN for the row, as in ONNX's reference | onnxruntime computes the other numbers without it |
| DynamicQuantizeLinear of zeros, of nothing, or of infinities | the formula: a scale of 0 or infinity | onnxruntime replaces 0 by 1; the quotients are not defined |
| Gelu far below zero on Vulkan | 10% off was seen where the result is about -1e-6 | GLSL has no erfc; a known limit, not onnxruntime's |
| convolutions behind a convolution of infinities | NaN where a sum is infinite | lanes that fill up a texel hold 0 * inf; zeros as weights do not silence them |
| products of infinities on tensor cores, through CUDA and NVIDIA's OpenCL | NaN for an infinite sum | a float is split into two numbers of TF32, the second of which is inf - inf |
| a product less itself on Vulkan | up to the product's rounding error | drivers may fuse the product with the difference |
| ReduceProd of fp32 and fp64 that overflows | infinity, NaN or a finite number | the order of the factors decides |
| Pow of integers beyond their range | the nearest number of the type | ONNX leaves it undefined; onnxruntime's is the processor's |
| 0 / 0 and inf / inf on Vulkan | NaN, unless the driver folds the division | Vulkan need not keep NaN without further extensions |"""  # noqa: E501
# The introductions of a run that executed, and of one that only compiled.
RAN = ", run, and compared with the outputs that\nthe test expects, in number, dtype, shape and value."
COMPILED = (
    ".\nNothing was run for this page: it says where each test would run, and `python tests/stress/check_onnx.py`"
    " without `--compile` whether it is right."
)


def chosen(cases: list[Case], only: str, every: int) -> list[Case]:
    """Return each `every`-th of the cases with a name or operator that matches `only`."""
    return [case for case in cases if any(re.search(only, text, re.IGNORECASE) for text in (case.name, case.operator))][
        ::every
    ]


def check(
    cases: list[Case],
    target: str,
    *,
    jobs: int = 1,
    limit_s: float = 120.0,
    is_quiet: bool = False,
    is_run: bool = True,
) -> dict[str, Result]:
    """Return name of a case -> its outcome, run or only compiled, in `jobs` child processes."""
    function = f"onnx_cases:{(run_case if is_run else compile_case).__name__}"
    children: queue.Queue[ChildProcess] = queue.Queue()
    for _ in range(jobs):
        children.put(ChildProcess("case"))
    done: Counter[str] = Counter()

    def run(case: Case) -> Result:
        child = children.get()
        started = time.monotonic()
        try:
            result = outcome(child, function, case, target, limit_s)
        finally:
            children.put(child)
        done[result.outcome] += 1
        if not is_quiet:
            why = f": {result.detail.splitlines()[0][:200]}" if result.detail else ""
            print(
                f"[{done.total()}/{len(cases)}] {case.name}: {result.outcome} ({time.monotonic() - started:.1f}"
                f" s){why}",
                file=sys.stderr,
                flush=True,
            )
        return result

    try:
        with ThreadPoolExecutor(jobs) as threads:
            return dict(zip((case.name for case in cases), threads.map(run, cases), strict=True))
    finally:
        for _ in range(jobs):
            children.get().kill()


def outcome(child: ChildProcess, function: str, case: Case, target: str, limit_s: float) -> Result:
    """Return the outcome of a case in a child process."""
    try:
        found = child.call(function, case, target, timeout_s=limit_s)
        assert isinstance(found, Result)
        return found
    except RomouError as error:
        return Result(outcome=REFUSED, detail=f"{type(error).__name__}: {error}")
    except ChildBugError as error:
        return Result(outcome=TRACEBACK, detail=str(error))
    except ChildCrashError as error:
        return Result(outcome=CRASH, detail=str(error))
    except ChildTimeoutError as error:
        return Result(outcome=OVER_TIME, detail=str(error))


def circumstances(target: str) -> dict[str, str]:
    """Return the commit, the versions and the device that a run's outcomes depend on."""
    parsed = Target(target)
    device = parsed.backend.facts(parsed.backend.device_index(parsed.device_name))["name"]
    return {
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=PAGE.parent, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "onnx": onnx.__version__,
        "onnxruntime": importlib.metadata.version("onnxruntime"),
        "target": target,
        "device": device,
    }


def run_of(cases: list[Case], results: dict[str, Result], target: str, *, is_run: bool = True) -> dict[str, Any]:
    """Return a run as plain data."""
    return {
        **circumstances(target),
        "is_run": is_run,
        "tests": [{"name": case.name, "operator": case.operator, **vars(results[case.name])} for case in cases],
    }


def table(run: dict[str, Any]) -> str:
    """Return the outcomes by operator, as Markdown."""
    by_operator: dict[str, Counter[str]] = {}
    for test in run["tests"]:
        by_operator.setdefault(test["operator"], Counter())[test["outcome"]] += 1
    shown = [name for name in OUTCOMES if name not in FAULTS or any(counts[name] for counts in by_operator.values())]
    lines = ["| operator | tests | " + " | ".join(shown) + " | with constants |", "|---|" + "---:|" * (2 + len(shown))]
    as_constants = Counter(test["operator"] for test in run["tests"] if test.get("with_constants") == KERNEL)
    for operator, counts in sorted(by_operator.items(), key=lambda entry: entry[0].lower()):
        ended = [str(counts[name] or "") for name in shown]
        lines.append(
            f"| {operator} | {counts.total()} | " + " | ".join([*ended, str(as_constants[operator] or "")]) + " |"
        )
    return "\n".join(lines)


def total(run: dict[str, Any]) -> str:
    """Return the outcomes in one line. Shares are of all tests."""
    counts = Counter(test["outcome"] for test in run["tests"])
    share = 100 / max(1, counts.total())
    on_device = sum(counts[name] for name in ON_DEVICE)
    right = f"{(on_device + counts[HOST]) * share:.1f}% right, " if run.get("is_run", True) else ""
    right += f"{on_device * share:.1f}% wholly on the device, {counts[KERNEL] * share:.1f}% wholly in kernels"
    return (
        f"{counts.total()} tests: "
        + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if name != WRONG or run.get("is_run", True))
        + f"; {right} (of all tests)"
    )


def page(run: dict[str, Any]) -> str:
    """Return the documentation's page."""
    by_reason: dict[str, list[str]] = {}
    for test in run["tests"]:
        if test["outcome"] not in (*ON_DEVICE, HOST):
            # Without names and numbers, many tests share a reason.
            reason = re.sub(r"'[^']*'", "…", re.sub(r"\s*\(.*", "", test["detail"].splitlines()[0]))
            by_reason.setdefault(f"{test['outcome']}: {reason}".replace("|", " "), []).append(test["name"])
    lines = ["## The others", "", "| reason | tests |", "|---|---|"]
    lines += [
        f"| {reason} | {', '.join(names)} |"
        for reason, names in sorted(by_reason.items(), key=lambda entry: -len(entry[1]))
    ]
    return (
        "\n".join(
            [
                INTRODUCTION.format(**run, total=total(run), how=RAN if run.get("is_run", True) else COMPILED),
                table(run),
                "",
                f"<!-- measured: {run['commit']}, {run['device']} -->\n<!-- end -->",
                "",
                DIFFERENCES,
                "",
                *lines,
            ]
        )
        + "\n"
    )


def origins(run: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return operator -> outcome -> names of its tests, to be compared with a later run."""
    found: dict[str, dict[str, list[str]]] = {}
    for test in sorted(
        run["tests"],
        key=lambda test: (str(test["operator"]).lower(), OUTCOMES.index(test["outcome"]), str(test["name"])),
    ):
        found.setdefault(test["operator"], {}).setdefault(test["outcome"], []).append(test["name"])
    return found


def further_away(results: Mapping[str, Result], kept: Mapping[str, Mapping[str, list[str]]]) -> dict[str, str]:
    """Return name of a test -> its change, for outcomes that are further from Romou's kernels than the kept ones.

    The order is kernels, plain schedule, host, refused.
    """
    before = {name: outcome for ended in kept.values() for outcome, names in ended.items() for name in names}
    changes = {name: (before[name], result.outcome) for name, result in results.items() if name in before}
    return {
        name: f"{old} -> {new}" for name, (old, new) in changes.items() if OUTCOMES.index(new) > OUTCOMES.index(old)
    }


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Child processes at a time.")
@click.option("--only", default="", help="A regular expression: tests whose name or operator matches.")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="Each so-manieth test of them.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True, help="Limit of a test."
)
@click.option(
    "--from",
    "recorded",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run nothing: what --json wrote.",
)
@click.option(
    "--again", "is_again", is_flag=True, help="With --from: run those that were not all kernels, and keep the others."
)
@click.option(
    "--compile",
    "is_compiled",
    is_flag=True,
    help="Compile, and run nothing: where each test would run, in a tenth of the time.",
)
@click.option("--docs", "is_page", is_flag=True, help="Write docs/evidence/onnx_coverage.md.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write how each test ended.")
def main(
    target: str,
    jobs: int,
    only: str,
    every: int,
    seconds: float,
    recorded: Path | None,
    is_again: bool,
    is_compiled: bool,
    is_page: bool,
    json_path: Path | None,
) -> None:
    """Print the outcome of each test and a table by operator. The exit code is 1 if any was wrong or did not end."""
    run = {"tests": []} if recorded is None else json.loads(recorded.read_text(encoding="utf-8"))
    if recorded is None or is_again:
        kept = {test["name"]: test for test in run["tests"] if test["outcome"] == KERNEL}
        cases = [case for case in chosen([*node_cases(), *bundled_cases()], only, every) if case.name not in kept]
        before, run = (
            run,
            run_of(
                cases,
                check(cases, target, jobs=jobs, limit_s=seconds, is_run=not is_compiled),
                target,
                is_run=not is_compiled,
            ),
        )
        for what in circumstances(target) if kept else ():
            # Tests that were all kernels were run by the earlier run.
            run[what] = " and, for what was not there, ".join(dict.fromkeys((before[what], run[what])))
        run["tests"] = sorted([*kept.values(), *run["tests"]], key=lambda test: str(test["name"]))
    if json_path is not None:
        json_path.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if is_page:
        PAGE.write_text(page(run), encoding="utf-8")
        ORIGINS.write_text(json.dumps(origins(run), indent=1) + "\n", encoding="utf-8")
    print(table(run))
    print(total(run))
    raise SystemExit(1 if any(test["outcome"] in FAULTS for test in run["tests"]) else 0)


if __name__ == "__main__":
    main()
