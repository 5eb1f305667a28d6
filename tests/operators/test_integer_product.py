"""Products of bytes are equal to NumPy's, bit for bit: every way to multiply, on every device, with extreme numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm

from romou.base.space import Config
from romou.devices.backends import backend
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


def test_dot_products_where_devices_have_them() -> None:
    task = CASES[5].task()
    names = {
        "opencl -device=adreno660": "dot",
        "opencl -device=adreno640": "float",
        "opencl -device=mali_g77": "dot",
        "cuda -device=nvidia_h200": "dot",
        "vulkan -device=mali_g77": "dot",
        "vulkan -device=adreno640": "float",
        "opencl": "float",
    }
    assert {name: str(task.default_config(Target(name))["multiply"]) for name in names} == names


@pytest.mark.parametrize(
    ("extensions", "kind", "expected"),
    [
        ("cl_qcom_dot_product8", "gpu", "mixed"),
        ("cl_khr_integer_dot_product cl_arm_integer_dot_product_int8", "gpu", "signed"),
        ("cl_khr_integer_dot_product", "gpu", None),
        ("cl_khr_integer_dot_product", "cpu", None),
    ],
)
def test_extensions_of_a_driver(extensions: str, kind: str, expected: str | None) -> None:
    facts = {"extensions": extensions, "type": kind, "constant_mem_bytes": 1 << 16}
    assert backend("opencl").asked_of(facts)["dot_products"] == expected


def test_the_default_fits_every_device() -> None:
    devices = ["opencl -device=adreno740", "opencl -device=mali_g76", "vulkan -device=mali_g715", "opencl -device=host"]
    for name, case in itertools.product([*devices, "cuda -device=nvidia_h200"], CASES):
        target, task = Target(name), case.task()
        assert task.space(target).is_valid(task.default_config(target)), (name, case)
