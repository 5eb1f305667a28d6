"""A depthwise and a pointwise convolution as one kernel, against both functions unscheduled, one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm

from romou.base.space import Config
from romou.compiler.operators.families.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels import operators

SEED = 6
LIMITS = {"float32": 1e-5, "float16": 1e-3}
PAD = {"padding": (1, 1, 1, 1)}
# Channels, size, outputs, and what else is given.
PAIRS: dict[str, tuple[int, tuple[int, int], int, dict[str, Any]]] = {
    "primes": (31, (17, 13), 37, PAD),
    "stride": (18, (11, 10), 7, {**PAD, "stride": (2, 2)}),
    "uneven": (8, (9, 7), 12, {"kernel": (5, 3), "padding": (0, 1, 3, 0), "stride": (2, 1), "batch": 2}),
    "dilated": (16, (9, 9), 40, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
    "few": (2, (8, 8), 1, {}),
}


def made(name: str, dtype: str = "float32") -> TunableTask:
    channels, size, outputs, given = PAIRS[name]
    return operators.pair_of(channels, size, outputs, dtype, **given)


PAIR_TYPES = [
    ("primes", "float32"),
    ("stride", "float16"),
    ("uneven", "float32"),
    ("dilated", "float16"),
    ("few", "float32"),
]


@operators.random_configs
@operators.each_kind("pair", PAIR_TYPES, opencl=(0, 3, 4), cuda=(1,), vulkan=(1,))
def test_configs_agree_with_both_functions(pair: tuple[str, str], target: Target, drawn: int) -> None:
    name, dtype = pair
    task, rng = made(name, dtype), np.random.default_rng(SEED)
    arrays = operators.random_arrays(task, rng)
    expected = operators.reference(task, arrays)
    for config in [
        task.default_config(target),
        *(operators.quick_configs(task, target, rng, drawn) if operators.has_device(target) else ()),
    ]:
        operators.assert_agrees(target, task, config, arrays, expected, LIMITS[dtype])


def test_the_reference_is_both_functions() -> None:
    """The reference agrees with NumPy in double precision: windows, bias, ReLU, channels, bias, ReLU."""
    task = operators.pair_of(8, (6, 5), 12, stride=(2, 1), **PAD)
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    data, windows, first, weight, second = (a.astype("float64") for a in arrays[:-1])
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    taps = ((kh, kw, padded[:, :, kh : kh + 5 : 2, kw : kw + 5]) for kh in range(3) for kw in range(3))
    between = np.maximum(sum(part * windows[kh, kw][None, :, None, None] for kh, kw, part in taps) + first, 0)
    output = np.maximum(np.einsum("ncyxi,ciol->noyxl", between, weight[:, 0, 0]) + second, 0)
    assert operators.error_of(operators.reference(task, arrays), output) < 1e-5


def test_data_weight_and_output_in_images(opencl_device: tvm.runtime.Device) -> None:
    phone = Target("opencl -device=adreno640 -half=storage")
    task, rng = made("stride", "float16").with_free_images(), np.random.default_rng(SEED)
    space = task.space(phone)
    arrays = operators.random_arrays(task, rng)
    expected = operators.reference(task, arrays)
    drawn = space.sample(rng, 100)
    for places in itertools.product(("buffer", "image"), repeat=3):
        config = next(c for c in drawn if (c["data"], c["weight"], c["output"]) == places)
        assert len(task.image_scopes(config, phone)) == places.count("image")
        error = operators.error_of(operators.run(task, config, arrays, phone, opencl_device), expected)
        assert error < LIMITS["float16"], f"{config}: {error}"


def test_what_the_space_offers() -> None:
    """Every config stages something and splits nothing, and the default config is valid.

    fp16 is summed by ALUs, also on devices with tensor cores.
    """
    for kind, dtype in itertools.product(("opencl", "cuda"), ("float32", "float16")):
        task, target = made("primes", dtype), operators.target_of(kind)
        space, default = task.space(target), task.default_config(target)
        assert space.is_valid(default)
        assert space.knobs["split_k"] == (1,)
        assert 0 not in space.knobs["local"]
        assert "mma" not in space.knobs["multiply_add"]
        assert all(
            isinstance(config, Config) and space.is_valid(config)
            for config in space.sample(np.random.default_rng(SEED), 5)
        )


def test_a_task_is_the_same_after_a_way_through_text() -> None:
    task = made("stride")
    again = TunableTask.from_json(task.to_json())
    assert (again.key, again.name, again.family, again.flops) == (task.key, task.name, task.family, task.flops)
    assert task.name == "depthwise_pointwise_1x18x11x10_18_3x3_s2_g18_7"
    template = again.template
    assert isinstance(template, DepthwisePointwiseTemplate)
    assert task.flops == template.windows.flops + template.workload.flops
    # Epilogues and the two weights keep the memory that the graph chose.
    assert len(template.activations) == len(task.func.params) - 2
