"""Calls of TVM's own passes, code generators and converters that fail. Each is a row of docs/contributing/upstream.md.

When one of these tests fails, TVM has got better: use TVM's, delete ours, and drop the row.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax, s_tir, tirx
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.compiler.frontend.reference import run_onnxruntime
from tvm_patches.onnx_converters.node import CONVERTERS

PAGE = (Path(__file__).parents[2] / "docs/contributing/upstream.md").read_text(encoding="utf-8")
NAN, INF = np.nan, np.inf
X = np.random.default_rng(3).standard_normal(120, dtype="float32")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node, and the result of the wheel's converter: an error's text, or the difference between the outputs and
    onnxruntime's.
    """

    operator: str
    ends: str
    inputs: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18

    def __str__(self) -> str:
        return f"{self.operator}-{self.ends}"

    def model(self) -> onnx.ModelProto:
        names = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.operator, [*self.inputs, *self.constants], names, **self.attributes)
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs.items()
        ]
        weights = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=name) for name in names], weights)
        opset = helper.make_opsetid("", self.opset)
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[opset], ir_version=10))


def fp16(*values: float) -> np.ndarray:
    return np.array(values, "float16")


def fp32(*values: Any) -> np.ndarray:
    return np.array(values, "float32")


AXIS, EMPTY = np.array([1]), {"keepdims": 0, "noop_with_empty_axes": 1}
MIXED = "Binary operators must have the same datatype"
CASES = [
    Case(operator="Pow", ends=MIXED, inputs={"x": np.array([-2, 3], "int32")}, constants={"p": np.float32(3)[...]}),
    Case(operator="Sign", ends="cannot make uint from negative value -1", inputs={"x": np.array([0, 3], "uint8")}),
    Case(operator="Mul", ends="numbers", inputs={"x": fp32(NAN, INF, 2)}, constants={"z": fp32(0).reshape(())}),
    Case(operator="Div", ends="Divide by zero", inputs={"x": fp32(NAN, 1, 0)}, constants={"z": fp32(0).reshape(())}),
    Case(operator="IsInf", ends="numbers", inputs={"x": fp32(-INF, INF)}, attributes={"detect_negative": 0}),
    Case(operator="Elu", ends=MIXED, inputs={"x": fp16(-1, 2)}, opset=22),
    Case(operator="Selu", ends=MIXED, inputs={"x": fp16(-1, 2)}, opset=22),
    Case(operator="ThresholdedRelu", ends=MIXED, inputs={"x": fp16(-1, 2)}, opset=22),
    Case(operator="Dropout", ends="float32 instead of bool", inputs={"x": X[:3]}, outputs=2, opset=13),
    Case(
        operator="EyeLike",
        ends="dtype mismatch between input (float32) and attribute",
        inputs={"x": X[:12].reshape(3, 4)},
        attributes={"dtype": 11},
        opset=9,
    ),
    Case(
        operator="OneHot",
        ends="float64 instead of float32",
        inputs={"x": np.array([0, -1, 2])},
        constants={"depth": np.array(3), "values": fp32(2, 5)},
        opset=13,
    ),
    Case(
        operator="TopK",
        ends="(2, 1) instead of (2, 2)",
        inputs={"x": X[:10].reshape(2, 5)},
        constants={"k": np.array([2])},
        outputs=2,
        opset=10,
    ),
    Case(
        operator="ScatterElements",
        ends="numbers",
        inputs={"x": X[:36].reshape(3, 4, 3)},
        constants={"indices": np.array([[[1]], [[0]], [[2]]]), "updates": X[36:39].reshape(3, 1, 1)},
        attributes={"axis": 2},
    ),
    Case(operator="Hardmax", ends="numbers", inputs={"x": fp32([-INF, -INF])}, opset=13),
    Case(
        operator="LayerNormalization",
        ends="() instead of (2, 3, 1)",
        inputs={"x": X[:24].reshape(2, 3, 4)},
        constants={"scale": X[:4]},
        outputs=3,
        opset=17,
    ),
    Case(
        operator="BatchNormalization",
        ends="numbers",
        inputs={"x": X[:24].reshape(2, 3, 4)},
        constants={"s": X[:3], "b": X[3:6], "m": X[6:9], "v": abs(X[9:12])},
        attributes={"training_mode": 1},
        outputs=3,
        opset=15,
    ),
    Case(operator="MeanVarianceNormalization", ends="numbers", inputs={"x": X.reshape(2, 3, 4, 5) + 3000}, opset=13),
    Case(
        operator="MaxPool",
        ends="Missing outputs during conversion. Expected 2 but Got 1",
        inputs={"x": X[:16].reshape(1, 1, 4, 4)},
        attributes={"kernel_shape": [2, 2]},
        outputs=2,
        opset=12,
    ),
    Case(
        operator="LpPool",
        ends="numbers",
        inputs={"x": X[:6].reshape(1, 1, 6)},
        attributes={"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
    ),
    Case(
        operator="DequantizeLinear",
        ends="blocked quantization is not supported yet",
        inputs={"x": np.arange(4, dtype="int8").reshape(4, 1)},
        constants={"scale": fp32([1], [2])},
        attributes={"axis": 0, "block_size": 2},
        opset=21,
    ),
    Case(
        operator="ConvTranspose",
        ends="(1, 4, 11, 22) instead of (1, 4, 10, 19)",
        inputs={"x": X[:105].reshape(1, 3, 5, 7)},
        constants={"w": np.ones((3, 4, 3, 4), "float32")},
        attributes={"strides": [2, 3], "output_shape": [10, 19]},
        opset=11,
    ),
    Case(
        operator="ReduceMax",
        ends="Cannot decide min_value",
        inputs={"x": np.array([[True]])},
        constants={"a": AXIS},
        opset=20,
    ),
    Case(
        operator="ReduceMean",
        ends="int64 instead of int32",
        inputs={"x": np.array([[1, 2], [3, 5]], "int32")},
        constants={"a": AXIS},
    ),
    Case(
        operator="ReduceL1",
        ends="numbers",
        inputs={"x": X[:6].reshape(2, 3)},
        constants={"a": np.array([], "int64")},
        attributes=EMPTY,
    ),
    Case(operator="ArgMax", ends="numbers", inputs={"x": fp32([-INF, -INF])}, attributes={"axis": 1}, opset=13),
    Case(
        operator="GridSample",
        ends="float32 instead of float16",
        inputs={"x": X[:16].reshape(1, 1, 4, 4).astype("float16"), "g": np.zeros((1, 3, 3, 2), "float16")},
        opset=16,
    ),
    Case(operator="Slice", ends="Cannot cast", inputs={"x": X[:5]}, attributes={"starts": [1], "ends": [3]}, opset=9),
    Case(
        operator="Constant", ends="no value in Constant", inputs={}, attributes={"value_floats": [1.0, 2.0]}, opset=13
    ),
    Case(
        operator="Cast",
        ends="MatchesCode(DLDataTypeCode::kDLFloat)",
        inputs={"x": fp32(1, 2)},
        attributes={"to": onnx.TensorProto.FLOAT4E2M1},
        opset=23,
    ),
    Case(operator="LSTM", ends="not supported", inputs={"x": X[:6].reshape(3, 1, 2)}, opset=14),
]


def last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def ends_of(case: Case) -> str:
    """Import a node by the wheel, compile it for the CPU, run it, and return the result."""
    model = case.model()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            mod = from_onnx(model, keep_params_in_input=False)
        executable = tvm.compile(relax.transform.DecomposeOpsForInference()(mod), target="llvm")
    except Exception as error:  # converters and passes raise by many types
        return last_line(error)
    expected = run_onnxruntime(model, case.inputs)
    assert expected is not None
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, case.inputs.values()))
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    for found, right in zip((output.numpy() for output in outputs), expected, strict=True):
        if found.dtype != right.dtype:
            return f"{found.dtype} instead of {right.dtype}"
        if found.shape != right.shape:
            return f"{found.shape} instead of {right.shape}"
        if not np.allclose(found, right, rtol=1e-3, atol=1e-5, equal_nan=True):
            return "numbers"
    return "right"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_wheels_converter_fails(case: Case) -> None:
    assert case.ends in ends_of(case)


def row_of(name: str) -> str:
    return "\n".join(line for line in PAGE.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1])


@pytest.mark.parametrize("name", sorted(CONVERTERS))
def test_every_converter_has_a_row(name: str) -> None:
    row = row_of(name)
    assert row, f"docs/contributing/upstream.md has no row for {name}"
    for case in CASES:
        if case.operator == name and case.ends != "numbers":
            assert case.ends in row


def test_the_wheel_has_no_opencl_or_vulkan_devices() -> None:
    code = (
        "import tvm\n"
        "print(tvm.opencl(0).exist, tvm.vulkan(0).exist)\n"
        "print(tvm.get_global_func('target.build.vulkan', allow_missing=True))"
    )
    environment = {**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "None"]


@I.ir_module
class Common:
    @T.prim_func
    def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((4096,), "float32"), n: T.int32, m: T.int32):
        for i in range(8):
            B[(i * n + m) * 3 + 1] = A[i, (i * n + m) * 3 + 2] + A[i, (i * n + m) * 3 + 3]


def test_the_simplifier_inlines_common_subexpressions() -> None:
    eliminated = tirx.transform.CommonSubexprElim()(Common)
    assert eliminated.script().count("cse_v1") == 4
    assert tirx.transform.StmtSimplify()(eliminated).script().count("cse_v1") == 1


@I.ir_module
class Invariant:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), n: T.int32):
        tx = T.launch_thread("threadIdx.x", 4)
        for i in range(16):
            B[i * 4 + tx] = A[(tx * n + n) % 7 * 8 + i]


def test_invariant_addresses_stay_in_their_loop() -> None:
    hoisted = s_tir.transform.HoistExpression()(Invariant).script()
    assert "% 7 * 8 + i]" in hoisted
    assert "T.let" not in hoisted


@I.ir_module
class Doubled:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((4,), "float32")):
        tx = T.launch_thread("threadIdx.x", 4)
        S = T.alloc_buffer((4,), "float32", scope="shared")
        for k in range(16):
            with T.attr(S.data, "double_buffer_scope", 1):
                S[tx] = A[k * 4 + tx]
            B[tx] = B[tx] + S[3 - tx]


def test_a_double_buffer_takes_no_barriers() -> None:
    doubled = s_tir.transform.InjectDoubleBuffer()(Doubled)
    with pytest.raises(Exception, match="Cannot insert syncs inside condition"):
        s_tir.transform.ThreadSync("shared")(doubled)


@I.ir_module
class Guarded:
    @T.prim_func
    def main(A: T.Buffer((128,), "float16"), B: T.Buffer((128,), "float16"), n: T.int32, m: T.int32):
        tx = T.launch_thread("threadIdx.x", 16)
        S = T.alloc_buffer((64,), "float16", scope="shared")
        with T.attr(0, "async_scope", 1):
            S[T.Ramp(tx * 4, 1, 4)] = T.if_then_else(
                tx < n,
                T.if_then_else(m < tx, A[T.Ramp(tx * 4, 1, 4)], T.Broadcast(T.float16(0), 4)),
                T.Broadcast(T.float16(0), 4),
            )
        B[tx] = S[tx]


def test_a_copy_with_two_conditions_is_not_asynchronous() -> None:
    assert "cp_async" not in s_tir.transform.InjectPTXAsyncCopy()(Guarded).script()


@I.ir_module
class Scaled:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        for i in T.thread_binding(64, thread="threadIdx.x"):
            B[i] = A[i] * T.float32(2)


def convolution(groups: int, dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, 8), dtype))
    weight = relax.const(np.ones((8, 8 // groups, 3, 3), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.conv2d(x, weight, padding=1, groups=groups)))
        builder.emit_func_output(y)
    return builder.get()


def compiled_for_adreno(mod: tvm.IRModule) -> relax.VMExecutable:
    """Compile a model by the Relax passes that TVM has for Adreno, with tensors in images."""
    from tvm.relax.backend.adreno import pipeline

    keys = ["adreno", "opencl", "gpu", "texture"]
    target = tvm.target.Target({"kind": "opencl", "keys": keys, "device": "adreno"}, host="llvm")
    steps = (pipeline.legalize_passes, pipeline.dataflow_lower_passes, pipeline.finalize_passes)
    with target:
        lowered = tvm.transform.Sequential([one for step in steps for one in step(target)])(mod)
    return tvm.compile(lowered, target, relax_pipeline=tvm.transform.Sequential([]))


def with_adreno_pipeline() -> None:
    import tvm.s_tir.backend.adreno

    tvm.compile(Scaled, tvm.target.Target("opencl", host="llvm"), tir_pipeline="adreno")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (with_adreno_pipeline, "cannot unpack non-iterable ModulePass object"),
        (lambda: compiled_for_adreno(convolution(8, "float32")), "Divide by zero"),
        (lambda: compiled_for_adreno(convolution(1, "float16")), "Argument 2 type mismatch"),
    ],
)
def test_code_for_phones_fails(call: Callable[[], object], text: str) -> None:
    with pytest.raises(Exception, match=text):
        call()
    assert text in PAGE
