"""Concatenations and slices of channels without kernels: fewer launches, the same numbers, no tensor in the way of
another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax, tirx
from tvm_ffi.structural import structural_equal

import romou
from romou.compiler.assembly import assemble
from romou.compiler.assembly.assemble import compile_model, schedule_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels, place_images, share_buffers
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import is_image
from romou.compiler.tir.slices import slices_of, without_slices
from romou.devices.backends.cuda.nvrtc import compile_cuda
from romou.devices.targets import Target
from support.kernels.operators import has_device, target_of
from support.models.small_networks import NetworkBuilder, random_inputs
from support.suite.exhaustive import exhaustive

HOST, PHONE = Target("opencl -device=host"), Target("opencl -device=adreno640")


def relu(g: NetworkBuilder, x: str, inputs: int, outputs: int, kernel: int = 1) -> str:
    return g.add("Relu", g.conv(x, inputs, outputs, (kernel, kernel), pads=[kernel // 2] * 4))


def split(g: NetworkBuilder, x: str, sizes: Sequence[int]) -> list[str]:
    names = [f"{x}_{i}" for i in range(len(sizes))]
    g.nodes.append(helper.make_node("Split", [x, g.constant(np.asarray(sizes, "int64"))], names, axis=1))
    return names


def stem(batch: int = 1, dtype: str = "float32") -> tuple[NetworkBuilder, str]:
    g = NetworkBuilder({"image": (batch, 3, 7, 9)}, dtype=dtype)
    return g, relu(g, "image", 3, 12)


def fire(batch: int = 1, dtype: str = "float32") -> onnx.ModelProto:
    """Return two convolutions of one tensor, as in SqueezeNet. The last texel is not full."""
    g, x = stem(batch, dtype)
    y = g.add("Concat", relu(g, x, 12, 8), relu(g, x, 12, 14, 3), axis=1)
    return g.model(relu(g, y, 22, 5))


def inception() -> onnx.ModelProto:
    """Return pools among the inputs, and concatenations of concatenations. The inner one has another reader as well."""
    g, x = stem()
    pools = [g.add(op, x, kernel_shape=[3, 3], pads=[1] * 4) for op in ("MaxPool", "AveragePool")]
    inner = g.add("Concat", relu(g, x, 12, 8), pools[0], axis=1)
    y = g.add("Concat", relu(g, x, 12, 4, 3), inner, pools[1], axis=1)
    return g.model(g.add("Add", relu(g, y, 36, 8), relu(g, inner, 20, 8)))


def dense() -> onnx.ModelProto:
    """Return concatenated tensors that others also read, before and after. One of the readers
    writes the other slice.
    """
    g, x = stem()
    a = relu(g, x, 12, 8)
    b = relu(g, a, 8, 8, 3)
    y = relu(g, g.add("Concat", a, b, axis=1), 16, 8)
    return g.model(g.add("Add", g.add("Add", y, a), relu(g, b, 8, 8)))


def shuffle() -> onnx.ModelProto:
    """Return slices of a tensor, overlapping ones, and slices of slices, of a concatenation too."""
    g, x = stem()
    y = g.add("Concat", relu(g, x, 12, 16), relu(g, x, 12, 8, 3), axis=1)
    first, second, third = split(g, y, (4, 12, 8))
    begin, end, axis = (g.constant(np.asarray([n], "int64")) for n in (4, 2**31, 1))
    rest = g.add("Slice", second, begin, end, axis)
    parts = [relu(g, first, 4, 8), relu(g, second, 12, 8, 3), relu(g, third, 8, 8), relu(g, rest, 8, 8)]
    return g.model(g.add("Add", g.add("Add", parts[0], parts[1]), g.add("Add", parts[2], parts[3])))


def upsample() -> onnx.ModelProto:
    """Return a smaller image that is enlarged, beside a convolution of the larger one, as in U-Net. Something is added
    to another enlarged image.
    """
    g, x = stem()
    small = g.conv(x, 12, 8, strides=[2, 2], pads=[1] * 4)
    size = g.constant(np.asarray([1, 8, 7, 9], "int64"))
    nearest = g.add(
        "Resize", small, "", "", size, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    linear = g.add("Resize", small, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
    skip = relu(g, x, 12, 4)
    y = relu(g, g.add("Concat", nearest, skip, axis=1), 12, 8)
    return g.model(relu(g, g.add("Add", linear, y), 8, 4))


def floating() -> onnx.ModelProto:
    """Return inputs that would have separate kernels: one kernel for all of them is better than a kernel for each."""
    g, x = stem()
    parts = [g.add("Resize", x, "", g.constant(np.asarray([1, 1, 2, n], "float32")), mode="nearest") for n in (2, 2)]
    return g.model(relu(g, g.add("Concat", *[g.add("Tanh", part) for part in parts], axis=1), 24, 4))


def twice() -> onnx.ModelProto:
    """Return one tensor at two places of a concatenation, and one tensor in two concatenations."""
    g, x = stem()
    a, b = relu(g, x, 12, 8), relu(g, x, 12, 4, 3)
    same = relu(g, g.add("Concat", x, x, axis=1), 24, 8)
    one, other = (relu(g, g.add("Concat", *parts, axis=1), 12, 8) for parts in ((a, b), (b, a)))
    return g.model(g.add("Add", same, g.add("Add", one, other)))


def borders() -> onnx.ModelProto:
    """Return concatenations of an input of the model, a constant, an output, and a tensor that is viewed in another
    shape.
    """
    g, x = stem()
    a, b, c = relu(g, x, 12, 8), relu(g, x, 12, 4, 3), relu(g, x, 12, 4)
    constant = g.constant(g.rng.standard_normal((1, 8, 7, 9)).astype("float32"))
    y = relu(g, g.add("Concat", b, constant, axis=1), 12, 8)
    z = relu(g, g.add("Concat", a, "image", axis=1), 11, 8)
    mean = g.add("GlobalAveragePool", a)
    excited = relu(g, g.add("Concat", mean, g.add("GlobalAveragePool", c), axis=1), 12, 8)
    return g.model(g.add("Add", g.add("Add", y, z), excited), a, g.add("Flatten", mean), g.add("Concat", b, c, axis=1))


def unaligned() -> onnx.ModelProto:
    """Return channels that are no whole texels."""
    g, x = stem()
    y = g.add("Concat", relu(g, x, 12, 8), relu(g, x, 12, 6, 3), relu(g, x, 12, 8), axis=1)
    first, second = split(g, y, (10, 12))
    z = g.add("Concat", relu(g, first, 10, 8), relu(g, second, 12, 8), axis=1)
    return g.model(relu(g, z, 16, 8))


# Kernels that concatenate and slice, before and after.
CASES: dict[str, tuple[Callable[[], onnx.ModelProto], int, int]] = {
    "fire": (fire, 1, 0),
    "fire, batch": (lambda: fire(batch=3), 1, 0),
    "fire, fp16": (lambda: fire(dtype="float16"), 1, 0),
    "inception": (inception, 2, 0),
    "dense": (dense, 1, 0),
    "shuffle": (shuffle, 5, 0),
    "upsample": (upsample, 1, 0),
    "floating": (floating, 1, 1),
    "twice": (twice, 3, 2),
    "borders": (borders, 4, 3),
    "unaligned": (unaligned, 4, 3),
}


def fused(model: onnx.ModelProto, target: Target = HOST) -> tvm.IRModule:
    return place_images(fuse_operators(pack_channels(import_onnx(model).mod), target), target)


def copies(mod: tvm.IRModule) -> int:
    return sum(count for name, count in count_calls(mod).items() if "concat" in name or "slice" in name)


def check(model: onnx.ModelProto, target: Target) -> None:
    """Compare the model with onnxruntime on the device. Memory that no kernel wrote holds NaN from the run before."""
    compiled = romou.compile(model, target=target, verify=False)
    inputs = random_inputs(model, seed=3)
    compiled.run({name: np.full_like(array, np.nan) for name, array in inputs.items()})
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    for found, expected in zip(compiled.run(inputs), reference, strict=True):
        assert found.shape == expected.shape
        assert relative_l2_error(found, expected) < (2e-3 if found.dtype == np.float16 else 1e-5)


def check_plan(lowered: tvm.IRModule) -> int:
    """Assert that no tensor of a storage is used after the next one has taken its place. Return the number of shared
    storages.
    """
    bindings = [binding for block in lowered["main"].body.blocks for binding in block.bindings]
    storage_of: dict[relax.Var, relax.Var] = {}
    first: dict[relax.Var, int] = {}
    last: dict[relax.Var, int] = {}
    for at, binding in enumerate(bindings):
        if op_name(binding.value) == "relax.vm.alloc_tensor":
            storage_of[binding.var] = binding.value.args[0]
            assert int(binding.value.args[1]) == 0
            first[binding.var] = at
        elif op_name(binding.value) != "relax.vm.kill_object" and isinstance(binding.value, relax.Call):
            last.update((arg, at) for arg in binding.value.args if arg in storage_of)
    tenants: dict[relax.Var, list[relax.Var]] = {}
    for tensor, storage in storage_of.items():
        tenants.setdefault(storage, []).append(tensor)
    for tensors in tenants.values():
        for before, after in itertools.pairwise(tensors):
            assert last[before] < first[after], (before, after)
    return sum(len(tensors) > 1 for tensors in tenants.values())


@pytest.mark.parametrize("name", CASES)
def test_copies_go(name: str) -> None:
    make, copied, left = CASES[name]
    before = fused(make())
    shared = share_buffers(before)
    print(shared["main"])
    assert (copies(before), copies(shared)) == (copied, left)
    assert sum(count_calls(before).values()) - sum(count_calls(shared).values()) == copied - left
    assert {task.key for task in extract_tasks(shared)[0]} <= {task.key for task in extract_tasks(before)[0]}


# Concatenations of concatenations, slices of slices, some of them outputs of the model, and channels that are no whole
# texels. Two more are run in images.
RUN = ("inception", "shuffle", "borders", "unaligned")


@pytest.mark.parametrize("name", [*RUN, *(pytest.param(name, marks=exhaustive) for name in CASES if name not in RUN)])
def test_numbers_stay(name: str, opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    monkeypatch.setattr(assemble, "schedule_model", lambda *given: plans.append(schedule_model(*given)) or plans[-1])
    check(CASES[name][0](), target_of("opencl"))
    assert sum(map(check_plan, plans)) > 0


@pytest.mark.parametrize(
    ("name", "left"),
    [("dense", 1), ("upsample", 0), *(pytest.param(name, 0, marks=exhaustive) for name in ("fire", "shuffle"))],
)
def test_images_are_shared_unless_a_kernel_would_read_what_it_writes(
    name: str, left: int, opencl_device: tvm.runtime.Device
) -> None:
    model = CASES[name][0]()
    shared = share_buffers(fused(model, PHONE))
    assert copies(shared) == left
    parts = [func for _, func in shared.functions_items() if isinstance(func, tirx.PrimFunc) and slices_of(func)]
    assert all(is_image(func.params[part.position]) for func in parts for part in slices_of(func))
    assert bool(parts) == (left == 0)
    check(model, PHONE)


def test_the_kernels_of_an_algorithm_write_into_a_part(opencl_device: tvm.runtime.Device) -> None:
    """Kernels of Winograd's algorithm have additional workspaces, which the plan holds."""
    model = fire()
    shared = share_buffers(fused(model))
    found, key_of = extract_tasks(shared)
    tasks = {name: task for name, key in key_of.items() for task in found if task.key == key}
    configs = {
        task.key: next((c for c in task.starts(HOST) if c.get("algorithm") == "winograd2"), task.default_config(HOST))
        for task in found
    }
    assert [
        name
        for name, task in tasks.items()
        if slices_of(shared[name]) and configs[task.key].get("algorithm") == "winograd2"
    ]
    machine = relax.VirtualMachine(compile_model(shared, tasks, configs, HOST).executable, opencl_device)
    inputs = random_inputs(model, seed=1)
    (expected,) = run_onnxruntime(model, inputs) or ()
    output = machine["main"](tvm.runtime.tensor(inputs["image"], opencl_device))
    assert relative_l2_error((output if isinstance(output, tvm.runtime.Tensor) else output[0]).numpy(), expected) < 1e-5


def test_half_precision_in_cuda(cuda_target: Target) -> None:
    target, model = cuda_target, fire(dtype="float16")
    if has_device(target):
        check(model, target)
        check(dense(), target)
    else:
        for source in romou.compile(model, target=target).sources().values():
            assert compile_cuda(source, str(target.tvm_target.attrs["arch"])).startswith(b"\x7fELF")


def test_a_function_with_slices_knows_itself() -> None:
    before = fused(dense())
    shared = share_buffers(before)
    found = {
        var.name_hint: func
        for var, func in shared.functions_items()
        if isinstance(func, tirx.PrimFunc) and slices_of(func)
    }
    assert found
    for func in found.values():
        assert any(structural_equal(without_slices(func), one) for _, one in before.functions_items())


def test_a_graph_without_copies_stays() -> None:
    g, x = stem()
    before = fused(g.model(x))
    assert share_buffers(before) is before
