"""Captured runs on OpenCL equal plain runs bit for bit, for two alternating models and for loaded ones. They are
command buffers, or launch lists where the driver has none.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou import models
from romou.base.errors import DeviceError
from romou.base.inputs import random_inputs
from romou.devices.backends import backend
from romou.runtime.module import machine
from support.devices import standin
from support.kernels.operators import target_of
from support.models.small_networks import prime_net, short_net
from support.servers import forked
from support.suite.exhaustive import exhaustive

TARGET = target_of("opencl")


def compiled(model: onnx.ModelProto, capture: bool | None) -> romou.TunedModel:
    found = romou.compile(model, target=TARGET)
    found.capture = capture
    return found


def with_capture(model: romou.TunedModel, capture: bool | None) -> romou.TunedModel:
    """Return the same code on a new virtual machine."""
    found = copy.copy(model)
    found.capture, found._local = capture, None
    return found


def statistics() -> dict[str, int]:
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))


def is_same(found: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True))


@pytest.fixture(scope="module")
def short(opencl_device: tvm.runtime.Device) -> romou.TunedModel:
    """Return a model that is compiled once. Each test takes a new virtual machine (`with_capture`)."""
    return compiled(short_net(), None)


@pytest.fixture(scope="module")
def prime(opencl_device: tvm.runtime.Device) -> romou.TunedModel:
    return compiled(prime_net(), None)


def test_two_models_in_turns_and_one_that_was_loaded(
    short: romou.TunedModel, prime: romou.TunedModel, tmp_path: Path
) -> None:
    assert_same_in_turns({"short": with_capture(short, False), "prime": with_capture(prime, False)}, tmp_path)


@exhaustive
def test_attention_in_turns(short: romou.TunedModel, tmp_path: Path) -> None:
    assert_same_in_turns(
        {"short": with_capture(short, False), "bert_2layer": compiled(models.load("bert_2layer"), False)}, tmp_path
    )


def assert_same_in_turns(plain: dict[str, romou.TunedModel], tmp_path: Path) -> None:
    recorded = {name: with_capture(model, True) for name, model in plain.items()}
    for name in plain:
        recorded[f"{name}, loaded"] = romou.load(plain[name].save(tmp_path / name), capture=True)
    for seed in range(4):
        for name, model in recorded.items():
            inputs = random_inputs(model.inputs, seed=seed)
            assert is_same(model.run(inputs), plain[name.partition(",")[0]].run(inputs)), (name, seed)
    for model in recorded.values():
        assert model.launching.startswith("an OpenCL command buffer of "), model.launching
    for model in plain.values():
        assert model.launching == "kernel by kernel"


def test_with_images(opencl_device: tvm.runtime.Device) -> None:
    model = romou.compile(short_net(), target="opencl -device=adreno640")
    assert any("image2d_array_t" in source for source in model.sources().values())
    plain, recorded = with_capture(model, False), with_capture(model, True)
    for seed in range(3):
        inputs = random_inputs(plain.inputs, seed=seed)
        assert is_same(recorded.run(inputs), plain.run(inputs))
    assert recorded.launching.startswith("an OpenCL command buffer of ")


def test_what_is_recorded_is_kept_and_given_back(prime: romou.TunedModel) -> None:
    """Other models that run in between get no memory of the recording, and all of it is free when the model goes."""
    gc.collect()
    before = statistics()
    recorded, other = (with_capture(prime, capture) for capture in (True, False))
    inputs = random_inputs(recorded.inputs, seed=1)
    right = other.run(inputs)
    for _ in range(3):
        assert is_same(recorded.run(inputs), right)
        other.run(random_inputs(other.inputs, seed=2))
    assert statistics()["live_kernels"] > before["live_kernels"]
    del recorded, other
    gc.collect()
    after = statistics()
    assert (after["live_kernels"], after["live_events"]) == (before["live_kernels"], before["live_events"])


def test_times(short: romou.TunedModel) -> None:
    model = with_capture(short, True)
    for clock in ("device", "wall"):
        captured, plain = model.times(repeat=3, clock=clock), model.times(repeat=3, clock=clock, capture=False)
        assert all(0 < t < 1e4 for t in (*captured, *plain))
    launches = int(model.launching.split()[5])
    before = statistics()["launches"]
    model.run(random_inputs(model.inputs, seed=0))
    assert statistics()["launches"] == before
    model.times(repeat=1, clock="wall", capture=False)
    # The warm-up and the timed run.
    assert statistics()["launches"] == before + 2 * launches


def test_the_faster_way_is_taken(short: romou.TunedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_slow, beginning in (
        (False, "an OpenCL command buffer of "),
        (True, "kernel by kernel: an OpenCL command buffer of "),
    ):
        model = with_capture(short, None)
        own = model._machine()
        # A clock that makes each run take a second more than the one before, or less. Plain runs come first.
        ticks = iter(np.cumsum([10 + (i if is_slow else -i) for i in range(40)]).tolist())
        monkeypatch.setattr(machine.time, "perf_counter", lambda ticks=ticks: float(next(ticks)))
        inputs = random_inputs(model.inputs, seed=0)
        model.run(inputs)
        assert own.launching == "kernel by kernel so far: the second run is captured"
        model.run(inputs)
        assert own.launching.startswith(beginning), own.launching
        model.run(inputs)


def test_a_recording_that_computes_something_else_is_not_used(
    prime: romou.TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        what = "a recording of nothing"

        def __init__(self, run: Any) -> None:
            run()

        def launch(self) -> None:
            pass

    monkeypatch.setattr(type(backend("opencl")), "record", lambda self, device, vm, run: Nothing(run))
    model, required = with_capture(prime, None), with_capture(prime, True)
    inputs = random_inputs(model.inputs, seed=0)
    right = model.run(inputs)
    assert is_same(model.run(inputs), right)
    assert (
        model.launching
        == "kernel by kernel: a recording of nothing was captured, but its outputs are not those of the run"
    )
    required.run(inputs)
    for _ in range(2):
        with pytest.raises(DeviceError, match="the run cannot be captured on opencl: a recording of nothing"):
            required.run(inputs)


def test_what_cannot_be_recorded_says_why(opencl_device: tvm.runtime.Device) -> None:
    begin = tvm.get_global_func("romou.opencl.record")
    tensor = tvm.runtime.tensor(np.zeros(8, "float32"), opencl_device)
    with pytest.raises(DeviceError, match="null devices record no runs"):
        backend("null").record(opencl_device, None, lambda: None)
    with pytest.raises(RuntimeError, match="no kernel was launched on opencl:0"):
        backend("opencl").record(opencl_device, None, lambda: None)
    with pytest.raises(RuntimeError, match="a run that copies tensors cannot be recorded"):
        backend("opencl").record(opencl_device, None, lambda: tensor.numpy())
    with pytest.raises(RuntimeError, match="this thread records a run on opencl:0 .* already"):
        backend("opencl").record(opencl_device, None, lambda: begin(0, True))
    recording = begin(0, True)
    with pytest.raises(RuntimeError, match="a run is replayed whose recording has not ended"):
        recording["launch"]()
    del recording
    assert tensor.numpy().sum() == 0, "a recording that was given up leaves nothing behind"


FLAWS = {
    "no functions": "the driver of opencl:0 .* names cl_khr_command_buffer and lacks clCreateCommandBufferKHR",
    "refused": r"clCommandNDRangeKernelKHR failed: CL_OUT_OF_RESOURCES \(-5\); kernel .*",
    "idle": "an OpenCL command buffer of [0-9]+ launches was captured, but its outputs are not those of the run",
}
_SCRIPT = """
import os, sys
import numpy as np, romou
from romou.base.inputs import random_inputs
for flaw in sys.argv[2:]:
    os.environ["STANDIN"] = flaw
    model = romou.load(sys.argv[1])
    for seed in range(3):
        inputs = random_inputs(model.inputs, seed=seed)
        outputs = model.run(inputs)
        np.save(f"{sys.argv[1]}/{flaw}{seed}.npy", outputs[0])
    print(f"{flaw}: {model.launching}", flush=True)
"""


def test_drivers_with_flaws_run_models_kernel_by_kernel(tmp_path: Path, prime: romou.TunedModel) -> None:
    """A library in front of the system's has the flaws: the extension's functions are missing, recording fails, or
    captured runs compute nothing.
    """
    model = with_capture(prime, False)
    saved = model.save(tmp_path / "m.romou")
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": str(standin.library())}
    done = forked.run("-c", _SCRIPT, saved, *FLAWS, env=environment)
    assert done.returncode == 0, done.stderr
    for flaw, reason in FLAWS.items():
        assert re.search(f"^{flaw}: kernel by kernel: {reason}$", done.stdout, re.MULTILINE), done.stdout
        for seed in range(3):
            right = model.run(random_inputs(model.inputs, seed=seed))[0]
            assert np.load(saved / f"{flaw}{seed}.npy").tobytes() == right.tobytes(), (flaw, seed)


_RECORDED = """
import hashlib, sys
import romou, tvm
from romou.base.inputs import random_inputs
import json
def launches():
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["launches"]
model = romou.load(sys.argv[1], capture=True)
for seed in range(3):
    before = launches()
    inputs = random_inputs(model.inputs, seed=seed)
    print(hashlib.sha256(b"".join(o.tobytes() for o in model.run(inputs))).hexdigest(), launches() - before)
print(model.launching)
print(all(0 < ms < 1e4 for clock in ("device", "wall") for ms in model.times(repeat=3, clock=clock)))
model.release()
"""


@pytest.mark.parametrize(
    ("driver", "what", "per_run"),
    [("recordable queues", "an OpenCL command buffer of ", False), ("no extension", "an OpenCL launch list of ", True)],
)
def test_without_command_buffers(
    driver: str, what: str, per_run: bool, tmp_path: Path, prime: romou.TunedModel
) -> None:
    """With Qualcomm's recordable queues the run is recorded on a separate queue. With neither extension it is a list,
    and each run launches its kernels. The outputs equal the plain run's.
    """
    model = with_capture(prime, False)
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": str(standin.library()), "STANDIN": driver}
    done = forked.run("-c", _RECORDED, model.save(tmp_path / "m.romou"), env=environment)
    assert done.returncode == 0, done.stderr
    *runs, launching, is_timed = done.stdout.splitlines()
    assert launching.startswith(what), launching
    right = [
        hashlib.sha256(b"".join(o.tobytes() for o in model.run(random_inputs(model.inputs, seed=seed)))).hexdigest()
        for seed in range(3)
    ]
    assert [run.split()[0] for run in runs] == right
    # The first run is plain, the second one records.
    launches = [int(run.split()[1]) for run in runs]
    assert launches[0] > 0
    assert launches[2] == (launches[0] if per_run else 0)
    assert is_timed == "True"
