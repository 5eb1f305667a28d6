"""Nodes that run on the host: their selection, their groups, their numbers, and the entry points that refuse them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper

import romou
from romou.base.errors import DeviceError, ModelError
from romou.compiler import lowering
from romou.compiler.frontend.host_groups import split
from romou.compiler.frontend.host_table import UNSERVED
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.importing import import_onnx
from romou.compiler.stages import stage
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.rpc import Address
from support.models.small_networks import NetworkBuilder


@pytest.fixture
def no_selu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Selu without a right kernel."""
    monkeypatch.setitem(UNSERVED, "Selu", (lambda node: True, "for a test"))


def net() -> onnx.ModelProto:
    """Return host nodes between convolutions: two independent ones, and one behind a kernel that reads both."""
    g = NetworkBuilder({"image": (1, 8, 6, 6)})
    x = g.add("Relu", g.conv("image", 8, 8, pads=[1, 1, 1, 1]))
    y = g.add("Add", g.add("Selu", x), g.add("Selu", g.add("Selu", "image")))
    y = g.conv(y, 8, 12, (1, 1))
    return g.model(g.add("Relu", g.add("Add", g.add("Selu", y), y)), x)


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((1, 8, 6, 6)).astype("float32")}


def test_groups_are_as_few_as_the_order_allows(no_selu: None) -> None:
    groups = import_onnx(net()).host_groups
    # The first two need no kernel before them.
    assert [len(group) for group in groups] == [2, 1, 1]
    assert all(name.startswith("Selu (") for group in groups for name in group)


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
def test_numbers_are_right_between_kernels_and_after_loading(no_selu: None, target: str, tmp_path: Path) -> None:
    model = romou.compile(net(), target=target)
    expected = [run_onnxruntime(net(), image(seed)) for seed in range(3)]
    for loaded in (model, romou.load(model.save(tmp_path / "m.romou"))):
        for seed, right in enumerate(expected):
            assert right is not None
            for output, wanted in zip(loaded.run(image(seed)), right, strict=True):
                np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
        assert len(loaded.host_nodes) == 4
        assert "nodes run on the host" in loaded.launching


def test_summary_has_the_time_on_the_host(no_selu: None) -> None:
    summary = romou.tune(net(), target="opencl", trials=0, work_dir=False).summary()
    assert [len(row.nodes) for row in summary.host] == [2, 1, 1]
    assert all(row.ms is not None and row.ms > 0 for row in summary.host)
    assert summary.host_share is not None
    assert 0 < summary.host_share <= 1
    assert type(summary).from_dict(summary.to_dict()) == summary
    assert summary.is_right


def test_who_cannot_run_them_names_them(no_selu: None, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no kernels for Selu \(t3\).*strict") as caught:
        romou.compile(net(), target="opencl", strict=True)
    assert len(caught.value.nodes) == 4
    model = romou.compile(net(), target="opencl")
    with pytest.raises(ModelError, match="cannot be exported.*Selu"):
        model.export_android(tmp_path / "phone")
    with pytest.raises(ModelError, match=r"cannot run at 127.0.0.1:9090.*Selu"):
        model.moved(remote=RemoteDevice(Address.parse("127.0.0.1:9090/key")))


def test_a_node_that_cannot_be_lowered_is_found(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def fails(mod: tvm.IRModule) -> tvm.IRModule:
        if "R.exp" in str(mod):
            raise ValueError("no such schedule")
        return mod

    monkeypatch.setattr(lowering, "GRAPH", (stage(fails, "fails for one operator"), *lowering.GRAPH))
    g = NetworkBuilder({"image": (1, 8, 6, 6)})
    proto = g.model(g.add("Relu", g.add("Exp", g.add("Relu", "image"))))
    model = romou.compile(proto, target="opencl")
    assert model.host_nodes == ("Exp (t1)",)
    assert "no kernels for Exp (t1)" in caplog.text
    np.testing.assert_allclose(model.run(image())[0], np.exp(np.maximum(image()["image"], 0)), rtol=1e-5)


def test_what_follows_a_shape_that_depends_on_data_goes_along() -> None:
    g = NetworkBuilder({"image": (1, 8, 6, 6)})
    found = g.add("Cast", g.add("NonZero", g.add("Relu", "image")), to=onnx.TensorProto.FLOAT)
    model = g.model(g.add("ReduceSum", found, g.constant(np.array([1])), keepdims=0))
    parts = split(model, {1})
    assert [name.split()[0] for name in parts.groups[0]] == ["NonZero", "Cast", "ReduceSum"][: len(parts.groups[0])]
    assert len(parts.groups[0]) >= 2
    compiled = romou.compile(model, target="opencl")
    np.testing.assert_allclose(compiled.run(image())[0], np.sum(np.nonzero(np.maximum(image()["image"], 0)), axis=1))


def test_a_failure_on_the_host_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNSERVED, "Gather", (lambda node: True, "for a test"))
    inputs = [helper.make_tensor_value_info("x", 1, [3, 4]), helper.make_tensor_value_info("i", 7, [2])]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"])], "g", inputs, [helper.make_tensor_value_info("y", 1, [2, 4])]
    )
    model = romou.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), target="opencl"
    )
    x = np.arange(12, dtype="float32").reshape(3, 4)
    with pytest.raises(DeviceError, match=r"Gather \(y\) failed on the host: .*"):
        model.run({"x": x, "i": np.array([0, 9])})
    np.testing.assert_array_equal(model.run({"x": x, "i": np.array([2, 0])})[0], x[[2, 0]])


def test_what_nobody_can_run_is_refused_by_name() -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [3])]
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)], ir_version=8
    )
    with pytest.raises(ModelError, match="Frobnicate"):
        romou.compile(proto, target="opencl")


@pytest.mark.parametrize(
    ("element", "name"), [(onnx.TensorProto.STRING, "string"), (onnx.TensorProto.COMPLEX64, "complex64")]
)
def test_types_that_no_tensor_holds_are_refused_by_name(element: int, name: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", element, [3])],
        [helper.make_tensor_value_info("y", element, [3])],
    )
    with pytest.raises(ModelError, match=f"input 'x' is a tensor of {name}"):
        romou.compile(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), target="opencl"
        )


def test_strings_may_live_inside_a_group() -> None:
    words = numpy_helper.from_array(np.array(["1", "2.5", "3"], dtype=object), "words")
    nodes = [helper.make_node("Cast", ["words"], ["number"], to=1), helper.make_node("Mul", ["number", "x"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [3])], [words]
    )
    model = romou.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), target="opencl"
    )
    np.testing.assert_allclose(model.run({"x": np.ones(3, "float32")})[0], [1, 2.5, 3])


def test_the_refusal_of_a_zipmap_says_how_to_do_without() -> None:
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, None)))
    node = helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    x, m = helper.make_tensor_value_info("x", 1, [2, 3]), helper.make_value_info("m", kind)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [m]), opset_imports=opsets, ir_version=8)
    with pytest.raises(ModelError, match=r"'m' is of sequence type(?s:.*)options=\{'zipmap': False\}"):
        romou.compile(model, target="null")
