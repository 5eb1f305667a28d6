#!/usr/bin/env python3
"""Runs thousands of broken and odd ONNX models. Each must end in a right result or in one clear error.

    python tests/stress/fuzz_onnx.py                        2,000 cases of seed 0
    python tests/stress/fuzz_onnx.py --cases 200 --first 400 --keep folder      cases 400 to 599; the models at fault are kept

Each case is compiled for a phone. Every 16th runs on this machine's CPU instead and is compared with onnxruntime. Cases
run in child processes, which survive a crash of one. The exit code is 1 if any was wrong, a traceback, a crash, or took
longer than ten seconds of processor time.
"""  # noqa: E501

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click

from child_pool import in_children
from fuzz_cases import case
from romou.base.errors import NumericError, RomouError
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import ChildBugError

RIGHT, REFUSED = "right", "refused"
FAULTS = WRONG, UNCLEAR, TRACEBACK, CRASH, OVER_TIME = "wrong", "unclear error", "traceback", "crash", "over time"
# The first limit is processor time, which does not depend on the machine's load. A process that only waits uses none
# and ends by the second limit.
LIMIT_S, WALL_LIMIT_S = 10.0, 90.0
_RUN_EVERY = 16
_MOST_MEMORY_BYTES = 12 * 2**30
_LONGEST_ERROR = 4000


@dataclass(frozen=True)
class Result:
    """The outcome of a case."""

    number: int
    what: str
    outcome: str
    detail: str
    seconds: float


def compile_case(seed: int, number: int) -> tuple[RomouError | None, float]:
    """Compile a case in a child process. Return (Romou's error, seconds of processor time)."""
    import romou

    # A model that needs more memory than there is must not take the machine down.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    _, data = case(seed, number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(data)
        started = time.process_time()
        try:
            romou.compile(
                path, target="opencl -device=host" if number % _RUN_EVERY == 0 else "opencl -device=adreno640"
            )
        except RomouError as error:
            return error, time.process_time() - started
        return None, time.process_time() - started


def run_case(child: ChildProcess, seed: int, number: int) -> Result:
    """Return the outcome of a case in a child process."""
    started, seconds = time.monotonic(), None
    outcome, detail = RIGHT, ""
    try:
        error, seconds = child.call(f"fuzz_onnx:{compile_case.__name__}", seed, number, timeout_s=WALL_LIMIT_S)
        if error is not None:
            detail = f"{type(error).__name__}: {error}"
            outcome = WRONG if isinstance(error, NumericError) else REFUSED if _is_clear(error) else UNCLEAR
        if seconds > LIMIT_S:
            outcome = OVER_TIME
    except ChildBugError as bug:
        outcome, detail = TRACEBACK, str(bug)
    except ChildCrashError as crash:
        outcome, detail = CRASH, str(crash)
    except ChildTimeoutError as timeout:
        outcome, detail = OVER_TIME, str(timeout)
    return Result(
        number, case(seed, number)[0], outcome, detail, time.monotonic() - started if seconds is None else seconds
    )


def _is_clear(error: RomouError) -> bool:
    """Return whether an error is one message for a person, and no traceback in disguise."""
    text = str(error)
    return (
        bool(error.message.strip())
        and len(text) <= _LONGEST_ERROR
        and not any(word in text for word in ("Traceback", "InternalError", "KeyError", "TypeError"))
    )


def fuzz(numbers: range, *, seed: int = 0, jobs: int = 1) -> list[Result]:
    """Return the outcome of each case, run in `jobs` child processes."""
    return in_children("case", lambda child, number: run_case(child, seed, number), numbers, jobs=jobs)


@click.command()
@click.option("--cases", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first case.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Child processes at a time.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for the models of cases at fault.",
)
def main(cases: int, first: int, seed: int, jobs: int, keep: Path | None) -> None:
    """Print each case at fault and the number of cases for each outcome. The exit code is 1 if any was at fault."""
    started = time.monotonic()
    results = fuzz(range(first, first + cases), seed=seed, jobs=jobs)
    faults = [result for result in results if result.outcome in FAULTS]
    for result in faults:
        print(
            f"case {result.number} ({result.what}): {result.outcome} after {result.seconds:.1f} s\n{result.detail}\n",
            flush=True,
        )
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{result.number}.onnx").write_bytes(case(seed, result.number)[1])
    counts = Counter(result.outcome for result in results)
    slowest = max(result.seconds for result in results)
    print(
        f"{cases} cases of seed {seed}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))};"
        f" slowest {slowest:.1f} s; {time.monotonic() - started:.0f} s in all"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
