"""Compares single tuned operators with a vendor library on the same GPU: cuDNN or cuBLAS, through PyTorch.

    python benchmarks/kernel_bench.py conv43 --target "cuda -device=nvidia_h200" --trials 4000 --seconds 480 --work-dir records_cuda
    python benchmarks/kernel_bench.py sgemm --target "cuda -device=nvidia_h200" --tf32 --work-dir records_cuda --json sgemm.json
    python benchmarks/kernel_bench.py alexnet --target opencl --batch 1 --trials 10 --no-peer            without an NVIDIA GPU: only Romou's kernels

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm

from kernel_references import FOLDER, prepare_references, reference_of
from kernel_table import print_table
from operator_lists import alexnet, boda_layers, conv43, paper_operators, square_products
from romou.base.clock import Deadline, timestamp
from romou.base.errors import DeviceError, RomouError, UsageError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.costs.pretrained import pretrained_for
from romou.compiler.operators.families.conv2d_backward_filter import Conv2dBackwardFilter, training_passes
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask, by_keys
from romou.devices.backends.cuda.graph import CudaGraph
from romou.devices.hardware import HardwareSpec, known_devices, load_device
from romou.devices.targets import Target
from romou.tuner.measure import LocalBuilder, LocalRunner, MeasureOptions, Toolchain, verify
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import Origin, RecordStore
from romou.tuner.search import PriorKnowledge, SessionHooks, TaskResult, TuningOptions, TuningSession, progress_of
from torch_peer import Torch, gpu_clocks, repeats_of
from tvm_patches.runtime import device_tensor
from tvm_peer import Tvm

CORES = len(os.sched_getaffinity(0))
# A kernel that takes longer to compile has thousands of unrolled lines, and is slow.
MEASURE = MeasureOptions(repeat=3, min_repeat_ms=2.0, build_timeout_s=12.0, build_workers=CORES, run_timeout_s=15.0)
# The seed of the table's inputs, which differ from the search's inputs.
OTHER_SEED = 1
# Batch size of the search: the number of candidates that can be built at a time.
BATCH = max(4, min(16, CORES))
# A longer pause between two records does not count as tuning.
LONGEST_GAP_S = 60.0
WITHIN = 1.05


def memory_bytes(work: Conv2d | Dense) -> int:
    """Count the bytes of inputs and output, each moved once, without padding."""
    if isinstance(work, Dense):
        elements = work.m * work.k + work.k * work.n + work.m * work.n
    else:
        (ih, iw), (oh, ow), (kh, kw) = work.in_hw, work.out_hw, work.kernel
        weight = work.out_channels * work.in_channels // work.groups * kh * kw
        elements = work.batch * (work.in_channels * ih * iw + work.out_channels * oh * ow) + weight
    return elements * np.dtype(work.dtype).itemsize


# Tuning


def tune(tasks: Sequence[TunableTask], target: Target, index: int, options: Options) -> dict[str, TaskResult]:
    """Tune within --trials and --seconds, the records included. Return the best result of every task by its key."""
    device = f"{target.kind}:{index}"
    toolchain = Toolchain(build_reference="kernel_references:fast_reference")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RecordStore(options.work_dir))
        runner = stack.enter_context(
            contextlib.closing(LocalRunner(device, MEASURE, toolchain=toolchain, folder=options.work_dir / FOLDER))
        )
        compile_for = None if target.kind == "cuda" or runner.fingerprint().is_host_cpu else device
        builder = stack.enter_context(
            contextlib.closing(LocalBuilder(target, MEASURE, toolchain=toolchain, compile_for=compile_for))
        )
        budget = TuningOptions(trials=options.trials, seed=options.seed, batch_size=BATCH)
        wanted = [pruned_task(task, target) for task in tasks] if options.is_pruned else list(tasks)
        pretrained = pretrained_for(target)
        return TuningSession(
            wanted,
            target,
            store=store,
            builder=builder,
            runner=runner,
            options=budget,
            prior=PriorKnowledge(pretrained=pretrained),
            hooks=SessionHooks(stop_at=Deadline(options.seconds).before(0)),
        ).run(lambda: progress_of(True))


def time_to_tune(work_dir: Path, tasks: Sequence[TunableTask], device: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the trials and minutes until the sum of the best times came within 5% of its final value.

    None if a task has no time yet.

    Pauses between two runs do not count.
    """
    known, origin = by_keys(tasks), Origin.here(dict(device))
    keys = {task.key for task in tasks}
    with RecordStore(work_dir) as store:
        records = [record for record in store if record.task_key in known and origin.refusal(Origin.of(record)) is None]
    best: dict[str, float] = {}
    history: list[tuple[int, float, float]] = []
    seconds, before = 0.0, None
    for trial, record in enumerate(records, 1):
        now = datetime.datetime.fromisoformat(record.time)
        seconds += min((now - before).total_seconds(), LONGEST_GAP_S) if before else 0.0
        before = now
        if record.time_s is not None:
            key = known[record.task_key].key
            best[key] = min(record.time_s, best.get(key, math.inf))
        if len(best) == len(keys):
            history.append((trial, seconds, sum(best.values())))
    if not history:
        return None
    trial, reached, _ = next(entry for entry in history if entry[2] <= WITHIN * history[-1][2])
    return {"trials": trial, "minutes": reached / 60, "all_trials": len(records), "all_minutes": seconds / 60}


# Romou's side


def romou_timer(
    task: TunableTask, config: Config, target: Target, device: tvm.runtime.Device, folder: Path
) -> tuple[Callable[[], float], verify.Comparison]:
    """Return (a function that times one launch in seconds, the comparison of the output with the reference).

    CUDA's launches are captured in a graph if possible, as the vendor's are: a kernel of a few microseconds takes no
    longer than its launch.
    """
    module = build_task(task, config, target)
    inputs, expected = verify.load_reference(reference_of(task, folder, OTHER_SEED))
    poison = verify.poison(*verify.output_spec(task))
    scopes = task.image_scopes(config, target)
    names = [str(parameter.name) for parameter in task.func.params]
    tensors = [
        device_tensor(array, device, scopes.get(name, "global"))
        for name, array in zip(names, task.arguments((*inputs, poison), config), strict=True)
    ]
    module["main"](*tensors)
    device.sync()
    compared = verify.compare(tensors[-1].numpy(), expected, task.precision(config))
    number = repeats_of(float(module.time_evaluator("main", device, number=1, repeat=1)(*tensors).results[0]))
    if target.kind == "cuda":

        def launch() -> None:
            for _ in range(number):
                module["main"](*tensors)

        tensors[-1].copyfrom(poison)
        with contextlib.suppress(DeviceError):
            graph = CudaGraph(device, None, launch)
            graph.time_ms()
            # Work that was not captured would not be timed, so the captured graph's output is checked as well.
            captured = verify.compare(tensors[-1].numpy(), expected, task.precision(config))
            # The graph does not keep its kernels and tensors alive, so the function holds references to them.
            return (lambda _used=(module, tensors): graph.time_ms() / 1e3 / number), (
                compared if compared.problem else captured
            )
    timed = module.time_evaluator("main", device, number=number, repeat=1)
    return (lambda: float(timed(*tensors).results[0])), compared


def initial_timer(
    task: TunableTask, tuned: Config, target: Target, device: tvm.runtime.Device, folder: Path
) -> dict[str, Callable[[], float]]:
    """Return the timer of the default config, by its name. Empty if it is the tuned one, or if it does not run."""
    default = task.default_config(target)
    if dict(default) == dict(tuned):
        return {}
    try:
        timer, compared = romou_timer(task, default, target, device, folder)
    except (RomouError, RuntimeError):
        return {}
    return {} if compared.problem else {"initial": timer}


# One table


def peer_of(options: Options, target: Target, device: tvm.runtime.Device) -> Torch | Tvm | None:
    """Return the side that Romou is compared with. None if there is none."""
    if not options.has_peer:
        return None
    if options.peer == "torch":
        return Torch(allow_tf32=options.allows_tf32)
    return Tvm(target, device, options.peer_trials if options.peer == "metaschedule" else 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line."""

    target: str
    trials: int
    seconds: float | None
    work_dir: Path
    dtype: str
    batch: int
    rounds: int
    only: str
    peer: str
    peer_trials: int = 64
    has_peer: bool
    is_pruned: bool
    allows_tf32: bool
    seed: int
    output: Path | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """The operators to compare. `{count}` in the title is the number of chosen operators.

    is_training: whether weights change from call to call, so that packing and transforming them counts
    """

    title: str
    library: str
    works: Callable[[Options], Sequence[Conv2d | Dense]]
    is_training: bool = False


SUITES = {
    "conv43": Suite(
        title="{count} of 43 convolutions, batch 5", library="cuDNN", works=lambda options: conv43(options.dtype)
    ),
    "conv180": Suite(
        title="{count} of 183 convolutions of AlexNet, NiN and GoogLeNet, batch 1, 5 and 20",
        library="cuDNN",
        works=lambda options: boda_layers(options.dtype),
    ),
    "paper20": Suite(
        title="{count} of 20 convolutions of phone networks, batch 1",
        library="cuDNN",
        works=lambda options: paper_operators(options.dtype, "paper_ops_sample.csv"),
    ),
    "paper97": Suite(
        title="{count} of 97 operators of the Romou paper's networks, batch 1",
        library="cuDNN",
        works=lambda options: paper_operators(options.dtype),
    ),
    "sgemm": Suite(
        title="square matrix products", library="cuBLAS", works=lambda options: square_products(options.dtype)
    ),
    "alexnet": Suite(
        title="AlexNet's convolutions", library="cuDNN", works=lambda options: alexnet(options.batch, options.dtype)
    ),
    "training": Suite(
        title="AlexNet's convolutions, forward, backward by input and by filter",
        library="cuDNN",
        works=lambda options: [
            work for layer in alexnet(options.batch, options.dtype) for work in training_passes(layer)
        ],
        is_training=True,
    ),
}


def compare(
    works: Sequence[Conv2d | Dense], options: Options, *, is_training: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tune, then time both sides. Return (a row of numbers for each operator, the facts of the measurement).

    us: Romou's time
    peer_us: the time of the vendor's faster layout
    ratio: peer_us / us
    peak: share of the device's peak rate
    problem: the reason why the output is wrong
    roofline: the least time by the device's peak rate and bandwidth, over us. None if they are not known.
    """
    asked = Target(options.target).with_options(tf32="allow") if options.allows_tf32 else Target(options.target)
    index = asked.backend.device_index(asked.device_name)
    facts = asked.backend.facts(index)
    target, device = asked.limited_to(facts), asked.backend.device(index)
    peer = peer_of(options, target, device)
    wanted = [word for word in options.only.split(",") if word]
    every = {work: task_of(work, has_epilogue=False, is_weight_computed=is_training) for work in works}
    tasks = {work: task for work, task in every.items() if not wanted or any(word in task.name for word in wanted)}
    if not tasks:
        raise UsageError(
            f"no operator's name contains {options.only!r}",
            hint=f"The names: {', '.join(task.name for task in every.values())}.",
        )
    if is_training:
        prepare_references(list(tasks.values()), options.work_dir, (MEASURE.seed, OTHER_SEED))
    clocks = [gpu_clocks()]
    results = tune(list(tasks.values()), target, index, options)
    asked.backend.hold_clocks(index)
    spec = facts_for_roofline(target, facts)
    head = {
        "device": {key: facts[key] for key in ("name", "platform", "driver")},
        "target": str(asked),
        "dtype": options.dtype,
        "peer": peer.versions if peer else None,
        "peak_gflops": spec.fp32_peak_gflops if spec else None,
        "bandwidth_gbps": spec.dram_bandwidth_gbps if spec else None,
        "tuning": time_to_tune(options.work_dir, list(tasks.values()), _fingerprint(asked.kind, facts)),
        "rounds": options.rounds,
        "time": timestamp(),
        "clocks": clocks,
    }
    rows: list[dict[str, Any]] = []
    for work, task in tasks.items():
        row = _row(work, task, results[task.key], target, device, peer, spec, options.rounds, options.work_dir)
        if is_training:
            row |= {"name": task.name, "paper": share_in_paper(work, works)}
        rows.append(row)
        clocks.append(gpu_clocks())
        if options.output is not None:
            options.output.write_text(json.dumps({**head, "rows": rows}, indent=1), encoding="utf-8")
    return rows, head


# GFLOPS of the kernels of BEAST's paper on an AMD Fury X, with a peak of 8602, in each layer of AlexNet at batch 128
# (its table 2).
PAPER: dict[type, tuple[float | None, ...]] = {
    Conv2d: (4972.0, 5511.2, 5493.5, 5018.7, 4983.2),
    Conv2dTranspose: (None, 4795.5, 4936.4, 4878.5, 4964.6),
    Conv2dBackwardFilter: (4161.5, 2174.9, 3444.5, 3658.4, 3069.7),
}
PAPER_PEAK_GFLOPS = 8602.0


def share_in_paper(work: Conv2d | Dense, works: Sequence[Conv2d | Dense]) -> float | None:
    """Return the share of its peak that the paper reached in the same pass of the same layer.

    None unless `works` lists all layers of that pass. The paper's layers are also without the two towers.
    """
    same = [other for other in works if type(other) is type(work)]
    share = PAPER[type(work)][same.index(work)] if len(same) == len(PAPER[Conv2d]) else None
    return None if share is None else share / PAPER_PEAK_GFLOPS


def _fingerprint(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        **{key: str(facts[key]) for key in ("name", "driver", "platform")},
        "is_host_cpu": facts["type"] == "cpu",
    }


def _row(
    work: Conv2d | Dense,
    task: TunableTask,
    result: TaskResult,
    target: Target,
    device: tvm.runtime.Device,
    peer: Torch | Tvm | None,
    spec: HardwareSpec | None,
    rounds: int,
    folder: Path,
) -> dict[str, Any]:
    if result.config is None:
        raise DeviceError(
            f"{task.name}: none of {result.trials} configs worked: {result.outcomes}",
            hint="The records in --work-dir say why.",
        )
    ours, compared = romou_timer(task, result.config, target, device, folder)
    timers = (
        {"romou": ours}
        | initial_timer(task, result.config, target, device, folder)
        | ({layout: peer.timer(call) for layout, call in peer.calls(work).items()} if peer else {})
    )
    times: dict[str, list[float]] = {side: [] for side in timers}
    for _ in range(rounds):
        for side, timer in timers.items():
            times[side].append(timer())
    seconds = {side: statistics.median(side_times) for side, side_times in times.items()}
    ours_s = seconds.pop("romou")
    # Without a search, this is the kernel. If it cannot run there is none.
    initial_s = ours_s if dict(result.config) == dict(task.default_config(target)) else seconds.pop("initial", None)
    layout = min(seconds, key=lambda side: seconds[side], default=None)
    row: dict[str, Any] = {
        "name": work.name,
        "flops": work.flops,
        "bytes": memory_bytes(work),
        "us": ours_s * 1e6,
        "initial_us": None if initial_s is None else initial_s * 1e6,
        "peer_us": seconds[layout] * 1e6 if layout else None,
        "layout": layout,
        "ratio": seconds[layout] / ours_s if layout else None,
        "peer_all_us": {side: s * 1e6 for side, s in seconds.items()},
        "trials": result.trials,
        "outcomes": result.outcomes,
        "config": dict(result.config),
        "relative_l2_error": compared.relative_l2_error,
        "problem": compared.problem,
        "times_us": {side: [s * 1e6 for s in side_times] for side, side_times in times.items()},
    }
    peak, bandwidth = (spec.fp32_peak_gflops, spec.dram_bandwidth_gbps) if spec else (None, None)
    # These kernels do not use the units that give fp16 its peak rate.
    row["peak"] = work.flops / ours_s / peak / 1e9 if peak else None
    row["peer_peak"] = work.flops / seconds[layout] / peak / 1e9 if peak and layout else None
    row["roofline"] = max(work.flops / peak, row["bytes"] / bandwidth) / 1e9 / ours_s if peak and bandwidth else None
    row["bound"] = (
        ("compute" if work.flops / peak >= row["bytes"] / bandwidth else "memory") if peak and bandwidth else None
    )
    return row


def facts_for_roofline(target: Target, facts: Mapping[str, Any]) -> HardwareSpec | None:
    """Find peak rate and bandwidth in the target's device file, else in the file with the attached device's name."""
    named = (load_device(name) for name in known_devices())
    return next(
        (
            spec
            for spec in (target.spec, *named)
            if spec.fp32_peak_gflops and spec.title in (target.spec.title, facts["name"])
        ),
        None,
    )


@click.command()
@click.argument("suite", type=click.Choice(list(SUITES)))
@click.option("--target", default="opencl", show_default=True, help="opencl, cuda or vulkan, also with -device=.")
@click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=2000,
    show_default=True,
    help="Over all operators, those in the records included.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Limit of the search in this call; the table comes on top.",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench_records"),
    show_default=True,
    help="Their folder.",
)
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=128, show_default=True, help="Of AlexNet's layers.")
@click.option("--tf32", "allows_tf32", is_flag=True, help="Both sides may multiply floats in TF32, on tensor cores.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Timings of each side, alternately."
)
@click.option("--only", default="", help="Operators whose name contains one of these, with commas.")
@click.option(
    "--peer",
    type=click.Choice(["torch", "tvm", "metaschedule"]),
    default="torch",
    show_default=True,
    help="cuDNN and cuBLAS through PyTorch, or on the same device TVM's default schedules, or those it finds.",
)
@click.option("--peer-trials", type=click.IntRange(min=1), default=64, show_default=True, help="MetaSchedule's, each.")
@click.option(
    "--no-peer",
    "has_peer",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Romou's side alone; PyTorch is not needed.",
)
@click.option("--no-prune", "is_pruned", is_flag=True, flag_value=False, default=True, help="Search the whole spaces.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    default=None,
    help="Also write every number here, operator by operator.",
)
def main(suite: str, **values: Any) -> None:
    """Print the table of a suite. The exit code is 1 if an output is wrong."""
    options, chosen = Options(**values), SUITES[suite]
    try:
        rows, head = compare(chosen.works(options), options, is_training=chosen.is_training)
    except RomouError as error:
        raise SystemExit(f"{error}") from error
    library = "TVM" if options.peer == "tvm" else chosen.library
    print_table(rows, head, chosen.title.format(count=len(rows)), library)
    raise SystemExit(1 if any(row["problem"] for row in rows) else 0)


if __name__ == "__main__":
    main()
