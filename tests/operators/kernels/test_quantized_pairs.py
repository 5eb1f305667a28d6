"""Codes of quantized weights as pairs of fp16 numbers: exact, near enough in random sums, the default where it pays.

Kernels run through Vulkan, because lavapipe computes in fp16. `test_other_compilers.py` runs some on Intel's OpenCL.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from romou.compiler.operators.kernels.quantized.kernel import OF_BLOCK, PAIRS
from romou.devices.targets import Target
from romou.tuner.measure.verify import poison
from support.kernels.operators import assert_agrees
from support.models.quantized import QuantizedCase, quantized_task
from support.suite.exhaustive import exhaustive

CASES = [
    QuantizedCase(m=1, k=999, n=8, block=128, dtype="float16"),
    QuantizedCase(m=3, k=1000, n=37, zero="uint8", dtype="float16"),
    QuantizedCase(m=2, k=203, n=21, bits=8, block=16, dtype="float16"),
    QuantizedCase(m=5, k=522, n=17, bits=2, block=64, zero="uint8", dtype="float16"),
]
VULKAN = Target("vulkan")
# An H100 through Vulkan: the facts of an H200, which was measured through OpenCL, and fp16 arithmetic.
NVIDIA = replace(Target("vulkan -device=nvidia_h200").limits, has_fp16_arithmetic=True)
TILE = ("group_rows", "group_parts", "item_rows", "item_data", "item_chunks", "staged_data", "unpack")


@pytest.mark.parametrize(
    ("bits", "zero", "staged"),
    [
        (4, "none", 256),
        (2, "uint8", 0),
        *(
            pytest.param(bits, zero, staged, marks=exhaustive)
            for bits, zero in ((2, "none"), (4, "none"), (4, "uint8"), (8, "none"), (8, "uint8"))
            for staged in (0, 256)
        ),
    ],
)
def test_small_integers_come_out_exactly(bits: int, zero: str, staged: int, vulkan_device: tvm.runtime.Device) -> None:
    """Few activations are not zero, so that every sum is an integer of fp16."""
    case = QuantizedCase(m=2, k=520, n=8, bits=bits, block=64, zero=zero, dtype="float16")
    task, drawn, rng = quantized_task(case), case.draw(bits), np.random.default_rng(bits)
    data = (rng.integers(-1, 2, (case.m, case.k)) * (rng.random((case.m, case.k)) < 0.05)).astype(np.float16)
    whole = replace(drawn, data=data, scales=np.sign(drawn.scales))
    assert 0 < np.abs(whole.result).max() <= 2048
    config = task.default_config(VULKAN).replace(
        unpack=PAIRS, zero_point=OF_BLOCK, staged_data=staged, group_parts=2, item_chunks=1
    )
    assert task.space(VULKAN).is_valid(config)
    arrays = [data, *case.matrix(whole).arrays, poison((case.m, case.n), "float16")]
    assert_agrees(VULKAN, task, config, arrays, whole.result, 1e-12)


@pytest.mark.parametrize(
    ("case", "count"),
    [(CASES[1], 1), *(pytest.param(case, 4, marks=exhaustive) for case in CASES)],
    ids=str,
)
def test_random_configs(case: QuantizedCase, count: int, vulkan_device: tvm.runtime.Device) -> None:
    task, rng = quantized_task(case), np.random.default_rng(case.k)
    for seed, config in enumerate(task.space(VULKAN).narrowed({"unpack": (PAIRS,)}).sample(rng, count)):
        drawn = case.draw(seed)
        arrays = [drawn.data, *case.matrix(drawn).arrays, poison((case.m, case.n), "float16")]
        assert_agrees(VULKAN, task, config, arrays, drawn.result, 1e-3)


@pytest.mark.parametrize("scale", [4000.0, *(pytest.param(scale, marks=exhaustive) for scale in (1e-3, 1.0))])
def test_the_error_of_long_sums_is_that_of_fp16(scale: float, vulkan_device: tvm.runtime.Device) -> None:
    """Sums in fp16 are short, and neither small nor large activations are lost in them."""
    case = QuantizedCase(m=4, k=4096, n=16, dtype="float16")
    task, drawn = quantized_task(case), case.draw()
    data = (np.random.default_rng(1).uniform(-1, 1, (case.m, case.k)) * scale).astype(np.float16)
    scaled = replace(drawn, data=data, scales=(drawn.scales / scale).astype(np.float16) if scale > 1 else drawn.scales)
    config = task.default_config(VULKAN).replace(unpack=PAIRS, zero_point=OF_BLOCK)
    arrays = [data, *case.matrix(scaled).arrays, poison((case.m, case.n), "float16")]
    assert_agrees(VULKAN, task, config, arrays, scaled.result, 8e-4)


@pytest.mark.parametrize(
    "case",
    [
        QuantizedCase(m=4, k=256, n=64),
        QuantizedCase(m=4, k=256, n=64, zero="float", dtype="float16"),
        QuantizedCase(m=4, k=256, n=64, block=16, dtype="float16"),
    ],
    ids=["float32", "zero points of floats", "a block of half a chunk"],
)
def test_other_products_have_no_pairs(case: QuantizedCase) -> None:
    for name in ("opencl -device=mali_g76", "vulkan -device=mali_g715"):
        target, task = Target(name), quantized_task(case)
        assert PAIRS not in task.space(target).knobs["unpack"]
        assert task.space(target).is_valid(task.default_config(target))


def test_a_language_without_vector_arithmetic_has_no_pairs() -> None:
    task = quantized_task(QuantizedCase(m=4, k=256, n=64, dtype="float16"))
    assert PAIRS not in task.space(Target("cuda -device=nvidia_h200")).knobs["unpack"]


@pytest.mark.parametrize(
    ("device", "m", "is_default"),
    [
        ("mali_g76", 4, True),
        ("mali_g610", 8, True),
        ("mali_g76", 1, True),
        ("mali_g76", 64, True),
        ("adreno740", 1, False),
        ("adreno740", 4, False),
    ],
)
def test_pairs_are_the_default_where_they_pay(device: str, m: int, is_default: bool) -> None:
    """Mali's instructions compute with both numbers of a pair, Adreno's with one."""
    task = quantized_task(QuantizedCase(m=m, k=1024, n=256, dtype="float16"))
    target = Target(f"opencl -device={device}")
    config = task.default_config(target)
    assert (config["unpack"] == PAIRS) == is_default
    assert task.space(target).is_valid(config)


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (1, (8, 32, 2, 1, 4, 0, "exponent")),
        (3, (8, 16, 4, 3, 2, 2048, PAIRS)),
        (4, (8, 16, 4, 4, 2, 2048, PAIRS)),
        (8, (8, 16, 4, 4, 2, 2048, PAIRS)),
        (64, (64, 1, 4, 8, 1, 256, PAIRS)),
    ],
)
def test_defaults_through_vulkan_on_nvidia(m: int, expected: tuple[int | str, ...]) -> None:
    """Configs that were measured. One row keeps sums in fp32, and others are within 1% of the fastest."""
    template = quantized_task(QuantizedCase(m=m, k=4096, n=4096, dtype="float16")).template
    config = template.default_config(NVIDIA)
    assert tuple(config[name] for name in TILE) == expected
    assert template.space(NVIDIA).is_valid(config)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (QuantizedCase(m=4, k=1000, n=37, zero="uint8", dtype="float16"), (8, 16, 4, 4, 2, 1024, PAIRS)),
        (QuantizedCase(m=4, k=512, n=64, bits=2, block=64, dtype="float16"), (8, 4, 4, 4, 2, 512, PAIRS)),
        (QuantizedCase(m=16, k=256, n=512, bits=8, dtype="float16"), (64, 4, 4, 8, 1, 256, PAIRS)),
    ],
    ids=str,
)
def test_defaults_of_other_sizes_on_nvidia(case: QuantizedCase, expected: tuple[int | str, ...]) -> None:
    """Parts and staged activations follow K. Few groups of many rows split their sums."""
    config = quantized_task(case).template.default_config(NVIDIA)
    assert tuple(config[name] for name in TILE) == expected


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(4, 4096, 40), (1000, 160, 132), *(pytest.param(m, 11008, n, marks=exhaustive) for m, n in ((4, 40), (512, 132)))],
)
def test_the_defaults_of_nvidia_are_right(m: int, k: int, n: int, vulkan_device: tvm.runtime.Device) -> None:
    """Lavapipe has room for these configs, so they run as they are."""
    case = QuantizedCase(m=m, k=k, n=n, dtype="float16")
    task, drawn = quantized_task(case), case.draw()
    config = task.template.default_config(NVIDIA)
    assert config["unpack"] == PAIRS
    assert task.space(VULKAN).is_valid(config)
    arrays = [drawn.data, *case.matrix(drawn).arrays, poison((m, n), "float16")]
    assert_agrees(VULKAN, task, config, arrays, drawn.result, 8e-4)


def test_only_vulkan_has_other_defaults_on_nvidia() -> None:
    names = {kind: Target(f"{kind} -device=nvidia_h200").limits.preset.name for kind in ("vulkan", "opencl", "cuda")}
    assert names == {"vulkan": "nvidia_vulkan", "opencl": "gpu", "cuda": "gpu"}
