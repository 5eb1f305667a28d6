#!/usr/bin/env python3
"""Compiles thousands of random graphs and compares them with onnxruntime. Each must be right, or be refused in one
clear error.

    python tests/stress/fuzz_graphs.py                                  1,000 graphs of a new seed in every way, in turn
    python tests/stress/fuzz_graphs.py --cases 5000 --seed 7             the graphs of seed 7
    python tests/stress/fuzz_graphs.py --seed 7 --first 41 --cases 1 --way images        one graph again
    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python tests/stress/fuzz_graphs.py             by another OpenCL compiler

Graphs have one to four operators, up to six axes, all element types, special values and empty tensors. Ways: kernels on
buffers, on images as for an Adreno 640, fp32 graphs computed in fp16, Vulkan, and CUDA if asked for. Kernels for Adreno
run in reverse order: elements that are stored twice differ. A wrong graph is reduced to the fewest nodes with the
fault. The tolerance of a result is measured: the same graph is computed with perturbed values. Where onnxruntime and
ONNX's own reference differ, either is right. Other differences that are kept are in docs/evidence/onnx_coverage.md, and
no graph shows them.
The exit code is 1 if a graph was wrong, crashed, took too long, or fell to the host by a fault.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

from child_pool import in_children
from graph_cases import Case, UnfitError, by_definition, reference, together
from random_graphs import case
from reverse_order import reversed_for
from romou.base.errors import RomouError
from romou.devices.backends import backend
from romou.driver.options import PrecisionName
from romou.runtime.module import TunedModel
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import ChildBugError

RIGHT, ON_HOST, REFUSED = "right", "right, in part on the host", "refused"
FAULTS = WRONG, TRACEBACK, CRASH, OVER_TIME = "wrong", "traceback", "crash", "over time"
WALL_LIMIT_S = 240.0
# Graphs compiled as one model, which costs about half of what each alone costs.
SEVERAL = 4
# name -> (target, precision, whether inputs are special, element types)
_ALL = ("float32", "float32", "float32", "float16", "float64")
WAYS: dict[str, tuple[str, PrecisionName, bool, tuple[str, ...]]] = {
    "buffers": ("opencl -device=host", "float32", True, _ALL),
    "images": ("opencl -device=adreno640", "float32", True, _ALL),
    "fp16": ("opencl -device=adreno640", "float16", False, ("float32",)),
    "vulkan": ("vulkan", "float32", True, _ALL),
    "cuda": ("cuda", "float32", True, _ALL),
}
# Every machine that develops Romou has OpenCL and Vulkan, few have a GPU for CUDA.
USUAL_WAYS = tuple(way for way in WAYS if way != "cuda")
# Tolerances of one rounding more or less, relative to the value and to the root mean square of the tensor.
_RELATIVE = {"float16": (1e-2, 1e-2), "float32": (1e-4, 2e-6), "float64": (1e-6, 1e-9)}
# The perturbed graphs are few, so results may move this factor further than theirs. The other numbers count the random
# ones, before and after a difference.
_SPREAD, _RANDOM, _MANY = 16.0, 6, 40


@dataclass(frozen=True)
class Result:
    """The outcome of a graph in one way."""

    number: int
    way: str
    outcome: str
    operators: str
    detail: str
    seconds: float


def wrong_output(graph: Case, way: str) -> tuple[str | None, tuple[str, ...]]:
    """Compile a graph and run it. Return (the fault or None, nodes that ran on the host)."""
    import romou

    target, precision, _, _ = WAYS[way]
    with reversed_for(target):
        model = romou.compile(graph.model(), target=target, device=0, precision=precision, verify=False)
    return problem_of(graph, model, way, is_fp16=precision == "float16"), model.host_nodes


def problem_of(graph: Case, model: TunedModel, way: str, *, is_fp16: bool) -> str | None:
    """Run a graph twice, the second time as a captured run. Return the fault or None."""
    runs = [[np.asarray(array) for array in model.run(graph.arrays())] for _ in range(2)]
    epsilon = 2.0**-10 if is_fp16 else 0.0
    right, spread = bounds(graph, epsilon)
    defined: dict[str, np.ndarray] | None = None
    for run, found in enumerate(runs, 1):
        for name, array in zip(graph.outputs, found, strict=True):
            expected = [values[name] for values in (right, *spread)]
            problem = differs(array, expected, is_fp16=is_fp16)
            if problem:
                # A value at a border may need many movements to fall to its other side.
                right, spread = bounds(graph, epsilon, _MANY) if len(spread) < _MANY else (right, spread)
                expected = [values[name] for values in (right, *spread)]
                defined = by_definition(graph) if defined is None else defined
                problem = differs(
                    array,
                    expected,
                    defined.get(name),
                    is_fp16=is_fp16,
                    may_lose_nan=_may_lose_nan(graph, way),
                    may_gain_nan=_may_gain_nan(graph, way),
                    may_overflow=any(node.op_type == "ReduceProd" for node in graph.nodes),
                    has_poles=any(node.op_type == "Tan" for node in graph.nodes),
                    rounding=_rounding_of_differences(right, graph, way),
                )
            if problem:
                return f"output {name} of run {run}: {problem}"
    return None


def _may_lose_nan(graph: Case, way: str) -> bool:
    """Return whether the driver may compute the graph's 0 / 0 as 1. Vulkan allows that, and lavapipe does not do it."""
    has_quotient = any(node.op_type == "Div" for node in graph.nodes)
    return way == "vulkan" and has_quotient and "llvmpipe" not in backend("vulkan").facts(0)["name"]


def _may_gain_nan(graph: Case, way: str) -> bool:
    """Return whether NaN is as right as an infinity. A convolution of infinities leaves 0 * inf in lanes that fill up
    texels, which the next convolution multiplies by zero. Tensor cores multiply floats as two numbers of TF32. The
    second one is inf - inf.
    """
    names = [node.op_type for node in graph.nodes]
    arrays = [array for array in graph.arrays().values() if array.dtype.kind == "f"]
    is_infinite = any(not np.isfinite(array).all() for array in arrays)
    has_split_floats = way == "cuda" and not {"Conv", "Einsum", "Gemm", "MatMul"}.isdisjoint(names)
    return is_infinite and (has_split_floats or names.count("Conv") + names.count("ConvTranspose") > 1)


def _rounding_of_differences(right: dict[str, np.ndarray], graph: Case, way: str) -> float:
    """Return the rounding error of the largest value that is subtracted. Vulkan's drivers may fuse a product with the
    difference that reads it, so that a product less itself is its rounding error. No perturbation shows that.
    """
    subtracted = [right[name] for node in graph.nodes if node.op_type == "Sub" for name in node.input if name in right]
    largest = [np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in subtracted if array.dtype.kind == "f"]
    return float(np.finfo(np.float32).eps) * float(max(largest, default=0.0)) if way == "vulkan" else 0.0


def bounds(
    graph: Case, epsilon: float, random: int = _RANDOM
) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Return (every tensor as onnxruntime computes it, several times the same with perturbed values)."""
    right = reference(graph)
    spread = []
    moves: list[dict[str, Any]] = [{"direction": 1}, {"direction": -1}, *({"seed": seed} for seed in range(random))]
    if any(array.dtype == np.float16 for array in graph.values.values()):
        moves.append({"is_wide": True})
    if epsilon:
        moves.append({"is_narrow": True})
    for move in moves:
        try:
            spread.append(reference(graph, **move, epsilon=epsilon))
        except UnfitError:
            continue
    return right, spread


def differs(
    found: np.ndarray,
    expected: list[np.ndarray],
    defined: np.ndarray | None = None,
    *,
    is_fp16: bool = False,
    may_lose_nan: bool = False,
    may_gain_nan: bool = False,
    may_overflow: bool = False,
    has_poles: bool = False,
    rounding: float = 0.0,
) -> str | None:
    """Return the fault of an output, or None.

    expected: the right result, then results of perturbed graphs.
    defined: the result by ONNX's reference. Each value may be this one or the right one.
    may_lose_nan: any value is right in the place of NaN.
    may_gain_nan: NaN is right in the place of an infinity.
    rounding: absolute tolerance beside the others.
    may_overflow: the order of the factors of a product decides whether it overflows, and meets zero after that.
    has_poles: any value is right where the perturbed ones differ by a tenth: of a large angle, the next float may be
        near a pole.
    """
    right, *others = expected
    if found.shape != right.shape or found.dtype != right.dtype:
        return f"{found.dtype} {found.shape} for {right.dtype} {right.shape}"
    others = [other for other in others if other.shape == right.shape]
    with np.errstate(all="ignore"):
        # The values of a perturbed graph are equally right.
        is_right = np.logical_or.reduce([_equals(found, one) for one in (right, *others)])
        margin = _margin(right, others, is_fp16=is_fp16) + rounding
        for one in (right, defined):
            if one is not None:
                is_right |= _equals(found, one) | _is_close(found, one, margin, is_fp16=is_fp16)
        is_right |= _is_unsure(right, others, is_fp16=is_fp16)
        if right.dtype == np.float16:
            # After an overflow, the order of the sums decides between infinity and NaN.
            is_right |= ~np.isfinite(found) & ~np.isfinite(right)
        if may_overflow and right.dtype.kind == "f":
            is_right |= ~np.isfinite(found) | ~np.isfinite(right)
        if has_poles and right.dtype.kind == "f":
            is_right |= _moved(right, others) > 0.1 * np.abs(right)
        if may_lose_nan and right.dtype.kind == "f":
            is_right |= np.isnan(right)
        if may_gain_nan and right.dtype.kind == "f":
            is_right |= np.isnan(found) & np.isinf(right)
        if right.dtype.kind in "iu":
            low, high = np.min([right, *others], axis=0), np.max([right, *others], axis=0)
            if is_fp16 and right.dtype.itemsize == 1:
                # A quantized value may fall to either side.
                low, high = low.astype(np.int16) - 1, high.astype(np.int16) + 1
            is_right |= (found >= low) & (found <= high)
    if is_right.all():
        return None
    places = np.argwhere(~is_right)
    shown = ", ".join(
        f"{tuple(int(i) for i in at)}: {found[tuple(at)]!s} for {right[tuple(at)]!s}" for at in places[:3]
    )
    return f"{len(places)} of {right.size} values of {right.dtype} {right.shape}, e.g. {shown}"


def _equals(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return where two arrays are equal. NaN equals NaN, and an infinity equals itself."""
    same: np.ndarray = found == right
    return same | (np.isnan(found) & np.isnan(right)) if right.dtype.kind == "f" else same


def _moved(right: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
    """Return the largest difference of each float in the perturbed graphs."""
    differences = [np.abs(other.astype(np.float64) - right.astype(np.float64)) for other in others]
    return np.asarray(np.max(differences, axis=0, initial=0.0))


def _margin(right: np.ndarray, others: list[np.ndarray], *, is_fp16: bool) -> np.ndarray:
    """Return the absolute tolerance of each float, beside the one that is relative to it."""
    if right.dtype.kind != "f":
        return np.zeros(right.shape)
    exact = right.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    tiny = float(np.finfo(np.float16 if is_fp16 else right.dtype).tiny) * 4
    floor = _RELATIVE["float16" if is_fp16 else right.dtype.name][1]
    return np.asarray(floor * rms + _SPREAD * np.nan_to_num(_moved(right, others), nan=0.0, posinf=0.0) + tiny)


def _is_close(found: np.ndarray, right: np.ndarray, margin: np.ndarray, *, is_fp16: bool) -> np.ndarray:
    """Return where finite floats are equal except for rounding."""
    if right.dtype.kind != "f":
        return np.zeros(right.shape, bool)
    a, b = found.astype(np.float64), right.astype(np.float64)
    relative = _RELATIVE["float16" if is_fp16 else right.dtype.name][0]
    return np.asarray(np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= relative * np.abs(b) + margin))


def _is_unsure(right: np.ndarray, others: list[np.ndarray], *, is_fp16: bool) -> np.ndarray:
    """Return where rounding decides between a number, an infinity and NaN, or between the infinities, so that each of
    them is right: between both infinities lies every number.
    """
    unsure = np.zeros(right.shape, bool)
    if right.dtype.kind == "f":
        for other in others:
            unsure |= (np.isfinite(other) != np.isfinite(right)) | (np.isnan(other) != np.isnan(right))
            unsure |= np.isinf(other) & np.isinf(right) & (other != right)
        if is_fp16:
            unsure |= ~np.isfinite(right.astype(np.float16))
    return unsure


def shrunk(graph: Case, way: str) -> Case:
    """Return the graph with only the nodes that its fault needs."""
    position = 0
    while position < len(graph.nodes):
        smaller = graph.without(position)
        if smaller is not None and smaller.inputs and _is_wrong(smaller, way):
            graph, position = smaller, 0
        else:
            position += 1
    return graph


def _is_wrong(graph: Case, way: str) -> bool:
    try:
        return wrong_output(graph, way)[0] is not None
    except (RomouError, UnfitError):
        return False


def graph_of(seed: int, number: int, way: str) -> Case:
    """Return the graph of a number, of the types that the way takes."""
    _, _, is_special, dtypes = WAYS[way]
    return case(seed, number, special=is_special, dtypes=dtypes)


def run_case(seed: int, number: int, way: str, keep: str | None) -> tuple[str, str, str]:
    """Compile and compare a graph in a child process. Return (outcome, operators, detail)."""
    graph = graph_of(seed, number, way)
    try:
        problem, host = wrong_output(graph, way)
    except RomouError as error:
        return REFUSED, graph.operators(), f"{type(error).__name__}: {error}"
    if problem is None:
        return ON_HOST if host else RIGHT, graph.operators(), ", ".join(host)
    small = shrunk(graph, way)
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)
        onnx.save(small.model(), Path(keep, f"{seed}-{number}-{way}.onnx"))
        arrays: dict[str, Any] = dict(small.arrays())
        np.savez(Path(keep, f"{seed}-{number}-{way}.npz"), **arrays)
    text = "\n".join(f"  {onnx.printer.to_text(node)}" for node in small.nodes)
    values = ", ".join(
        f"{n} {small.values[n].dtype}{list(small.values[n].shape)}" for n in (*small.inputs, *small.constants)
    )
    return WRONG, small.operators(), f"{wrong_output(small, way)[0]}\n{text}\n  with {values}"


def run_together(seed: int, numbers: list[int], way: str) -> tuple[list[tuple[str, str, str]] | None, str]:
    """Compile and compare graphs as one model in a child process.

    Return (the result of `run_case` for each, ""), or (None, the fault).
    """
    graphs = {f"g{number}_": graph_of(seed, number, way) for number in numbers}
    try:
        problem, host = wrong_output(together(graphs), way)
    except RomouError as error:
        return None, f"{type(error).__name__}: {error}"
    if problem is not None:
        return None, problem
    results = []
    for key, graph in graphs.items():
        own = [name for name in host if key in name]
        results.append((ON_HOST if own else RIGHT, graph.operators(), ", ".join(own)))
    return results, ""


def _run(child: ChildProcess, seed: int, number: int, way: str, keep: Path | None) -> Result:
    started = time.monotonic()
    outcome, operators, detail = TRACEBACK, "", ""
    try:
        outcome, operators, detail = child.call(
            f"fuzz_graphs:{run_case.__name__}", seed, number, way, keep and str(keep), timeout_s=WALL_LIMIT_S
        )
    except ChildBugError as bug:
        detail = str(bug)
    except ChildCrashError as crash:
        outcome, detail = CRASH, str(crash)
    except ChildTimeoutError as timeout:
        outcome, detail = OVER_TIME, str(timeout)
    if not operators:
        operators = graph_of(seed, number, way).operators()
    return Result(number, way, outcome, operators, detail, time.monotonic() - started)


def _run_several(child: ChildProcess, seed: int, numbers: list[int], way: str, keep: Path | None) -> list[Result]:
    """Run graphs as one model, or each alone if that has a fault. One of them gets a fault that none has alone."""
    started = time.monotonic()
    fault = ""
    if len(numbers) > 1:
        try:
            found, fault = child.call(
                f"fuzz_graphs:{run_together.__name__}", seed, numbers, way, timeout_s=WALL_LIMIT_S * len(numbers)
            )
        except (ChildBugError, ChildCrashError, ChildTimeoutError) as error:
            found, fault = None, str(error)
        if found is not None:
            seconds = (time.monotonic() - started) / len(numbers)
            return [
                Result(number, way, outcome, operators, detail, seconds)
                for number, (outcome, operators, detail) in zip(numbers, found, strict=True)
            ]
    alone = [_run(child, seed, number, way, keep) for number in numbers]
    if fault and all(result.outcome in (RIGHT, ON_HOST) for result in alone):
        others = ", ".join(map(str, numbers[1:]))
        alone[0] = replace(alone[0], outcome=WRONG, detail=f"only together with the graphs {others}: {fault}")
    return alone


def fuzz(
    numbers: range,
    *,
    seed: int,
    ways: tuple[str, ...] = USUAL_WAYS,
    jobs: int = 1,
    several: int = SEVERAL,
    keep: Path | None = None,
    verbose: bool = False,
    child: ChildProcess | None = None,
) -> list[Result]:
    """Return the outcome of each graph, each in one of the ways, by `jobs` new processes, or by `child`.

    several: graphs compiled as one model
    """
    of_way = [[number for number in numbers if number % len(ways) == place] for place in range(len(ways))]
    groups = [own[at : at + several] for own in of_way for at in range(0, len(own), several)]

    def run(child: ChildProcess, group: list[int]) -> list[Result]:
        results = _run_several(child, seed, group, ways[group[0] % len(ways)], keep)
        for result in results:
            if verbose and (result.outcome in FAULTS or result.outcome == REFUSED):
                where = f"graph {result.number} ({result.way}), {result.operators}"
                print(f"{where}: {result.outcome}\n{result.detail}\n", flush=True)
        return results

    groups.sort()
    found = in_children("graph", run, groups, jobs=jobs) if child is None else [run(child, group) for group in groups]
    return sorted((result for results in found for result in results), key=lambda result: result.number)


@click.command()
@click.option("--cases", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first graph.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="A new one unless given; it is printed.")
@click.option(
    "--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(USUAL_WAYS), show_default=True
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Child processes at a time.")
@click.option(
    "--several", type=click.IntRange(min=1), default=SEVERAL, show_default=True, help="Graphs compiled as one model."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for wrong graphs and their inputs.",
)
def main(
    cases: int, first: int, seed: int | None, ways: tuple[str, ...], jobs: int, several: int, keep: Path | None
) -> None:
    """Print each graph at fault, and the number of graphs for each outcome."""
    started = time.monotonic()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    print(f"seed {seed}", flush=True)
    results = fuzz(
        range(first, first + cases), seed=seed, ways=ways, jobs=jobs, several=several, keep=keep, verbose=True
    )
    for way in ways:
        counts = Counter(result.outcome for result in results if result.way == way)
        print(f"{way}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    hosted = Counter(
        name.split(" ")[0] for result in results if result.outcome == ON_HOST for name in result.detail.split(", ")
    )
    print("on the host: " + (", ".join(f"{name} {count}" for name, count in hosted.most_common()) or "nothing"))
    print(f"{cases} graphs of seed {seed} in {time.monotonic() - started:.0f} s")
    sys.exit(1 if any(result.outcome in FAULTS for result in results) else 0)


if __name__ == "__main__":
    main()
