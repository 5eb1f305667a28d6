"""Channels packed by four: the numbers stay the same, only the borders have transforms, and epilogues fuse."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import is_view
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder, prime_net, random_inputs, residual_net
from support.suite.exhaustive import few

TARGET = Target("opencl -device=adreno640")


def run_on_cpu(mod: tvm.IRModule, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a graph unscheduled through LLVM: its meaning without any schedule."""
    executable = tvm.compile(mod, target="llvm")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in inputs.values()])
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [o.numpy() for o in outputs]


def check(model: onnx.ModelProto) -> tvm.IRModule:
    imported = import_onnx(model)
    packed = pack_channels(imported.mod)
    inputs = random_inputs(model)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    for output, expected in zip(run_on_cpu(packed, inputs), reference, strict=True):
        assert relative_l2_error(output, expected) < 1e-5
    return packed


@pytest.mark.parametrize("channels", few([8, 10, 31], 1))
def test_numbers_stay(channels: int) -> None:
    check(residual_net(channels))


def test_prime_sizes() -> None:
    check(prime_net())


def test_transforms_only_at_the_borders() -> None:
    calls = count_calls(check(residual_net(8)))
    transforms = {name: count for name, count in calls.items() if "pack" in name}
    # The image is an unpacked input, and the 13 channels of the concatenation do not fill their last texel but stay
    # packed.
    assert transforms == {"pack": 1, "unpack": 1}


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_window_over_the_border_keeps_channels_packed(operator: str) -> None:
    """Rounded up, the last window reaches behind the input."""
    g = NetworkBuilder({"image": (1, 8, 10, 12)})
    pooled = g.add(operator, g.conv("image", 8, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    calls = count_calls(check(g.model(g.conv(pooled, 8, 8))))
    assert {name: count for name, count in calls.items() if "pack" in name} == {"pack": 1, "unpack": 1}


@pytest.mark.parametrize("parts", [(6, 8), (7, 8), (21, 42), (5, 6, 7), (3, 42), (6, 4, 5, 9)])
def test_a_concatenation_in_the_middle_of_texels_stays_packed(parts: tuple[int, ...]) -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 11)})
    joined = g.add("Relu", g.add("Concat", *(g.conv("image", 4, part) for part in parts), axis=1))
    model = g.model(g.conv(joined, sum(parts), 5))
    calls = count_calls(check(model))
    assert {name: count for name, count in calls.items() if "pack" in name} == {"pack": 1, "unpack": 1}
    inputs = random_inputs(model)
    (expected,) = run_onnxruntime(model, inputs) or ()
    (found,) = romou.compile(model, target="opencl", strict=True).run(inputs)
    assert relative_l2_error(found, expected) < 1e-5


def test_a_shuffle_reads_the_parts_of_a_concatenation() -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    joined = g.add("Concat", g.conv("image", 4, 6), g.conv("image", 4, 6), axis=1)
    groups = g.add("Transpose", g.add("Reshape", joined, g.constant(np.array([1, 2, 6, 7, 7]))), perm=[0, 2, 1, 3, 4])
    packed = check(g.model(g.conv(g.add("Reshape", groups, g.constant(np.array([1, 12, 7, 7]))), 12, 8)))
    (moved,) = [name for name in count_calls(fuse_operators(packed, TARGET)) if "concatenate" in name]
    assert "transpose" in moved
    assert moved.count("unpack") == 2


@pytest.mark.parametrize("parts", [(7,), (1, 64), (3, 1, 2)])
def test_a_concatenation_with_an_unpacked_part_stays_right(parts: tuple[int, ...]) -> None:
    """The model's input is not packed, nor is a convolution of one channel."""
    g = NetworkBuilder({"image": (1, 5, 9, 9)})
    joined = g.add("Concat", *(g.conv("image", 5, part, (1, 1)) for part in parts), "image", axis=1)
    check(g.model(g.conv(joined, sum(parts) + 5, 8)))


def test_division_where_the_last_texel_is_not_full() -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    quotient = g.add("Div", g.conv("image", 4, 6), g.add("Exp", g.conv("image", 4, 6)))
    check(g.model(g.conv(quotient, 6, 5)))


def test_a_value_used_in_both_layouts() -> None:
    g = NetworkBuilder({"image": (2, 5, 8, 8)})
    x = g.conv("image", 5, 6)
    plain = g.add("Transpose", x, perm=[0, 2, 3, 1])
    check(g.model(g.add("Relu", x), plain))


def test_scalar_and_per_pixel_operands() -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    x = g.conv("image", 4, 6)
    x = g.add("Mul", x, g.constant(np.float32(2.5)))
    x = g.add("Add", x, g.weight(1, 1, 7, 7))
    x = g.add("Sub", g.weight(1, 6, 1, 1), x)
    check(g.model(g.add("Pow", x, g.constant(np.float32(2)))))


def test_matmul_with_leading_dimensions() -> None:
    g = NetworkBuilder({"x": (2, 5, 12)})
    packed = check(g.model(g.add("Add", g.add("MatMul", "x", g.weight(12, 7)), g.weight(7))))
    tasks, _ = extract_tasks(fuse_operators(packed, TARGET))
    assert [(t.family, t.name) for t in tasks] == [("dense", "dense_10x12_7")]


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "more"),
    few(
        [
            ((2, 2), (1, 1), (0, 0, 0, 0), (0, 0)),
            ((2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
            ((2, 2), (3, 3), (0, 0, 0, 0), (2, 1)),
            ((3, 3), (1, 1), (1, 1, 1, 1), (0, 0)),
            ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
            ((3, 3), (3, 3), (2, 2, 2, 2), (0, 1)),
            ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
            ((4, 3), (2, 3), (1, 0, 0, 2), (1, 2)),
        ],
        2,
        4,
        6,
        7,
    ),
)
def test_transposed_convolutions(
    kernel: tuple[int, int], stride: tuple[int, int], pads: tuple[int, ...], more: tuple[int, int]
) -> None:
    """Transposed convolutions with a partial last texel, single and grouped per channel, make one network that stays
    packed.
    """
    g = NetworkBuilder({"image": (2, 5, 5, 7)})
    common = {"kernel_shape": kernel, "strides": stride, "pads": pads, "output_padding": more}
    x = g.add("Relu", g.add("ConvTranspose", "image", g.weight(5, 6, *kernel), g.weight(6), **common))
    x = g.add("ConvTranspose", x, g.weight(6, 1, *kernel), group=6, **common)
    packed = check(g.model(x))
    assert {name: count for name, count in count_calls(packed).items() if "pack" in name} == {"pack": 1, "unpack": 1}
    tasks, _ = extract_tasks(fuse_operators(packed, TARGET))
    assert [t.family for t in tasks if t.family != "elementwise"] == ["conv2d_transpose"] * 2


def test_transposed_convolutions_without_a_template_stay_right() -> None:
    g = NetworkBuilder({"image": (1, 6, 5, 7)})
    x = g.add("ConvTranspose", g.conv("image", 6, 6), g.weight(6, 4, 3, 3), group=2, strides=[2, 2])
    check(g.model(g.add("ConvTranspose", x, g.weight(8, 5, 3, 3), dilations=[2, 2])))


def attention(rows: int, heads: int, size: int) -> onnx.ModelProto:
    """Return softmax(q k^T * scale + mask) v for a batch of two, with matrices as inputs and output."""
    g = NetworkBuilder(dict.fromkeys("qkv", (2 * rows, heads * size)))
    shape = g.constant(np.array([2, rows, heads, size], np.int64))
    q, k, v = (
        g.add("Transpose", g.add("Reshape", name, shape), perm=perm)
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    scores = g.add("MatMul", g.add("Mul", g.constant(np.float32(0.5)), q), g.add("Div", k, g.constant(np.float32(3))))
    mask = g.constant(np.where(np.arange(rows) < rows - 2, 0, -1e9).astype(np.float32))
    out = g.add("MatMul", g.add("Softmax", g.add("Add", scores, mask), axis=-1), v)
    return g.model(
        g.add(
            "Reshape",
            g.add("Transpose", out, perm=[0, 2, 1, 3]),
            g.constant(np.array([2 * rows, heads * size], np.int64)),
        )
    )


@pytest.mark.parametrize(("rows", "size"), [(8, 16), (13, 7)])
def test_attention_reads_and_writes_where_things_lie(rows: int, size: int) -> None:
    fused = fuse_operators(check(attention(rows, 3, size)), TARGET)
    tasks, of = extract_tasks(fused)
    first, between, second = tasks
    # No transpose and no scale has a separate kernel.
    assert [first.name, second.name] == [
        f"batch_matmul_6x{rows}x{size}_{rows}_t",
        f"batch_matmul_6x{rows}x{rows}_{size}",
    ]
    assert (between.family, between.name[:21]) == ("row_reduction", "row_reduction_softmax")
    # Reshapes move nothing.
    assert {name for name in count_calls(fused) if not name.startswith("reshape")} == set(of)
    assert any("add" in name for name in of)


def test_products_of_computed_matrices() -> None:
    """Products of computed matrices keep onnxruntime's numbers: batches that broadcast on either side, different ranks,
    an epilogue of bias and gelu.
    """
    for left, right in (
        ((4, 5, 12), (12, 7)),
        ((4, 5, 12), (1, 12, 7)),
        ((5, 12), (4, 12, 7)),
        ((3, 1, 5, 12), (2, 12, 8)),
        ((5, 12), (12, 8)),
    ):
        g = NetworkBuilder({"a": left, "b": right})
        x = g.add("Add", g.add("MatMul", "a", "b"), g.weight(right[-1]))
        erf = g.add("Erf", g.add("Div", x, g.constant(np.float32(2**0.5))))
        gelu = g.add("Mul", g.add("Mul", x, g.add("Add", erf, g.constant(np.float32(1)))), g.weight(1))
        fused = fuse_operators(check(g.model(gelu)), TARGET)
        _, of = extract_tasks(fused)
        assert len(of) == 1
        assert {name for name in count_calls(fused) if not name.startswith("reshape")} == set(of)


def test_what_is_no_product_of_two_matrices_stays() -> None:
    g = NetworkBuilder({"a": (5, 12), "b": (12,)})
    tasks, _ = extract_tasks(fuse_operators(check(g.model(g.add("MatMul", "a", "b"))), TARGET))
    assert "batch_matmul" not in {t.family for t in tasks}


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_product_of_a_matrix_with_itself(is_computed: bool) -> None:
    """The second factor is a view of the first one, which takes no kernel."""
    g = NetworkBuilder({"a": (5, 12)})
    a = g.add("Relu", g.add("MatMul", "a", g.weight(12, 8))) if is_computed else "a"
    square = g.add("MatMul", a, g.add("Transpose", a, perm=[1, 0]))
    fused = fuse_operators(check(g.model(g.add("Tanh", square))), TARGET)
    tasks, of = extract_tasks(fused)
    assert [t.family for t in tasks] == ["dense"] * is_computed + ["batch_matmul"]
    assert {name for name in count_calls(fused) if not is_view(fused[name])} == set(of)


def test_a_product_that_is_used_in_two_orders() -> None:
    g = NetworkBuilder({"a": (3, 5, 12), "b": (3, 12, 8)})
    x = g.add("MatMul", "a", "b")
    check(g.model(g.add("Relu", x), g.add("Transpose", x, perm=[1, 0, 2]), g.add("Transpose", x, perm=[2, 1, 0])))


def test_epilogues_fuse() -> None:
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    x = g.conv("image", 8, 8, pads=[1, 1, 1, 1])
    y = g.add("Relu", g.add("Add", g.norm(g.conv(x, 8, 8, pads=[1, 1, 1, 1]), 8), x))
    fused = fuse_operators(check(g.model(y)), TARGET)
    calls = count_calls(fused)
    # Two convolutions, each with all that follows it element-wise, and the two borders.
    assert len(calls) == 4, calls
    tasks, of = extract_tasks(fused)
    assert sorted(task.family for task in tasks) == ["conv2d", "conv2d", "elementwise", "elementwise"]
    assert set(of) == set(calls)


def test_equal_kernels_are_one_task() -> None:
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    x = "image"
    for _ in range(3):
        x = g.add("Relu", g.conv(x, 8, 8, pads=[1, 1, 1, 1]))
    tasks, _ = extract_tasks(fuse_operators(pack_channels(import_onnx(g.model(x)).mod), TARGET))
    assert [(t.calls, t.flops) for t in tasks if t.family == "conv2d"] == [(3, 2 * 81 * 8 * 8 * 9)]


def test_task_keys_are_the_same_in_every_model_and_process() -> None:
    keys = []
    for _ in range(2):
        tasks, _ = extract_tasks(fuse_operators(pack_channels(import_onnx(residual_net()).mod), TARGET))
        keys.append([t.key for t in tasks])
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == len(keys[0])
