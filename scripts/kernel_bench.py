"""Single operators, tuned, against a vendor library on the same GPU: what bench_conv43.py, bench_sgemm.py and bench_alexnet.py share.

Both sides are timed in one run, in turns, by the device's events over many calls; a time is the median of the rounds. CUDA's calls are captured
in a graph where they can be, so that neither side is charged for the Python around it. Romou's kernels take channels packed by four
and weights packed at compile time, as its own graphs hand them on; the vendor's take the layout that it is faster in. The output of every kernel of
Romou in the table is compared with a reference on the CPU in the same run.

Tuning goes on from the records in --work-dir: each call of a script may be as short as --seconds says, and its table is of what was found so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from romou.backends import backend
from romou.core.errors import DeviceError, RomouError, UsageError
from romou.core.space import Config
from romou.frontend.reference import run_onnxruntime
from romou.hardware import HardwareSpec, known_devices, load_device
from romou.measure import LocalBuilder, LocalRunner, MeasureOptions, Toolchain, verify
from romou.measure.run_job import device_tensor
from romou.module.replay import CudaGraph
from romou.records import Origin, RecordStore
from romou.schedules.families.dense import Dense
from romou.schedules.workload import Conv2d
from romou.search import TaskResult, TuningOptions, TuningSession, terminal_progress
from romou.target import Target
from romou.tasks.build import build_reference, build_task
from romou.tasks.operators import task_of
from romou.tasks.tunable import TunableTask
from romou.tir.primitives import LANES

CORES = len(os.sched_getaffinity(0))
# A kernel that takes longer to compile is one of thousands of unrolled lines, and slow.
MEASURE = MeasureOptions(repeat=3, min_repeat_ms=2.0, build_timeout_s=12.0, build_workers=CORES, run_timeout_s=15.0)
# Batches of the search: as many as can be built at a time.
BATCH = max(4, min(16, CORES))
# Milliseconds that one timing takes at least, and what a pause between two records is at most, in seconds, to count as tuning.
TIMING_MS, LONGEST_GAP_S = 5.0, 60.0
WITHIN = 1.05


def memory_bytes(work: Conv2d | Dense) -> int:
    """Inputs read and output written once, without padding."""
    if isinstance(work, Dense):
        numbers = work.m * work.k + work.k * work.n + work.m * work.n
    else:
        (ih, iw), (oh, ow), (kh, kw) = work.in_hw, work.out_hw, work.kernel
        weight = work.out_channels * work.in_channels // work.groups * kh * kw
        numbers = work.batch * (work.in_channels * ih * iw + work.out_channels * oh * ow) + weight
    return numbers * np.dtype(work.dtype).itemsize


# The reference


def fast_reference(task: TunableTask) -> Any:
    """The same sums as `romou.tasks.build.build_reference`, by onnxruntime and NumPy: plain loops take minutes for a layer of AlexNet at batch 128."""
    work = task.template.workload
    if len(task.func.params) != 3 or type(work) not in (Conv2d, Dense) or (isinstance(work, Conv2d) and work.groups > 1):
        return build_reference(task)

    def main(*tensors: tvm.runtime.Tensor) -> None:
        data, weight = (tensor.numpy().astype(np.float32) for tensor in tensors[:2])
        found = data @ weight.reshape(work.k, -1)[:, : work.n] if isinstance(work, Dense) else _convolved(work, data, weight)
        tensors[2].copyfrom(np.ascontiguousarray(found.astype(work.dtype)))

    return {"main": main}


def _convolved(work: Conv2d, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Packed data and weight -> packed output; lanes beyond the channels count like the others, if the weight has them."""
    (n, texels, h, w, _), lanes = data.shape, weight.shape[3]
    plain = data[..., :lanes].transpose(0, 1, 4, 2, 3).reshape(n, texels * lanes, h, w)
    kernel = weight.transpose(4, 5, 0, 3, 1, 2).reshape(work.out_texels * LANES, texels * lanes, *work.kernel)
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=work.stride, pads=work.padding, dilations=work.dilation, kernel_shape=work.kernel)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", plain.shape), ("w", kernel.shape), ("y", None))]
    model = helper.make_model(helper.make_graph([node], "conv", values[:2], values[2:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = run_onnxruntime(model, {"x": plain, "w": kernel})
    assert found is not None, "onnxruntime knows convolutions"
    return found[0].reshape(n, work.out_texels, LANES, *work.out_hw).transpose(0, 1, 3, 4, 2)


# Tuning


def tune(tasks: Sequence[TunableTask], target: Target, index: int, options: Options) -> dict[str, TaskResult]:
    """The best config of every task that the records and --trials, --seconds more give; task key -> result."""
    device = f"{target.kind}:{index}"
    toolchain = Toolchain(build_reference="kernel_bench:fast_reference")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RecordStore(options.work_dir))
        runner = stack.enter_context(contextlib.closing(LocalRunner(device, MEASURE, toolchain=toolchain, folder=options.work_dir / "references")))
        compile_for = None if target.kind == "cuda" or runner.fingerprint().is_host_cpu else device
        builder = stack.enter_context(contextlib.closing(LocalBuilder(target, MEASURE, toolchain=toolchain, compile_for=compile_for)))
        budget = TuningOptions(trials=options.trials, seconds=options.seconds, seed=options.seed, batch_size=BATCH)
        wanted = [task.pruned(target) for task in tasks] if options.is_pruned else list(tasks)
        return TuningSession(wanted, target, store=store, builder=builder, runner=runner, options=budget).run(terminal_progress)


def time_to_tune(work_dir: Path, tasks: Sequence[TunableTask], device: Mapping[str, Any]) -> dict[str, float] | None:
    """Trials and minutes until the sum of the best times was within 5% of what it is at the end; None where a task has no time yet.

    Pauses between two runs do not count.
    """
    keys, origin = {task.key for task in tasks}, Origin.here(dict(device))
    with RecordStore(work_dir) as store:
        records = [record for record in store if record.task_key in keys and origin.refusal(Origin.of(record)) is None]
    best: dict[str, float] = {}
    history: list[tuple[int, float, float]] = []
    seconds, before = 0.0, None
    for trial, record in enumerate(records, 1):
        now = datetime.datetime.fromisoformat(record.time)
        seconds += min((now - before).total_seconds(), LONGEST_GAP_S) if before else 0.0
        before = now
        if record.time_s is not None:
            best[record.task_key] = min(record.time_s, best.get(record.task_key, math.inf))
        if len(best) == len(keys):
            history.append((trial, seconds, sum(best.values())))
    if not history:
        return None
    trial, reached, _ = next(entry for entry in history if entry[2] <= WITHIN * history[-1][2])
    return {"trials": trial, "minutes": reached / 60, "all_trials": len(records), "all_minutes": seconds / 60}


# The vendor's library


class Torch:
    """cuDNN and cuBLAS through PyTorch.

    Raises
    ------
    UsageError
        PyTorch is not installed, or sees no GPU.
    """

    def __init__(self, *, allow_tf32: bool = False) -> None:
        hint = "Install PyTorch with CUDA (pip install torch), or give --no-peer for Romou's times alone."
        try:
            import torch
        except ImportError as error:
            raise UsageError("the vendor's side of the comparison runs through PyTorch, which is not installed", hint=hint) from error
        if not torch.cuda.is_available():
            raise UsageError("the vendor's side of the comparison runs through PyTorch, which sees no NVIDIA GPU", hint=hint)
        self.torch = torch
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32

    @property
    def versions(self) -> str:
        """PyTorch, cuDNN and CUDA."""
        torch = self.torch
        return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"

    def calls(self, work: Conv2d | Dense) -> dict[str, Callable[[], Any]]:
        """Layout -> one call of the operator."""
        torch = self.torch
        dtype = getattr(torch, work.dtype)

        def tensor(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", dtype=dtype)

        if isinstance(work, Dense):
            a, b = tensor(work.m, work.k), tensor(work.k, work.n)
            transposed = b.t().contiguous().t()
            return {"row by row": lambda: torch.mm(a, b), "column by column": lambda: torch.mm(a, transposed)}
        top, left, bottom, right = work.padding
        if (top, left) != (bottom, right):
            raise UsageError(f"{work.name}: PyTorch pads both sides alike", hint="Leave it out, or give --no-peer.")
        x, w = (
            tensor(work.batch, work.in_channels, *work.in_hw),
            tensor(work.out_channels, work.in_channels // work.groups, *work.kernel),
        )
        settings = {"stride": work.stride, "padding": (top, left), "dilation": work.dilation, "groups": work.groups}
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, w)]
        return {
            "NCHW": lambda: torch.nn.functional.conv2d(x, w, **settings),
            "channels_last": lambda: torch.nn.functional.conv2d(*last, **settings),
        }

    def timer(self, call: Callable[[], Any]) -> Callable[[], float]:
        """What gives the seconds of one call, as a mean over as many as take TIMING_MS."""
        torch = self.torch
        for _ in range(3):
            call()  # cuDNN tries its algorithms
        once = self._seconds(call)
        number = max(1, min(1000, math.ceil(TIMING_MS / 1e3 / max(once, 1e-6))))
        run = self._captured(call, number)
        torch.cuda.synchronize()
        return lambda: self._seconds(run) / number

    def _captured(self, call: Callable[[], Any], number: int) -> Callable[[], Any]:
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(number):
                    call()
        except RuntimeError:
            torch.cuda.synchronize()
            return lambda: [call() for _ in range(number)]
        graph.replay()
        return graph.replay  # type: ignore[no-any-return]

    def _seconds(self, run: Callable[[], Any]) -> float:
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


# Romou's side


def romou_timer(task: TunableTask, config: Config, target: Target, device: tvm.runtime.Device) -> tuple[Callable[[], float], verify.Comparison]:
    """(what gives the seconds of one launch, how the output compares with the reference).

    CUDA's launches are captured in a graph where they can be, as the vendor's are: a kernel of a few microseconds takes no longer than its launch.
    """
    module = build_task(task, config, target)
    inputs = verify.make_inputs(task, seed=1)
    poison = verify.poison(*verify.output_spec(task))
    on_cpu = [tvm.runtime.tensor(array) for array in (*inputs, poison)]
    fast_reference(task)["main"](*on_cpu)
    scopes = task.image_scopes(config, target)
    names = [str(parameter.name) for parameter in task.func.params]
    tensors = [device_tensor(array, device, scopes.get(name, "global")) for name, array in zip(names, task.arguments((*inputs, poison), config), strict=True)]
    module["main"](*tensors)
    device.sync()
    compared = verify.compare(tensors[-1].numpy(), on_cpu[-1].numpy(), task.precision(config))
    once = float(module.time_evaluator("main", device, number=1, repeat=1)(*tensors).results[0])
    number = max(1, min(1000, math.ceil(TIMING_MS / 1e3 / max(once, 1e-6))))
    if target.kind == "cuda":
        tensors[-1].copyfrom(poison)
        with contextlib.suppress(DeviceError):
            graph = CudaGraph(device, None, lambda: [module["main"](*tensors) for _ in range(number)])
            graph.time_ms()
            # What was not captured is not timed either.
            replayed = verify.compare(tensors[-1].numpy(), on_cpu[-1].numpy(), task.precision(config))
            # The graph itself keeps neither the kernels nor what they read and write.
            return (lambda _used=(module, tensors): graph.time_ms() / 1e3 / number), compared if compared.problem else replayed
    timed = module.time_evaluator("main", device, number=number, repeat=1)
    return (lambda: float(timed(*tensors).results[0])), compared


# One table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the scripts are given on their command lines."""

    target: str
    trials: int
    seconds: float | None
    work_dir: Path
    dtype: str
    rounds: int
    only: str
    has_peer: bool
    is_pruned: bool
    allows_tf32: bool
    seed: int
    output: Path | None


def command(function: Callable[..., None]) -> click.Command:
    """A click command with the options that all three scripts have beside its own; a RomouError ends it with one message."""

    @functools.wraps(function)
    def run(no_peer: bool, no_prune: bool, **values: Any) -> None:
        own = {name: values.pop(name) for name in list(values) if name not in {field.name for field in dataclasses.fields(Options)}}
        try:
            function(Options(has_peer=not no_peer, is_pruned=not no_prune, **values), **own)
        except RomouError as error:
            raise SystemExit(f"{error}") from error

    options = [
        click.option("--target", default="opencl", show_default=True, help="opencl or cuda, also with -device=."),
        click.option("--trials", type=click.IntRange(min=0), default=2000, show_default=True, help="Over all operators, those in the records included."),
        click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Limit of the search in this call; the table comes on top."),
        click.option("--work-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("bench_records"), show_default=True, help="Of the records."),
        click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True),
        click.option("--tf32", "allows_tf32", is_flag=True, help="Both sides may multiply floats in TF32, on tensor cores."),
        click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Timings of each side, in turns."),
        click.option("--only", default="", help="Operators whose name contains one of these, with commas."),
        click.option("--no-peer", is_flag=True, help="Romou's side alone; PyTorch is not needed."),
        click.option("--no-prune", is_flag=True, help="Search the whole spaces."),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
        click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here, operator by operator."),
    ]
    for option in reversed(options):
        run = option(run)
    return click.command()(run)


def compare(works: Sequence[Conv2d | Dense], options: Options) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tune, then time both sides; (a row of numbers for each operator, what they were measured on).

    us: Romou's time. peer_us: of the faster of the vendor's `layouts`. ratio: peer_us / us. roofline: the least time that the device's peak rate
    or bandwidth allows, over us; None where they are not known. peak: share of the device's peak rate. problem: where the output is wrong.
    """
    peer = Torch(allow_tf32=options.allows_tf32) if options.has_peer else None
    asked = Target(options.target).allowing_tf32() if options.allows_tf32 else Target(options.target)
    index = int(backend(asked.kind).device_index(asked.device_name))
    facts = backend(asked.kind).list_devices()[index]
    target, device = asked.limited_to(facts), tvm.device(asked.kind, index)
    wanted = [word for word in options.only.split(",") if word]
    tasks = {work: task_of(work, has_epilogue=False) for work in works if not wanted or any(word in work.name for word in wanted)}
    if not tasks:
        raise UsageError(f"no operator's name contains {options.only!r}", hint=f"The names: {', '.join(w.name for w in works)}.")
    clocks = [gpu_clocks()]
    results = tune(list(tasks.values()), target, index, options)
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
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "clocks": clocks,
    }
    rows: list[dict[str, Any]] = []
    for work, task in tasks.items():
        rows.append(_row(work, task, results[task.key], target, device, peer, spec, options.rounds))
        clocks.append(gpu_clocks())
        if options.output is not None:
            options.output.write_text(json.dumps({**head, "rows": rows}, indent=1), encoding="utf-8")
    return rows, head


def _fingerprint(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, **{key: str(facts[key]) for key in ("name", "driver", "platform")}, "is_host_cpu": facts["type"] == "cpu"}


def _row(
    work: Conv2d | Dense,
    task: TunableTask,
    result: TaskResult,
    target: Target,
    device: tvm.runtime.Device,
    peer: Torch | None,
    spec: HardwareSpec | None,
    rounds: int,
) -> dict[str, Any]:
    if result.config is None:
        raise DeviceError(f"{task.name}: none of {result.trials} configs worked: {result.outcomes}", hint="The records in --work-dir say why.")
    ours, compared = romou_timer(task, result.config, target, device)
    timers = {"romou": ours} | ({layout: peer.timer(call) for layout, call in peer.calls(work).items()} if peer else {})
    times: dict[str, list[float]] = {side: [] for side in timers}
    for _ in range(rounds):
        for side, timer in timers.items():
            times[side].append(timer())
    seconds = {side: statistics.median(found) for side, found in times.items()}
    ours_s = seconds.pop("romou")
    layout = min(seconds, key=lambda side: seconds[side], default=None)
    row: dict[str, Any] = {
        "name": work.name,
        "flops": work.flops,
        "bytes": memory_bytes(work),
        "us": ours_s * 1e6,
        "peer_us": seconds[layout] * 1e6 if layout else None,
        "layout": layout,
        "ratio": seconds[layout] / ours_s if layout else None,
        "peer_all_us": {side: s * 1e6 for side, s in seconds.items()},
        "trials": result.trials,
        "outcomes": result.outcomes,
        "config": dict(result.config),
        "relative_l2_error": compared.relative_l2_error,
        "problem": compared.problem,
        "times_us": {side: [s * 1e6 for s in found] for side, found in times.items()},
    }
    peak, bandwidth = (spec.fp32_peak_gflops, spec.dram_bandwidth_gbps) if spec else (None, None)
    # Half precision's peak is of other units than these kernels use.
    row["peak"] = work.flops / ours_s / peak / 1e9 if peak else None
    row["peer_peak"] = work.flops / seconds[layout] / peak / 1e9 if peak and layout else None
    row["roofline"] = max(work.flops / peak, row["bytes"] / bandwidth) / 1e9 / ours_s if peak and bandwidth else None
    row["bound"] = ("compute" if work.flops / peak >= row["bytes"] / bandwidth else "memory") if peak and bandwidth else None
    return row


def facts_for_roofline(target: Target, facts: Mapping[str, Any]) -> HardwareSpec | None:
    """Peak rate and bandwidth: of the target's device, else of the device file that has the attached one's name."""
    named = (load_device(name) for name in known_devices())
    return next((spec for spec in (target.spec, *named) if spec.fp32_peak_gflops and spec.title in (target.spec.title, facts["name"])), None)


def gpu_clocks() -> str:
    """Clocks, temperature and power as nvidia-smi tells them, or that it does not."""
    query = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"
    try:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        command = ["nvidia-smi", f"--id={first}", f"--query-gpu={query}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not known: nvidia-smi does not answer"
    return f"SM, memory, highest SM, temperature, power: {done.stdout.strip().splitlines()[0]}"


def configs_text(config: Mapping[str, Any]) -> str:
    """The knobs that tell configs apart, in one word each."""
    tile, group = ("x".join(str(config[k]) for k in keys) for keys in (("tile_o", "tile_h", "tile_w"), ("wg_o", "wg_w")))
    rest = [f"{k}={config[k]}" for k in ("split_k", "local", "steps") if config.get(k) not in (0, 1, None)]
    known = ("tile_o", "tile_h", "tile_w", "wg_o", "wg_w", "split_k", "local", "steps", "autobroadcast", "multiply_add", "accumulate")
    words = [str(v) for k, v in config.items() if k not in known and v not in ("buffer", "lanes", 4)]
    words += [word for word in ("mma", "tf32") if config.get("multiply_add") == word]
    return " ".join([f"tile {tile} group {group}", *rest, *words])


def print_table(rows: Sequence[Mapping[str, Any]], head: Mapping[str, Any], title: str, library: str) -> None:
    """One line an operator, then the means; configs and layouts stand at the end of a line."""
    out = Console(width=200)
    device = head["device"]
    table = Table(title=f"{title}, {head['dtype']}, {device['name']} ({device['platform']}, driver {device['driver']}), {head['target']}")
    table.add_column("operator", no_wrap=True)
    for column in (f"{library} us", "Romou us", "ratio", "of peak", f"{library} of peak", "roofline", "bound", "trials", "error"):
        table.add_column(column, justify="right")
    table.add_column("config")
    for row in rows:
        cells = [_text(row["peer_us"], ".1f"), _text(row["us"], ".1f"), _text(row["ratio"], ".2f", "x")]
        cells += [_text(row[key], ".0%") for key in ("peak", "peer_peak", "roofline")]
        cells += [row["bound"] or "-", str(row["trials"]), "WRONG" if row["problem"] else _text(row["relative_l2_error"], ".0e")]
        table.add_row(row["name"], *cells, f"{configs_text(row['config'])}{' | ' + row['layout'] if row['layout'] else ''}")
    out.print(table)
    for line in summary_lines(rows, head, library):
        out.print(line, markup=False, highlight=False)


def summary_lines(rows: Sequence[Mapping[str, Any]], head: Mapping[str, Any], library: str) -> Iterator[str]:
    """Means, totals, what tuning took, clocks."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    yield f"Romou: {sum(row['us'] for row in rows):.1f} us in all"
    if ratios:
        slow = [row["name"] for row in rows if row["ratio"] is not None and row["ratio"] < 0.8]
        yield f"{library}: {sum(row['peer_us'] for row in rows):.1f} us in all ({head['peer']})"
        below = f"{len(slow)} of {len(ratios)} below 0.8x" + (f": {', '.join(slow)}" if slow else "")
        yield f"{library} / Romou: geometric mean {statistics.geometric_mean(ratios):.3f}x; {below}"
    lowest = sorted((row for row in rows if row["roofline"] is not None), key=lambda row: row["roofline"])[:3]
    if lowest:
        text = ", ".join(f"{row['name']} {row['roofline']:.0%} ({row['bound']})" for row in lowest)
        yield f"Slowest relative to the roofline of {head['peak_gflops']:.0f} GFLOPS and {head['bandwidth_gbps']:.0f} GB/s: {text}"
    tuning = head["tuning"]
    if tuning:
        found = f"{tuning['trials']:.0f} trials and {tuning['minutes']:.1f} minutes"
        yield f"Within 5% of the final total after {found}, of {tuning['all_trials']:.0f} and {tuning['all_minutes']:.1f}"
    yield f"GPU before: {head['clocks'][0]}"
    yield f"GPU after:  {head['clocks'][-1]}"


def is_right(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every output agrees with its reference."""
    return not any(row["problem"] for row in rows)


def _text(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
