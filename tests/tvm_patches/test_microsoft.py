"""Operators of com.microsoft are device graphs with the numbers of onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.graph import find_chains
from romou.compiler.importing import import_onnx
from romou.compiler.lowering import lower
from romou.devices.targets import Target
from support.suite.exhaustive import exhaustive, few
from tvm_patches.errors import ImporterError
from tvm_patches.onnx_converters import from_onnx

RNG = np.random.default_rng(0)


def model_of(
    operator: str,
    inputs: dict[str, np.ndarray | None],
    outputs: int = 1,
    constants: dict[str, np.ndarray | None] | None = None,
    wanted: tuple[int, ...] | None = None,
    opset: int = 21,
    domain: str = "com.microsoft",
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one node. None is an input that is left out. wanted: positions of the outputs with a name."""
    given = {**inputs, **(constants or {})}
    order = sorted(given, key=lambda name: int(name[1:]))
    names = [f"y{i}" if wanted is None or i in wanted else "" for i in range(outputs)]
    node = helper.make_node(
        operator, [name if given[name] is not None else "" for name in order], names, domain=domain, **attributes
    )

    def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    first = next(array for array in given.values() if array is not None and array.dtype.kind == "f")
    element = helper.np_dtype_to_tensor_dtype(first.dtype)
    results = [helper.make_tensor_value_info(name, element, None) for name in names if name]
    graph = helper.make_graph(
        [node],
        "g",
        [info(name, array) for name, array in inputs.items() if array is not None],
        results,
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items() if array is not None],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def on_cpu(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of the imported graph, without fusion and schedules. No node may be left to the host."""
    imported = import_onnx(model)
    assert not imported.on_host
    executable = tvm.compile(imported.mod, target="llvm")
    arrays = [tvm.runtime.tensor(inputs[name]) for name in imported.inputs]
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*arrays)
    return [array.numpy() for array in (result if len(imported.outputs) > 1 else [result])]


def given(inputs: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    return {name: array for name, array in inputs.items() if array is not None}


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray | None], tolerance: float = 1e-5) -> None:
    expected = run_onnxruntime(model, given(inputs))
    assert expected is not None
    for array, right in zip(on_cpu(model, given(inputs)), expected, strict=True):
        assert (array.shape, array.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(array, right, atol=tolerance, rtol=tolerance)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("operator", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_gelu(operator: str) -> None:
    inputs = {"x0": normal(3, 5, 8), "x1": normal(8) if operator in ("BiasGelu", "FastGelu") else None}
    if operator in ("Gelu", "QuickGelu"):
        del inputs["x1"]
    check(model_of(operator, inputs), inputs)


SKIPS = [
    (f"Skip{name}LayerNormalization", skip) for name in ("", "Simplified") for skip in ((2, 3, 16), (1, 3, 16), (3, 16))
]


@pytest.mark.parametrize(("operator", "skip"), few(SKIPS, 0, 5))
def test_skip_layer_normalization(operator: str, skip: tuple[int, ...]) -> None:
    inputs: dict[str, np.ndarray | None] = {"x0": normal(2, 3, 16), "x1": normal(*skip), "x2": normal(16)}
    inputs |= {"x3": normal(16), "x4": normal(16)} if operator == "SkipLayerNormalization" else {"x3": normal(16)}
    check(model_of(operator, inputs, outputs=4, wanted=(0, 3), epsilon=1e-3), inputs)


def test_a_simplified_norm_in_the_domain_of_onnx() -> None:
    inputs = {"x0": normal(2, 3, 16), "x1": normal(16)}
    check(model_of("SimplifiedLayerNormalization", inputs, domain="", axis=-1, epsilon=1e-3), inputs)


def test_a_layer_normalization_before_onnx_had_one() -> None:
    inputs = {"x0": normal(2, 3, 16), "x1": normal(16), "x2": normal(16)}
    check(model_of("LayerNormalization", inputs, domain="", opset=12, axis=-1), inputs)


ROTATIONS = [(form, interleaved) for form in ("rows", "heads", "offset", "part") for interleaved in (0, 1)]


@pytest.mark.parametrize(("form", "interleaved"), few(ROTATIONS, 0, 3, 5, 6))
def test_rotary_embedding(form: str, interleaved: int) -> None:
    shape = (2, 4, 3, 8) if form == "heads" else (2, 3, 4 * 8)
    half = 2 if form == "part" else 4
    positions = np.array([5]) if form == "offset" else np.array([[0, 1, 2], [7, 3, 8]])
    inputs = {"x0": normal(*shape), "x1": positions}
    caches = {"x2": normal(10, half), "x3": normal(10, half)}
    attributes = {"num_heads": 4, "rotary_embedding_dim": 4} if form == "part" else {}
    check(model_of("RotaryEmbedding", inputs, constants=caches, interleaved=interleaved, **attributes), inputs)


TABLES = [
    (kind, bits, has_zeros)
    for kind, bits in (*(("uint8", n) for n in (2, 4, 8)), ("uint4", 4), ("int4", 4))
    for has_zeros in (False, True)
]


@pytest.mark.parametrize(("kind", "bits", "has_zeros"), few(TABLES, 1, 2, 3, 8))
def test_gather_block_quantized(kind: str, bits: int, has_zeros: bool) -> None:
    """Rows of 80 numbers in blocks of 32. The last block is not full."""
    packed = 8 // bits if kind == "uint8" else 1
    low, high = (-8, 8) if kind == "int4" else (0, 256 if kind == "uint8" else 16)
    table, zeros = (RNG.integers(low, high, shape) for shape in ((11, 80 // packed), (11, -(-3 // packed))))
    scales = normal(11, 3)
    indices = np.array([[0, 10, 3], [-1, 7, 7]])
    element = getattr(TensorProto, kind.upper())
    model = model_of(
        "GatherBlockQuantized",
        {"x1": indices},
        constants={"x0": table.astype("uint8"), "x2": scales, "x3": zeros.astype("uint8") if has_zeros else None},
        block_size=32,
        bits=bits,
        quantize_axis=1,
    )
    if not has_zeros:
        del model.graph.node[0].input[3:]
    for name, values in (("x0", table), ("x3", zeros)) if kind != "uint8" else ():
        for tensor in model.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(helper.make_tensor(name, element, values.shape, values.reshape(-1).tolist()))
    check(model, {"x1": indices})


CHAIN = """
<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
graph (int64[1, 5] ids, int64[1, 5] positions) => (float[1, 5, 32] y, float[1, 5, 32] sum)
<uint8[11, 16] table, float[11, 2] scales, float[32] gamma, float[32] bias, float[9, 4] cos, float[9, 4] sin>
{
    x = com.microsoft.GatherBlockQuantized <block_size = 16, quantize_axis = 1> (table, ids, scales)
    n = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, gamma)
    r = com.microsoft.RotaryEmbedding (n, positions, cos, sin)
    g = com.microsoft.BiasGelu (r, bias)
    q = com.microsoft.QuickGelu (g)
    y, , , sum = com.microsoft.SkipSimplifiedLayerNormalization (q, x, gamma, bias)
}
"""


@pytest.mark.parametrize("dtype", few(["float32", "float16"], 1))
def test_a_chain_runs_in_kernels(dtype: str) -> None:
    model = onnx.parser.parse_model(CHAIN)
    weights = {"table": RNG.integers(0, 256, (11, 16)).astype("uint8"), "scales": normal(11, 2)}
    weights |= {"gamma": normal(32), "bias": normal(32), "cos": normal(9, 4), "sin": normal(9, 4)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    compiled = romou.compile(model, target="opencl -device=host", precision=dtype)
    assert (compiled.host_nodes, compiled.summary().by_tvm, compiled.summary().moved) == ((), (), ())
    inputs = {"ids": np.array([[0, 10, 3, 7, 7]]), "positions": np.array([[0, 1, 2, 8, 4]])}
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for array, right in zip(compiled.run(inputs), expected, strict=True):
        np.testing.assert_allclose(array, right, atol=1e-5 if dtype == "float32" else 3e-2)


@pytest.mark.parametrize("quant_type", [0, 1], ids=["fp4", "nf4"])
def test_bnb4(quant_type: int) -> None:
    """Rows of 80 numbers in blocks of 32, which go on from row to row."""
    inputs = {"x0": normal(2, 3, 80)}
    constants = {"x1": RNG.integers(0, 256, 7 * 40).astype("uint8"), "x2": np.abs(normal(-(-7 * 80 // 32)))}
    check(model_of("MatMulBnb4", inputs, 1, constants, K=80, N=7, block_size=32, quant_type=quant_type), inputs)


HEADS, SHARED, SIZE, LENGTH = 4, 2, 16, 11
FORMS: dict[str, dict[str, object]] = {
    "packed": {"packed": True, "do_rotary": 1},
    "positions, bias": {"do_rotary": 1, "positions": True, "bias": True},
    "interleaved, window": {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 3},
    "cap, smooth": {"softcap": 1.5, "scale": 0.7, "smooth_softmax": 1},
    "both ways, sink": {"causal": 0, "sink": True},
    "padded": {"queries": True, "do_rotary": 1},
}


def grouped(form: str, rows: int, past: int, dtype: str = "float32") -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a GroupQueryAttention whose cache of LENGTH holds `past` tokens, with its inputs."""
    attributes = dict(FORMS[form])
    width, shared = HEADS * SIZE, SHARED * SIZE
    is_packed, has_positions, has_sink, has_bias, is_padded = (
        bool(attributes.pop(name, False)) for name in ("packed", "positions", "sink", "bias", "queries")
    )
    tokens = rows - 1 if is_padded and rows > 1 else rows
    inputs: dict[str, np.ndarray | None] = {
        "x0": normal(1, rows, width + 2 * shared if is_packed else width, dtype=dtype)
    }
    inputs |= {f"x{i}": None if is_packed else normal(1, rows, shared, dtype=dtype) for i in (1, 2)}
    caches = [normal(1, SHARED, LENGTH, SIZE, dtype=dtype) for _ in range(2)]
    for cache in caches:
        cache[:, :, past:] = 0
    inputs |= {"x3": caches[0], "x4": caches[1], "x5": np.array([past + tokens - 1], "int32")}
    angles = normal(LENGTH, SIZE // 2, dtype=dtype) if "do_rotary" in attributes else None
    constants = {"x6": np.array([LENGTH], "int32"), "x7": angles, "x8": angles}
    if has_positions:
        inputs["x9"] = np.arange(past, past + rows)[None]
    others: dict[int, np.ndarray] = {}
    if has_bias:
        others[10] = normal(1, HEADS, rows, LENGTH, dtype=dtype)
    if has_sink:
        others[11] = normal(HEADS, dtype=dtype)
    if is_padded:
        others[16] = np.array([tokens], "int32")
    for i in range(9, max(others, default=8) + 1):
        inputs.setdefault(f"x{i}", others.get(i))
    model = model_of(
        "GroupQueryAttention", inputs, 3, constants=constants, num_heads=HEADS, kv_num_heads=SHARED, **attributes
    )
    return model, given(inputs)


STEPS = [(form, rows, past) for form in FORMS for rows, past in ((3, 6), (1, 6), (4, 0))]


@pytest.mark.parametrize(("form", "rows", "past"), few(STEPS, 0, 3))
def test_group_query_attention(form: str, rows: int, past: int) -> None:
    model, inputs = grouped(form, rows, past)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    tokens = rows - 1 if form == "padded" and rows > 1 else rows
    output, *caches = on_cpu(model, inputs)
    np.testing.assert_allclose(output[:, :tokens], expected[0][:, :tokens], atol=1e-5)
    for cache, right in zip(caches, expected[1:], strict=True):
        np.testing.assert_allclose(cache[:, :, : past + tokens], right[:, :, : past + tokens], atol=1e-6)


@exhaustive
def test_norms_of_heads() -> None:
    """Onnxruntime has no kernel for them on the CPU: the heads are normalized before."""
    model, inputs = grouped("packed", 3, 6)
    weights = {name: (1 + normal(SIZE) / 4).astype("float32") for name in ("q_norm", "k_norm")}
    normed = inputs["x0"].reshape(1, 3, -1, SIZE).copy()
    for weight, heads in ((weights["q_norm"], slice(HEADS)), (weights["k_norm"], slice(HEADS, HEADS + SHARED))):
        part = normed[:, :, heads]
        normed[:, :, heads] = part / np.sqrt((part**2).mean(-1, keepdims=True) + 1e-3) * weight
    expected = run_onnxruntime(model, {**inputs, "x0": normed.reshape(inputs["x0"].shape)})
    node = model.graph.node[0]
    node.input.extend(["", "", "", "", "", *weights])
    node.attribute.append(helper.make_attribute("qk_norm_epsilon", 1e-3))
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    assert expected is not None
    np.testing.assert_allclose(on_cpu(model, inputs)[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_attention_to_a_cache_is_one_kernel(rows: int) -> None:
    """If that is chosen. tests/api/test_decoder.py runs it with caches of all lengths."""
    model, _ = grouped("packed", rows, 6)
    chains = find_chains(lower(import_onnx(model).mod, Target("opencl -device=host")).unshared)
    assert [chain.task.template.family for chain in chains] == ["attention"]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"k_quant_type": "PER_TENSOR"}, "k_quant_type=PER_TENSOR: a quantized cache is not supported"),
        ({"sliding_window_cache": 1}, "sliding_window_cache=1 is not supported"),
        ({"kv_num_heads": 3}, "4 heads do not share 3 heads evenly"),
    ],
)
def test_a_refused_form_is_named(attributes: dict[str, object], reason: str) -> None:
    model, _ = grouped("packed", 1, 6)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])
    with pytest.raises(ImporterError, match=reason):
        from_onnx(model)


PROJECTED = {
    "three inputs": {"x0": (2, 3, 32), "x1": (2, 5, 32), "x2": (2, 5, 48)},
    "bias, lengths": {"x0": (2, 3, 32), "x1": (2, 5, 32), "x2": (2, 5, 32), "x3": (96,), "x4": [5, 2]},
    "mask, past": {
        "x0": (2, 3, 32),
        "x1": (2, 3, 32),
        "x2": (2, 3, 32),
        "x3": None,
        "x4": [[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]],
        "x5": (1, 1, 3, 5),
        "x6": (2, 4, 2, 8),
        "x7": (2, 4, 2, 8),
    },
    "packed": {"x0": (2, 3, 4, 3, 8)},
    "packed keys": {"x0": (2, 3, 32), "x1": (2, 5, 4, 2, 8)},
    "heads of keys": {"x0": (2, 3, 32), "x1": (2, 4, 5, 8), "x2": (2, 4, 5, 8)},
}


def unpacked(inputs: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """Return three inputs instead of packed ones, which onnxruntime has no kernel for on the CPU."""
    packed = next((array for array in inputs.values() if array is not None and array.ndim == 5), None)
    if packed is None or "x6" in inputs:
        return inputs
    parts = [packed[:, :, :, i].reshape(*packed.shape[:2], -1) for i in range(packed.shape[3])]
    arrays = [array for array in (inputs["x0"], *parts) if array is not packed]
    return {f"x{i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("form", few(list(PROJECTED), 2))
def test_multi_head_attention(form: str) -> None:
    inputs = {
        name: np.array(value, "int32") if isinstance(value, list) else None if value is None else normal(*value)
        for name, value in PROJECTED[form].items()
    }
    outputs, others = 3 if "x6" in inputs else 1, unpacked(inputs)
    attributes = {"num_heads": 4, "unidirectional": int(form == "packed")}
    expected = run_onnxruntime(model_of("MultiHeadAttention", others, outputs, **attributes), given(others))
    assert expected is not None
    results = on_cpu(model_of("MultiHeadAttention", inputs, outputs, **attributes), given(inputs))
    for array, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(array, right, atol=1e-5)


@pytest.mark.parametrize("has_past", few([False, True], 1))
def test_attention(has_past: bool) -> None:
    inputs: dict[str, np.ndarray | None] = {"x0": normal(2, 3, 16)}
    inputs["x3"] = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]] if has_past else [3, 2], "int32")
    if has_past:
        inputs["x4"] = normal(2, 2, 4, 2, 8)
    constants = {"x1": normal(16, 96) / 4, "x2": normal(96)}
    model = model_of("Attention", inputs, 1 + has_past, constants, num_heads=4, unidirectional=int(has_past))
    check(model, inputs)
