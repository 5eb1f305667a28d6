"""Pairs of convolutions that share a kernel: the conditions for a pair, and a model's choice between joined and
separate kernels by their times.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import find_chains, join_chains, pack_channels, place_images, tasks_of
from romou.compiler.graph.extract import count_calls
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.devices.targets import Target
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.tuner.records import FILE_NAME
from support.models.small_networks import NetworkBuilder, random_inputs

# Records decide, not measurements on a device. Commands that show kernels show OpenCL's.
TARGET, SHOWN = "null", "opencl -device=host"
PAD = {"pads": [1, 1, 1, 1]}


def inverted_residual(*, activation: str = "HardSwish", size: int = 9) -> NetworkBuilder:
    """Return a depthwise convolution with an activation and a pointwise one with a residual, twice, with equal weight
    shapes.
    """
    g = NetworkBuilder({"image": (1, 10, size, size)})
    x = "image"
    for _ in range(2):
        d = g.add(activation, g.conv(x, 10, 10, groups=10, **PAD))
        x = g.add("Add", g.conv(d, 10, 10, (1, 1)), x)
    g.last = x  # type: ignore[attr-defined]
    return g


def fused(g: NetworkBuilder, output: str, target: Target | None = None) -> tvm.IRModule:
    target = target or Target("opencl -device=host")
    return place_images(fuse_operators(pack_channels(import_onnx(g.model(output)).mod), target), target)


@pytest.mark.parametrize("device", ["host", "adreno640"])
def test_pairs_are_joined_wherever_they_are_called(device: str) -> None:
    g = inverted_residual()
    mod = fused(g, g.last, Target(f"opencl -device={device}"))  # type: ignore[attr-defined]
    chains = find_chains(mod)
    assert sum(chain.task.calls for chain in chains) == 2
    assert [task.calls for task in tasks_of(chains)] == [2] if device == "host" else len(tasks_of(chains)) == 2
    before, after = count_calls(mod), count_calls(join_chains(mod, chains))
    assert sum(after.values()) == sum(before.values()) - 2
    assert {chain.name: chain.task.calls for chain in chains}.items() <= after.items()
    assert not any(chain.functions[0] in after for chain in chains)
    # A pair that is not chosen is unchanged.
    assert count_calls(join_chains(mod, [])) == before


def test_what_is_no_pair() -> None:
    """No pair is formed with a second reader, a window, a stride, or a first result that is an output."""
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    d = g.add("Relu", g.conv("image", 8, 8, groups=8, **PAD))
    first = g.add("Add", g.conv(d, 8, 8, (1, 1)), d)
    second = g.conv(g.conv(first, 8, 8, groups=8, **PAD), 8, 4)
    third = g.conv(g.conv(first, 8, 8, groups=8, **PAD), 8, 4, (1, 1), strides=[2, 2])
    returned = g.conv(first, 8, 8, groups=8, **PAD)
    fourth = g.conv(returned, 8, 4, (1, 1))
    mod = pack_channels(import_onnx(g.model(second, third, returned, fourth)).mod)
    assert find_chains(fuse_operators(mod, Target("opencl -device=host"))) == []


def test_a_model_takes_what_was_faster(tmp_path: Path) -> None:
    """Records are changed to one second for each separate convolution, and to more or less than two for the pair."""
    g = inverted_residual()
    model, path = g.model(g.last), tmp_path / FILE_NAME  # type: ignore[attr-defined]
    how = {"target": TARGET, "trials": 3, "work_dir": tmp_path, "prune": False}
    romou.tune(model, **how)
    measured = [record for record in map(json.loads, path.read_text().splitlines()) if not record["is_again"]]
    assert len({record["task_key"] for record in measured}) == len(measured) == 3

    def joined_of(seconds: float) -> list[str]:
        for record in measured:
            record["times_s"] = [seconds if "pointwise" in record["task_name"] else 1.0]
        path.write_text("".join(json.dumps(record) + "\n" for record in measured))
        return [
            kernel.task
            for kernel in romou.inspect(model, target=SHOWN, work_dir=tmp_path)
            if "pointwise" in kernel.task
        ]

    assert joined_of(2.1) == []
    assert len(joined_of(1.9)) == 1
    # A bench takes the joined kernels as well, and a comparison with it uses the same ones.
    bench = romou.bench(model, target=SHOWN, work_dir=tmp_path, times=False)
    compared = romou.compare(bench, model, fail_over=0, times=False)
    assert compared.regressions == []
    assert {row.name for row in compared.rows} == {operator.name for operator in bench.operators}
    assert any("pointwise" in row.name for row in compared.rows)
    tuned = romou.tune(model, **how)
    summary = tuned.summary()
    assert summary.is_right, summary.relative_l2_error
    assert error_of(tuned, model) < 1e-4
    (joined,) = (row for row in summary.rows if "pointwise" in row.name)
    # Times are measured in the model. The records' were only to choose by.
    assert joined.calls == 2
    assert joined.default_ms is not None
    assert joined.tuned_ms is not None
    assert max(joined.default_ms, joined.tuned_ms) < 1000.0
    assert joined.config["local"]
    assert not any("depthwise_1x" in row.name for row in summary.rows)


def test_a_joined_model_in_images(opencl_device: tvm.runtime.Device) -> None:
    g = inverted_residual(activation="Relu")
    model, target = g.model(g.last), Target("opencl -device=adreno640")  # type: ignore[attr-defined]
    graph = Compilation.of(import_model(model, None), target).with_default_kernels().joined_where(lambda key: True)
    joined = [task for task in graph.tasks if task.family == "depthwise_pointwise"]
    # The first one hands an image on to the second one, which also reads one.
    assert sorted(len(task.template.images) for task in joined) == [2, 3]
    made = tuned_model(graph, TimingSite(named=target, target=target))
    assert error_of(made, model) < 1e-4


@pytest.mark.parametrize("device", ["host", "adreno640"])
def test_a_joined_kernel_reads_and_writes_parts(device: str, opencl_device: tvm.runtime.Device) -> None:
    """The pair reads a slice and writes into a concatenation. Neither takes an additional kernel."""
    g = NetworkBuilder({"image": (1, 8, 7, 9)})
    x = g.add("Relu", g.conv("image", 8, 16, (1, 1)))
    half = g.add("Slice", x, *(g.constant(np.asarray([value], "int64")) for value in (8, 16, 1)))
    y = g.conv(g.add("Relu", g.conv(half, 8, 8, groups=8, **PAD)), 8, 12, (1, 1))
    model = g.model(g.conv(g.add("Concat", g.conv(x, 16, 4, (1, 1)), y, axis=1), 16, 5, (1, 1)))
    target = Target(f"opencl -device={device}")
    apart = Compilation.of(import_model(model, None), target).with_default_kernels()
    graph = apart.joined_where(lambda key: True)
    assert {key for keys in apart.alternatives.values() for key in keys} <= {task.key for task in apart.tasks}
    assert [task.key for task in graph.tasks if task.family == "depthwise_pointwise"] == list(apart.alternatives)
    before, after = count_calls(apart.functions.fused), count_calls(graph.functions.fused)
    assert sum(after.values()) == sum(before.values()) - 1
    assert not any("slice" in name or "concat" in name for name in after)
    made = tuned_model(graph, TimingSite(named=target, target=target))
    assert error_of(made, model) < 1e-4


def error_of(tuned: romou.TunedModel, model: onnx.ModelProto) -> float:
    inputs = random_inputs(model, seed=5)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    return max(relative_l2_error(np.asarray(a), b) for a, b in zip(tuned.run(inputs), reference, strict=True))
