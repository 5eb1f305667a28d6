"""Activations that live in images. That whole models compute the same with them is tested in tests/api."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import romou
from romou.compiler.assembly.kernel import build_reference
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels, place_images
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import has_vector_form
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import is_image
from romou.devices.backends.launch import IMAGE, JOINED_ROWS_IMAGE, ROWS_IMAGE
from romou.devices.targets import Target
from romou.driver.options import PrecisionName
from romou.tools.inspection.kernels import inspect_function
from support.models.nodes import assert_as_onnxruntime, model_of
from support.models.small_networks import NetworkBuilder, attention_net, products_net, random_inputs, residual_net
from support.suite.exhaustive import few, in_turn

PHONE = Target("opencl -device=adreno640")


def placed(model, target: Target = PHONE) -> tvm.IRModule:  # type: ignore[no-untyped-def]
    return place_images(fuse_operators(pack_channels(import_onnx(model).mod), target), target)


def scopes(mod: tvm.IRModule) -> dict[str, str]:
    """Return function that writes a tensor -> the tensor's memory scope, for every call of `main`."""
    found = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            device = binding.var.ty.vdevice if isinstance(binding.var.ty, relax.TensorType) else None
            if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir":
                found[binding.value.args[0].name_hint] = str(device.memory_scope) if device is not None else "global"
    return found


def chain() -> NetworkBuilder:
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    x = g.add("Relu", g.conv("image", 8, 12, pads=[1, 1, 1, 1]))
    y = g.add("Relu", g.conv(x, 12, 12, groups=12, pads=[1, 1, 1, 1]))
    g.last = g.add("Relu", g.add("Add", g.conv(y, 12, 12, (1, 1)), x))  # type: ignore[attr-defined]
    return g


def test_images_flow_from_layer_to_layer() -> None:
    g = chain()
    mod = placed(g.model(g.last))  # type: ignore[attr-defined]
    found = scopes(mod)
    # Inputs and outputs are buffers. Tensors between our kernels, the residual too, are images.
    assert sorted(found.values()) == ["global", "global", "global.texture", "global.texture", "global.texture"]
    assert found["unpack"] == "global"
    tasks, _ = extract_tasks(mod)
    assert [len(task.template.images) for task in tasks] == [1, 2, 2, 2, 0]
    assert count_calls(mod) == dict.fromkeys(found, 1)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 0, 0, 0]], ids=["border", "inside"])
def test_an_image_of_one_layer_is_no_array(pads: list[int], precision: PrecisionName) -> None:
    """A picture of three colors. Its border reads as zeros, and kernels at both ends agree on the kind of image."""
    g = NetworkBuilder({"image": (1, 3, 11, 13)})
    x = g.add("Relu", g.conv("image", 3, 12, pads=pads))
    model = g.model(g.conv(x, 12, 5, (1, 1)))
    found = scopes(placed(model))
    assert [found[name] for name in found if name.startswith("pack")] == [JOINED_ROWS_IMAGE]
    assert IMAGE in found.values()
    tuned = romou.compile(model, target="opencl -device=adreno640 -half=storage", precision=precision)
    text = "".join(tuned.sources().values())
    assert "__write_only image2d_t pack" in text
    assert ("READ_SLICE_IMAGE" in text) == any(pads)
    inputs = random_inputs(model, seed=3)
    (expected,) = run_onnxruntime(model, inputs) or ()
    error = relative_l2_error(tuned.run(inputs)[0], expected)
    assert error < (1e-5 if precision == "float32" else 2e-3)


def test_a_piece_of_one_layer_may_be_a_slice_of_the_whole() -> None:
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    pieces = (g.conv("image", 8, 4, (1, 1)), g.conv("image", 8, 8, (1, 1)))
    found = scopes(placed(g.model(g.conv(g.add("Concat", *pieces, axis=1), 12, 8, (1, 1)))))
    assert JOINED_ROWS_IMAGE not in found.values()
    assert list(found.values()).count(IMAGE) == 4


def test_a_reader_that_knows_no_images_keeps_the_buffer() -> None:
    g = NetworkBuilder({"image": (1, 8, 9, 9)})
    x = g.conv("image", 8, 8, pads=[1, 1, 1, 1])
    turned = g.add("Transpose", x, perm=[0, 2, 1, 3])
    found = scopes(placed(g.model(g.conv(turned, 9, 8))))
    assert {name: scope for name, scope in found.items() if "conv2d" in name and scope != "global"} == {}


def test_a_value_that_leaves_the_model_stays_plain() -> None:
    g = chain()
    mod = placed(g.model("t1", g.last))  # type: ignore[attr-defined]
    assert mod["main"].ret_ty.fields[0].vdevice is None


def test_a_tensor_that_exceeds_the_limits_stays_a_buffer() -> None:
    g = chain()
    small = Target("opencl -device=adreno640 -texture_depth_limit=1")
    assert set(scopes(placed(g.model(g.last), small)).values()) == {"global"}  # type: ignore[attr-defined]


def test_devices_without_a_texture_cache_are_left_alone() -> None:
    target = Target("opencl -device=host")
    mod = fuse_operators(pack_channels(import_onnx(residual_net()).mod), target)
    assert place_images(mod, target).same_as(mod)


@pytest.mark.parametrize("function", ["Erf", "Round"])
def test_a_function_that_tvm_has_no_vectors_of_leaves_its_tensor_in_an_image(function: str) -> None:
    """ConvNeXt writes its GELU with erf: TVM would take the kernel's loop over lanes apart."""
    inputs = {"x": np.linspace(-1, 1, 8 * 36, dtype=np.float32).reshape(1, 8, 6, 6)}
    weight = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32) / 4
    model = model_of(
        {"a": ("Conv", "x w", {"pads": [1] * 4}), "b": (function, "a"), "c": ("Mul", "a b"), "d": ("Conv", "c w")},
        inputs,
        {"w": weight},
    )
    del model.graph.output[:-1]
    assert "global.texture" in scopes(placed(model)).values()
    assert_as_onnxruntime(model, inputs, 1e-3, target="opencl -device=adreno640")


def test_a_kernel_that_cannot_take_whole_texels_keeps_its_tensors_in_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = te.placeholder((2, 4), name="x")
    assert not has_vector_form(
        te.create_prim_func([x, te.compute((2, 4), lambda i, j: tirx.fmod(x[i, j], tirx.const(3.0, "float32")))])
    )
    assert has_vector_form(te.create_prim_func([x, te.compute((2, 4), lambda i, j: tirx.erf(x[i, j]))]))
    monkeypatch.setattr("romou.compiler.operators.families.bases.contraction_template.has_vector_form", lambda _: False)
    inputs = {"x": np.ones((1, 8, 6, 6), np.float32)}
    model = model_of({"a": ("Conv", "x w"), "b": ("Conv", "a w")}, inputs, {"w": np.ones((8, 8, 3, 3), np.float32)})
    assert set(scopes(placed(model)).values()) == {"global"}


def test_what_products_read_lies_in_images_of_rows() -> None:
    """Dense layers and softmax write images for products. Inputs, outputs and tensors that no product reads stay in
    buffers.
    """
    found = scopes(placed(products_net()))
    in_rows = {name for name, scope in found.items() if scope == ROWS_IMAGE}
    assert any("sigmoid" in name for name in in_rows), found
    assert any("softmax" in name for name in in_rows), found
    assert any("tanh" in name for name in in_rows), found
    last = list(found)[-1]
    assert "matmul" in last
    assert found[last] == "global"
    assert set(found.values()) == {"global", ROWS_IMAGE}


def test_matrices_that_no_product_reads_stay_in_buffers() -> None:
    g = NetworkBuilder({"x": (24, 16)})
    scores = g.add("Softmax", g.add("MatMul", "x", g.weight(16, 48)), axis=-1)
    assert set(scopes(placed(g.model(g.add("Relu", scores)))).values()) == {"global"}


@pytest.mark.parametrize("option", ["-texture_spatial_limit=11", "-images=never"])
def test_matrices_that_no_image_holds_stay_in_buffers(option: str) -> None:
    """Twelve texels make a row of 48 numbers."""
    hidden = {
        name: scope
        for name, scope in scopes(placed(products_net(8), Target(f"opencl -device=adreno640 {option}"))).items()
        if "sigmoid" in name
    }
    assert set(hidden.values()) == {"global"}


def test_a_slice_that_begins_inside_of_a_texel_reads_a_buffer() -> None:
    """Vectors of such a slice are whole, but not texels. A slice that begins with a texel reads an image."""
    for begin, scope in ((2, "global"), (4, ROWS_IMAGE)):
        g = NetworkBuilder({"x": (24, 16)})
        hidden = g.add("Sigmoid", g.add("MatMul", "x", g.weight(16, 48)))
        numbers = [g.constant(np.array([n], "int64")) for n in (begin, begin + 32, 1)]
        piece = g.add("Exp", g.add("Slice", hidden, *numbers))
        found = scopes(
            placed(g.model(g.add("MatMul", hidden, g.weight(48, 8)), g.add("MatMul", piece, g.weight(32, 8))))
        )
        assert [one for name, one in found.items() if "sigmoid" in name] == [scope], (begin, found)


def test_rows_that_a_reshape_cuts_into_heads_stay_in_images() -> None:
    """Products read heads of the rows that dense layers write, and write heads of rows that a dense layer reads. The
    rows of layer norm keep a leading axis.
    """
    mod = placed(attention_net(heads=3, size=8, rows=12))
    images = {
        name: [scope for _, scope in sorted(task.template.images.items())]
        for name, task in tasks_by_function(mod).items()
    }
    found = scopes(mod)
    assert [scope for name, scope in found.items() if "matmul" in name] == ["global", JOINED_ROWS_IMAGE], found
    (scores,) = (places for name, places in images.items() if "matmul" in name and found[name] == "global")
    assert scores == [JOINED_ROWS_IMAGE, JOINED_ROWS_IMAGE]
    # Inputs, outputs and tensors that no product reads stay in buffers, for example the sum that the last layer norm
    # reads.
    assert sorted(scope for name, scope in found.items() if "norm" in name) == ["global", ROWS_IMAGE]
    # The last dense layer reads the product's rows, and adds the layer norm's at the output's place.
    (last,) = (places for name, places in images.items() if name.startswith("fused_dense") and found[name] == "global")
    assert last == [ROWS_IMAGE, ROWS_IMAGE]


def test_tasks_of_images_of_rows_have_references() -> None:
    """A search compares candidates with them, and could not begin."""
    tasks, _ = extract_tasks(placed(attention_net()))
    rows = [task for task in tasks if {ROWS_IMAGE, JOINED_ROWS_IMAGE} & set(task.template.images.values())]
    assert len(rows) > 3
    for task in rows:
        build_reference(task)


def test_what_is_added_from_an_image_is_read_in_whole_texels() -> None:
    """Each work-item stores single lanes of a sum that more of them share than it has texels."""
    (task,) = (
        one
        for one in extract_tasks(placed(attention_net()))[0]
        if one.template.family == "dense" and not is_image(one.func.params[-1])
    )
    configs = task.space(PHONE).sample(np.random.default_rng(0), 40, where={"split_k": 2})
    assert {config["tile_o"] * config["tile_w"] for config in configs} >= {2, 4}
    assert min(config["tile_o"] * config["tile_w"] for config in configs) == 2
    for config in configs[:4]:
        inspect_function(task.schedule(config, PHONE)["main"], PHONE)


def test_a_tensor_that_a_kernel_reads_twice_is_an_image() -> None:
    """TVM gives both parameters of x * x one name, and images are chosen by name."""
    g = NetworkBuilder({"image": (1, 3, 5, 7)})
    x = g.conv("image", 3, 8, pads=[1, 1, 1, 1])
    x = g.add("LayerNormalization", x, g.weight(5, 7), g.weight(5, 7), axis=2)
    model = g.model(g.conv(x, 8, 4, pads=[1, 1, 1, 1]))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    compiled = romou.compile(model, target=str(PHONE), device=0, strict=True, verify=False)
    np.testing.assert_allclose(compiled.run(inputs)[0], expected[0], atol=1e-5)


def tasks_by_function(mod: tvm.IRModule) -> dict[str, TunableTask]:
    """Return function -> its task, for functions that have one."""
    found = {
        var.name_hint: TunableTask.of(func) for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)
    }
    return {name: task for name, task in found.items() if task is not None}


def test_heads_that_begin_inside_of_a_texel_are_in_buffers() -> None:
    """Rows of 24 numbers are whole texels, heads of six are not. Tensors that are not cut into
    heads are still images.
    """
    found = scopes(placed(attention_net(heads=4, size=6, rows=12)))
    assert JOINED_ROWS_IMAGE not in found.values()
    assert {scope for name, scope in found.items() if name.startswith("fused_dense") or "matmul" in name} == {"global"}
    assert ROWS_IMAGE in {scope for name, scope in found.items() if "norm" in name}


@pytest.mark.parametrize(
    ("shape", "scope"),
    [
        ((2, 12, 16), ROWS_IMAGE),
        ((24, 4, 4), ROWS_IMAGE),
        ((12, 32), "global"),
        ((48, 8), "global"),
        ((48, 2, 4), "global"),
    ],
)
def test_a_reshape_keeps_the_image_whose_rows_it_keeps(shape: tuple[int, ...], scope: str) -> None:
    """A view of 24 rows of 16 may have other leading axes, or a row as two axes. It may not have two rows as one or
    halves of rows.
    """
    g = NetworkBuilder({"x": (24, 12)})
    hidden = g.add("Sigmoid", g.add("MatMul", "x", g.weight(12, 16)))
    view = g.add("Reshape", hidden, g.constant(np.array(shape)))
    model = g.model(
        g.add(
            "MatMul",
            view,
            g.add("Transpose", g.add("Exp", view), perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]),
        )
    )
    found = scopes(placed(model))
    assert [one for name, one in found.items() if "sigmoid" in name] == [scope], found


def test_a_reshape_that_leaves_the_model_stays_plain() -> None:
    g = NetworkBuilder({"x": (24, 16)})
    hidden = g.add("Sigmoid", g.add("MatMul", "x", g.weight(16, 48)))
    view = g.add("Reshape", hidden, g.constant(np.array([24, 4, 12])))
    found = scopes(placed(g.model(g.add("MatMul", hidden, g.weight(48, 8)), view)))
    assert set(found.values()) == {"global"}


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=adreno640"])
def test_a_view_of_a_view_is_one_of_the_image(
    target: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device
) -> None:
    """Embeddings of recurrent layers: a transposed axis of one row is a view, which only a reshape reads."""
    rng = np.random.default_rng(0)
    table, first, second = (rng.standard_normal(shape, dtype=np.float32) for shape in ((9, 16), (16, 8), (16, 8)))
    given = {"at": rng.integers(0, 9, (1, 6))}
    nodes = {
        "row": ("Gather", "table at"),
        "turned": ("Transpose", "row", {"perm": [1, 0, 2]}),
        "y": ("MatMul", "turned w"),
        "z": ("MatMul", "turned v"),
    }
    graph = model_of(nodes, given, {"table": table, "w": first, "v": second})
    del graph.graph.output[:2]  # outputs of the model are buffers
    assert ROWS_IMAGE in scopes(placed(graph)).values()
    compiled = romou.compile(graph, target=target, verify=False, strict=True)
    for found, expected in zip(compiled.run(given), run_onnxruntime(graph, given) or (), strict=True):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@in_turn
@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=adreno640"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float16", 5e-3)])
@pytest.mark.parametrize("size", few([8, 6], 1), ids=["whole texels", "halves"])
def test_attention_of_images_agrees_with_onnxruntime(
    target: str,
    dtype: str,
    tolerance: float,
    size: int,
    opencl_device: tvm.runtime.Device,
    vulkan_device: tvm.runtime.Device,
) -> None:
    model = attention_net(heads=3 if size == 8 else 4, size=size, rows=13, dtype=dtype)
    given = random_inputs(model)
    (expected,) = run_onnxruntime(model, given)
    (found,) = romou.compile(model, target=f"{target} -half=storage").run(given)
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@in_turn
@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=adreno640"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float16", 5e-3)])
def test_products_of_images_agree_with_onnxruntime(
    target: str, dtype: str, tolerance: float, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device
) -> None:
    model = products_net(23, dtype)
    given = random_inputs(model)
    (expected,) = run_onnxruntime(model, given)
    (found,) = romou.compile(model, target=f"{target} -half=storage").run(given)
    np.testing.assert_allclose(found, expected, tolerance, tolerance)
