"""Square tiles of the output if the data is contiguous along another axis: packing, unpacking, transposing."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.place_images import SCOPE
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import set_image
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, random_arrays, reference, relax_tasks
from support.kernels.streams import OPERATORS
from support.models.nodes import model_of
from support.suite.exhaustive import in_turn

PHONE = Target("opencl -device=adreno640")


def borders_of(
    channels: int, width: int, outputs: int = 8, dtype: str = "float32", batch: int = 1
) -> list[TunableTask]:
    """Return the tasks that pack the input of a convolution and unpack its output."""
    data, weight = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in (("x", (batch, channels, 40, width)), ("w", (outputs, channels, 1, 1)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [data]):
        with builder.dataflow():
            made = builder.emit(
                op.nn.conv2d(data, relax.const(np.ones([int(d) for d in weight.ty.shape.values], dtype)))
            )
            output = builder.emit_output(made)
        builder.emit_func_output(output)
    tasks, _ = extract_tasks(fuse_operators(pack_channels(builder.finalize()), PHONE))
    return [task for task in tasks if task.template.family == "elementwise"]


@in_turn
@pytest.mark.parametrize("channels", [3, 6, 8])
@pytest.mark.parametrize("width", [12, 13])
def test_channels_are_packed_and_unpacked_in_squares(
    channels: int, width: int, opencl_device: tvm.runtime.Device
) -> None:
    """The last vector of a row of 13 pixels overlaps the one before it."""
    rng = np.random.default_rng(4)
    tasks = borders_of(channels, width)
    assert len(tasks) == 2
    for task in tasks:
        config = task.default_config(PHONE)
        assert config["across"] == config["vector_width"] == 4, task.name
        arrays = random_arrays(task, rng)
        for one in (config, *task.space(PHONE).sample(rng, 3)):
            assert_agrees(PHONE, task, one, arrays, reference(task, arrays), 1e-9)


@in_turn
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("outputs", [5, 21, 255])
@pytest.mark.parametrize("width", [1, 12, 13])
def test_padding_of_the_last_texel_is_read_and_not_stored(
    outputs: int, width: int, dtype: str, opencl_device: tvm.runtime.Device
) -> None:
    """Rows and columns of a channel are one row, so that its last vector only may overlap."""
    rng = np.random.default_rng(5)
    for batch in (1, 3):
        _, task = borders_of(3, width, outputs, dtype, batch)
        config = task.default_config(PHONE)
        assert (config["across"], config["vector_width"]) == (4, min(width, 4))
        (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
        loads = kernel.source[kernel.source.index("__kernel") :].count("lv1_ptr") - 1
        assert loads == min(width, 4), kernel.source
        arrays = random_arrays(task, rng)
        for one in (config, *task.space(PHONE).sample(rng, 3)):
            assert_agrees(PHONE, task, one, arrays, reference(task, arrays), 1e-9)


def test_what_is_packed_into_an_image_is_read_in_vectors(opencl_device: tvm.runtime.Device) -> None:
    """Four texels are written for four vectors read, because an address takes as long as several elements."""
    plain, _ = borders_of(8, 12)
    task = TunableTask.of(set_image(plain.func, str(plain.func.params[-1].name), SCOPE))
    assert task is not None
    config = task.default_config(PHONE)
    (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
    assert kernel.source.count("write_imagef(") == 4, kernel.source
    assert kernel.source.count(" = x_ptr[") == 4, kernel.source
    arrays = random_arrays(task, np.random.default_rng(6))
    assert_agrees(PHONE, task, config, arrays, reference(plain, arrays), 1e-9)


@pytest.mark.parametrize("name", ["chain", "broadcast", "concat", "slice", "resize"])
def test_what_lies_along_has_no_squares(name: str) -> None:
    for task in relax_tasks(*OPERATORS[name]):
        assert task.space(PHONE).knobs["across"] == (1,)


@in_turn
@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76"])
@pytest.mark.parametrize("shape", [(64, 32), (33, 31)])
def test_truth_values_are_moved_one_by_one(
    shape: tuple[int, int], target: str, opencl_device: tvm.runtime.Device
) -> None:
    """OpenCL has no boolean vectors in memory: TVM writes four bytes for each."""
    rng = np.random.default_rng(4)
    inputs = {"b": rng.random(shape) < 0.5, "f": rng.standard_normal(shape, dtype=np.float32)}
    nodes = {
        "turned": ("Transpose", "b", {"perm": [1, 0]}),
        "positive": ("Greater", "f zero"),
        "turned_positive": ("Transpose", "positive", {"perm": [1, 0]}),
        "negative": ("Not", "turned_positive"),
        "number": ("Cast", "turned", {"to": 1}),
    }
    model = model_of(nodes, inputs, {"zero": np.float32(0)})
    compiled = romou.compile(model, target=target, verify=False, strict=True)
    for found, expected in zip(compiled.run(inputs), run_onnxruntime(model, inputs) or (), strict=True):
        assert np.array_equal(found, expected)
    for task in extract_tasks(fuse_operators(pack_channels(import_onnx(model).mod), Target(target)))[0]:
        if any(str(p.dtype) == "bool" for p in task.func.params):
            knobs = task.space(Target(target)).knobs
            assert knobs["vector_width"] == knobs["across"] == (1,), task.name
