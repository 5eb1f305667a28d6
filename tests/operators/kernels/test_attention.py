"""Attention in one kernel: its numbers for odd rows, masks, heads and fp16, and the graphs that it is found in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op

from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.families.attention import AttentionTemplate
from romou.compiler.task import TunableTask
from romou.compiler.tir.expressions import bytes_of, dtype_of
from romou.devices.backends.opencl import backend as opencl
from romou.devices.targets import Target
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import assert_agrees, each_kind, error_of, has_device, joined_task
from support.models.attention_parts import attention_of_parts, grouped_heads
from support.models.small_networks import NetworkBuilder, attention_net, random_inputs
from support.suite.exhaustive import few

GPU = Target("cuda -device=nvidia_h200")
SWAP = [0, 1, 3, 2]
Build = Callable[..., relax.Expr]


def softmax_times(scores: relax.Expr, values: relax.Expr) -> relax.Expr:
    return op.matmul(op.nn.softmax(scores, axis=-1), values)


def scaled(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    return softmax_times(op.divide(op.matmul(q, op.permute_dims(k, SWAP)), number(q, 4.0)), v)


def added(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    return softmax_times(op.add(op.matmul(q, op.permute_dims(k, SWAP)), mask), v)


def masked(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    scores = op.multiply(op.matmul(q, op.permute_dims(k, SWAP)), number(q, 0.25))
    return softmax_times(op.where(mask, scores, number(q, -1e4)), v)


def filled(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    weights = op.nn.softmax(op.add(op.matmul(q, op.permute_dims(k, SWAP)), mask), axis=-1)
    return op.matmul(op.where(op.isnan(weights), number(q, 0.5), weights), v)


def of_rows(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    """Return attention with heads that are cut out of rows, (b, n, h, d), and keys that are contiguous along keys."""
    heads = op.permute_dims(q, [0, 2, 1, 3]), k, op.permute_dims(v, [0, 2, 1, 3])
    return op.permute_dims(softmax_times(op.matmul(heads[0], heads[1]), heads[2]), [0, 2, 1, 3])


def number(like: relax.Expr, value: float) -> relax.Expr:
    return relax.const(value, dtype_of(like))


@dataclass(frozen=True)
class Work:
    """An attention: its graph, its inputs' shapes, and the scores and values that NumPy makes of the inputs.

    constant: of the graph, which is a parameter of the function.
    fill: weight of every key in rows whose weights are NaN.
    """

    name: str
    build: Build
    shapes: Sequence[Sequence[int]]
    scores: Callable[..., np.ndarray]
    values: Callable[[np.ndarray], np.ndarray] = lambda v: v
    order: Sequence[int] = (0, 1, 2, 3)
    draw: Callable[[np.ndarray], np.ndarray] = lambda mask: mask
    constant: float = 0.0
    fill: float | None = None

    def arrays(self, dtype: str) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        arrays = [rng.standard_normal(shape) for shape in self.shapes]
        drawn = [*arrays[:3], *map(self.draw, arrays[3:])]
        return [array if array.dtype == bool else array.astype(dtype) for array in drawn]

    def expected(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the result in double precision."""
        q, k, v, *mask = (array if array.dtype == bool else array.astype("float64") for array in arrays)
        with np.errstate(invalid="ignore"):
            scores = self.scores(q, k, *mask).astype("float64")
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            weights = powers / powers.sum(-1, keepdims=True)
        if self.fill is not None:
            weights = np.where(np.isnan(weights), self.fill, weights)
        return np.matmul(weights, self.values(v)).transpose(self.order)


def product(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.matmul(q, k.swapaxes(-1, -2))


def with_hidden_rows(mask: np.ndarray, hidden: float) -> np.ndarray:
    """Return a mask of 0 and `hidden`, which hides every key of the rows 2 and 5."""
    chosen = np.where(mask > 0.3, hidden, 0.0)
    chosen[..., [2, 5], :] = hidden
    return chosen


WORKS = [
    Work("49 rows", scaled, [(4, 3, 49, 32)] * 3, lambda q, k: product(q, k) / 4),
    Work("prime rows", scaled, [(1, 2, 19, 20), (1, 2, 77, 20), (1, 2, 77, 10)], lambda q, k: product(q, k) / 4),
    Work("one row", scaled, [(1, 3, 1, 16), (1, 3, 50, 16), (1, 3, 50, 16)], lambda q, k: product(q, k) / 4),
    Work("odd heads", scaled, [(1, 1, 13, 7), (1, 1, 23, 7), (1, 1, 23, 5)], lambda q, k: product(q, k) / 4),
    Work(
        "hidden rows",
        added,
        [*[(2, 2, 21, 8)] * 3, (2, 1, 21, 21)],
        # In fp32, a large negative number swallows the products.
        lambda q, k, mask: (product(q, k) + mask).astype("float32"),
        draw=lambda mask: with_hidden_rows(mask, -1e9),
    ),
    Work(
        "large scores",
        added,
        [*[(1, 2, 33, 8)] * 3, (1, 1, 33, 33)],
        lambda q, k, mask: product(q, k) + mask,
        draw=lambda mask: mask * 3000,
    ),
    Work(
        "chosen scores",
        masked,
        [*[(1, 2, 29, 8)] * 3, (1, 1, 29, 29)],
        lambda q, k, mask: np.where(mask, product(q, k) / 4, -1e4),
        draw=lambda mask: mask > 0.3,
        constant=-1e4,
    ),
    Work(
        "filled rows",
        filled,
        [*[(1, 2, 17, 8)] * 3, (1, 1, 17, 17)],
        lambda q, k, mask: product(q, k) + mask,
        draw=lambda mask: with_hidden_rows(mask, -np.inf),
        constant=0.5,
        fill=0.5,
    ),
    Work("shared heads", scaled, [(2, 3, 21, 8), (2, 1, 21, 8), (2, 1, 21, 8)], lambda q, k: product(q, k) / 4),
    Work(
        "heads in rows",
        of_rows,
        [(2, 19, 3, 8), (2, 3, 8, 26), (2, 26, 3, 12)],
        lambda q, k: np.matmul(q.transpose(0, 2, 1, 3), k),
        lambda v: v.transpose(0, 2, 1, 3),
        (0, 2, 1, 3),
    ),
]


# Numbers that fp16 does not have.
OF_LARGE_NUMBERS = ("hidden rows", "large scores")


def task_of(work: Work, dtype: str = "float32") -> TunableTask:
    """Return the joined task of a graph."""
    arrays = work.arrays(dtype)
    task = joined_task(work.build, *(a.shape for a in arrays), dtype=[str(a.dtype) for a in arrays])
    assert isinstance(task.template, AttentionTemplate)
    return task


def configs_of(task: TunableTask, target: Target, count: int) -> list[Config]:
    """Return the default config and random ones of small tiles, which compile in a second."""
    space = task.space(target)
    drawn = space.sample(np.random.default_rng(1), 40)
    return [task.default_config(target), *[c for c in drawn if c["item_queries"] * c["item_keys"] <= 8][:count]]


def arguments(task: TunableTask, work: Work, dtype: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the kernel's arguments with a poisoned output, and the expected output."""
    arrays = work.arrays(dtype)
    expected = work.expected(arrays)
    names = [str(p.name) for p in task.func.params]
    # Constants of the graph are parameters of their own.
    by_name = {f"x{i}": array for i, array in enumerate(arrays)}
    shapes = [[int(d) for d in p.shape] for p in task.func.params]
    given = [
        next(iter([by_name[n] for n in by_name if name == n or name.startswith(f"{n}_")]), None) for name in names[:-1]
    ]
    filled_in = [
        array if array is not None else np.full(shape, work.constant, dtype)
        for array, shape in zip(given, shapes, strict=False)
    ]
    return [*filled_in, poison(shapes[-1], dtype)], expected


@each_kind("work", WORKS, opencl=(1, 4, 7, 9), cuda=(7,))
def test_it_is_what_numpy_says(work: Work, target: Target) -> None:
    task = task_of(work)
    arrays, expected = arguments(task, work, "float32")
    for config in configs_of(task, target, 1 if has_device(target) else 0):
        assert_agrees(target, task, config, arrays, expected, 1e-5)


@each_kind("work", [WORKS[1], WORKS[6], WORKS[7]], opencl=(1,), cuda=(0,))
def test_fp16_is_storage(work: Work, target: Target) -> None:
    """Sums are fp32, so only the rounding of the inputs and of the output is left."""
    task = task_of(work, "float16")
    arrays, expected = arguments(task, work, "float16")
    assert_agrees(target, task, task.default_config(target), arrays, expected, 1e-3)


@pytest.mark.parametrize("work", few([work for work in WORKS if work.name not in OF_LARGE_NUMBERS], 3))
def test_text_in_opencl(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's OpenCL takes PTX, too."""
    monkeypatch.setattr(opencl, "PTX_PRODUCTS_FROM", 0)
    task, target = task_of(work, "float16"), Target("opencl -device=nvidia_h200")
    arrays, expected = arguments(task, work, "float16")
    config = task.default_config(target)
    assert config["tensor_cores"] == "mma"
    assert error_of(run_on_cpu(task, config, arrays, target), expected) < 1e-3
    # Rows of matrices have to begin at multiples of 16 bytes. The CPU takes any address.
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target)
    (staged,) = re.findall(r"__local ushort staged_ptr.*", kernel.source)
    assert "aligned(64)" in staged


@pytest.mark.parametrize("work", few([work for work in WORKS if work.name not in OF_LARGE_NUMBERS], 1, 3, 5))
def test_tensor_cores_multiply_what_numpy_does(work: Work) -> None:
    """The kernel's text runs on the CPU where no GPU is. Weights are rounded to fp16, so are inputs and output."""
    task = task_of(work, "float16")
    arrays, expected = arguments(task, work, "float16")
    space = task.space(GPU).narrowed({"tensor_cores": ("mma",)})
    assert space is not None
    drawn = list(space.sample(np.random.default_rng(2), 2))
    configs = [task.default_config(GPU), *drawn]
    assert {config["tensor_cores"] for config in configs} == {"mma"}
    for config in configs:
        if has_device(GPU):
            assert_agrees(Target("cuda"), task, config, arrays, expected, 1e-3)
        else:
            error = error_of(run_on_cpu(task, config, arrays, GPU), expected)
            assert error < 1e-3, f"{config}: {error:.2g}"


def test_tensor_cores_are_only_for_fp16() -> None:
    def choices(dtype: str, target: Target) -> set[object]:
        return {config.get("tensor_cores", "none") for config in task_of(WORKS[0], dtype).space(target)}

    assert choices("float16", GPU) == {"none", "mma"}
    assert choices("float32", GPU) == choices("float16", Target("opencl -device=nvidia_h200")) == {"none"}
    assert choices("float16", Target("cuda -arch=sm_75")) == {"none"}


def test_parts_of_a_row_meet_in_sub_groups(vulkan_device: tvm.runtime.Device) -> None:
    """No local memory holds them, and the values are loaded over the keys."""
    work, target = WORKS[1], Target("vulkan")
    task, groups = task_of(work), target.limits.sub_groups
    assert groups is not None
    config = task.default_config(target).replace(
        group_queries=4, group_keys=4, item_queries=2, item_keys=2, value_tile="shared", sub_group=groups.size
    )
    assert task.space(target).is_valid(config)
    arrays, expected = arguments(task, work, "float32")
    assert_agrees(target, task, config, arrays, expected, 1e-5)


def test_local_memory_is_counted_as_the_kernel_has_it() -> None:
    for dtype in ("float32", "float16"):
        task = task_of(WORKS[0], dtype)
        configs = configs_of(task, GPU, 6)
        usage = task.template.form(GPU.limits).usage(columns_of(configs))
        for config, counted in zip(configs, usage.local_memory_bytes, strict=True):
            buffers = task.schedule(config, GPU)["main"].body.block.alloc_buffers
            assert counted == sum(bytes_of(b.shape, str(b.dtype)) for b in buffers if str(b.scope()) == "shared")


def windows(rows: int = 9, heads: int = 2, size: int = 8) -> onnx.ModelProto:
    """Return attention in four windows as Swin has it: a bias for each head, and a mask for each window, for which the
    windows get an axis of their own.
    """
    width, rng = heads * size, np.random.default_rng(1)
    g = NetworkBuilder({"x": (4, rows, width)})

    def reshaped(x: str, *shape: int) -> str:
        return g.add("Reshape", x, g.constant(np.array(shape)))

    joined = g.add("Add", g.add("MatMul", "x", g.weight(width, 3 * width)), g.weight(3 * width))
    joined = g.add("Transpose", reshaped(joined, 4, rows, 3, heads, size), perm=[2, 0, 3, 1, 4])
    q, k, v = (g.add("Gather", joined, g.constant(np.array(part)), axis=0) for part in range(3))
    scores = g.add("MatMul", g.add("Mul", q, g.constant(np.float32(0.3))), g.add("Transpose", k, perm=SWAP))
    scores = g.add("Add", scores, g.weight(1, heads, rows, rows))
    mask = np.where(rng.random((1, 4, 1, rows, rows)) > 0.5, 0, -100).astype("float32")
    scores = g.add("Add", reshaped(scores, 1, 4, heads, rows, rows), g.constant(mask))
    weights = g.add("Softmax", reshaped(scores, 4, heads, rows, rows), axis=-1)
    return g.model(reshaped(g.add("Transpose", g.add("MatMul", weights, v), perm=[0, 2, 1, 3]), 4, rows, width))


def decoder(rows: int = 11, heads: int = 4, groups: int = 2, size: int = 8) -> onnx.ModelProto:
    """Return causal attention in which two heads share their keys and values."""
    g = NetworkBuilder({"x": (1, rows, heads * size)})

    def reshaped(x: str, *shape: int) -> str:
        return g.add("Reshape", x, g.constant(np.array(shape)))

    def head(count: int) -> str:
        projected = g.add("MatMul", "x", g.weight(heads * size, count * size))
        return g.add("Transpose", reshaped(projected, 1, rows, count, size), perm=[0, 2, 1, 3])

    def repeated(x: str) -> str:
        each = g.add("Unsqueeze", x, g.constant(np.array([2])))
        shape = g.constant(np.array([1, groups, heads // groups, rows, size]))
        return reshaped(g.add("Expand", each, shape), 1, heads, rows, size)

    q, k, v = head(heads), repeated(head(groups)), repeated(head(groups))
    scores = g.add("Div", g.add("MatMul", q, g.add("Transpose", k, perm=SWAP)), g.constant(np.float32(3.0)))
    causal = g.constant(np.tril(np.ones((1, 1, rows, rows), bool)))
    weights = g.add("Softmax", g.add("Where", causal, scores, g.constant(np.float32(-1e9))), axis=-1)
    return g.model(g.add("Transpose", g.add("MatMul", weights, v), perm=[0, 2, 1, 3]))


def attention_node(is_causal: bool = False) -> onnx.ModelProto:
    """Return ONNX's Attention with grouped heads, and a mask unless it is causal."""
    shapes = {"q": [1, 4, 9, 8], "k": [1, 2, 11, 8], "v": [1, 2, 11, 8]}
    shapes |= {} if is_causal else {"mask": [9, 11]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node("Attention", [*shapes], ["y"], is_causal=int(is_causal))
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


MODELS = {
    "heads": attention_net,
    "windows": windows,
    "decoder": decoder,
    "Attention": attention_node,
    "causal Attention": lambda: attention_node(is_causal=True),
    "parts of one product": lambda: attention_of_parts("bnthd", "split"),
    "grouped heads": grouped_heads,
}


@pytest.mark.parametrize("name", few([*MODELS], 1, 3, 5))
def test_models_have_one_kernel_for_it(
    name: str, opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PoCL's optimization takes longer than everything else.
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    model, target = MODELS[name](), Target("opencl -device=host")
    apart = Compilation.of(import_model(model, None), target).lowered()
    assert not any(task.family == "attention" for task in apart.tasks)
    joined = apart.joined_where(lambda key: True)
    assert [task.calls for task in joined.tasks if task.family == "attention"] == [1]
    assert not any("softmax" in task.name or "batch_matmul" in task.name for task in joined.tasks)
    made = tuned_model(joined, TimingSite(named=target, target=target))
    inputs = random_inputs(model, seed=5)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for output, right in zip(made.run(inputs), expected, strict=True):
        assert relative_l2_error(np.asarray(output), right) < 1e-5


# An encoder's, with a mask of each; a picture's, whose rows are odd; a decoder's, and that of windows.
DEFAULTS = {
    "encoder": lambda: attention_net(heads=4, size=64, rows=50),
    "picture": lambda: attention_of_parts("bnthd", "gather", windows=1, rows=77, depth=64),
    "decoder": lambda: grouped_heads(rows=64, heads=8, groups=2, depth=32),
    "windows": lambda: attention_of_parts("bnthd", "gather", windows=4, rows=64, heads=4, depth=36),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_one_kernel_is_the_default_where_it_is_taken_to_be_faster(name: str) -> None:
    """On phones an estimate of the calls decides."""
    imported = import_model(DEFAULTS[name](), None)
    targets = ("opencl -device=adreno640", "opencl -device=adreno740", "opencl -device=mali_g715", "cuda -arch=sm_90")
    for target in targets:
        lowered = Compilation.of(imported, Target(target)).lowered()
        names = sorted(task.family for task in lowered.tasks if task.family in ("attention", "row_reduction"))
        is_slower = name == "picture" and "adreno640" in target
        # Only the estimate of Adreno 640 prefers three kernels.
        assert names.count("attention") == (not is_slower), target
        assert any("softmax" in task.name for task in lowered.tasks) == is_slower, target


def test_three_kernels_are_the_default_where_these_are_taken_to_be_faster() -> None:
    def families(target: str, dtype: str = "float32") -> set[str]:
        imported = import_model(attention_net(size=16, rows=24, dtype=dtype), None)
        return {task.family for task in Compilation.of(imported, Target(target)).lowered().tasks}

    assert "attention" in families("opencl -device=nvidia_h200", "float16")
    assert "attention" in families("cuda -device=nvidia_h200", "float16")
    assert "attention" not in families("cuda -device=nvidia_h200 -tf32=allow")
    assert "attention" not in families("opencl -device=host")


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "cuda -arch=sm_90"])
def test_heads_that_share_keys_read_them_in_place(target: str) -> None:
    """A kernel that repeats keys and values would write them once for each head of queries."""
    lowered = (
        Compilation.of(import_model(grouped_heads(), None), Target(target)).lowered().joined_where(lambda key: False)
    )
    assert {task.family for task in lowered.tasks} == {"dense", "batch_matmul", "row_reduction"}
    products = [task for task in lowered.tasks if task.family == "batch_matmul"]
    assert all(task.template.workload.rhs_batch == (1, 2) for task in products)


def test_images_are_read_in_texels(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phone's Q, K, V and output are in images of rows. Compilers would split `vload4` from local memory."""
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    model, target = grouped_heads(), Target("opencl -device=adreno640")
    joined = Compilation.of(import_model(model, None), target).lowered().joined_where(lambda key: True)
    (task,) = (task for task in joined.tasks if task.family == "attention")
    assert len(task.template.images) == 4
    (kernel,) = inspect_function(task.schedule(task.default_config(target), target)["main"], target)
    assert "vload4" not in kernel.source
    assert "__local float4*" in kernel.source
    made, inputs = tuned_model(joined, TimingSite(named=target, target=target)), random_inputs(model, seed=5)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for output, right in zip(made.run(inputs), expected, strict=True):
        assert relative_l2_error(np.asarray(output), right) < 1e-5


@pytest.mark.parametrize(("rows", "keys", "is_faster"), [(1, 64, True), (1, 2048, False), (2048, 2048, True)])
def test_few_rows_of_many_keys_have_three_kernels(rows: int, keys: int, is_faster: bool) -> None:
    """A group reads all keys of its rows, and the other cores have nothing to do."""
    task = joined_task(scaled, (1, 6, rows, 64), *[(1, 6, keys, 64)] * 2, dtype=["float16"] * 3)
    assert task.template.is_faster(GPU.limits) == is_faster


def test_what_is_faster_when_measured_is_taken() -> None:
    imported = import_model(attention_net(), None)
    graph = Compilation.of(imported, GPU).lowered()
    ((joined, parts),) = graph.alternatives.items()
    assert len(parts) == 3
    assert {task.key for task in graph.candidates} >= {joined, *parts}
    assert joined in {task.key for task in graph.tasks}

    def is_joined(seconds: dict[str, float]) -> bool:
        return joined in {task.key for task in graph.joined_where_faster(seconds).tasks}

    each = dict.fromkeys(parts, 1.0)
    assert is_joined({**each, joined: 2.9})
    assert not is_joined({**each, joined: 3.1})
    # A kernel that never ran is not taken. One of the parts that never ran decides nothing.
    assert not is_joined(each)
    assert is_joined({})


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        pytest.param(
            lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), axis=1), v), [(2, 9, 9)] * 3, id="of columns"
        ),
        pytest.param(
            lambda q, k, v: op.matmul(op.nn.log_softmax(op.matmul(q, k), axis=-1), v), [(2, 9, 9)] * 3, id="logarithms"
        ),
        pytest.param(lambda q, k, v: op.matmul(op.tanh(op.matmul(q, k)), v), [(2, 9, 9)] * 3, id="no softmax"),
    ],
)
def test_what_is_none(build: Build, shapes: Sequence[Sequence[int]]) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        joined_task(build, *shapes)
