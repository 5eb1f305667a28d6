#!/usr/bin/env python3
"""Compares tuned models with their peers in one run.

The peers are TVM's default GPU schedules (dlight), TVM's MetaSchedule, PyTorch, eager and compiled, and onnxruntime on
this machine's processor.

    python benchmarks/bench_models.py                                        resnet18 and mobilenetv1_100 against dlight on the first OpenCL device
    python benchmarks/bench_models.py --models all --trials 200 --target "opencl -device=host" --json result.json
    python benchmarks/bench_models.py --target "cuda -device=nvidia_h200" --peers dlight,metaschedule,eager,compiled --work-dir records_cuda
    python benchmarks/bench_models.py --target cuda --models all --peers all --trials 64 --seconds 15 --budget 500        the models that 500 seconds allow
    python benchmarks/bench_models.py --target cuda --models all --precision float16 --peers fp32,compiled       fp16 against fp32, and PyTorch's fp16
    python benchmarks/bench_models.py --target cuda --models detector,esrgan,denoiser,swin --peers compiled --trials 128          networks of torch_networks.py

    python benchmarks/bench_models.py --target cuda --models lstm_128,gru_128,lstm_512,gru_512,demucs --trials 0 --peers captured,compiled          recurrent layers
    python benchmarks/bench_models.py --target "opencl -device=host" --models dgcnn,demucs,svtr,tabnet,t5 --trials 0 --peers onnxruntime     of onnx_networks.py

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import click
import numpy as np
import onnx
import onnxruntime
import tvm
from rich.console import Console

import romou
from onnx_networks import NETWORKS
from romou import models
from romou.base.errors import RomouError, UsageError, unknown_name
from romou.base.inputs import random_inputs
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.precision import TOLERANCE, Precision
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.importing import import_onnx
from romou.runtime.module import BuiltModel, Summary, TunedModel
from romou.runtime.module.timed import ratio
from romou.tools.report.table import number, table_of_numbers
from torch_peer import Torch, gpu_clocks
from tvm_search import searched

DEFAULT_MODELS = "resnet18,mobilenetv1_100"


class Timed(Protocol):
    """A side that can be timed in the same way as a tuned model."""

    def times(self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device") -> list[float]:
        """Return the milliseconds of `repeat` runs."""


@dataclass(frozen=True)
class Effort:
    """The limits of a search: `trials` over all tasks, and `seconds`. None is no limit."""

    trials: int
    seconds: float | None


def as_model(executable: Any, imported: ImportedModel, target: romou.Target, index: int) -> TunedModel:
    """Wrap an executable of TVM's as a model that runs and is timed like ours."""
    summary = Summary.unmeasured(target=str(target), rows=(), seconds=0.0)
    built = BuiltModel(executable=executable, target=target, inputs=imported.inputs, outputs=imported.outputs)
    return TunedModel(built, summary, device_index=index, capture=False)


def dlight(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TunedModel:
    """Compile the graph by TVM's default pipeline, with dlight's schedules. Only the runtime is Romou's."""
    return as_model(tvm.compile(imported.mod, target=target.tvm_target), imported, target, index)


def metaschedule(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TunedModel:
    """Tune the graph by TVM's MetaSchedule. A function without a result keeps dlight's schedule."""
    tuned = searched(imported.mod, target, effort.trials)
    return as_model(tvm.compile(tuned, target=target.anonymous_tvm_target), imported, target, index)


def fp32(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TunedModel:
    """Tune the network in fp32, with the same effort, to be compared with another precision."""
    return romou.tune(onnx_model(name), target=target, trials=effort.trials, seconds=effort.seconds)


class TorchModel:
    """A network that PyTorch runs on the GPU."""

    def __init__(self, run: Callable[[], Any], peer: Torch) -> None:
        self.run, self.peer = run, peer

    def times(self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device") -> list[float]:
        """Return the same times as `TunedModel.times`, after one warm-up."""
        self.run()
        self.peer.torch.cuda.synchronize()
        return [self._wall_ms() if clock == "wall" else 1e3 * self.peer.seconds(self.run) for _ in range(repeat)]

    def _wall_ms(self) -> float:
        start = time.perf_counter()
        self.run()
        self.peer.torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)


# Networks of torch_networks.py. PyTorch is imported only if one of them is requested.
RECURRENT = tuple(f"{layer}_{units}" for layer in ("lstm", "gru") for units in (64, 128, 512))
EXPORTED = ("detector", "esrgan", "denoiser", "swin", "vit", "speech", "decoder_2layer", *RECURRENT)


@functools.cache
def onnx_model(name: str) -> onnx.ModelProto:
    """Return a bundled network, one of onnx_networks.py, or one that PyTorch exports."""
    if name in NETWORKS:
        return NETWORKS[name]()
    if name not in EXPORTED:
        return models.load(name)
    from torch_networks import exported

    return exported(name)


def torch_network(name: str) -> Any:
    """Build the network from the Python package that defines it."""
    if name in (*EXPORTED, "demucs"):
        from torch_networks import network

        return network(name)
    try:
        if name == "bert_2layer":
            from transformers import BertConfig, BertModel

            return BertModel(BertConfig(num_hidden_layers=2))
        if name == "mobilenetv1_100":
            import timm

            return timm.create_model(name)
        from torchvision import models as vision
    except ImportError as error:
        raise UsageError(
            f"PyTorch's side of {name} needs the package {error.name}, which is not installed",
            hint="Or leave eager and compiled out.",
        ) from error
    settings = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(vision, name)(weights=None, **settings)


def through_torch(name: str, imported: ImportedModel, *, is_compiled: bool) -> TorchModel:
    """Prepare a network and warm it up, until cuDNN has chosen its algorithms and torch.compile is done."""
    peer = Torch()
    torch = peer.torch
    network = torch_network(name).eval().cuda()
    inputs = [torch.from_numpy(array).cuda() for array in random_inputs(imported.inputs, seed=1).values()]
    if imported.precision.kind != "float32":
        network, inputs = network.half(), [tensor.half() if tensor.is_floating_point() else tensor for tensor in inputs]
    called = torch.compile(network, mode="reduce-overhead") if is_compiled else network

    def run() -> Any:
        with torch.inference_mode():
            output = called(*inputs)
            return getattr(output, "last_hidden_state", output)

    for _ in range(3):
        sizes = tuple(run().shape)
    assert imported.onnx_model is not None
    wanted = run_onnxruntime(imported.onnx_model, random_inputs(imported.inputs, seed=1))
    if wanted is not None and int(np.prod(sizes)) != wanted[0].size:
        raise UsageError(
            f"PyTorch's {name} gives {sizes}, the bundled one {wanted[0].shape}: they are not the same network"
        )
    return TorchModel(run, peer)


def eager(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TorchModel:
    """Prepare PyTorch in eager mode."""
    return through_torch(name, imported, is_compiled=False)


def captured(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TorchModel:
    """Prepare PyTorch in eager mode as a CUDA graph: cuDNN's kernels without launches by the host."""
    model = through_torch(name, imported, is_compiled=False)
    return TorchModel(model.peer.captured(model.run), model.peer)


def compiled(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> TorchModel:
    """Prepare torch.compile with CUDA graphs."""
    return through_torch(name, imported, is_compiled=True)


@dataclass
class OnnxruntimeModel:
    """A network that onnxruntime runs on this machine's processor, with its own number of threads."""

    session: onnxruntime.InferenceSession
    feeds: dict[str, np.ndarray]

    def times(self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device") -> list[float]:
        """Return the milliseconds of `repeat` runs by the host's clock, which is the only one there is."""

        def run_ms() -> float:
            start = time.perf_counter()
            self.session.run(None, self.feeds)
            return 1e3 * (time.perf_counter() - start)

        run_ms()
        return [run_ms() for _ in range(repeat)]


def onnxruntime_cpu(name: str, imported: ImportedModel, target: romou.Target, index: int, effort: Effort) -> Timed:
    """Prepare onnxruntime's CPU provider."""
    session = onnxruntime.InferenceSession(onnx_model(name).SerializeToString(), providers=["CPUExecutionProvider"])
    return OnnxruntimeModel(session, random_inputs(imported.inputs, seed=1))


PEERS: dict[str, Callable[[str, ImportedModel, romou.Target, int, Effort], Timed]] = {
    "onnxruntime": onnxruntime_cpu,
    **{p.__name__: p for p in (dlight, fp32, eager, captured, compiled, metaschedule)},
}
# These run after all quick peers.
SLOW = ("compiled", "metaschedule")


@dataclass
class Plain:
    """A tuned model, launched kernel by kernel."""

    model: TunedModel

    def times(self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device") -> list[float]:
        """Return the same times as `TunedModel.times`."""
        return self.model.times(repeat, seed, clock=clock, capture=False)


def worst_error(model: TunedModel, imported: ImportedModel) -> float | None:
    """Return the relative L2 error of the worst output against onnxruntime."""
    inputs = random_inputs(imported.inputs, seed=1)
    assert imported.onnx_model is not None
    reference = run_onnxruntime(imported.onnx_model, inputs)
    return (
        None
        if reference is None
        else max(relative_l2_error(a, b) for a, b in zip(model.run(inputs), reference, strict=True))
    )


@dataclass
class Contest:
    """A tuned model and its row of the table."""

    name: str
    imported: ImportedModel
    tuned: TunedModel
    row: dict[str, Any]


def tune(name: str, target: romou.Target, effort: Effort, *, precision: str, work_dir: str | None) -> Contest:
    """Tune a bundled model and check it."""
    started = time.monotonic()
    imported = import_onnx(onnx_model(name), None, Precision.checked(precision, None, None))
    how: dict[str, Any] = {"precision": precision, "work_dir": work_dir, "progress": sys.stderr.isatty()}
    tuned = romou.tune(onnx_model(name), target=target, trials=effort.trials, seconds=effort.seconds, **how)
    summary = tuned.summary()
    row = {
        "model": name,
        "default_ms": summary.default_ms,
        "tuned_error": worst_error(tuned, imported),
        "trials": sum(summary.outcomes.values()),
        "outcomes": summary.outcomes,
        "tuning_s": time.monotonic() - started,
        "peers": {},
        "times_ms": {},
        "summary": summary.to_dict(),
    }
    return Contest(name, imported, tuned, row)


def compare(contest: Contest, target: romou.Target, peers: Sequence[str], effort: Effort, *, pairs: int) -> None:
    """Prepare and check the peers, time all sides alternately, and add the numbers to the row."""
    row, tuned = contest.row, contest.tuned
    sides: dict[str, Timed] = {"tuned": tuned, "plain": Plain(tuned)}
    for peer in peers:
        started = time.monotonic()
        try:
            sides[peer] = PEERS[peer](contest.name, contest.imported, target, tuned.device_index, effort)
            row["peers"][peer] = {"preparing_s": time.monotonic() - started}
        except (RomouError, RuntimeError) as error:
            row["peers"][peer] = {"failure": last_line(error)}
    times: dict[str, dict[Literal["device", "wall"], list[float]]] = {
        side: {"device": [], "wall": []} for side in sides
    }
    for _ in range(pairs):
        for side, model in sides.items():
            for clock, clock_times in times[side].items():
                clock_times += model.times(repeat=1, clock=clock)
    row["launching"] = tuned.launching
    for side in ("tuned", "plain"):
        for clock, clock_times in times[side].items():
            row[f"{side}_wall_ms" if clock == "wall" else f"{side}_ms"] = statistics.median(clock_times)
    for peer, model in sides.items():
        if peer in row["peers"]:
            ratios = {
                clock: statistics.median(p / t for p, t in zip(clock_times, times["tuned"][clock], strict=True))
                for clock, clock_times in times[peer].items()
            }
            if isinstance(model, TunedModel) and model.summary().default_ms is not None:
                row["peers"][peer]["default_ms"] = model.summary().default_ms
            row["peers"][peer] |= {
                "ms": statistics.median(times[peer]["device"]),
                "wall_ms": statistics.median(times[peer]["wall"]),
                "ratio": ratios["device"],
                "wall_ratio": ratios["wall"],
                "error": worst_error(model, contest.imported) if isinstance(model, TunedModel) else None,
            }
    # One entry for each stage, whose sides were timed together.
    row["times_ms"]["+".join(peers) or "alone"] = times


def last_line(error: Exception) -> str:
    """Return an error in one line, the last one of TVM's errors, which holds the message."""
    if isinstance(error, RomouError):
        return error.message.splitlines()[0][:200]
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def print_table(rows: Sequence[dict[str, Any]], peers: Sequence[str], title: str, out: Console) -> None:
    """Print one line for each model, and the failures."""
    columns = ["default ms", "tuned ms", "tuned wall ms", "plain ms", "plain wall ms", "error", "trials", "tuning s"]
    for peer in peers:
        columns += [f"{peer} ms", f"{peer} / tuned", f"{peer} wall ms", "wall ratio"]
    table = table_of_numbers("model", columns, title=title)
    for row in rows:
        if "failure" in row:
            table.add_row(row["model"], "failed")
            continue
        cells = [number(row[key]) for key in ("default_ms", "tuned_ms", "tuned_wall_ms", "plain_ms", "plain_wall_ms")]
        cells += [
            "not checked" if row["tuned_error"] is None else f"{row['tuned_error']:.1e}",
            str(row["trials"]),
            f"{row['tuning_s']:.0f}",
        ]
        for name in peers:
            peer = row["peers"].get(name, {})
            cells += [
                number(peer.get("ms")),
                ratio(peer.get("ratio")),
                number(peer.get("wall_ms")),
                ratio(peer.get("wall_ratio")),
            ]
        table.add_row(row["model"], *cells)
    out.print(table)
    for row in rows:
        failures = (
            {"": row["failure"]}
            if "failure" in row
            else {f", {peer}": entry["failure"] for peer, entry in row["peers"].items() if "failure" in entry}
        )
        for who, failure in failures.items():
            out.print(f"{row['model']}{who}: {failure}", markup=False)


def is_fine(rows: Iterable[dict[str, Any]], precision: str) -> bool:
    """Return whether there are rows, all of them without a failure and with a small error."""
    limit = 1e-4 if precision == "float32" else TOLERANCE
    errors = [None if "failure" in row else row["tuned_error"] for row in rows]
    return bool(errors) and all(error is not None and error < limit for error in errors)


@click.command()
@click.option("--models", "chosen", default=DEFAULT_MODELS, show_default=True, help="Names of bundled models, or all.")
@click.option("--target", default="opencl", show_default=True)
@click.option(
    "--precision",
    default="float32",
    show_default=True,
    help="float32, float16 or mixed: of Romou's side and of all peers but fp32.",
)
@click.option("--peers", "peer_names", default="dlight", show_default=True, help=f"Some of {', '.join(PEERS)}, or all.")
@click.option("--trials", default=200, show_default=True, help="Over all tasks of a model; MetaSchedule gets as many.")
@click.option("--seconds", type=float, default=None, help="Limit of the search, per model.")
@click.option("--budget", type=float, default=None, help="Seconds after which no further model or peer is begun.")
@click.option("--work-dir", default=None, help="Folder of records to continue.")
@click.option("--pairs", default=11, show_default=True, help="Timed runs of each side.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(
    chosen: str,
    target: str,
    precision: str,
    peer_names: str,
    trials: int,
    seconds: float | None,
    budget: float | None,
    work_dir: str | None,
    pairs: int,
    output: Path | None,
) -> None:
    """Print a line for each model as soon as it is done, and one table.

    The exit code is 1 if a model failed or its outputs are wrong.
    """
    started = time.monotonic()
    peers = list(PEERS) if peer_names == "all" else [name for name in peer_names.split(",") if name]
    out = Console(width=110 + 50 * len(peers))
    names = models.names() if chosen == "all" else [name.strip() for name in chosen.split(",")]
    try:
        for peer in peers:
            if peer not in PEERS:
                raise unknown_name("peer", peer, PEERS)
        parsed = romou.Target(target)
        facts = parsed.backend.facts(parsed.backend.device_index(parsed.device_name))
    except RomouError as error:
        raise SystemExit(f"{error}") from error
    rows: dict[str, dict[str, Any]] = {}
    contests: dict[str, Contest] = {}
    clocks = [gpu_clocks()]
    print(f"clocks before: {clocks[0]}", flush=True)

    def say(row: dict[str, Any], which: Sequence[str]) -> None:
        rows[row["model"]] = row
        print_table([row], which, f"after {time.monotonic() - started:.0f} s", out)
        clocks[1:] = [gpu_clocks()]
        if output is not None:
            output.write_text(
                json.dumps({"device": facts, "target": target, "clocks": clocks, "rows": list(rows.values())}, indent=1)
            )

    for stage in ([peer for peer in peers if peer not in SLOW], *([peer] for peer in peers if peer in SLOW)):
        for name in names:
            if budget is not None and time.monotonic() - started > budget:
                print(f"{name} ({', '.join(stage) or 'alone'}): left out, {budget:.0f} s are over", flush=True)
                continue
            try:
                if name not in rows:
                    contests[name] = tune(name, parsed, Effort(trials, seconds), precision=precision, work_dir=work_dir)
                if name in contests:
                    compare(contests[name], parsed, stage, Effort(trials, seconds), pairs=pairs)
                    say(contests[name].row, stage)
            except (RomouError, RuntimeError) as error:
                contests.pop(name, None)
                say({"model": name, "failure": last_line(error)}, ())
    print(f"clocks after: {gpu_clocks()}", flush=True)
    print_table(
        list(rows.values()),
        peers,
        f"{facts['name']} ({facts['platform']}), target {target!r}, {precision}, {trials} trials a model",
        out,
    )
    raise SystemExit(0 if is_fine(rows.values(), precision) else 1)


if __name__ == "__main__":
    main()
