"""Import: the imported form of each construct, and the error of each bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto
from tvm import relax
from tvm_ffi.structural import structural_walk

from romou import models
from romou.base.errors import ModelError, UsageError
from romou.compiler.importing import import_onnx
from support.models.small_networks import NetworkBuilder, residual_net
from support.suite.exhaustive import few


def operators(mod) -> list[str]:  # type: ignore[no-untyped-def]
    found: list[str] = []
    structural_walk(mod["main"].body, (relax.Call, lambda call: found.append(getattr(call.op, "name", "?"))))
    return found


# Two others are compiled and run in tests/api.
@pytest.mark.parametrize("name", few(models.names(), models.names().index("mobilenet_v2")))
def test_a_bundled_graph_comes_through(name: str) -> None:
    imported = import_onnx(models.load(name))
    found = operators(imported.mod)
    assert not [op for op in found if "batch_norm" in op or "shape_of" in op]
    assert len(imported.outputs) == len(imported.onnx_model.graph.output)
    assert all(all(d > 0 for d in shape) for shape, _ in imported.inputs.values())


def test_batch_norm_goes_into_the_weights() -> None:
    found = operators(import_onnx(residual_net()).mod)
    assert found.count("relax.nn.conv2d") == 8
    assert not [op for op in found if "norm" in op]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file; give the path of an ONNX model"):
        import_onnx(tmp_path / "absent.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x08\x08\x12\x07pytorch"])
def test_broken_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.onnx: not a"):
        import_onnx(path)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(residual_net().SerializeToString()[:-1000])
    with pytest.raises(ModelError, match=r"cut\.onnx: not a"):
        import_onnx(path)


def test_invalid_graph() -> None:
    model = residual_net()
    model.graph.node[3].input[0] = "nowhere"
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        import_onnx(model)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    content = g.model(g.conv("image", 4, 4)).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content.replace(b"image", b"im\xffge"))
    with pytest.raises(ModelError, match=r"model\.onnx: .* is not UTF-8"):
        import_onnx(path)


def test_contradictory_shapes() -> None:
    g = NetworkBuilder({"x": ("rows", "columns")})
    model = g.model(g.add("MatMul", "x", g.weight(4, 3)))
    with pytest.raises(ModelError, match="shapes do not fit the graph"):
        import_onnx(model, {"x": (2, 5)})


def test_channels_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="importer rejected the graph.*channel size"):
        import_onnx(dynamic_model(), {"image": (1, 5, 8, 8)})
    assert capsys.readouterr().out == ""


def test_operator_without_a_converter_runs_on_the_host() -> None:
    g = NetworkBuilder({"x": (2, 4, 4)})
    assert import_onnx(g.model(g.add("Relu", g.add("Det", "x")))).host_groups == (("Det (t0)",),)


def dynamic_model() -> onnx.ModelProto:
    g = NetworkBuilder({"image": ("batch", 4, 8, 8)})
    return g.model(g.conv("image", 4, 6))


def test_dynamic_shape_must_be_fixed() -> None:
    with pytest.raises(UsageError, match=r"'image' has the dynamic shape \(batch, 4, 8, 8\)"):
        import_onnx(dynamic_model())
    assert import_onnx(dynamic_model(), {"image": (2, 4, 8, 8)}).inputs == {"image": ((2, 4, 8, 8), "float32")}


def test_inputs_and_outputs_need_no_shape() -> None:
    """Onnxruntime needs none either. An output's shape is inferred, an input's has to be given."""
    model = dynamic_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(
        UsageError, match=r"input 'image' has no shape in the model; fix it\nAdd --shape image=1,3,224,224"
    ):
        import_onnx(model)
    found = import_onnx(model, {"image": (2, 4, 8, 8)})
    assert found.onnx_model is not None
    assert [dim.dim_value for dim in found.onnx_model.graph.output[0].type.tensor_type.shape.dim] == [2, 6, 6, 6]
    assert not model.graph.output[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"imag": (1, 4, 8, 8)}, "did you mean 'image'"),
        ({"image": (1, 4, 8)}, "4 dimensions"),
        ({"image": (-1, 4, 8, 8)}, "no dimension may be negative"),
    ],
)
def test_wrong_shape_argument(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_onnx(dynamic_model(), shapes)


def test_shape_arithmetic_is_folded() -> None:
    g = NetworkBuilder({"x": ("n", 6, 4)})
    shape = g.add("Shape", "x")
    first = g.add("Gather", shape, g.constant(np.array([0], np.int64)), axis=0)
    target = g.add("Concat", first, g.constant(np.array([-1], np.int64)), axis=0)
    flat = g.add("Reshape", "x", target)
    found = operators(import_onnx(g.model(g.add("MatMul", flat, g.weight(24, 5))), {"x": (3, 6, 4)}).mod)
    assert not [op for op in found if "shape_of" in op or "take" in op or "concat" in op]
    assert "relax.matmul" in found


def test_the_callers_model_is_not_changed() -> None:
    model = dynamic_model()
    before = model.SerializeToString(deterministic=True)
    import_onnx(model, {"image": (1, 4, 8, 8)})
    assert model.SerializeToString(deterministic=True) == before
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_a_model_of_more_than_2_gib_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test has no such memory. Protobuf fails in this way."""

    def fail(_model: onnx.ModelProto) -> None:
        raise EncodeError("Failed to serialize proto")

    monkeypatch.setattr(onnx.checker, "check_model", fail)
    with pytest.raises(ModelError, match="larger than 2 GiB.*\n.*external data"):
        import_onnx(onnx.ModelProto())
