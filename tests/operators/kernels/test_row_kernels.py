"""Values that row kernels and table lookups compute once, and the order in which partial results are combined."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.graph.place_images import SCOPE
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.kernels.streaming.row_kernel import TREE
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import set_image
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.kernel_usage import read_usage
from support.kernels.operators import assert_agrees, each_kind, has_device, random_arrays, reference, relax_tasks, run
from support.kernels.streams import OPERATORS
from support.models.nodes import assert_as_onnxruntime, model_of
from support.suite.exhaustive import in_turn

PHONE = Target("opencl -device=adreno640 -half=storage")


def source_of(task: TunableTask, **knobs: object) -> str:
    config = task.default_config(PHONE).replace(**knobs)
    (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
    return kernel.source


@in_turn
@pytest.mark.parametrize("name", ["softmax of long rows", "layer norm", "global maximum"])
@pytest.mark.parametrize(("threads", "rows"), [(16, 2), (32, 1)])
def test_two_steps_add_up_as_one_does(name: str, threads: int, rows: int, opencl_device: tvm.runtime.Device) -> None:
    """Both agree, even for rows that do not fill the last group."""
    (task,) = relax_tasks(*OPERATORS[name])
    rng = np.random.default_rng(5)
    arrays = random_arrays(task, rng)
    config = task.default_config(PHONE).replace(threads=threads, rows=rows, combine=TREE, keep="memory", vector_width=1)
    assert_agrees(PHONE, task, config, arrays, reference(task, arrays), 1e-5)


def test_softmax_computes_each_exponential_once_and_divides_once_a_row() -> None:
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (6, 128))
    source = source_of(task, vector_width=4, threads=8, rows=8, keep="registers")
    assert source.count("= native_exp(") == 4, source
    assert source.count("native_divide(") == 1, source


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("device", ["adreno660", "mali_g76"])
@pytest.mark.parametrize("columns", [49, 77, 191, 197])
@pytest.mark.parametrize("operator", ["softmax", "layer norm"])
def test_odd_rows_stay_in_registers_on_phones(operator: str, columns: int, device: str, dtype: str) -> None:
    """Up to 32 numbers of a row are kept, each in its own register, and only the last one is guarded."""
    build = {
        "softmax": lambda a: op.nn.softmax(a, axis=-1),
        "layer norm": lambda a: op.nn.layer_norm(
            a, relax.const(np.full(columns, 2, dtype)), relax.const(np.ones(columns, dtype)), axes=[-1]
        ),
    }[operator]
    target = Target(f"opencl -device={device}")
    (task,) = relax_tasks(build, (65, columns), dtype=dtype)
    config = task.default_config(target)
    share = -(-columns // config["threads"])
    assert (config["keep"], config["vector_width"]) == ("registers", 1), config
    assert 8 < share <= 32, config
    arrays = random_arrays(task, np.random.default_rng(2))
    rng = np.random.default_rng(3)
    for each in (config, *task.space(target).sample(rng, 2)):
        # Native exponentials of some drivers are right to three digits.
        assert_agrees(target, task, each, arrays, reference(task, arrays), 1e-3 if dtype == "float32" else 2e-3)


@each_kind("columns", [4097, 6625, 1000, 18710], opencl=(0, 3), cuda=(2,), vulkan=(1,))
def test_rows_in_local_memory_wait_for_nothing(columns: int, target: Target) -> None:
    """Each work-item reads only its own elements, so there is no barrier.

    A long sum is guarded if no power of two divides the row.
    """
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (3, columns))
    rng = np.random.default_rng(5)
    arrays = random_arrays(task, rng)
    space = task.space(target)
    kept = [config for config in space.sample(rng, 60) if config["keep"] == "local"][:2]
    configs = [task.default_config(target), *kept]
    assert target.kind != "opencl" or configs[0]["keep"] == "local"
    for config in configs:
        assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-5)
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
        if config["keep"] == "local" and config["threads"] == 1:
            assert "barrier(" not in kernel.source
            assert "__syncthreads(" not in kernel.source


def test_what_a_mask_compares_is_computed_as_a_vector_before() -> None:
    """Attention replaces NaN in fully masked rows: the quotient is computed once, its replacement read once."""

    def masked(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        found = op.nn.softmax(a, axis=-1)
        return op.where(op.isnan(found), b, found)

    tasks = [task for task in relax_tasks(masked, (6, 128), (1, 1)) if task.template.family == "row_reduction"]
    sources = [source_of(task, vector_width=4, threads=8, rows=8, keep="registers") for task in tasks]
    assert [source.count("= native_exp(") for source in sources] == [4], sources


def test_rows_are_looked_up_with_addresses_of_32_bits(opencl_device: tvm.runtime.Device) -> None:
    """64-bit indices outside of the table read one of its rows."""
    *_, task = relax_tasks(lambda table, at: op.take(table, at, axis=0), (7, 24), (5,), dtype=["float32", "int64"])
    assert "convert_long" not in source_of(task)
    table = np.arange(7 * 24, dtype="float32").reshape(7, 24)
    at, found = np.array([3, 0, 6, 1, 2]), table[[3, 0, 6, 1, 2]]
    assert_agrees(PHONE, task, task.default_config(PHONE), [table, at, np.zeros_like(found)], found, 1e-9)


def test_a_padded_maximum_has_no_branches_and_shares_loads_on_phones() -> None:
    """Four neighbouring 3x3 windows hold 3x6 elements.

    A dilated window may not contain the element at the border.
    """
    (task,) = relax_tasks(
        lambda a: op.nn.max_pool2d(a, (3, 3), (1, 1), (1, 1, 1, 1), layout="NCHW4c"), (1, 8, 28, 28, 4)
    )
    source = source_of(task)
    assert task.default_config(PHONE)["tile"] == 4
    assert "condval" not in source, source
    assert source.count("x0_ptr[") == 18, source
    (dilated,) = relax_tasks(*OPERATORS["max pool, dilated"])
    assert "condval" in source_of(dilated)


@pytest.mark.parametrize("is_counted", [False, True], ids=["pixels counted", "padding counted"])
def test_a_padded_mean_of_an_image_has_no_branches_and_divides_no_vector(
    is_counted: bool, opencl_device: tvm.runtime.Device
) -> None:
    """Images read as zero outside, and an infinity in the corner stays one in its windows.

    A product with a zero would make it NaN. 13 is no multiple of a tile.
    """
    build = lambda a: op.nn.avg_pool2d(a, (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=is_counted, layout="NCHW4c")
    (plain,) = relax_tasks(build, (1, 2, 13, 13, 4))
    task = TunableTask.of(set_image(plain.func, str(plain.func.params[0].name), SCOPE))
    assert task is not None
    source = source_of(task, tile=4)
    assert "condval" not in source, source
    assert source.count("READ_IMAGEF(x0_ptr") == 18, source
    assert source.count(" / ") == source.count("(1.000000e+00f / "), source
    arrays = random_arrays(task, np.random.default_rng(3))
    arrays[0][0, 0, 0, 0], arrays[0][0, 1, 12, 12] = np.inf, -np.inf
    for config in (task.default_config(PHONE), task.default_config(PHONE).replace(tile=4, is_unrolled=False)):
        assert np.allclose(
            run(task, config, arrays, PHONE, opencl_device), reference(plain, arrays), rtol=1e-5, atol=1e-6
        ), config


@in_turn
@pytest.mark.parametrize(("threads", "rows"), [(1, 4), (4, 2), (16, 2), (64, 1)])
@pytest.mark.parametrize("name", ["softmax of long rows", "log softmax", "layer norm", "softmax of channels"])
def test_loads_of_local_memory_are_counted_as_the_kernel_has_them(name: str, threads: int, rows: int) -> None:
    """Softmax stores its exponentials over the row and reads them again. Both steps of a tree count."""
    # Rows long enough for loops: in straight-line code a number that is read in two passes is read once.
    (task,) = relax_tasks(*{**OPERATORS, "log softmax": (op.nn.log_softmax, (10, 509))}[name])
    space, tried = task.space(PHONE), 0
    for combine in space.knobs["combine"]:
        for width in space.knobs["vector_width"]:
            config = task.default_config(PHONE).replace(
                threads=threads, rows=rows, keep="local", combine=combine, vector_width=width
            )
            if space.is_valid(config):
                (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
                formula = task.template.form(PHONE.limits).usage(columns_of([config])).local_loads
                assert (
                    np.asarray(formula).item() == read_usage([kernel.lowered], task.template, config).local_loads > 0
                ), config
                tried += 1
    assert tried or threads > 16


PLACES = {
    "first maximum": ("ArgMax", {"axis": 1}, lambda x: np.nanargmax(x, 1, keepdims=True)),
    "last minimum": (
        "ArgMin",
        {"axis": 0, "select_last_index": 1, "keepdims": 0},
        lambda x: x.shape[0] - 1 - np.nanargmin(x[::-1], 0),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_of_extremes_under_random_configs(name: str, target: Target) -> None:
    """Partial results have two types: values and places."""
    operator, attributes, expected = PLACES[name]
    rng = np.random.default_rng(5)
    # Few values, so that most rows have ties.
    x = rng.integers(-3, 4, (37, 101)).astype("float32")
    x[rng.random(x.shape) < 0.1] = np.nan
    model = model_of({"y": (operator, "x", attributes)}, {"x": x})
    (task,) = Compilation.of(import_model(model, None), target).lowered().tasks
    right = expected(x)
    for config in (task.default_config(target), *task.space(target).sample(rng, 6 if has_device(target) else 1)):
        assert_agrees(target, task, config, [x, np.full(right.shape, -7)], right, 1e-9)


def test_a_running_sum_of_a_scalar(opencl_device: tvm.runtime.Device) -> None:
    """The reshape before it leaves a load without indices."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[3, 4] x) => (float[1] y) <int64[1] shape = {1}, int64 axis = {0}> {
            total = ReduceL1<keepdims=0>(x)
            row = Reshape(total, shape)
            y = CumSum(row, axis)
        }"""  # noqa: E501
    )
    tuned = romou.compile(model, target="opencl", device=0, strict=True, verify=False)
    x = np.arange(-6, 6, dtype="float32").reshape(3, 4)
    assert tuned.host_nodes == ()
    np.testing.assert_array_equal(tuned.run({"x": x})[0], [36])


@in_turn
@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "vulkan"])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_values_of_another_type_do_not_replace_the_elements(
    dtype: str, target: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device
) -> None:
    """The elements that several passes read are truth values here, and the reduced values are numbers."""
    rng = np.random.default_rng(3)
    numbers = [(rng.standard_normal((17, 13, 5)) * 9).astype(dtype) for _ in range(2)]
    inputs = {"mask": rng.random((17, 13, 5)) < 0.5, "x": numbers[0], "z": numbers[1]}
    reduced = ("ArgMin", "chosen", {"axis": -1}) if dtype == "int64" else ("Softmax", "chosen", {"axis": -1})
    model = model_of({"chosen": ("Where", "mask x z"), "y": reduced}, inputs)
    del model.graph.output[:1]
    assert_as_onnxruntime(model, inputs, target=target)


def test_memory_that_is_used_again_as_another_type_is_aligned_for_it() -> None:
    """Partial extremes are fp32, partial places int64. NVIDIA's OpenCL stops at an int64 in an array of fp32."""
    x = np.zeros((13, 8), np.float32)
    model = model_of({"y": ("ArgMax", "x", {"axis": 0, "keepdims": 0})}, {"x": x})
    sources = romou.compile(model, target="opencl -device=adreno640", verify=False, strict=True).sources()
    (source,) = [text for name, text in sources.items() if "argmax" in name]
    casts = set(re.findall(r"\(__local long4?\*\)(\w+)", source))
    assert casts
    for name in casts:
        assert re.search(rf"__local float {name}\[\d+\] __attribute__\(\(aligned\(64\)\)\);", source), source


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("device", ["adreno660", "mali_g76"])
@pytest.mark.parametrize("shape", [(3, 35, 7, 7), (7, 3, 3), (5, 6, 14), (65, 197), (6, 2), (9, 5), (39, 6), (2, 7)])
def test_odd_rows_are_read_in_vectors_on_phones(shape: tuple[int, ...], device: str, dtype: str) -> None:
    """The last vector ends with the row, and its first elements count once."""
    target, axes = Target(f"opencl -device={device}"), [-2, -1] if len(shape) > 2 else [-1]
    for build in (lambda a: op.mean(a, axis=axes), lambda a: op.max(a, axis=axes)):
        (task,) = relax_tasks(build, shape, dtype=dtype)
        config = task.default_config(target)
        elements = int(np.prod([shape[axis] for axis in axes]))
        assert config["vector_width"] == min(4, elements)
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
        assert read_usage([kernel.lowered], task.template, config).access_width == config["vector_width"]
        arrays = random_arrays(task, np.random.default_rng(2))
        for each in (config, *task.space(target).sample(np.random.default_rng(3), 1)):
            assert_agrees(target, task, each, arrays, reference(task, arrays), 1e-5 if dtype == "float32" else 2e-3)
