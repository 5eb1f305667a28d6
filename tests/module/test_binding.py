"""Inputs and outputs bound once: right results in the arrays, with no memory made and nothing copied in a run."""

from __future__ import annotations

import copy
import gc
import json
import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper

import romou
from romou.base.errors import UsageError
from romou.base.inputs import random_inputs
from support.devices import platforms
from support.models.small_networks import prime_net, short_net


def statistics() -> dict[str, int]:
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))


def fresh(model: romou.TunedModel, capture: bool | None = None) -> romou.TunedModel:
    """Return the same code on a new virtual machine."""
    found = copy.copy(model)
    found.capture, found._local = capture, None
    return found


def in_pages(values: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a page."""
    array = np.frombuffer(mmap.mmap(-1, values.nbytes), values.dtype, values.size).reshape(values.shape)
    array[...] = values
    return array


@pytest.fixture(scope="module")
def model(opencl_device: tvm.runtime.Device) -> romou.TunedModel:
    return romou.compile(short_net(), target="opencl", verify=False)


@pytest.mark.parametrize("capture", [None, False])
def test_kernels_use_the_arrays(model: romou.TunedModel, capture: bool | None) -> None:
    assert_in_place(fresh(model, capture))


def test_kernels_of_intels_driver_use_the_arrays(request: pytest.FixtureRequest) -> None:
    platforms.INTEL.require(request.config)
    assert_in_place(romou.compile(short_net(), target="opencl", device="intel", verify=False))


def assert_in_place(model: romou.TunedModel) -> None:
    """The unbound model runs in between, on other inputs. Neither reads the other's."""
    wanted = [[o.copy() for o in model.run(random_inputs(model.inputs, seed))] for seed in range(4)]
    assert len({outputs[0].tobytes() for outputs in wanted}) == 4
    bound = model.bind()
    assert bound.copied == ()
    addresses = [array.ctypes.data for array in (*bound.inputs.values(), *bound.outputs)]
    for seed in range(4):
        for name, array in random_inputs(model.inputs, seed).items():
            bound.inputs[name][...] = array
        for array in bound.outputs:
            array.view(np.uint8)[...] = 0xFF
        before = statistics()
        outputs = bound.run()
        after = statistics()
        assert outputs is bound.outputs
        assert [o.tobytes() for o in outputs] == [o.tobytes() for o in wanted[seed]]
        # The first runs fill the pool of memory between kernels, and may record a command buffer.
        if seed >= 2:
            assert (after["created"], after["copies"]) == (before["created"], before["copies"])
            assert after["live_bytes"] == before["live_bytes"]
        assert [o.tobytes() for o in model.run(random_inputs(model.inputs, 3 - seed))] == [
            o.tobytes() for o in wanted[3 - seed]
        ]
    assert [array.ctypes.data for array in (*bound.inputs.values(), *bound.outputs)] == addresses


def test_counts_see_a_run_that_copies(model: romou.TunedModel) -> None:
    inputs = random_inputs(model.inputs, 0)
    model.run(inputs)
    before = statistics()
    model.run(inputs)
    assert statistics()["copies"] >= before["copies"] + len(model.inputs) + len(model.outputs)


def test_an_end_frees_the_tensors(model: romou.TunedModel) -> None:
    model = fresh(model, capture=False)

    def idle() -> dict[str, int]:
        gc.collect()
        tvm.get_global_func("vm.builtin.memory_manager.clear")()
        return statistics()

    model.bind()
    before = idle()
    bounds = [model.bind() for _ in range(3)]
    kept = bounds[0].outputs[0]
    assert statistics()["live_buffers"] >= before["live_buffers"] + 6
    del bounds
    assert idle()["live_buffers"] == before["live_buffers"]
    kept[...] = 1  # still the host's


def test_arrays_are_filled_and_never_replaced(model: romou.TunedModel) -> None:
    """The device uses the arrays, so they live as long as the bound model. Nobody would read another array."""
    bound = fresh(model, capture=False).bind()
    (name,), (output,) = bound.inputs, bound.outputs.names
    values = random_inputs(model.inputs, 3)[name]
    bound.inputs[name][...] = values - 1
    bound.inputs[name] += 1
    wanted = bound.run()[0].copy()
    other: Any = bound
    for arrays, key in ((other.inputs, name), (other.outputs, output), (other.outputs, 0)):
        with pytest.raises(UsageError, match="is an array that the device uses, and cannot be replaced") as raised:
            arrays[key] = values
        assert f"[{key!r}][...] = array" in str(raised.value)
    for attribute in ("inputs", "outputs"):
        with pytest.raises(AttributeError):
            setattr(other, attribute, {name: values})
    # No caller's reference is needed.
    gc.collect()
    assert bound.run()[0].tobytes() == wanted.tobytes()


def test_arrays_that_are_given(model: romou.TunedModel) -> None:
    (name,) = model.inputs
    (output,) = model.outputs
    x = random_inputs(model.inputs, 5)
    wanted = model.run(x)[0]
    in_place, result = in_pages(x[name]), in_pages(np.zeros_like(wanted))
    bound = model.bind({name: in_place}, {output: result})
    assert bound.copied == ()
    assert bound.inputs[name] is in_place
    bound.run()
    np.testing.assert_array_equal(result, wanted)
    # Four bytes behind the beginning of a page.
    pages = np.zeros(wanted.size + 1, wanted.dtype)
    elsewhere = pages[1:].reshape(wanted.shape)
    read_only = x[name].copy()
    read_only.flags.writeable = False
    bound = model.bind({name: read_only}, {output: elsewhere})
    assert bound.copied == (name, output)
    for _ in range(3):
        elsewhere[...] = np.nan
        bound.run()
        np.testing.assert_array_equal(elsewhere, wanted)
    tensor = tvm.runtime.tensor(x[name])
    assert model.bind({name: tensor}).run()[0].tobytes() == wanted.tobytes()


def test_threads_take_turns(model: romou.TunedModel) -> None:
    bound = model.bind()
    x = random_inputs(model.inputs, 1)
    wanted = model.run(x)[0].tobytes()
    for name, array in x.items():
        bound.inputs[name][...] = array
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: bound.run() if i % 2 else model.run(random_inputs(model.inputs, i)), range(20)))
    assert bound.outputs[0].tobytes() == wanted


@pytest.mark.parametrize(
    ("inputs", "outputs", "error"),
    [
        ({"imag": np.zeros(1)}, None, "unknown input 'imag'; known: image\nDid you mean 'image'?"),
        (None, {"logits": np.zeros(1)}, "unknown output 'logits'; known: t4"),
        (
            {"image": np.zeros((1, 2), "float32")},
            None,
            r"input 'image' is float32 \(1, 2\); the model was compiled for",
        ),
        ({"image": "double"}, None, r"input 'image' is float64 .*; the model was compiled for float32"),
        ({"image": "strided"}, None, "input 'image' is not contiguous"),
        ({"image": [1.0]}, None, "input 'image': a list has no memory that can be bound; expected a NumPy array"),
        ([1], None, r"inputs are bound by name, as \{name: array\}; got list"),
        (None, {"t4": "read_only"}, "output 't4' is read-only: results cannot be written to it"),
        (None, {"t4": "double"}, "output 't4' is float64"),
    ],
)
def test_what_does_not_fit(model: romou.TunedModel, inputs: Any, outputs: Any, error: str) -> None:
    shapes = {"image": model.inputs["image"][0], "t4": model.built.stored_outputs["t4"][0]}

    def array(name: str, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if given == "strided":
            return np.zeros((*shapes[name], 2), "float32")[..., 0]
        made = np.zeros(shapes[name], "float64" if given == "double" else "float32")
        made.flags.writeable = given != "read_only"
        return made

    given = [
        each if not isinstance(each, dict) else {n: array(n, v) for n, v in each.items()} for each in (inputs, outputs)
    ]
    with pytest.raises(UsageError, match=error) as caught:
        model.bind(*given)
    assert len(caught.value.message.splitlines()) == 1


def test_one_array_is_bound_once(opencl_device: tvm.runtime.Device) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "exp", [x], [y])
    model = romou.compile(helper.make_model(graph), target="opencl", verify=False)
    array = np.zeros(8, "float32")
    with pytest.raises(UsageError, match="'x' and 'y' are bound to the same memory"):
        model.bind({"x": array}, {"y": array})


def test_outputs_that_no_kernel_writes(opencl_device: tvm.runtime.Device) -> None:
    """The input itself, a constant, one value twice, a scalar, truth values and bfloat16."""
    kinds = {"x": TensorProto.FLOAT, "b": TensorProto.BFLOAT16}
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Constant", [], ["five"], value=helper.make_tensor("five", TensorProto.FLOAT, [2], [5, 5])),
        helper.make_node("Exp", ["x"], ["exp"]),
        helper.make_node("Identity", ["exp"], ["exp_again"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["x", "sum"], ["greater"]),
        helper.make_node("Concat", ["b", "b"], ["moved"], axis=0),
    ]
    outputs = {"same": [6], "five": [2], "exp": [6], "exp_again": [6], "sum": []}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()]
    infos += [helper.make_tensor_value_info("greater", TensorProto.BOOL, [6])]
    infos += [helper.make_tensor_value_info("moved", TensorProto.BFLOAT16, [8])]
    inputs = [helper.make_tensor_value_info(n, k, [6 if n == "x" else 4]) for n, k in kinds.items()]
    model = romou.compile(helper.make_model(helper.make_graph(nodes, "odd", inputs, infos)), target="opencl")
    bound = model.bind()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        given = {"x": rng.standard_normal(6).astype("float32"), "b": rng.standard_normal(4).astype(ml_dtypes.bfloat16)}
        wanted = model.run(given)
        for name, array in given.items():
            bound.inputs[name][...] = array
        for array in bound.outputs:
            array[...] = 0
        found = bound.run()
        for name in model.outputs:
            assert (found[name].dtype, found[name].shape) == (wanted[name].dtype, wanted[name].shape)
            assert found[name].tobytes() == wanted[name].tobytes(), name
    assert {"same", "five"} <= set(bound.copied) < set(model.outputs)


def test_a_model_of_several_outputs_in_images(opencl_device: tvm.runtime.Device) -> None:
    model = romou.compile(prime_net(), target="opencl -device=adreno640", verify=False)
    bound = model.bind()
    x = random_inputs(model.inputs, 2)
    for _ in range(3):
        for name, array in x.items():
            bound.inputs[name][...] = array
        for array in bound.outputs:
            array.view(np.uint8)[...] = 0xFF
        assert [o.tobytes() for o in bound.run()] == [o.tobytes() for o in model.run(x)]


def test_devices_without_such_memory_copy(vulkan_device: tvm.runtime.Device) -> None:
    model = romou.compile(short_net(), target="vulkan", verify=False)
    bound = model.bind()
    assert set(bound.copied) == {*model.inputs, *model.outputs}
    for seed in range(3):
        x = random_inputs(model.inputs, seed)
        bound.inputs["image"][...] = x["image"]
        bound.outputs[0][...] = np.nan
        bound.run()
        np.testing.assert_array_equal(bound.outputs[0], model.run(x)[0])
