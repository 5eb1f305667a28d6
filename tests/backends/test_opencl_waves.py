"""Waves of Adreno's kernels: right by every choice, in Qualcomm's text and in all others', and off by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from romou.base.errors import UsageError
from romou.base.space import Config
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.compiler.task import TunableTask
from romou.devices.backends.opencl.waves import with_uniform_buffers
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.kernels import operators
from support.kernels.operators import conv, task_of
from tvm_patches.runtime import device_tensor

TARGET = Target("opencl -device=adreno740 -waves=search")
WORKS = {
    "1x1": conv(17, (7, 9), 22, (1, 1)),
    "3x3": conv(12, (9, 11), 20, (3, 3)),
    "product": Dense(m=5, k=36, n=40),
}
# PoCL takes Qualcomm's text with warnings: its branch is compiled, and constant memory is real.
QUALCOMM = "-Dcl_qcom_reqd_sub_group_size=1 -Dcl_qcom_subgroup_uniform_load=1"


@pytest.fixture(params=list(WORKS))
def task(request: pytest.FixtureRequest) -> TunableTask:
    return task_of(WORKS[request.param]).with_free_images()


def fp16(work: Workload) -> TunableTask:
    """Return an operator whose kernels compute in fp16, which PoCL does not."""
    return task_of(dataclasses.replace(work, dtype="float16"))


def drawn(task: TunableTask, wave: str, count: int) -> list[Config]:
    """Return random configs of direct sums with a choice of the knob, and small tiles, which compile in a second."""
    space = task.space(TARGET)
    forced = {"wave": wave} | ({"weight": "buffer", "wg_o": 1, "local": 0} if wave == "uniform" else {})
    changed = [config.replace(**forced) for config in space.sample(np.random.default_rng(5), 600)]
    found = [
        config
        for config in changed
        if config.get("algorithm", "direct") == "direct"
        and config["tile_o"] * config["tile_h"] * config["tile_w"] <= 4
        and space.knows(config)
        and space.is_valid(config)
    ]
    assert found
    return found[:count]


@pytest.mark.parametrize("options", ["", QUALCOMM], ids=["others", "Qualcomm"])
@pytest.mark.parametrize("wave", ["half", "uniform"])
def test_numbers_are_right(task: TunableTask, wave: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = operators.random_arrays(task, np.random.default_rng(5))
    expected = operators.reference(task, arrays)
    names = [str(parameter.name) for parameter in task.func.params]
    for config in drawn(task, wave, 1):
        module, scopes = operators.built(task, config, TARGET), task.image_scopes(config, TARGET)
        tensors = [
            device_tensor(array, TARGET.backend.device(), scopes.get(name, "global"))
            for name, array in zip(names, task.arguments(arrays, config), strict=True)
        ]
        monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", f"-cl-opt-disable {options}")
        module["main"](*tensors)
        assert operators.error_of(tensors[-1].numpy().astype(np.float64), expected) < 1e-5, config


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("of", [task_of, fp16])
def test_uniform_weights_are_marked(of: Callable[[Workload], TunableTask], work: Workload) -> None:
    """In each config of the choice: nothing else hides that a wave's work-items load the same."""
    task = of(work).with_free_images()
    for config in drawn(task, "uniform", 6):
        (kernel, *_) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
        head = next(line for line in kernel.source.splitlines() if line.startswith("__kernel") and line.endswith("{"))
        assert "weight_ptr UNIFORM" in head, config
        assert "UNIFORM_SPACE" not in head.replace("UNIFORM_SPACE half", "").replace("UNIFORM_SPACE float", "")
        has_several = config["wg_w"] * config.get("wg_h", 1) > 1
        assert "data_ptr UNIFORM" not in head or not has_several, config


def test_only_buffers_that_all_work_items_read_alike_are_marked() -> None:
    head = "__kernel UNIFORM_WAVE void f(__global float* restrict a, __global float4* restrict b)"
    body = " {\n  int x = get_local_id(0);\n  int y = (x + 1);\n  int z = get_group_id(0);\n  %s\n}\n"
    marked = "UNIFORM_SPACE float* restrict a UNIFORM"
    for statement, is_marked in {
        "c = a[z + 1];": True,
        "c = a[y];": False,
        "c = a[z] + a[x];": False,
        "a[z] = 1;": False,
        "c = load(a, a[z]);": False,
        "c = b[z];": False,
    }.items():
        declared, defined = with_uniform_buffers([f"{head};\n", head + body % statement])
        assert (marked in declared, marked in defined) == (is_marked, is_marked), statement


def test_waves_are_left_to_the_driver_by_default(task: TunableTask) -> None:
    plain = Target("opencl -device=adreno740")
    assert "wave" not in task.space(plain).knobs
    assert task.default_config(TARGET)["wave"] == "driver"
    sources = [
        kernel.source
        for target in (plain, TARGET)
        for kernel in inspect_function(task.schedule(task.default_config(target), target)["main"], target)
    ]
    assert len(set(sources)) == len(sources) // 2
    with pytest.raises(UsageError, match="-waves=on: must be search"):
        Target("opencl -waves=on")


@pytest.mark.parametrize("options", ["", QUALCOMM], ids=["others", "Qualcomm"])
@pytest.mark.parametrize("wave", ["half", "full"])
def test_attention_has_waves_too(wave: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = lambda q, k, v: relax.op.matmul(relax.op.nn.softmax(relax.op.matmul(q, k), axis=-1), v)
    shapes = (1, 2, 19, 20), (1, 2, 20, 37), (1, 2, 37, 12)
    task = operators.joined_task(build, *shapes)
    default, space = task.default_config(TARGET), task.space(TARGET)
    assert space.knobs["wave"] == ("driver", "half", "full")
    assert default["wave"] == "driver"
    assert "wave" not in task.space(Target("opencl -device=adreno740")).knobs
    assert all(
        config["wave"] == "driver" for config in space.sample(np.random.default_rng(5), 300) if config["sub_group"] > 1
    )
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    powers = np.exp(scores := q.astype(np.float64) @ k)
    assert np.isfinite(scores).all()
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", f"-cl-opt-disable {options}")
    module = operators.built(task, default.replace(wave=wave), TARGET)
    assert f" {wave.upper()}_WAVE void " in module.imports[0].inspect_source()
    tensors = [
        device_tensor(array, TARGET.backend.device(), "global")
        for array in (q, k, v, poison((1, 2, 19, 12), "float32"))
    ]
    module["main"](*tensors)
    expected = powers / powers.sum(-1, keepdims=True) @ v
    assert operators.error_of(tensors[-1].numpy(), expected) < 1e-5
