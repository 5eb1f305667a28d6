"""Products with quantized weights on CPUs, whose vectors are rows of the weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from romou.compiler.operators.kernels.quantized.kernel import VECTORS
from romou.devices.targets import Target
from romou.tuner.measure.verify import poison
from support.kernels.operators import assert_agrees
from support.models.quantized import QuantizedCase, quantized_task
from support.suite.exhaustive import exhaustive

CPU = Target("opencl")
# Whole vectors of rows, and rows that do not fill one. Rows of activations that fill tiles, and others.
CASES = [
    QuantizedCase(m=5, k=203, n=128, zero="uint8"),
    QuantizedCase(m=1, k=1000, n=37, block=128),
    QuantizedCase(m=16, k=96, n=70, bits=8, block=16, zero="float", dtype="float16"),
    QuantizedCase(m=33, k=130, n=64, bits=2, block=16),
    QuantizedCase(m=2, k=256, n=192, bits=8, zero="uint8"),
    QuantizedCase(m=12, k=522, n=15, bits=2, block=64, zero="uint8", dtype="float16"),
]


@pytest.mark.parametrize("case", [*CASES[:2], *(pytest.param(case, marks=exhaustive) for case in CASES[2:])], ids=str)
def test_random_configs(case: QuantizedCase, opencl_device: tvm.runtime.Device) -> None:
    """The default config, and a drawn one."""
    task, rng = quantized_task(case), np.random.default_rng(case.k)
    drawn_configs = task.space(CPU).narrowed({"unpack": (VECTORS,)}).sample(rng, 1)
    for seed, config in enumerate([task.default_config(CPU), *drawn_configs]):
        assert config["unpack"] == VECTORS
        drawn = case.draw(seed)
        arrays = [drawn.data, *case.matrix(drawn).arrays, poison((case.m, case.n), case.dtype)]
        assert_agrees(CPU, task, config, arrays, drawn.result, 1e-5 if case.dtype == "float32" else 1e-3)


@pytest.mark.parametrize(
    ("bits", "zero"),
    [(4, "uint8"), *(pytest.param(b, z, marks=exhaustive) for b in (2, 4, 8) for z in ("none", "uint8"))],
)
def test_integers_come_out_exactly(bits: int, zero: str, opencl_device: tvm.runtime.Device) -> None:
    """So no code, row or zero point is taken for another."""
    case = QuantizedCase(m=3, k=520, n=40, bits=bits, zero=zero)
    task, drawn = quantized_task(case), case.draw(bits)
    data = np.random.default_rng(bits).integers(-8, 9, (case.m, case.k)).astype(np.float32)
    whole = replace(drawn, data=data, scales=np.sign(drawn.scales))
    arrays = [data, *case.matrix(whole).arrays, poison((case.m, case.n), "float32")]
    assert_agrees(CPU, task, task.default_config(CPU), arrays, whole.result, 1e-12)


@pytest.mark.parametrize("n", [64, 21])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=exhaustive)])
def test_an_epilogue_is_part_of_the_kernel(dtype: str, n: int, opencl_device: tvm.runtime.Device) -> None:
    case = QuantizedCase(m=3, k=128, n=n, dtype=dtype)
    task, drawn, rng = quantized_task(case, has_epilogue=True), case.draw(), np.random.default_rng(1)
    bias, other = (rng.standard_normal(shape).astype(dtype) for shape in ((case.n,), (case.m, case.n)))
    expected = np.maximum(drawn.result + bias.astype(np.float64), 0) * other.astype(np.float64)
    config = task.default_config(CPU)
    assert config["unpack"] == VECTORS
    arrays = [drawn.data, *case.matrix(drawn).arrays, bias, other, poison(expected.shape, dtype)]
    assert_agrees(CPU, task, config, arrays, expected, 1e-5 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize("m", [1, 6, 64])
def test_only_cpus_have_vectors_of_rows(m: int) -> None:
    """SPIR-V has no vectors of 16 numbers, and lanes of a GPU are work-items. All rows up to 16 are one tile."""
    task = quantized_task(QuantizedCase(m=m, k=256, n=64))
    config = task.default_config(CPU)
    assert (config["unpack"], config["item_data"]) == (VECTORS, min(m, 16))
    for name in ("vulkan", "opencl -device=adreno640", "cuda -device=nvidia_h200"):
        assert VECTORS not in task.space(Target(name)).knobs["unpack"]
    table = quantized_task(QuantizedCase(m=m, k=256, n=64, zero="table"))
    assert VECTORS not in table.space(CPU).knobs["unpack"]
