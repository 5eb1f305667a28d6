"""Products of quantized operators are exact. Constant matrices of bytes stay packed, others become floats."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantFormat, QuantType
from tvm import relax

import bench_integer_convolutions as bench
import romou
from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.compiler.importing import import_onnx
from romou.compiler.operators.algorithms.winograd.convolution import algorithms
from romou.compiler.operators.kernels.quantized.integer_matrix import IntegerMatrix
from romou.compiler.pipeline import GRAPH, run
from romou.compiler.stages import Context
from romou.compiler.tir.expressions import is_constant
from romou.devices.targets import Target
from support.kernels.operators import conv
from support.models.blocks import Net, NetworkBlock
from support.models.quantized import model_of
from support.suite.exhaustive import few

FAMILIES = ("batch_matmul", "conv2d", "dense", "elementwise", "group_conv2d", "integer_product", "row_reduction")
TARGETS = few(["opencl", "opencl -device=adreno640", "vulkan"], 0, 1)
each_target = pytest.mark.parametrize("target", TARGETS)


def calls_of(block: NetworkBlock, inputs: dict[str, np.ndarray], target: str) -> dict[str, int]:
    """Return how many kernels of each family run, after an exact comparison with onnx's reference.

    onnxruntime's kernels for some CPUs saturate sums of two products at 16 bits.
    """
    tuned = romou.compile(block.model, target=target)
    (result,) = tuned.run(inputs)
    (expected,) = ReferenceEvaluator(block.model).run(None, inputs)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected), np.abs(result.astype("int64") - expected).max()
    calls: Counter[str] = Counter()
    for row in tuned.summary().table():
        name = str(row["layer"])
        calls[next((family for family in FAMILIES if name.startswith(family)), name)] += int(row["calls"])
    return calls


def assert_extreme_sums(k: int, target: str, *, is_packed: bool, products: int) -> None:
    """Compare sums up to k * 255 * 127, all of one sign, with zero points at either end.

    is_packed: whether the weight is a matrix. A batch of one matrix is multiplied in floats.
    """
    net, rng = Net("extreme"), np.random.default_rng(k)
    weight = rng.choice(np.array([-127, 127], "int8"), (k, 9))
    weight[:, 0], weight[:, 1] = 127, -128
    block = net.block(
        net.add(
            "MatMulInteger",
            net.input((5, k), "uint8", 256),
            net.const(weight if is_packed else weight[None], "int8"),
            net.const(0, "uint8"),
            net.const(0, "int8"),
        )
    )
    x = rng.integers(0, 256, (5, k)).astype("uint8")
    x[0] = 255
    calls = calls_of(block, {"x0": x}, target)
    assert {*calls} <= {"batch_matmul", "dense", "elementwise", "integer_product"}
    assert sum(count for family, count in calls.items() if family != "elementwise") == products
    assert is_packed == ("integer_product" in calls)


@each_target
@pytest.mark.parametrize("k", [7, 1027, 2061])
def test_packed_extremes(k: int, target: str) -> None:
    assert_extreme_sums(k, target, is_packed=True, products=1)


@each_target
@pytest.mark.parametrize(("k", "products"), [(7, 1), (1027, 2), (2061, 5)])
def test_extremes_in_floats(k: int, products: int, target: str) -> None:
    assert_extreme_sums(k, target, is_packed=False, products=products)


RANGES = {"uint8": (0, 256), "int8": (-128, 128)}


@each_target
@pytest.mark.parametrize("weight", RANGES)
@pytest.mark.parametrize("data", RANGES)
def test_types_and_zero_points(data: str, weight: str, target: str) -> None:
    """Every pair of types, with a zero point for each row and for each column, and without any."""
    net, rng, (m, k, n) = Net("types"), np.random.default_rng(1), (3, 70, 21)
    numbers = rng.integers(*RANGES[weight], (k, n)).astype(weight)
    numbers[:, 0], numbers[:, 1] = RANGES[weight][0], RANGES[weight][1] - 1
    x, matrix = net.input((m, k), data, 256), net.const(numbers, weight)
    points = net.const(rng.integers(*RANGES[weight], n), weight)
    rows = net.const(np.array([[RANGES[data][0]], [3], [RANGES[data][1] - 1]]), data)
    shifted = net.add("MatMulInteger", x, matrix, net.const(RANGES[data][1] - 1, data), points)
    by_rows, plain = net.add("MatMulInteger", x, matrix, rows, points), net.add("MatMulInteger", x, matrix)
    block = net.block(net.add("Add", net.add("Add", shifted, by_rows), plain))
    values = rng.integers(*RANGES[data], (m, k)).astype(data)
    values[0], values[1] = RANGES[data][0], RANGES[data][1] - 1
    calls = calls_of(block, {"x0": values}, target)
    assert {*calls} == {"elementwise", "integer_product"}


def test_a_zero_point_at_run_time() -> None:
    """DynamicQuantizeLinear computes a scalar. Products of the same activations share their packed form."""
    net, rng = Net("dynamic"), np.random.default_rng(2)
    x, zero = net.input((2, 5, 67), "uint8", 256), net.input((), "uint8", 256)
    weights = [net.const(rng.integers(-128, 128, (67, n)), "int8") for n in (9, 16)]
    sums = [net.add("MatMulInteger", x, weight, zero) for weight in weights]
    block = net.block(net.add("Concat", *sums, axis=-1))
    calls = calls_of(block, block.inputs(3), "opencl")
    assert calls["integer_product"] == 2


def test_a_weight_takes_one_byte_an_element() -> None:
    weight = np.random.default_rng(3).integers(-128, 128, (320, 64))
    matrix = IntegerMatrix.pack(weight)
    assert matrix is not None
    assert matrix.words.nbytes == weight.size
    assert IntegerMatrix.pack(np.array([[-129], [127]])) is None


def test_large_weights_in_one_place() -> None:
    """Half of the weights have nearly all of the magnitude, so a cut in the middle would leave one part too large."""
    net = Net("uneven")
    weight = np.ones((1, 1200, 3), "int8")
    weight[:, :600] = -127
    block = net.block(net.add("MatMulInteger", net.input((2, 1200), "uint8", 256), net.const(weight, "int8")))
    calls = calls_of(block, {"x0": np.full((2, 1200), 255, "uint8")}, "opencl")
    assert sum(calls.get(family, 0) for family in ("batch_matmul", "dense")) == 2


@pytest.mark.parametrize(
    ("data", "weight"), [((5, 7), (7,)), ((7,), (7, 3)), ((2, 5, 7), (2, 7, 3)), ((5, 2061), (2061,))]
)
def test_vectors_and_batches(data: tuple[int, ...], weight: tuple[int, ...]) -> None:
    net = Net("ranks")
    x = net.input(data, "uint8", 256)
    block = net.block(net.add("MatMulInteger", x, net.const(net.rng.integers(-128, 128, weight), "int8")))
    assert {*calls_of(block, block.inputs(3), "opencl")} <= {*FAMILIES}


@each_target
def test_two_computed_matrices(target: str) -> None:
    """The type of each factor bounds it, so sums of up to 258 products are exact."""
    net = Net("computed")
    x, y = net.input((2, 3, 64), "uint8", 256), net.input((2, 64, 5), "uint8", 256)
    block = net.block(net.add("MatMulInteger", x, y, net.const(7, "uint8"), net.const(250, "uint8")))
    assert {*calls_of(block, block.inputs(3), target)} == {"batch_matmul", "elementwise"}


CONVOLUTIONS = [
    ((5, 5, 3, 3), 1, [1, 1]),
    ((8, 2, 3, 3), 4, [2, 1]),
    ((6, 130, 3, 3), 1, [1, 1]),
    ((4, 8, 1, 1), 1, [1, 1]),
]


@each_target
@pytest.mark.parametrize(("shape", "groups", "strides"), few(CONVOLUTIONS, 0, 2))
def test_convolutions(shape: tuple[int, ...], groups: int, strides: list[int], target: str) -> None:
    net = Net("integer_convolution")
    x = net.input((1, shape[1] * groups, 9, 11), "uint8", 256)
    weight, zero = net.const(net.rng.choice([-128, 127], shape), "int8"), net.const(128, "uint8")
    sums = net.add("ConvInteger", x, weight, zero, net.const(0, "int8"), group=groups, strides=strides, pads=[1] * 4)
    block = net.block(sums)
    family = "conv2d" if groups == 1 else "group_conv2d"
    assert {*calls_of(block, block.inputs(5), target)} == {family, "elementwise"}


# Output channels, input channels of a group, window; groups; strides; types of data and weight; whether each output has
# a zero point; bytes of a stored weight.
BYTES_OF_CONVOLUTIONS = [
    ((7, 5, 3, 3), 1, (2, 1), "uint8", "uint8", False, 1),
    ((7, 5, 3, 3), 1, (1, 2), "int8", "uint8", True, 2),
    ((9, 6, 1, 1), 1, (1, 1), "int8", "int8", False, 1),
    ((6, 1, 3, 3), 6, (1, 1), "uint8", "int8", False, 1),
    ((6, 1, 5, 3), 6, (2, 2), "int8", "uint8", False, 1),
    ((12, 4, 3, 3), 3, (1, 1), "uint8", "int8", True, 2),
    ((9, 2, 2, 3), 3, (1, 1), "uint8", "uint8", False, 1),
]


@each_target
@pytest.mark.parametrize(("shape", "groups", "strides", "data", "weight", "is_for_each", "size"), BYTES_OF_CONVOLUTIONS)
def test_convolutions_of_bytes(
    shape: tuple[int, ...],
    groups: int,
    strides: tuple[int, int],
    data: str,
    weight: str,
    is_for_each: bool,
    size: int,
    target: str,
) -> None:
    """A convolution reads bytes, between others, and subtracts zero points itself. Its weight has no copy in floats."""
    net, (outputs, inputs, *_) = Net("bytes"), shape
    x = net.input((2, inputs * groups, 9, 10), data, 256)
    numbers = net.rng.integers(*RANGES[weight], shape).astype(weight)
    numbers[0], numbers[-1] = RANGES[weight][0], RANGES[weight][1] - 1
    ends = np.array([RANGES[weight][0], RANGES[weight][1] - 1], weight)
    points = np.resize(ends, outputs) if is_for_each else ends[0] + np.array(9, weight)

    def scale(value: float) -> str:
        return str(net.const(np.float32(value)))

    first = (x, scale(0.02), net.const(RANGES[data][0] + 3, data), net.const(numbers, weight))
    last = scale(1.0), net.const(RANGES[data][0] + 100, data)
    y = net.add(
        "QLinearConv",
        *first,
        scale(0.0107),
        net.const(points, weight),
        *last,
        group=groups,
        strides=strides,
        pads=[1] * 4,
    )
    # The second reads what the first one has stored.
    matrix = net.const(net.rng.integers(-128, 128, (5, outputs, 1, 1)), "int8")
    y = net.add("QLinearConv", y, *last, matrix, scale(0.1), net.const(0, "int8"), scale(17.3), net.const(5, data))
    block = net.block(y)
    values = {"x0": np.random.default_rng(5).integers(*RANGES[data], (2, inputs * groups, 9, 10)).astype(data)}
    calls = calls_of(block, values, target)
    assert sum(count for family, count in calls.items() if family != "elementwise") == 2
    weights = [array for array in constants_of(block.model, target) if array.ndim > 1 and array.dtype.kind in "iu"]
    assert sorted(array.itemsize for array in weights) == [1, size]
    assert not any(
        array.size >= numbers.size and array.dtype.kind == "f" for array in constants_of(block.model, target)
    )


def constants_of(model: onnx.ModelProto, target: str) -> list[np.ndarray]:
    """Return the constants of the compiled graph."""
    mod, constants = run(GRAPH, import_onnx(model).mod, Context(target=Target(target))), list[np.ndarray]()
    relax.analysis.post_order_visit(
        mod["main"], lambda expr: constants.append(expr.value.numpy()) if is_constant(expr) else None
    )
    return constants


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"per_channel": False, "activation_type": QuantType.QInt8},
        {"quant_format": QuantFormat.QOperator},
        {
            "activation_type": QuantType.QInt8,
            "extra_options": {"AddQDQPairToWeight": True, "ActivationSymmetric": True},
        },
    ],
    ids=["channels", "tensors", "operators", "weights of floats"],
)
def test_a_network(given: dict[str, object]) -> None:
    """onnxruntime.quantization's form of a CNN: no node on the host, right to a step, and one byte for each weight."""
    size, plain = 40, bench.network(40, (8, 12, 12, 20))
    model, inputs = bench.quantized(plain, size, **given), bench.images(size, 9)
    tuned = romou.compile(model, target="opencl")
    (result,) = tuned.run(inputs)
    (expected,) = cpu_session(model).run(None, inputs)
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    step = float(scales[model.graph.node[-1].input[1]])
    assert np.abs(result - expected).max() <= 1.01 * step
    assert not tuned.host_nodes
    assert tuned.summary().relative_l2_error is not None
    (fp32,) = bench.session(plain, is_exact=True).run(None, inputs)
    assert np.abs(result - fp32).max() < 0.2 * np.abs(fp32).max()
    families = {str(row["layer"]).split("_")[0] for row in tuned.summary().table()}
    assert families <= {"conv2d", "depthwise", "elementwise", "integer", "row"}
    weights = sum(array.size for array in map(numpy_helper.to_array, plain.graph.initializer) if array.ndim > 1)
    arrays = constants_of(model, "opencl")
    assert sum(array.nbytes for array in arrays if array.dtype.kind == "f") < weights
    # Texels are padded, and words of four bytes.
    assert sum(array.nbytes for array in arrays if array.dtype in (np.int8, np.uint8, np.uint32)) < 2 * weights


@each_target
def test_a_network_with_activations_of_16_bits(target: str) -> None:
    """Weights of its convolutions become floats. Each kernel rounds its own result, so no other kernels are between."""
    size, plain = 40, bench.network(40, (8, 12, 12, 20))
    model, inputs = bench.quantized(plain, size, activation_type=QuantType.QUInt16), bench.images(size, 9)
    tuned = romou.compile(model, target=target)
    (result,) = tuned.run(inputs)
    (expected,) = cpu_session(model).run(None, inputs)
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    # A number of a layer before may fall to the other side.
    assert np.abs(result - expected).max() <= 4 * float(scales[model.graph.node[-1].input[1]])
    assert not tuned.host_nodes
    calls = Counter(str(row["layer"]).split("_")[0] for row in tuned.summary().table())
    assert {*calls} <= {"conv2d", "depthwise", "elementwise", "quantized", "row"}
    # The input and the mean are quantized.
    assert calls["elementwise"] <= 3


@each_target
@pytest.mark.parametrize("product", ["rows", "columns"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int4"])
def test_activations_of_16_bits(kind: str, product: str, target: str) -> None:
    """A weight with a scale for each output, or with one scale, stays packed in products of few rows."""
    rng, (n, k) = np.random.default_rng(6), (9, 150)
    stored = getattr(ml_dtypes, kind, kind)
    low, high = {"int8": (-127, 128), "uint8": (0, 256), "int4": (-8, 8)}[kind]
    is_rows = product == "rows"
    codes = rng.integers(low, high, (n, k) if is_rows else (k, n)).astype(stored)
    scales = rng.uniform(0.01, 0.02, n if is_rows else ()).astype("float32")
    zero = np.full(scales.shape, 120 if kind == "uint8" else 0).astype(stored)
    arrays = {"w": codes, "ws": scales, "wz": zero, "xs": np.float32(1e-4), "xz": np.uint16(32000)}
    arrays |= {"ys": np.float32(3e-4), "yz": np.uint16(32768), "b": rng.standard_normal(n).astype("float32")}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0 if is_rows else 1),
        *([helper.make_node("Transpose", ["wd"], ["t"], perm=[1, 0])] if is_rows else []),
        helper.make_node("MatMul", ["xd", "t" if is_rows else "wd"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("QuantizeLinear", ["s", "ys", "yz"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [2, 3, size]) for name, size in (("x", k), ("y", n))]
    model, x = model_of(nodes, ends[:1], ends[1:], arrays), {"x": rng.standard_normal((2, 3, k)).astype("float32")}
    tuned = romou.compile(model, target=target)
    (expected,) = ReferenceEvaluator(model).run(None, x)
    assert np.abs(tuned.run(x)[0] - expected).max() <= 1.01 * 3e-4
    layers = [str(row["layer"]) for row in tuned.summary().table()]
    assert [layer.split("_")[0] for layer in layers] == ["elementwise", "quantized"]
    many = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*many.graph.input, *many.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 5
    assert not any(node.op_type == "MatMulNBits" for node in import_onnx(many).folded.graph.node)


@pytest.mark.parametrize("is_quantized_here", [False, True], ids=["integers", "floats"])
@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_a_transposed_weight(product: str, is_quantized_here: bool, opencl_device: tvm.runtime.Device) -> None:
    """Rows of the weight are outputs, each with a scale. Training writes it in floats, behind a QuantizeLinear."""
    rng = np.random.default_rng(4)
    integers, scales = rng.integers(-127, 128, (9, 70)).astype("int8"), rng.uniform(0.01, 0.02, 9).astype("float32")
    # Beyond the range of int8, between two integers, and as far from the next one.
    weight = ((integers + 0.3) * scales[:, None]).astype("float32")
    weight[0, :4] = np.array([400, -400, 2.5, -3.5]) * scales[0]
    arrays = {"w": weight if is_quantized_here else integers, "s": scales, "z": np.zeros(9, "int8")}
    arrays |= {"xs": np.float32(0.03), "xz": np.int8(3)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        *([helper.make_node("QuantizeLinear", ["w", "s", "z"], ["wq"], axis=0)] if is_quantized_here else []),
        helper.make_node("DequantizeLinear", ["wq" if is_quantized_here else "w", "s", "z"], ["wd"], axis=0),
        helper.make_node("Transpose", ["wd"], ["t"], perm=[1, 0]),
        helper.make_node(product, ["xd", "t"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [3, size]) for name, size in (("x", 70), ("y", 9))]
    model = model_of(nodes, ends[:1], ends[1:], arrays)
    tuned, x = romou.compile(model, target="opencl"), {"x": rng.standard_normal((3, 70)).astype("float32")}
    (expected,) = ReferenceEvaluator(model).run(None, x)
    np.testing.assert_allclose(tuned.run(x)[0], expected, rtol=1e-5, atol=1e-5)
    assert any(str(row["layer"]).startswith("integer_product") for row in tuned.summary().table())


@each_target
def test_requantized_outputs(target: str) -> None:
    """QLinearConv and QLinearMatMul round their sums to 8 bits."""
    net = Net("requantized")
    x = net.input((1, 12, 8, 8), "uint8", 256)

    def scale(value: float) -> str:
        return str(net.const(np.float32(value)))

    def point(value: int, dtype: str = "uint8") -> str:
        return str(net.const(value, dtype))

    weight = net.const(net.rng.integers(-127, 128, (10, 12, 3, 3)), "int8")
    bias = net.const(net.rng.integers(-500, 500, 10), "int32")
    reads = (x, scale(0.02), point(120), weight, scale(0.01), point(0, "int8"), scale(0.5), point(121), bias)
    y = net.add("QLinearConv", *reads, pads=[1] * 4)
    y = net.add("Reshape", y, net.const([10, 64]))
    matrix = net.const(net.rng.integers(-127, 128, (64, 6)), "int8")
    reads = (y, scale(0.5), point(121), matrix, scale(0.01), point(0, "int8"), scale(0.6), point(130))
    block = net.block(net.add("QLinearMatMul", *reads))
    limits = Target(target).limits
    family = "integer_product" if limits.is_cpu or limits.dot_products else "dense"
    assert {*calls_of(block, block.inputs(7), target)} == {"conv2d", "elementwise", family}


def test_transforms_round_so_they_are_no_choice() -> None:
    work = conv(16, (14, 14), 16, (3, 3), padding=(1, 1, 1, 1))
    assert algorithms(work)
    assert not algorithms(type(work)(**{**work.to_dict(), "has_integers": True}))
