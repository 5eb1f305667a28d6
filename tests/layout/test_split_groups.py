"""Groups of operators above the number of buffers that a kernel binds: split where one value alone crosses, with the same results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from small_networks import Graph, random_inputs, residual_net
from tvm import relax, tirx
from tvm_ffi.structural import structural_equal

import romou
from romou.frontend.reference import relative_l2_error, run_onnxruntime
from romou.layout.split_groups import split_groups

SHAPE = (5, 7)


def grouped() -> tvm.IRModule:
    """Sums of eight tensors, one of which is read again at the end, so that a piece may not end where two values are alive; and a group that is small."""
    xs = [relax.Var(f"x{i}", relax.TensorType(list(SHAPE), "float32")) for i in range(8)]
    bb = relax.BlockBuilder()
    with bb.function("main", xs):
        with bb.dataflow():
            first = bb.emit(relax.op.multiply(xs[0], xs[1]))
            total = first
            for x in xs[2:7]:
                total = bb.emit(relax.op.add(total, x))
            total = bb.emit(relax.op.multiply(total, first))
            small = bb.emit(relax.op.nn.relu(bb.emit(relax.op.sum(total, axis=1))))
            output = bb.emit_output(bb.emit(relax.op.add(bb.emit(relax.op.reshape(small, (SHAPE[0], 1))), xs[7])))
        bb.emit_func_output(output)
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    return tvm.transform.Sequential(passes)(bb.finalize())


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])(mod)


def most_parameters(mod: tvm.IRModule) -> int:
    return max(len(func.params) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc))


def result(mod: tvm.IRModule) -> np.ndarray:
    rng = np.random.default_rng(2)
    arrays = [tvm.runtime.tensor(rng.standard_normal(SHAPE).astype("float32")) for _ in range(8)]
    return np.asarray(relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"](*arrays).numpy())


@pytest.mark.parametrize("most", [3, 4, 6])
def test_kernels_keep_within_the_limit_and_compute_the_same(most: int) -> None:
    mod = grouped()
    whole, split = lowered(mod), lowered(split_groups(mod, most))
    assert most_parameters(whole) > most >= most_parameters(split)
    np.testing.assert_allclose(result(split), result(whole), rtol=1e-5, atol=1e-6)


def test_what_fits_stays_whole() -> None:
    assert structural_equal(lowered(split_groups(grouped(), 64)), lowered(grouped()))


def test_a_device_of_the_least_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Vulkan promises, as a device file says it: 4 buffers, 128 work-items, 16 KiB of shared memory. Kernels keep to it, and numbers are right."""
    limits = {"max_storage_buffers": (4, "buffers of a Vulkan kernel"), "max_work_group_size": (128, "work-items"), "local_mem_bytes": (16384, "bytes")}
    facts = {name: {"value": value, "unit": unit, "source": "least that Vulkan promises"} for name, (value, unit) in limits.items()}
    (tmp_path / "least.json").write_text(json.dumps({"name": "least", "title": "the least Vulkan device", "facts": facts}))
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    g = Graph({"x": (1, 4, 13, 17), **{f"y{i}": (1, 4, 13, 17) for i in range(6)}})
    total = g.conv("x", 4, 4, pads=[1, 1, 1, 1])
    for i in range(6):
        total = g.add("Add", total, f"y{i}")
    for model in (residual_net(), g.model(total)):
        compiled = romou.compile(model, target="vulkan -device=least", device=0)
        for name, text in compiled.sources().items():
            sides = [int(side) for side in re.findall(r"local_size_[xyz] = (\d+)", text)]
            assert math.prod(sides) <= 128, name
            assert len(re.findall(r"^layout\(std430", text, re.MULTILINE)) <= 4, name
            assert (
                sum(4 * int(lanes or 1) * int(count) for lanes, count in re.findall(r"^shared (?:vec|float|int)(\d?) \w+\[(\d+)\]", text, re.MULTILINE))
                <= 16384
            )
            assert "push_constant" not in text
        inputs = random_inputs(model, seed=4)
        expected = run_onnxruntime(model, inputs)
        assert expected is not None
        for found, wanted in zip(compiled.run(inputs), expected, strict=True):
            assert relative_l2_error(found, wanted) < 1e-5
