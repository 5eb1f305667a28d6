"""Tests of setImage and the addressing of images: structure, numbers, and refused inputs."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.base.errors import BuildError
from romou.compiler import pipeline
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes.image_addressing import address_images
from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import is_texel_load
from romou.compiler.tir.primitives import image_extents, set_image
from romou.compiler.tir.traversal import nodes_in
from romou.devices.targets import Target
from support.kernels.operators import conv, error_of, quick_configs, random_arrays, reference, run, task_of
from support.suite.exhaustive import few

# A phone's limits, so that the spaces include images. The kernels run on the attached device.
TARGET = Target("opencl -device=adreno640 -half=storage")

WORKS = [
    conv(31, (17, 17), 37, (7, 1), padding=(3, 0, 3, 0)),
    conv(3, (23, 23), 8, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    conv(16, (9, 10), 20, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=2),
    conv(8, (12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv(18, (13, 13), 18, (5, 5), stride=(2, 2), padding=(2, 2, 2, 2), groups=18),
    conv(16, (9, 9), 24, (3, 3), padding=(1, 1, 1, 1), groups=2),
    Dense(m=1, k=64, n=37, dtype="float32"),
    Dense(m=13, k=31, n=101, dtype="float32"),
]


@I.ir_module
class Copy:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((3, 5, 7, 4), "float32"), B: T.Buffer((3, 5, 7, 4), "float32")):
        for block in T.thread_binding(15, thread="blockIdx.x"):
            for i in T.thread_binding(7, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    with T.sblock("copy"):
                        n = T.axis.spatial(3, block // 5)
                        y = T.axis.spatial(5, block % 5)
                        x = T.axis.spatial(7, i)
                        c = T.axis.spatial(4, lane)
                        B[n, y, x, c] = A[n, y, x, c] * T.float32(2)


def copied(device: tvm.runtime.Device, **scopes: str) -> tuple[np.ndarray, np.ndarray, str]:
    func = Copy["main"].with_attr("global_symbol", "main")
    for name, scope in scopes.items():
        func = set_image(func, name, scope)
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target=TARGET.tvm_target, pipeline=pipeline.NAME)
    array = np.random.default_rng(0).standard_normal((3, 5, 7, 4)).astype("float32")
    tensors = [
        tvm.runtime.empty(array.shape, "float32", device, mem_scope=scopes.get(name, "global")) for name in ("A", "B")
    ]
    tensors[0] = tensors[0].copyfrom(array)
    built["main"](*tensors)
    return tensors[1].numpy(), array, built.imports[0].inspect_source()


SCOPES = ["global", "global.texture", "global.texture-weight", "global.texture-nhwc"]


# Each is read and written, in one image and in two.
@pytest.mark.parametrize(("source", "result"), few(itertools.product(SCOPES, repeat=2), 0, 1, 6, 8, 11, 12, 13))
def test_every_mapping_gives_the_same_numbers(opencl_device: tvm.runtime.Device, source: str, result: str) -> None:
    made, array, text = copied(opencl_device, **{k: v for k, v in (("A", source), ("B", result)) if v != "global"})
    np.testing.assert_array_equal(made, 2 * array)
    declaration = next(line for line in text.splitlines() if line.startswith("__kernel"))
    for name, scope, qualifier in (("A", source, "__read_only"), ("B", result, "__write_only")):
        argument = next(part for part in declaration.split(",") if f"{name}_ptr" in part)
        assert ("image2d_array_t" in argument) == (scope != "global")
        assert (qualifier in argument) == (scope != "global")


def test_an_image_of_one_layer_is_read_by_whole_numbers(opencl_device: tvm.runtime.Device) -> None:
    """Weights are such images: the read has no layer, and no sampler, which would need float coordinates."""
    made, array, text = copied(opencl_device, A="global.texture-2d", B="global.texture")
    np.testing.assert_array_equal(made, 2 * array)
    assert "__read_only image2d_t A_ptr" in text
    assert "__write_only image2d_array_t B_ptr" in text
    assert "READ_IMAGEF(A_ptr" not in text
    (read,) = re.findall(r"#define READ_PLAIN_IMAGEF\(.*\) (.*)", text)
    assert "sampler" not in read


def test_extents_by_scope() -> None:
    shape = (2, 3, 5, 7, 4)
    assert image_extents(shape, "global.texture") == (7, 5, 6)
    assert image_extents(shape, "global.texture-weight") == image_extents(shape, "global.texture-2d") == (105, 2, 1)
    assert image_extents(shape, "global.texture-nhwc") == (35, 3, 2)
    assert image_extents((2, 3, 20), "global.texture-rows") == (5, 6, 1)
    assert image_extents((2, 3, 20), "global.texture-rows-joined") == (15, 2, 1)


@pytest.mark.parametrize(("first", "is_texel"), [(4, True), (3, False)])
def test_a_matrix_is_read_in_texels(opencl_device: tvm.runtime.Device, first: int, is_texel: bool) -> None:
    """Texel x of a row is columns 4 x to 4 x + 3. Other vectors extend over two texels."""

    @I.ir_module
    class Rows:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((2, 3, 20), "float32", scope="global.texture-rows"), B: T.Buffer((2, 3, 12), "float32")):
            for b in T.thread_binding(2, thread="blockIdx.x"):
                for y in T.thread_binding(3, thread="threadIdx.x"):
                    for x in T.serial(3):
                        for lane in T.vectorized(4):
                            with T.sblock("double"):
                                vb, vy, vx, vl = T.axis.remap("SSSS", [b, y, x, lane])
                                B[vb, vy, vx * 4 + vl] = 2.0 * A[vb, vy, vx * 4 + vl + first]

    target = Target("opencl -device=mali_g76").tvm_target
    if not is_texel:
        with pytest.raises(BuildError, match="an image is read and written in texels of 4 lanes"):
            tvm.tirx.build(Rows, target, pipeline="romou")
        return
    built = tvm.tirx.build(Rows, target, pipeline="romou")
    array = np.random.default_rng(0).standard_normal((2, 3, 20)).astype("float32")
    source = tvm.runtime.empty(array.shape, "float32", opencl_device, mem_scope="global.texture-rows").copyfrom(array)
    result = tvm.runtime.empty((2, 3, 12), "float32", opencl_device)
    built["main"](source, result)
    np.testing.assert_array_equal(result.numpy(), 2 * array[..., first : first + 12])
    assert "__read_only image2d_t A_ptr" in built.imports[0].inspect_source()


def test_a_matrix_is_read_as_rows_that_two_axes_make(opencl_device: tvm.runtime.Device) -> None:
    """A view (2, 3, 20) of an image of two rows of 60."""

    @I.ir_module
    class Joined:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((2, 3, 20), "float32", scope="global.texture-rows-joined"), B: T.Buffer((3, 2, 20), "float32")
        ):
            for b in T.thread_binding(2, thread="blockIdx.x"):
                for y in T.thread_binding(3, thread="threadIdx.x"):
                    for x in T.serial(5):
                        for lane in T.vectorized(4):
                            with T.sblock("turn"):
                                vb, vy, vx, vl = T.axis.remap("SSSS", [b, y, x, lane])
                                B[vy, vb, vx * 4 + vl] = A[vb, vy, vx * 4 + vl]

    built = tvm.tirx.build(Joined, Target("opencl -device=mali_g76").tvm_target, pipeline="romou")
    array = np.random.default_rng(0).standard_normal((2, 60)).astype("float32")
    source = tvm.runtime.empty(array.shape, "float32", opencl_device, mem_scope="global.texture-rows").copyfrom(array)
    result = tvm.runtime.empty((3, 2, 20), "float32", opencl_device)
    built["main"](source._create_view((2, 3, 20)), result)
    np.testing.assert_array_equal(result.numpy(), array.reshape(2, 3, 20).swapaxes(0, 1))
    assert "__read_only image2d_t A_ptr" in built.imports[0].inspect_source()


def test_a_single_lane_is_refused() -> None:
    @I.ir_module
    class Lanes:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((5, 7, 4), "float32", scope="global.texture"), B: T.Buffer((5, 7), "float32")):
            for y, x in T.grid(5, 7):
                B[y, x] = A[y, x, 1]

    with pytest.raises(BuildError, match="image A: lane 1 of a texel is accessed by itself"):
        address_images(Lanes)


def test_reading_and_writing_one_image_is_refused() -> None:
    @I.ir_module
    class Both:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((5, 7, 4), "float32", scope="global.texture")):
            for y, x in T.grid(5, 7):
                A[y, x, 0:4] = A[y, x, T.Ramp(0, 1, 4)] + T.Broadcast(T.float32(1), 4)

    with pytest.raises(BuildError, match="image A is read and written by one kernel"):
        address_images(Both)


def test_what_set_image_refuses() -> None:
    func = Copy["main"]
    with pytest.raises(BuildError, match="no parameter 'C' to put in an image; there are A, B"):
        set_image(func, "C", "global.texture")
    task = task_of(WORKS[-1])
    with pytest.raises(BuildError, match="its last axis is 31"):
        set_image(task.func, "data", "global.texture")


def test_buffers_are_left_alone() -> None:
    assert not any(map(is_texel_load, nodes_in(address_images(Copy)["main"].body, tvm.ir.Call)))


# A kernel that TVM unrolls, strides, groups, and a row of a matrix; both types.
@pytest.mark.parametrize(
    ("work", "dtype"),
    few(itertools.product(WORKS, ["float32", "float16"]), 0, 4, 9, 11, 14),
    ids=lambda v: getattr(v, "name", v),
)
def test_weights_in_images(opencl_device: tvm.runtime.Device, work: Conv2d | Dense, dtype: str) -> None:
    task, rng = task_of(replace(work, dtype=dtype)), np.random.default_rng(3)
    arrays = random_arrays(task, rng)
    space = task.space(TARGET)
    # All devices store fp16, but not all compute in it.
    drawn = (
        c
        for c in space.sample(rng, 64)
        if c["weight"] == "image" and c["accumulate"] == "float32" and c["unroll"] == "lanes"
    )
    configs = [task.default_config(TARGET), next(drawn)]
    assert configs[0]["weight"] == "image"
    expected = reference(task, arrays)
    assert "image2d_t weight_ptr" in build_task(task, configs[0], TARGET).imports[0].inspect_source()
    for config in configs:
        assert list(task.image_scopes(config, TARGET)) == ["weight"]
        assert error_of(run(task, config, arrays, TARGET, opencl_device), expected) < (
            1e-5 if dtype == "float32" else 1e-3
        ), config


IMAGES = [("data",), ("relu",), ("data", "relu"), ("data", "bias", "relu")]
PLACED = itertools.product([w for w in WORKS if isinstance(w, Conv2d) and w.groups in (1, w.in_channels)], IMAGES)


# Each set of images, and each but one kind of operator.
@pytest.mark.parametrize(
    ("work", "images"),
    few(PLACED, 3, 9, 14, 18),
    ids=lambda v: getattr(v, "name", "-".join(v) if isinstance(v, tuple) else v),
)
def test_activations_in_images(opencl_device: tvm.runtime.Device, work: Conv2d, images: tuple[str, ...]) -> None:
    func = task_of(work).func
    for name in images:
        func = set_image(func, name, "global.texture")
    task, rng = TunableTask.of(func), np.random.default_rng(4)
    assert task is not None
    assert TunableTask.from_json(task.to_json()).template.images == dict.fromkeys(images, "global.texture")
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    for config in [task.default_config(TARGET), *quick_configs(task, TARGET, rng, 1)]:
        assert set(images) <= set(task.image_scopes(config, TARGET))
        assert error_of(run(task, config, arrays, TARGET, opencl_device), expected) < 1e-5, config


def test_an_image_needs_no_check_of_its_borders() -> None:
    """Reads outside give zero: no branch is left in the reduction of a padded convolution."""
    func = set_image(task_of(WORKS[0]).func, "data", "global.texture")
    task = TunableTask.of(func)
    assert task is not None
    # Staging in local memory distributes texels over work-items, which adds a branch.
    configs = [
        c for c in task.space(TARGET).sample(np.random.default_rng(5), 200) if not c["local"] and c["split_k"] == 1
    ][:4]
    for config in [task.default_config(TARGET), *configs]:
        source = build_task(task, config, TARGET).imports[0].inspect_source()
        body = source[source.rindex("__kernel") :]
        # From the first loop to the end of the last one, which ends at the indentation that it began with.
        start, last = body.index("for ("), body.rindex("for (")
        indentation = body[body.rindex("\n", 0, start) + 1 : start]
        loop = body[start : body.index(f"\n{indentation}}}", last)]
        assert "if (" not in loop.replace("barrier", ""), config
        assert "?" not in loop, config


def test_a_weight_that_fits_no_image_stays_a_buffer() -> None:
    task = task_of(Dense(m=1, k=40_000, n=8, dtype="float32"))
    assert task.space(TARGET).knobs["weight"] == ("buffer",)
    assert task.image_scopes(task.default_config(TARGET), TARGET) == {}
    assert task.template.kept_in_buffers(TARGET.limits) == {
        "weight": "its height would be 40000 texels, the device allows 16384"
    }
    assert task_of(WORKS[0]).template.kept_in_buffers(TARGET.limits) == {}


def test_a_cpu_is_offered_no_images(opencl_device: tvm.runtime.Device) -> None:
    assert Target("opencl -device=host").limits.max_image is None
    assert task_of(WORKS[0]).space(Target("opencl -device=host")).knobs["weight"] == ("buffer",)
