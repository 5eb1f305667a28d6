"""Tensors as views of one buffer (cl_ext_image_from_buffer), on a CPU's driver that a library gives the extension
(standin_opencl.cc). Its memory is full of NaNs at first. No phone has run this.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import romou
from romou.compiler.frontend.reference import reference_outputs
from romou.compiler.graph.memory import storage
from romou.devices.targets import Target
from support.devices import standin
from support.models.small_networks import NetworkBuilder
from support.servers import forked

# PoCL does not compute in fp16.
TARGET = "opencl -device=adreno740 -half=storage"
APART = f"{TARGET} -images=apart"

_SCRIPT = """
import gc, json, sys
import numpy as np
import romou, tvm
from romou.base.inputs import random_inputs

def statistics():
    gc.collect()
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))

def clear():
    model.release()
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    return statistics()["live_bytes"]

path, folder, *ways = sys.argv[1:]
made = []
for way in ways:
    model = romou.load(path, capture=way == "captured")
    empty = clear()
    for seed in range(3):
        inputs = random_inputs(model.inputs, seed=seed)
        np.savez(f"{folder}/{way}{seed}.npz", output=model.run(inputs)[0], **inputs)
        made.append(statistics())
    made[-1]["held"] = made[-1]["live_bytes"] - empty
    made[-1]["launching"] = model.launching
print(json.dumps(made), clear() - empty)
"""


def network() -> onnx.ModelProto:
    """Return a network whose images have four widths, with padding at all borders, a concatenation and pooling."""
    g = NetworkBuilder({"x": (1, 8, 64, 60)})
    pads = [1, 1, 1, 1]
    wide = g.add("Relu", g.conv("x", 8, 48, pads=pads))
    wide = g.add("Relu", g.conv(wide, 48, 48, pads=pads, groups=48))
    half = g.add("MaxPool", g.add("Relu", g.conv(wide, 48, 24, (1, 1))), kernel_shape=[2, 2], strides=[2, 2])
    left = g.add("Relu", g.conv(half, 24, 40, (5, 5), pads=[2, 2, 2, 2]))
    both = g.add("Concat", left, g.conv(half, 24, 20, pads=pads), axis=1)
    small = g.add("Relu", g.conv(both, 60, 64, pads=pads, strides=[2, 2]))
    small = g.add("Add", small, g.conv(small, 64, 64, pads=pads))
    return g.model(g.add("GlobalAveragePool", g.conv(small, 64, 10, (1, 1))))


def saved(folder: Path, precision: str = "float32") -> Path:
    model = romou.compile(network(), target=TARGET, precision=precision, verify=False)
    return Path(model.save(folder / "m.romou"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


def run(
    model: Path, folder: Path, ways: tuple[str, ...] = ("plain", "captured"), **variables: str
) -> tuple[list[dict[str, int]], int, str]:
    """Return the statistics after each run of a driver's process, the bytes that stay, and what it wrote of itself."""
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": str(standin.library()), **variables}
    done = forked.run("-c", _SCRIPT, model, folder, *ways, env=environment)
    assert done.returncode == 0, done.stderr
    made, _, stays = done.stdout.rpartition(" ")
    return json.loads(made), int(stays), done.stderr


def errors(folder: Path) -> list[float]:
    """Return the relative error of each run, infinite for outputs that are not finite."""
    wrong = []
    for path in sorted(folder.glob("*.npz")):
        arrays = np.load(path)
        (right,) = reference_outputs(network(), {"x": arrays["x"]})
        error = float(np.abs(arrays["output"] - right).max() / np.abs(right).max())
        wrong.append(error if np.isfinite(error) else float("inf"))
    return wrong


@pytest.mark.parametrize(("precision", "limit"), [("float32", 2e-5), ("float16", 2e-2)])
def test_views_hold_what_the_plan_says(precision: str, limit: float, tmp_path: Path) -> None:
    """Runs with different inputs are right, plain and recorded, create nothing after the second one, and hold exactly
    the planned bytes, fewer than images with memory of their own.
    """
    path = saved(tmp_path, precision)
    made, stays, said = run(path, tmp_path, STANDIN="recordable queues", STANDIN_PITCH="64")
    assert max(errors(tmp_path)) < limit
    plan = romou.memory_plan(network(), target=TARGET, precision=precision)
    assert plan.use.tensors < 0.85 * romou.memory_plan(network(), target=APART, precision=precision).use.tensors
    assert made[1]["created"] == made[2]["created"]
    assert made[2]["held"] == plan.use.total
    assert "command buffer" in str(made[5]["launching"])
    assert made[5]["launches"] == made[4]["launches"]
    assert stays == 0
    assert "cannot place" not in said


@pytest.mark.parametrize(
    "variables",
    [
        {"STANDIN": "refused images", "STANDIN_PITCH": "64"},
        {"STANDIN": "", "STANDIN_PITCH": "128"},
        {"STANDIN": ""},
    ],
    ids=["refuses", "needs more bytes", "lacks the extension"],
)
def test_a_driver_without_views(model: Path, variables: dict[str, str], tmp_path: Path) -> None:
    """Images get memory of their own: outputs are right, memory is more than planned, and that is said once."""
    made, stays, said = run(model, tmp_path, **variables)
    assert max(errors(tmp_path)) < 2e-5
    assert made[2]["held"] > romou.memory_plan(network(), target=TARGET).use.total
    assert said.count("such tensors get memory besides, which the memory plan does not count") == 1
    assert stays == 0


def test_overlapping_offsets_are_wrong_outputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Images at the same offset share memory in fact, so a plan that overlaps live tensors shows."""
    monkeypatch.setattr(storage, "offsets_of", lambda tensors: dict.fromkeys(tensors, 0))
    run(saved(tmp_path), tmp_path, ("plain",), STANDIN="", STANDIN_PITCH="64")
    assert min(errors(tmp_path)) > 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval:
    """The fields of a tensor that `offsets_of` reads."""

    pitched_bytes: int
    first: int
    last: int

    def is_live_with(self, other: Interval) -> bool:
        return not (self.last < other.first or other.last < self.first)


def overlaps(offsets: dict[Interval, int]) -> bool:
    places = [(tensor, offset, offset + tensor.pitched_bytes) for tensor, offset in offsets.items()]
    return any(
        one.is_live_with(other) and start < other_end and other_start < end
        for index, (one, start, end) in enumerate(places)
        for other, other_start, other_end in places[:index]
    )


def test_offsets_of_live_tensors_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        firsts = rng.integers(0, 30, size=int(rng.integers(2, 40)))
        tensors = [
            Interval(pitched_bytes=int(rng.integers(1, 60_000)), first=int(first), last=int(first + rng.integers(0, 9)))
            for first in firsts
        ]
        offsets = storage.offsets_of(tensors)  # type: ignore[arg-type, type-var]
        assert set(offsets) == set(tensors)
        assert all(offset % 4096 == 0 for offset in offsets.values())
        assert not overlaps(offsets)  # type: ignore[arg-type]
        most = max(offset + tensor.pitched_bytes for tensor, offset in offsets.items())
        paged = {tensor: -(-tensor.pitched_bytes // 4096) * 4096 for tensor in tensors}
        live = [sum(paged[t] for t in tensors if t.first <= call <= t.last) for call in range(40)]
        assert max(live) - 4096 < most <= sum(paged.values())
        # The largest tensor that is live with another one, moved onto it, is an overlap.
        pairs = [(one, other) for one in tensors for other in tensors if one is not other and one.is_live_with(other)]
        if pairs:
            one, other = pairs[0]
            found += overlaps({**offsets, one: offsets[other]})  # type: ignore[dict-item]
    assert found > 150


def test_who_gets_views() -> None:
    phone = {
        "name": "QUALCOMM Adreno(TM) 740",
        "version": "OpenCL 3.0 Adreno(TM) 740",
        "driver": "Compiler E031.41.03.44",
        "platform": "QUALCOMM Snapdragon(TM)",
        "type": "gpu",
        "max_work_group_size": 1024,
        "local_mem_bytes": 32768,
        "has_images": True,
        "max_image_width": 16384,
        "max_image_height": 16384,
        "max_image_layers": 2048,
    }
    there, absent = ({**phone, "extensions": text} for text in ("cl_khr_fp16 cl_ext_image_from_buffer", "cl_khr_fp16"))
    target = Target(TARGET)
    assert target.limits.image_pitch_texels == 64
    assert target.limited_to(there).limits.image_pitch_texels == 64
    assert target.limited_to(absent).options["images"] == "apart"
    assert target.limited_to(absent).limits.image_pitch_texels is None
    assert target.limited_to({**absent, "type": "cpu"}).limits.image_pitch_texels == 64
    # A buffer may not be as large as the arena.
    small, apart = (romou.memory_plan(network(), target=t).use for t in (f"{TARGET} -max_buffer_bytes=800000", APART))
    assert small == apart
    assert Target("opencl -device=adreno640").limits.image_pitch_texels is None
    assert Target("vulkan -device=adreno740").limits.image_pitch_texels is None
