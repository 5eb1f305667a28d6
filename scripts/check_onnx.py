#!/usr/bin/env python3
"""Is every ONNX operator right: ONNX's own backend node tests, and the bundled graphs, compiled, run and compared.

    python scripts/check_onnx.py --jobs 2                      all tests on the first OpenCL device
    python scripts/check_onnx.py --only 'resize' --every 3     every third of those whose name or operator matches the expression
    python scripts/check_onnx.py --jobs 2 --json run.json      all, kept as data
    python scripts/check_onnx.py --from run.json --docs        the page docs/onnx_coverage.md of that run
    python scripts/check_onnx.py --from run.json --again --json run.json        those that were not right in it, once more

Each case ends as one of: right, on the host (right, but some of its nodes ran there), refused (one RomouError), wrong, traceback, crash, over time.
Cases run in child processes, which survive a crash of one. Exit code 1 if any was wrong, a traceback, a crash or over time.
"""

from __future__ import annotations

import importlib.metadata
import json
import queue
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import onnx
from onnx_cases import CRASH, FAULTS, HOST, OUTCOMES, OVER_TIME, REFUSED, RIGHT, TRACEBACK, Case, Result, bundled_cases, node_cases, run_case

from romou.core.errors import RomouError
from romou.measure import ChildBugError
from romou.measure.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.target import Target

PAGE = Path(__file__).parents[1] / "docs" / "onnx_coverage.md"
INTRODUCTION = """# ONNX coverage

Every backend node test of onnx {onnx} and the bundled graphs, compiled by `romou.compile(model, target={target!r})`, and compared with the outputs that
the test expects. Device: {device}. `python scripts/check_onnx.py --docs` writes this page.

{total}

- right: all nodes on the device, outputs right in number, dtype, shape and value.
- on the host: right, but at least one node has no right kernel and runs on the host, by onnxruntime {onnxruntime} or by onnx's reference, between kernels.
  Many tests hand over as an input what models hold as a constant (axes, a shape, scales). Such a node has no kernel; with a constant it may have one.
- refused: one error that names the reason; they are listed below the table.
- Tests of a function's body, written out, count for the function. Values drawn at random are compared in dtype and shape only.
"""


def chosen(cases: list[Case], only: str, every: int) -> list[Case]:
    """Each `every`-th of the cases whose name or operator matches `only`."""
    return [case for case in cases if any(re.search(only, text, re.IGNORECASE) for text in (case.name, case.operator))][::every]


def check(cases: list[Case], target: str, *, jobs: int = 1, limit_s: float = 120.0, is_quiet: bool = False) -> dict[str, Result]:
    """Name of a case -> how it ended, run in `jobs` child processes."""
    children: queue.Queue[ChildProcess] = queue.Queue()
    for _ in range(jobs):
        children.put(ChildProcess("case"))
    done: Counter[str] = Counter()

    def run(case: Case) -> Result:
        child = children.get()
        started = time.monotonic()
        try:
            result = outcome(child, case, target, limit_s)
        finally:
            children.put(child)
        done[result.outcome] += 1
        if not is_quiet:
            why = f": {result.detail.splitlines()[0][:200]}" if result.detail else ""
            print(f"[{done.total()}/{len(cases)}] {case.name}: {result.outcome} ({time.monotonic() - started:.1f} s){why}", file=sys.stderr, flush=True)
        return result

    try:
        with ThreadPoolExecutor(jobs) as threads:
            return dict(zip((case.name for case in cases), threads.map(run, cases), strict=True))
    finally:
        for _ in range(jobs):
            children.get().kill()


def outcome(child: ChildProcess, case: Case, target: str, limit_s: float) -> Result:
    """How a case ends in a child process."""
    try:
        found = child.call(f"onnx_cases:{run_case.__name__}", case, target, timeout_s=limit_s)
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
    """What a run's outcomes depend on."""
    parsed = Target(target)
    device = parsed.backend.facts(parsed.backend.device_index(parsed.device_name))["name"]
    return {"onnx": onnx.__version__, "onnxruntime": importlib.metadata.version("onnxruntime"), "target": target, "device": device}


def run_of(cases: list[Case], results: dict[str, Result], target: str) -> dict[str, Any]:
    """A run as plain data."""
    return {**circumstances(target), "tests": [{"name": case.name, "operator": case.operator, **vars(results[case.name])} for case in cases]}


def table(run: dict[str, Any]) -> str:
    """Outcomes by operator, as Markdown."""
    by_operator: dict[str, Counter[str]] = {}
    for test in run["tests"]:
        by_operator.setdefault(test["operator"], Counter())[test["outcome"]] += 1
    shown = [name for name in OUTCOMES if name not in FAULTS or any(counts[name] for counts in by_operator.values())]
    lines = ["| operator | tests | " + " | ".join(shown) + " |", "|---|" + "---:|" * (1 + len(shown))]
    for operator, counts in sorted(by_operator.items(), key=lambda entry: entry[0].lower()):
        lines.append(f"| {operator} | {counts.total()} | " + " | ".join(str(counts[name] or "") for name in shown) + " |")
    return "\n".join(lines)


def total(run: dict[str, Any]) -> str:
    """Outcomes in one line; shares are of all tests."""
    counts = Counter(test["outcome"] for test in run["tests"])
    share = 100 / max(1, counts.total())
    right = f"{(counts[RIGHT] + counts[HOST]) * share:.1f}% right, {counts[RIGHT] * share:.1f}% wholly on the device"
    return f"{counts.total()} tests: " + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES) + f"; {right} (of all tests)"


def page(run: dict[str, Any]) -> str:
    """The documentation's page."""
    by_reason: dict[str, list[str]] = {}
    for test in run["tests"]:
        if test["outcome"] not in (RIGHT, HOST):
            # Names and numbers aside, many tests share a reason.
            reason = re.sub(r"'[^']*'", "…", re.sub(r"\s*\(.*", "", test["detail"].splitlines()[0]))
            by_reason.setdefault(f"{test['outcome']}: {reason}".replace("|", " "), []).append(test["name"])
    lines = ["## Not right", "", "| reason | tests |", "|---|---|"]
    lines += [f"| {reason} | {', '.join(names)} |" for reason, names in sorted(by_reason.items(), key=lambda entry: -len(entry[1]))]
    return "\n".join([INTRODUCTION.format(**run, total=total(run)), table(run), "", *lines]) + "\n"


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Child processes at a time.")
@click.option("--only", default="", help="A regular expression: tests whose name or operator matches.")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="Each so-manieth test of them.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True, help="Limit of a test.")
@click.option("--from", "recorded", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run nothing: what --json wrote.")
@click.option("--again", "is_again", is_flag=True, help="With --from: run those that were not right on the device, and keep the others.")
@click.option("--docs", "is_page", is_flag=True, help="Write docs/onnx_coverage.md.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write how each test ended.")
def main(target: str, jobs: int, only: str, every: int, seconds: float, recorded: Path | None, is_again: bool, is_page: bool, json_path: Path | None) -> None:
    """Print how each test ended and a table by operator; exit code 1 if any was wrong or did not end."""
    run = {"tests": []} if recorded is None else json.loads(recorded.read_text(encoding="utf-8"))
    if recorded is None or is_again:
        kept = {test["name"]: test for test in run["tests"] if test["outcome"] == RIGHT}
        cases = [case for case in chosen([*node_cases(), *bundled_cases()], only, every) if case.name not in kept]
        before, run = run, run_of(cases, check(cases, target, jobs=jobs, limit_s=seconds), target)
        for what in circumstances(target) if kept else ():
            # What was right is known of the run before.
            run[what] = " and, for what was not right there, ".join(dict.fromkeys((before[what], run[what])))
        run["tests"] = sorted([*kept.values(), *run["tests"]], key=lambda test: str(test["name"]))
    if json_path is not None:
        json_path.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if is_page:
        PAGE.write_text(page(run), encoding="utf-8")
    print(table(run))
    print(total(run))
    raise SystemExit(1 if any(test["outcome"] in FAULTS for test in run["tests"]) else 0)


if __name__ == "__main__":
    main()
