"""benchmarks/kernel_bench.py and the tables made with it: the reference, the numbers, continuing from records, the
message without PyTorch.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from click.testing import CliRunner

import kernel_bench
import kernel_references
import kernel_table
import torch_peer
import tvm_peer
from romou.base.errors import UsageError
from romou.compiler.assembly.kernel import build_reference
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tuner.measure import verify
from romou.tuner.records import Record, RecordStore
from romou.tuner.search import TaskResult
from support.kernels.operators import conv, task_of
from support.servers import forked

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
STRESS = Path(__file__).parents[2] / "tests/stress"
WORK = conv(6, (9, 9), 10, (3, 3), padding=(1, 1, 1, 1), batch=2)


@pytest.mark.parametrize(
    "work",
    [
        WORK,
        conv(3, (23, 21), 8, (7, 5), "float16", stride=(2, 1), padding=(3, 0, 1, 2)),
        conv(8, (12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
        conv(8, (7, 7), 8, (3, 3), padding=(1, 1, 1, 1), groups=8),
        Dense(m=5, k=12, n=7, dtype="float32"),
    ],
    ids=lambda w: w.name,
)
def test_the_fast_reference_is_the_reference(work: Conv2d | Dense) -> None:
    task = task_of(work, has_epilogue=False)
    inputs = verify.make_inputs(task, seed=3)
    outputs = []
    for reference in (kernel_references.fast_reference, build_reference):
        tensors = [tvm.runtime.tensor(a) for a in (*inputs, verify.poison(*verify.output_spec(task)))]
        reference(task)["main"](*tensors)
        outputs.append(tensors[-1].numpy())
    assert verify.compare(*outputs).problem is None


@pytest.mark.parametrize(
    "work",
    training_passes(conv(3, (13, 11), 10, (3, 5), padding=(1, 2, 1, 2), stride=(2, 1), batch=2)),
    ids=lambda w: type(w).__name__,
)
def test_the_fast_reference_of_training_is_the_reference(work: Conv2d, tmp_path: Path) -> None:
    """The weight has the graph's layout. References are kept for the search and for the table, which have different
    inputs.
    """
    task = task_of(work, has_epilogue=False, is_weight_computed=True)
    found = {
        seed: verify.load_reference(kernel_references.reference_of(task, tmp_path, seed))
        for seed in (kernel_bench.MEASURE.seed, kernel_bench.OTHER_SEED)
    }
    for inputs, output in found.values():
        tensors = [tvm.runtime.tensor(a) for a in (*inputs, verify.poison(*verify.output_spec(task)))]
        build_reference(task)["main"](*tensors)
        assert verify.compare(output, tensors[-1].numpy()).problem is None
    assert not np.array_equal(*(inputs[0] for inputs, _ in found.values()))


class FakePeer:
    """A peer with two layouts. The second takes 1 ms."""

    def calls(self, work: Conv2d | Dense) -> dict[str, Any]:
        return {"NCHW": 2e-3, "channels_last": 1e-3}

    def timer(self, call: float) -> Any:
        return lambda: call


def test_a_row_has_the_faster_layout_and_the_roofline(opencl_device: tvm.runtime.Device, tmp_path: Path) -> None:
    task, target = task_of(WORK, has_epilogue=False), Target("opencl -device=adreno640")
    result = TaskResult(
        task_key=task.key,
        config=task.default_config(Target("opencl")),
        best_ms=1.0,
        default_ms=1.0,
        is_default=True,
        trials=3,
        outcomes={"ok": 3},
    )
    row = kernel_bench._row(WORK, task, result, Target("opencl"), opencl_device, FakePeer(), target.spec, 3, tmp_path)
    assert (row["layout"], row["peer_us"], row["problem"]) == ("channels_last", 1000.0, None)
    assert row["us"] == statistics.median(row["times_us"]["romou"])
    assert row["ratio"] == pytest.approx(1000.0 / row["us"])
    assert row["bytes"] == 4 * (2 * (6 * 81 + 10 * 81) + 10 * 6 * 9)
    assert row["flops"] == 2 * 2 * 10 * 81 * 6 * 9
    spec = target.spec
    assert spec.fp32_peak_gflops is not None
    assert spec.dram_bandwidth_gbps is not None
    least_us = max(row["flops"] / spec.fp32_peak_gflops, row["bytes"] / spec.dram_bandwidth_gbps) / 1e3
    assert row["roofline"] == pytest.approx(least_us / row["us"])
    assert row["peak"] == pytest.approx(row["flops"] / spec.fp32_peak_gflops / 1e3 / row["us"])


def test_the_summary_counts_what_is_slow() -> None:
    base = {"us": 10.0, "roofline": 0.5, "bound": "compute"}
    rows = [
        {**base, "name": "a", "peer_us": 20.0, "ratio": 2.0},
        {**base, "name": "b", "peer_us": 5.0, "ratio": 0.5, "roofline": 0.1},
    ]
    head = {"peer": "PyTorch", "peak_gflops": 100.0, "bandwidth_gbps": 10.0, "clocks": ["x", "y"]}
    head["tuning"] = {"trials": 5, "minutes": 1.0, "all_trials": 9, "all_minutes": 2.0}
    text = "\n".join(kernel_table.summary_lines(rows, head, "cuDNN"))
    assert "cuDNN / Romou: geometric mean 1.000x; 1 of 2 below 0.8x: b" in text
    assert "Slowest relative to the roofline of 100 GFLOPS and 10 GB/s: b 10% (compute), a 50% (compute)" in text
    assert "Within 5% of the final total after 5 trials and 1.0 minutes, of 9 and 2.0" in text


def test_time_to_tune_leaves_out_pauses(tmp_path: Path) -> None:
    import romou

    device = {"kind": "opencl", "name": "x", "driver": "1", "platform": "p", "is_host_cpu": False}
    tasks = [task_of(WORK, has_epilogue=False), task_of(WORK)]
    steps = [
        (0, "00:00:00", 4.0),
        (1, "00:00:10", 2.0),
        (0, "00:00:20", 1.02),
        (1, "05:00:00", 1.0),
        (0, "05:00:10", 1.0),
    ]
    with RecordStore(tmp_path) as store:
        for index, (task, clock, seconds) in enumerate(steps):
            store.append(
                Record(
                    task_key=tasks[task].key,
                    task_name=tasks[task].name,
                    config={"trial": index},
                    device=device,
                    outcome="ok",
                    times_s=(seconds,),
                    build_s=0.1,
                    relative_l2_error=0.0,
                    max_error=0.0,
                    error=None,
                    seed=0,
                    target="opencl",
                    time=f"2026-01-01T{clock}+00:00",
                    romou=romou.__version__,
                    tvm=tvm.__version__,
                )
            )
    found = kernel_bench.time_to_tune(tmp_path, tasks, device)
    # 1.02 + 1.0 after the fourth trial is within 5% of 2.0; the pause of five hours counts as one minute.
    assert found == {
        "trials": 4,
        "minutes": pytest.approx(80 / 60),
        "all_trials": 5,
        "all_minutes": pytest.approx(90 / 60),
    }
    assert kernel_bench.time_to_tune(tmp_path, [task_of(conv(4, (5, 5), 4, (1, 1)))], device) is None


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"(?s)PyTorch, which is not installed\n.*--no-peer"):
        torch_peer.Torch()


def test_the_scripts_go_on_from_their_records(tmp_path: Path) -> None:
    """The scripts run end to end on the CPU. The second call measures nothing anew."""
    arguments = [
        "--only",
        "832x7x7_256",
        "--trials",
        "2",
        "--no-peer",
        "--rounds",
        "2",
        "--work-dir",
        str(tmp_path),
        "--json",
        str(tmp_path / "out.json"),
    ]
    for run in range(2):
        done = forked.run(SCRIPTS / "kernel_bench.py", "conv43", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("2 of 2 trials are in the records" in done.stderr) == (run == 1)
        (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
        assert (row["trials"], row["problem"], row["peer_us"]) == (2, None, None)
        assert np.isfinite(row["us"])
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert sum(not record["is_again"] for record in records) == 2


@pytest.mark.parametrize("suite", ["sgemm", "alexnet"])
def test_a_suite_names_its_operators_where_none_is_chosen(suite: str) -> None:
    found = CliRunner().invoke(kernel_bench.main, [suite, "--only", "nothing", "--no-peer"])
    assert re.search(r"no operator's name contains 'nothing'\nThe names: \S", str(found.exception)), found.output


def test_check_operators_starts() -> None:
    done = forked.run(STRESS / "check_operators.py", "--help")
    assert done.returncode == 0, done.stderr
    assert "--target" in done.stdout


def test_a_searched_tvm_is_a_peer_of_its_own(
    opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MetaSchedule itself takes minutes. A graph that it leaves as it is has dlight's schedules."""
    searches = []

    def searched(mod: tvm.IRModule, target: Target, trials: int) -> tvm.IRModule:
        searches.append(trials)
        return mod

    monkeypatch.setattr(tvm_peer, "searched", searched)
    work = conv(4, (5, 5), 4, (1, 1))
    for trials, name in ((0, "dlight"), (3, "metaschedule")):
        peer = tvm_peer.Tvm(Target("opencl"), opencl_device, trials)
        assert name in peer.versions.lower()
        assert list(peer.calls(work)) == [name]
    assert searches == [3]
