"""Waves of Adreno's kernels: right by every choice, in Qualcomm's text and in all others', and off by default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from romou.base.errors import BuildError, UsageError
from romou.base.space import Config
from romou.compiler.assembly.assemble import compile_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.devices.backends.launch import COPIED, launch_size, thread_extents
from romou.devices.backends.opencl.wave_copies import with_copies
from romou.devices.backends.opencl.waves import with_uniform_buffers
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tuner.measure.verify import poison
from support.kernels import operators
from support.kernels.operators import conv, task_of
from support.kernels.waves import COPIED_WORKS, TARGET, drawn
from support.models.small_networks import NetworkBuilder, random_inputs
from tvm_patches.runtime import device_tensor

WORKS = {
    "1x1": conv(17, (7, 9), 22, (1, 1)),
    "3x3": conv(12, (9, 11), 20, (3, 3)),
    "product": Dense(m=5, k=36, n=40),
}
# PoCL takes Qualcomm's text with warnings: its branch is compiled, and constant memory is real. Its work-items copy one
# after the other, each what the others of its group copy, into the slice of their group. There are at most 12 groups.
QUALCOMM = (
    "-Dcl_qcom_reqd_sub_group_size=1 -Dcl_qcom_subgroup_uniform_load=1 -Dcl_qcom_subgroup_constant_load=1"
    " -Dhalf8=float4"
    " -Dqcom_get_physical_sub_group_id()=((int)(get_group_id(0)+get_num_groups(0)*get_group_id(1)))"
    " -DQCOM_CLK_CONST_LOAD_SYNC=0 -Dqcom_sub_group_sync(flag)="
    " -Dqcom_sub_group_constant_load8(to,from,slot,unit,n)="
    "for(int/**/i=0;i<(n);++i)((__global/**/float4*)(ulong)(to))[(slot)+i]=(from)[(unit)+i]"
)


@pytest.fixture(params=list(WORKS))
def task(request: pytest.FixtureRequest) -> TunableTask:
    return task_of(WORKS[request.param]).with_free_images()


def fp16(work: Workload) -> TunableTask:
    """Return an operator whose kernels compute in fp16, which PoCL does not."""
    return task_of(dataclasses.replace(work, dtype="float16"))


@pytest.mark.parametrize("options", ["", QUALCOMM], ids=["others", "Qualcomm"])
@pytest.mark.parametrize("wave", ["half", "uniform"])
def test_numbers_are_right(task: TunableTask, wave: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_numbers(task, drawn(task, wave, 1), options, monkeypatch)


@pytest.mark.parametrize("options", ["", QUALCOMM], ids=["others", "Qualcomm"])
@pytest.mark.parametrize("work", COPIED_WORKS.values(), ids=COPIED_WORKS)
def test_copied_weights_give_right_numbers(work: Workload, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(work).with_free_images()
    few = []
    for config in drawn(task, COPIED, 60):
        (kernel,) = kernels_of(task, config)
        extents = thread_extents(kernel.lowered)
        if launch_size(extents)[0] == extents["blockIdx.x"] * extents.get("blockIdx.y", 1) <= 12:
            few.append(config)
        if len(few) == 2:
            break
    assert few
    check_numbers(task, few, options, monkeypatch)


def check_numbers(task: TunableTask, configs: Sequence[Config], options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = operators.random_arrays(task, np.random.default_rng(5))
    expected = operators.reference(task, arrays)
    names = [str(parameter.name) for parameter in task.func.params]
    for config in configs:
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


@pytest.mark.parametrize("work", COPIED_WORKS.values(), ids=COPIED_WORKS)
@pytest.mark.parametrize("of", [task_of, fp16])
def test_copied_weights_are_loaded_from_the_waves_memory(of: Callable[[Workload], TunableTask], work: Workload) -> None:
    """In each config of the choice: the argument, copies of what is loaded, a wait for each of them, no other load."""
    task = of(work).with_free_images()
    for config in drawn(task, COPIED, 6):
        (kernel,) = kernels_of(task, config)
        head, _, body = kernel.source[kernel.source.rindex("__kernel") :].partition("{")
        assert "UNIFORM_SPACE float* restrict wave_memory_ptr WAVE_BYTES" in head
        assert "weight_ptr UNIFORM" in head
        assert "weight_ptr[" not in body
        assert body.index("WAVE_MEMORY(wave_memory_ptr, ") < body.index("for (") < body.index("COPY_TO_WAVE(weight_ptr")
        per_unit = 2 if of is fp16 else 1
        chunks = re.findall(r"((?: *COPY_TO_WAVE.*\n)+) *WAIT_FOR_COPIES\n((?:.*\n)+?)(?= *COPY|\Z)", body)
        assert len(chunks) == body.count("WAIT_FOR_COPIES") > 0
        for copies, loads in chunks:
            ranges = [tuple(map(int, found)) for found in re.findall(r"weight_ptr, (\d+), .*, (\d+)\)", copies)]
            copied = {slot + i for slot, count in ranges for i in range(count)}
            assert copied == {int(index) // per_unit for index in re.findall(r"wave\[(\d+)\]", loads)}
            assert max(copied) < 32
            assert all(">> 1" in copy for copy in copies.splitlines()) == (of is fp16)


def test_a_model_plans_the_waves_memory(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of waves is a workspace of the graph, so every launch passes it."""
    g = NetworkBuilder({"image": (1, 8, 5, 7)})
    model = g.model(g.conv(g.add("Relu", g.conv("image", 8, 16, (1, 1))), 16, 8, (3, 3)))
    mod = fuse_operators(pack_channels(import_onnx(model).mod), TARGET)
    found, key_of = extract_tasks(mod)
    tasks = {name: task for name, key in key_of.items() for task in found if task.key == key}
    configs = {
        task.key: drawn(task, COPIED, 1)[0] if task.template.sums_products else task.default_config(TARGET)
        for task in found
    }
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    compiled = compile_model(mod, tasks, configs, TARGET)
    kernels = [func for _, func in compiled.scheduled.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert [str(kernel.params[-1].name) for kernel in kernels].count("wave_memory") == 2
    inputs = random_inputs(model, seed=1)
    (expected,) = run_onnxruntime(model, inputs) or ()
    machine = relax.VirtualMachine(compiled.executable, opencl_device)
    output = machine["main"](tvm.runtime.tensor(inputs["image"], opencl_device))
    assert relative_l2_error((output if isinstance(output, tvm.runtime.Tensor) else output[0]).numpy(), expected) < 1e-5


def kernels_of(task: TunableTask, config: Config) -> list[InspectedKernel]:
    return inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)


def test_a_wave_copies_at_most_its_memory_before_it_waits() -> None:
    loads = "".join(f"    value_{i} = w[(at + {i})];\n" for i in range(70))
    head = "f(__global half4* restrict w) {\n  WAVE_MEMORY(m);\n  int at = (group_y * 4);\n"
    text = f"{head}  for () {{\n{loads}  }}\n}}\n"
    body = with_copies(text, {"w"})
    assert re.findall(r"COPY_TO_WAVE\((.*)\)", body) == ["w, 0, (at + 1) >> 1, 32", "w, 0, (at + 65) >> 1, 3"]
    assert body.count("WAIT_FOR_COPIES") == 2
    with pytest.raises(BuildError, match="not aligned to 16 bytes"):
        with_copies(text.replace("* 4", "* 3"), {"w"})
    with pytest.raises(BuildError, match="no vectors of weights"):
        with_copies(text.replace("half4*", "half*"), {"w"})


def test_a_copy_is_after_the_address_that_it_needs() -> None:
    text = (
        "f(__global float4* restrict w) {\n  WAVE_MEMORY(m);\n  a = w[x];\n  int y = (x + 7);\n  b = w[(y - 6)];\n}\n"
    )
    lines = [line.strip() for line in with_copies(text, {"w"}).splitlines()[2:-1]]
    wait = "WAIT_FOR_COPIES"
    assert lines[:3] == ["COPY_TO_WAVE(w, 0, x, 1)", wait, "a = wave[0];"]
    assert lines[3:] == ["int y = (x + 7);", "COPY_TO_WAVE(w, 0, (y - 6), 1)", wait, "b = wave[0];"]


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
