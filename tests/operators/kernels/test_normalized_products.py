"""A normalization in the kernel of the packed product that reads it: every form, epilogues, fp16, several readers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import te, topi

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.precision import Precision
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.compiler.scheduling.rewrites import join
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.tuner.measure.verify import poison
from support.kernels.operators import assert_agrees, each_kind
from support.models.quantized import QuantizedCase, packed, quantized_task
from support.suite.exhaustive import exhaustive

PHONE = Target("opencl -device=adreno640")
EPSILON = 1e-5
CASES = [
    QuantizedCase(m=1, k=512, n=37),
    QuantizedCase(m=3, k=203, n=21, block=64, zero="uint8"),
    QuantizedCase(m=1, k=1000, n=37, dtype="float16"),
    QuantizedCase(m=3, k=204, n=37, block=4, zero="table"),
    QuantizedCase(m=8, k=130, n=40, bits=2, block=16, zero="float", dtype="float16"),
]


def normalized_task(case: QuantizedCase) -> TunableTask:
    """Return RMSNorm, the product of its result, a bias, a ReLU and a product with another tensor as a task."""
    x, gamma = te.placeholder((case.m, case.k), case.dtype, "x"), te.placeholder((case.k,), case.dtype, "g")
    norm = te.create_prim_func([x, gamma, topi.nn.rms_norm(x, gamma, [1], EPSILON)])
    task = TunableTask.of(join(norm, quantized_task(case, has_epilogue=True).func, 0))
    assert task is not None
    return task


def check(target: Target, case: QuantizedCase, count: int) -> None:
    """Check the default config and `count` random ones."""
    task, drawn, rng = normalized_task(case), case.draw(), np.random.default_rng(case.k)
    gamma, bias, other = (
        rng.uniform(0.5, 1.5, shape).astype(case.dtype) for shape in ((case.k,), (case.n,), (case.m, case.n))
    )
    data = (3 * drawn.data).astype(case.dtype)
    wide = data.astype(np.float64)
    normal = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPSILON) * gamma
    product = type(drawn)(**{**vars(drawn), "data": normal}).result
    expected = np.maximum(product + bias.astype(np.float64), 0) * other.astype(np.float64)
    arrays = [data, gamma, *case.matrix(drawn).arrays, bias, other, poison(expected.shape, case.dtype)]
    for config in [task.default_config(target), *task.space(target).sample(rng, count)]:
        assert_agrees(target, task, config, arrays, expected, 1e-5 if case.dtype == "float32" else 2e-3)


@each_kind("case", CASES, opencl=(0, 1, 2, 3, 4), cuda=(2,), vulkan=(1, 2))
def test_kernels(target: Target, case: QuantizedCase) -> None:
    check(target, case, 1)


@exhaustive
@each_kind("case", CASES, opencl=(0, 1, 2, 3, 4), cuda=(0, 1, 2, 3, 4), vulkan=(0, 1, 2, 3, 4))
def test_many_configs(target: Target, case: QuantizedCase) -> None:
    check(target, case, 12)


def norm_nodes(form: str) -> list[onnx.NodeProto]:
    """Return the nodes of RMSNorm of x, as exporters write it."""
    if form in ("SimplifiedLayerNormalization", "RMSNormalization"):
        return [helper.make_node(form, ["x", "gamma"], ["normal"], axis=-1, epsilon=EPSILON)]
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["shifted"]),
        helper.make_node("Sqrt", ["shifted"], ["root"]),
    ]
    if form == "Div":
        nodes.append(helper.make_node("Div", ["x", "root"], ["divided"]))
    else:
        nodes.append(helper.make_node("Reciprocal", ["root"], ["factor"]))
        nodes.append(helper.make_node("Mul", ["x", "factor"], ["divided"]))
    return [*nodes, helper.make_node("Mul", ["gamma", "divided"], ["normal"])]


def model_of(form: str, shape: Sequence[int], *, products: int = 1, is_returned: bool = False) -> onnx.ModelProto:
    """Return a normalization and `products` products of its result. is_returned: whether it is an output, too."""
    case = QuantizedCase(m=int(np.prod(shape[:-1])), k=shape[-1], n=37)
    drawn, rng = case.draw(), np.random.default_rng(1)
    rows, blocks = drawn.scales.shape
    codes = np.pad(drawn.codes, ((0, 0), (0, blocks * case.block - case.k)))
    arrays = {
        "gamma": rng.uniform(0.5, 1.5, case.k).astype("float32"),
        "two": np.float32(2),
        "epsilon": np.float32(EPSILON),
        "axes": np.array([-1]),
        "packed": packed(codes, case.bits).reshape(rows, blocks, -1),
    }
    # Equal products would be one.
    arrays |= {f"scales{number}": (number + 1) * drawn.scales.reshape(-1) for number in range(products)}
    numbers = {"K": case.k, "N": case.n, "bits": case.bits, "block_size": case.block}
    outputs = [f"y{number}" for number in range(products)]
    nodes = norm_nodes(form) + [
        helper.make_node("MatMulNBits", ["normal", "packed", f"scales{at}"], [name], domain="com.microsoft", **numbers)
        for at, name in enumerate(outputs)
    ]
    infos = [helper.make_tensor_value_info(name, 1, [*shape[:-1], case.n]) for name in outputs]
    if is_returned:
        infos.append(helper.make_tensor_value_info("normal", 1, shape))
    graph = helper.make_graph(
        nodes,
        "normalized",
        [helper.make_tensor_value_info("x", 1, shape)],
        infos,
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opset = 23 if form == "RMSNormalization" else 21
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def joined(model: onnx.ModelProto, target: Target, precision: Precision | None = None) -> Compilation:
    """Return the model with all chains in one kernel each."""
    return Compilation.of(import_model(model, None, precision), target).lowered().joined_where(lambda key: True)


def normalized(compilation: Compilation) -> list[QuantizedTemplate]:
    """Return the products that normalize their activations."""
    templates = [task.template for task in compilation.tasks if isinstance(task.template, QuantizedTemplate)]
    return [template for template in templates if template.norm is not None]


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("form", ["SimplifiedLayerNormalization", "RMSNormalization", "Div", "Reciprocal"])
@pytest.mark.parametrize("shape", [(1, 100), (1, 3, 101)], ids=["one row", "rows"])
def test_all_forms_of_the_norm(form: str, kind: str, shape: tuple[int, ...], opencl_device: tvm.runtime.Device) -> None:
    model, target = model_of(form, shape), Target("opencl")
    compilation = joined(model, target, Precision(kind=kind) if kind == "float16" else None)
    assert len(normalized(compilation)) == 1
    made = tuned_model(compilation, TimingSite(named=target, target=target))
    data = {"x": (10 * np.random.default_rng(2).standard_normal(shape)).astype("float32")}
    reference = run_onnxruntime(model, data)
    assert reference is not None
    assert relative_l2_error(np.asarray(made.run(data)[0]), reference[0]) < (1e-5 if kind == "float32" else 2e-3)


def test_each_of_several_products_normalizes() -> None:
    """The kernel of the norm is left out, unless something else reads its result."""
    form = "SimplifiedLayerNormalization"
    apart = Compilation.of(
        import_model(model_of(form, (1, 128), products=3), None), Target("cuda -device=nvidia_h200")
    ).lowered()
    assert [task.family for task in apart.tasks] == ["row_reduction", "quantized_product"]
    compilation = apart.joined_where(lambda key: True)
    assert [task.calls for task in compilation.tasks] == [3]
    assert len(normalized(compilation)) == 1
    (chain,) = apart.functions.chains
    norm, product = (task.key for task in apart.tasks)
    assert chain.group.joined == (chain.task.key,) * 3
    assert chain.group.separate == (norm, product, product, product)
    seconds = {norm: 1.0, product: 2.0}
    assert normalized(apart.joined_where_faster({**seconds, chain.task.key: 2.3}))
    assert not normalized(apart.joined_where_faster({**seconds, chain.task.key: 2.4}))
    assert not normalized(joined(model_of(form, (1, 128), is_returned=True), PHONE))
    assert not normalized(joined(model_of(form, (9, 128)), PHONE))


@pytest.mark.parametrize(("rows", "is_default"), [(1, True), (3, False)], ids=["one row", "several rows"])
def test_default_on_a_phone(rows: int, is_default: bool) -> None:
    model = model_of("SimplifiedLayerNormalization", (rows, 128))
    lowered = Compilation.of(import_model(model, None), PHONE).lowered()
    assert bool(normalized(lowered)) == is_default


def test_a_model_is_right_by_default(opencl_device: tvm.runtime.Device) -> None:
    model = model_of("SimplifiedLayerNormalization", (1, 1, 256), products=2)
    data = {"x": np.random.default_rng(3).standard_normal((1, 1, 256)).astype("float32")}
    reference = run_onnxruntime(model, data)
    assert reference is not None
    for made, expected in zip(romou.compile(model, target="opencl").run(data), reference, strict=True):
        assert relative_l2_error(np.asarray(made), expected) < 1e-5
