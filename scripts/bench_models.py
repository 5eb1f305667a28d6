#!/usr/bin/env python3
"""Tuned models against TVM's own default GPU schedules (dlight), through the same OpenCL runtime, in one run.

    python scripts/bench_models.py                                        resnet18 and mobilenetv1_100 on the first OpenCL device
    python scripts/bench_models.py --models all --trials 200 --target "opencl -device=host" --json result.json

Both sides start from the same imported graph (constants and batch norm folded). "ms" adds up the kernels' time by the device's events; "wall"
is the time until the device is idle again, launches included. Times are medians of runs in turns, so that a slow moment
of the machine hits both; the ratio is the median of the pairs' ratios. Both are checked against onnxruntime.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import tvm
from rich.console import Console
from rich.table import Table

import romou
from romou import models
from romou.backends.opencl import device_index, list_devices
from romou.errors import RomouError
from romou.frontend import ImportedModel, import_onnx
from romou.frontend.reference import relative_l2_error, run_onnxruntime
from romou.module import Summary, TunedModel, random_inputs

DEFAULT_MODELS = "resnet18,mobilenetv1_100"


def peer_of(imported: ImportedModel, target: romou.Target, index: int) -> TunedModel:
    """The same graph through TVM's default pipeline: dlight's schedules, nothing of ours but the runtime."""
    executable = tvm.compile(imported.mod, target=target.tvm_target)
    summary = Summary.unmeasured(target=str(target), rows=(), seconds=0.0)
    return TunedModel(executable, target=target, inputs=imported.inputs, outputs=imported.outputs, summary=summary, device_index=index)


def worst_error(model: TunedModel, imported: ImportedModel) -> float | None:
    """Relative L2 error of the worst output against onnxruntime."""
    inputs = random_inputs(imported.inputs, seed=1)
    reference = run_onnxruntime(imported.onnx_model, inputs)
    return None if reference is None else max(relative_l2_error(a, b) for a, b in zip(model.run(inputs), reference, strict=True))


def compare(name: str, target: romou.Target, *, trials: int, seconds: float | None, work_dir: str | None, pairs: int) -> dict[str, Any]:
    """Tune, compile the peer, check both, time both in turns."""
    started = time.monotonic()
    imported = import_onnx(models.load(name))
    tuned = romou.tune(models.load(name), target=target, trials=trials, seconds=seconds, work_dir=work_dir, progress=True)
    tuning_s = time.monotonic() - started
    peer = peer_of(imported, target, tuned.device_index)
    times: dict[str, list[float]] = {"peer": [], "tuned": [], "peer_wall": [], "tuned_wall": []}
    for _ in range(pairs):
        for side, model in (("peer", peer), ("tuned", tuned)):
            times[side] += model.times(repeat=1)
            times[f"{side}_wall"] += model.times(repeat=1, clock="wall")
    summary = tuned.summary()
    return {
        "model": name,
        "peer_ms": statistics.median(times["peer"]),
        "default_ms": summary.default_ms,
        "tuned_ms": statistics.median(times["tuned"]),
        "ratio": statistics.median(p / t for p, t in zip(times["peer"], times["tuned"], strict=True)),
        "peer_wall_ms": statistics.median(times["peer_wall"]),
        "tuned_wall_ms": statistics.median(times["tuned_wall"]),
        "wall_ratio": statistics.median(p / t for p, t in zip(times["peer_wall"], times["tuned_wall"], strict=True)),
        "peer_error": worst_error(peer, imported),
        "tuned_error": worst_error(tuned, imported),
        "trials": sum(summary.outcomes.values()),
        "outcomes": summary.outcomes,
        "tuning_s": tuning_s,
        "times_ms": times,
        "summary": summary.to_dict(),
    }


def print_table(rows: list[dict[str, Any]], title: str, out: Console) -> None:
    """One line a model."""
    table = Table(title=title)
    table.add_column("model")
    columns = (
        "dlight ms",
        "default ms",
        "tuned ms",
        "dlight / tuned",
        "dlight wall ms",
        "tuned wall ms",
        "ratio",
        "dlight error",
        "tuned error",
        "trials",
        "tuning s",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        if "failure" in row:
            table.add_row(row["model"], f"failed: {row['failure']}")
            continue
        numbers = [f"{row[k]:.3f}" if row[k] is not None else "-" for k in ("peer_ms", "default_ms", "tuned_ms")] + [f"{row['ratio']:.2f}x"]
        numbers += [f"{row['peer_wall_ms']:.3f}", f"{row['tuned_wall_ms']:.3f}", f"{row['wall_ratio']:.2f}x"]
        errors = [f"{row[k]:.1e}" if row[k] is not None else "-" for k in ("peer_error", "tuned_error")]
        table.add_row(row["model"], *numbers, *errors, str(row["trials"]), f"{row['tuning_s']:.0f}")
    out.print(table)


@click.command()
@click.option("--models", "chosen", default=DEFAULT_MODELS, show_default=True, help="Names of bundled models, or all.")
@click.option("--target", default="opencl", show_default=True)
@click.option("--trials", default=200, show_default=True, help="Over all tasks of a model.")
@click.option("--seconds", type=float, default=None, help="Limit of the search, per model.")
@click.option("--work-dir", default=None, help="Folder of the records, to go on from.")
@click.option("--pairs", default=11, show_default=True, help="Timed runs of each side.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(chosen: str, target: str, trials: int, seconds: float | None, work_dir: str | None, pairs: int, output: Path | None) -> None:
    """Print one table; exit code 1 if a model failed or its outputs are wrong."""
    out = Console(width=160)
    parsed = romou.Target(target)
    facts = list_devices()[device_index(parsed.device_name)]
    rows: list[dict[str, Any]] = []
    for name in models.names() if chosen == "all" else chosen.split(","):
        try:
            rows.append(compare(name.strip(), parsed, trials=trials, seconds=seconds, work_dir=work_dir, pairs=pairs))
        except (RomouError, tvm.error.TVMError) as error:
            rows.append({"model": name, "failure": str(error).strip().splitlines()[-1][:200]})
        if output is not None:
            output.write_text(json.dumps({"device": facts, "target": target, "rows": rows}, indent=1))
    print_table(rows, f"{facts['name']} ({facts['platform']}), target {target!r}, {trials} trials a model", out)
    is_fine = all("failure" not in row and row["tuned_error"] is not None and row["tuned_error"] < 1e-4 for row in rows)
    raise SystemExit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
