#!/usr/bin/env python3
"""Compiles random models with sizes at run time, and compares them with onnxruntime at ten sizes and at the bound. Each
must be right at every size, or be refused in one clear line.

    python tests/stress/fuzz_sizes.py                                    300 models of a new seed
    python tests/stress/fuzz_sizes.py --cases 50 --seed 7                the first models of seed 7
    python tests/stress/fuzz_sizes.py --target cuda --target vulkan      for a GPU, by two ways in turns
    python tests/stress/fuzz_sizes.py --seed 7 --first 41 --cases 1      one model again

Before each run, a run of the bound leaves NaN in all memory. Of four models, three are compiled without the check of
outputs, so a wrong kernel shows here. Kernels for Adreno run in reverse order: elements that are stored twice differ.
The exit code is 1 if a model was wrong, crashed or took too long.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from dataclasses import dataclass

import click
import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from child_pool import in_children
from reverse_order import reversed_for
from romou.base.errors import ModelError, NumericError, RomouError
from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import ChildBugError
from size_models import SizeModel, model_of

RIGHT, REFUSED = "right", "refused"
# A model whose kernels the check of outputs finds wrong is refused, but its kernels are at fault.
CAUGHT = "refused by the check of outputs"
FAULTS = WRONG, UNCLEAR, CRASH, OVER_TIME = "wrong", "unclear", "crash", "over time"
TARGETS = ("opencl -device=host", "opencl -device=adreno640", "vulkan -device=host")
SIZES = 10
WALL_LIMIT_S = 400.0
# Relative to each value, and to the largest one.
_TOLERANCE = 1e-3, 1e-4


@dataclass(frozen=True)
class Result:
    """The outcome of a model."""

    number: int
    outcome: str
    blocks: str
    detail: str
    seconds: float


def wrong_at(case: SizeModel, target: str, *, verify: bool, seed: int) -> list[str]:
    """Compile a model, run it at some sizes, and return what is wrong at each."""
    import romou

    with reversed_for(target):
        model = romou.compile(case.model, target=target, dims={**case.fixed, **case.dims}, verify=verify)
    assert isinstance(model, romou.RunTimeSizesModel)
    session = cpu_session(case.model)
    poison = {name: np.full(shape, np.nan, dtype) for name, (shape, dtype) in model.inputs.items()}
    faults = []
    for sizes in case.points(np.random.default_rng(seed), SIZES):
        if any(size < model.sizes.dims[name][0] for name, size in sizes.items()):
            continue  # refused: too small for a window
        inputs = case.inputs(sizes, seed)
        try:
            expected = session.run(None, inputs)
        except (Fail, InvalidArgument, RuntimeException):
            continue  # too small for a window
        if not all(array.size and np.isfinite(array).all() for array in expected):
            continue  # a mean of nothing
        model.run(poison)
        for found, right in zip(model.run(inputs), expected, strict=True):
            fault = _fault(found, right)
            if fault:
                faults.append(f"{sizes}: {fault}")
    return faults


def _fault(found: np.ndarray, right: np.ndarray) -> str:
    """Return how an output differs, or ""."""
    if found.shape != right.shape:
        return f"the shape is {found.shape}, not {right.shape}"
    relative, absolute = _TOLERANCE
    largest = float(np.abs(right).max(initial=0.0))
    is_close = np.isclose(found, right, rtol=relative, atol=absolute * largest)
    return "" if is_close.all() else f"{int((~is_close).sum())} of {right.size} elements differ"


def run_case(seed: int, number: int, target: str) -> tuple[str, str]:
    """Return the outcome of a model and its detail, in a child process."""
    case = model_of(seed, number)
    try:
        faults = wrong_at(case, target, verify=number % 4 == 0, seed=seed)
    except NumericError as error:
        return CAUGHT, error.message
    except RomouError as error:
        is_clear = "\n" not in error.message and (not isinstance(error, ModelError) or bool(error.hint))
        return REFUSED if is_clear else UNCLEAR, f"{error.message} ({error.hint})"
    return (WRONG, "; ".join(faults)) if faults else (RIGHT, "")


def fuzz(
    numbers: range,
    *,
    seed: int,
    jobs: int = 1,
    verbose: bool = False,
    child: ChildProcess | None = None,
    targets: tuple[str, ...] = TARGETS,
) -> list[Result]:
    """Return the outcome of each model, for one of the targets, by `jobs` new processes, or by `child`."""

    def run(child: ChildProcess, number: int) -> Result:
        started, case = time.monotonic(), model_of(seed, number)
        target = targets[number % len(targets)]
        blocks = f"{' '.join(case.blocks)} over {case.dims}, {case.fixed}, for {target}"
        try:
            outcome, detail = child.call(
                f"fuzz_sizes:{run_case.__name__}", seed, number, target, timeout_s=WALL_LIMIT_S
            )
        except ChildTimeoutError as error:
            outcome, detail = OVER_TIME, str(error)
        except (ChildBugError, ChildCrashError) as error:
            outcome, detail = CRASH, str(error)
        result = Result(number, outcome, blocks, detail, time.monotonic() - started)
        if verbose and outcome != RIGHT:
            print(f"model {number}, {blocks}: {outcome}\n{detail}\n", flush=True)
        return result

    return in_children("model", run, numbers, jobs=jobs) if child is None else [run(child, each) for each in numbers]


def reasons(results: list[Result]) -> Counter[str]:
    """Return how many models were refused for each reason, without names and numbers."""
    texts = (result.detail for result in results if result.outcome in (REFUSED, CAUGHT))
    return Counter(re.sub(r"fused_\w+|\(.*|[\d.e-]*\d[\d.e-]*|'[^']*'", "…", text)[:110] for text in texts)


@click.command()
@click.option("--cases", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first model.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="A new one unless given; it is printed.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Child processes at a time.")
@click.option("--target", "targets", multiple=True, default=TARGETS, show_default=True, help="In turns; repeatable.")
def main(cases: int, first: int, seed: int | None, jobs: int, targets: tuple[str, ...]) -> None:
    """Print each model that is not right, and the number of models for each outcome."""
    started = time.monotonic()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    print(f"seed {seed}", flush=True)
    results = fuzz(range(first, first + cases), seed=seed, jobs=jobs, verbose=True, targets=targets)
    for reason, count in reasons(results).most_common():
        print(f"{count} refused: {reason}")
    counts = Counter(result.outcome for result in results)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    print(f"{cases} models of seed {seed} in {time.monotonic() - started:.0f} s")
    sys.exit(1 if any(result.outcome in FAULTS for result in results) else 0)


if __name__ == "__main__":
    main()
