"""Products of bytes are equal to NumPy's, bit for bit: every way to multiply, on every device, with extreme numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm

from romou.base.space import Config
from romou.devices.backends import backend
from romou.devices.backends.opencl import dot_products
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, each_kind, has_device
from support.models.integers import IntegerCase
from support.suite.exhaustive import exhaustive

CASES = [
    IntegerCase(m=1, k=1000, n=37, zero="one"),
    IntegerCase(m=9, k=67, n=48, is_signed=False, has_epilogue=True),
    IntegerCase(m=5, k=2100, n=19, is_extreme=True),
    IntegerCase(m=3, k=2100, n=32, is_extreme=True, is_signed=False, zero="rows"),
    IntegerCase(m=1, k=1, n=1),
    IntegerCase(m=17, k=256, n=130, zero="rows", has_epilogue=True),
]
DRAWN = [0, 1, 2]


def check(target: Target, case: IntegerCase, config: Config | None = None, seed: int = 0) -> None:
    task, (arrays, result) = case.task(), case.draw(seed)
    # Below one unit of the largest sum.
    assert_agrees(target, task, config or task.default_config(target), arrays, result, 1e-12)


@each_kind("case", CASES, opencl=(0, 1, 2), cuda=(3,), vulkan=(3,))
def test_default_configs(target: Target, case: IntegerCase) -> None:
    check(target, case)


@each_kind("drawn", DRAWN, opencl=(1,), cuda=(), vulkan=())
def test_random_configs(target: Target, drawn: int) -> None:
    """Fresh numbers for each config."""
    rng = np.random.default_rng(drawn)
    for case in CASES[drawn::3] if has_device(target) else CASES[:1]:
        for config in case.task().space(target).sample(rng, 2):
            check(target, case, config, seed=int(rng.integers(1 << 30)))


@pytest.mark.parametrize(
    ("multiply", "parts"),
    [("dot", 4), *(pytest.param(m, p, marks=exhaustive) for m, p in (("dot", 1), ("float", 1), ("float", 4)))],
)
@pytest.mark.parametrize("device", ["adreno660", "mali_g77"])
def test_kernels_of_phones(device: str, multiply: str, parts: int, opencl_device: tvm.runtime.Device) -> None:
    """Without a dot product, the text that phones compile computes four products."""
    target = Target(f"opencl -device={device}")
    for case in (*CASES[:2], IntegerCase(m=2, k=300, n=64)):
        task, (arrays, result) = case.task(), case.draw(1)
        config = task.default_config(target).replace(multiply=multiply, group_parts=parts, group_columns=4)
        assert_agrees(target, task, config, arrays, result, 1e-12)


@pytest.mark.parametrize("parts", [4, pytest.param(1, marks=exhaustive)])
def test_dot_products_of_vulkan(parts: int, vulkan_device: tvm.runtime.Device) -> None:
    """The instructions of SPIR-V, which lavapipe has."""
    target = Target("vulkan -device=mali_g77")
    for case in (*CASES[:2], IntegerCase(m=2, k=300, n=64)):
        task, (arrays, result) = case.task(), case.draw(1)
        config = task.default_config(target).replace(group_parts=parts, group_columns=4)
        assert config["multiply"] == "dot"
        kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
        assert any("SPV_KHR_integer_dot_product" in kernel.source for kernel in kernels)
        assert_agrees(target, task, config, arrays, result, 1e-12)


@pytest.fixture
def vnni_target(opencl_device: tvm.runtime.Device) -> Target:
    """The CPU with VNNI. The test is skipped on any other device."""
    if not backend("opencl").facts(opencl_device.index)["has_vnni"]:
        pytest.skip("no processor with VNNI under an OpenCL compiler that takes assembly (PoCL's)")
    return Target("opencl")


# One row, a few and many; sizes with and without a rest of rows, of words along k and of vectors of columns.
OF_VECTORS = [
    IntegerCase(m=1, k=256, n=128, is_signed=False),
    IntegerCase(m=1, k=1000, n=37, is_signed=False, zero="one"),
    IntegerCase(m=2, k=67, n=19, is_signed=False, is_extreme=True),
    IntegerCase(m=3, k=131, n=64, is_signed=False, has_epilogue=True),
    IntegerCase(m=5, k=2100, n=65, is_signed=False, zero="rows", is_extreme=True),
    IntegerCase(m=8, k=64, n=200, is_signed=False),
    IntegerCase(m=127, k=510, n=129, is_signed=False, zero="rows", has_epilogue=True),
    IntegerCase(m=128, k=512, n=256, is_signed=False, zero="one"),
]


@pytest.mark.parametrize("case", OF_VECTORS, ids=str)
def test_products_by_vnni(case: IntegerCase, vnni_target: Target) -> None:
    task = case.task()
    config = task.default_config(vnni_target)
    assert config["multiply"] == "dot"
    (kernel,) = inspect_function(task.schedule(config, vnni_target)["main"], vnni_target, config=config)
    assert "vpdpbusd" in kernel.source
    assert f"= dot_of_bytes_us_{config['lanes']}(" in kernel.source
    assert kernel.source.count("fetch_ahead(((__global") == 4 * -(-int(config["item_columns"]) // 16)
    check(vnni_target, case)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_compiler_takes_vnni(lanes: int, vnni_target: Target) -> None:
    """Without the products that other compilers take instead, the text still compiles, and multiplies extreme bytes."""
    text = dot_products.definitions([f"dot_of_bytes_us_{lanes}("])
    head, _, tail = text.partition("#else\n")
    assert tail.endswith("#endif\n")
    source = f"""{head}#else
#error no VNNI
#endif
__kernel void products(__global uint{lanes}* words, __global int{lanes}* sums) {{
  sums[0] = dot_of_bytes_us_{lanes}(words[0].s0, words[1], sums[0]);
}}
"""
    data = np.array([255, 0, 128, 255], np.uint8)
    weight = np.random.default_rng(lanes).choice(np.array([-128, 127, -1], np.int8), (lanes, 4))
    words, before = np.zeros((2, lanes), np.uint32), np.full(lanes, -5, np.int32)
    words[0, 0], words[1] = data.view(np.uint32)[0], weight.view(np.uint32)[:, 0]
    device = vnni_target.backend.device()
    arguments = [tvm.runtime.tensor(array, device) for array in (words, before)]
    tvm.get_global_func("romou.opencl.source_kernel")(0, source, "products")["launch"]("mm", 1, 1, *arguments)
    np.testing.assert_array_equal(arguments[1].numpy(), before + weight.astype(np.int32) @ data)


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_dot_products_of_vectors(lanes: int, is_signed: bool, opencl_device: tvm.runtime.Device) -> None:
    """CPUs multiply vectors of columns, by products where there is no instruction: signed bytes have none."""
    case = IntegerCase(m=3, k=70, n=33, is_signed=is_signed, is_extreme=True)
    target, task = Target("opencl -device=host"), case.task()
    config = task.default_config(target).replace(multiply="dot", convert="word", lanes=lanes, item_columns=16)
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    assert f"= dot_of_bytes_{'ss' if is_signed else 'us'}_{lanes}(" in kernel.source
    check(target, case, config)


def test_dot_products_where_devices_have_them() -> None:
    task = CASES[5].task()
    has_vnni = any(facts["has_vnni"] for facts in backend("opencl").list_devices()[:1])
    names = {
        "opencl -device=adreno660": "dot",
        "opencl -device=adreno640": "float",
        "opencl -device=mali_g77": "dot",
        "cuda -device=nvidia_h200": "dot",
        "vulkan -device=mali_g77": "dot",
        "vulkan -device=adreno640": "float",
        "opencl": "dot" if has_vnni else "float",
    }
    assert {name: str(task.default_config(Target(name))["multiply"]) for name in names} == names


@pytest.mark.parametrize(
    ("extensions", "kind", "has_vnni", "expected"),
    [
        ("cl_qcom_dot_product8", "gpu", False, "mixed"),
        ("cl_khr_integer_dot_product cl_arm_integer_dot_product_int8", "gpu", False, "signed"),
        ("cl_khr_integer_dot_product", "gpu", False, None),
        ("cl_khr_integer_dot_product", "cpu", False, None),
        ("", "cpu", True, "mixed"),
    ],
)
def test_dot_products_of_a_driver(extensions: str, kind: str, has_vnni: bool, expected: str | None) -> None:
    facts = {"extensions": extensions, "type": kind, "constant_mem_bytes": 1 << 16, "has_vnni": has_vnni}
    assert backend("opencl").asked_of(facts)["dot_products"] == expected


def test_the_default_fits_every_device() -> None:
    devices = ["opencl -device=adreno740", "opencl -device=mali_g76", "vulkan -device=mali_g715", "opencl -device=host"]
    for name, case in itertools.product([*devices, "cuda -device=nvidia_h200"], CASES):
        target, task = Target(name), case.task()
        assert task.space(target).is_valid(task.default_config(target)), (name, case)
