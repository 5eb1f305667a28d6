"""Products with quantized weights: every form equal to the definition on every device, epilogues, fp16."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import tvm

import romou
from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import relative_l2_error
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.devices.targets import Target
from romou.tuner.measure.verify import make_inputs, poison
from support.kernels.operators import assert_agrees, each_kind, has_device, target_of
from support.models.quantized import QuantizedCase, quantized_task
from support.suite.exhaustive import exhaustive

# Packed weights are in images there by default.
PHONE = Target("opencl -device=adreno640 -half=storage")
CUDA = target_of("cuda")
CASES = [
    QuantizedCase(m=1, k=1000, n=37, zero="uint8"),
    QuantizedCase(m=3, k=203, n=21, block=64),
    QuantizedCase(m=64, k=320, n=33, block=128, zero="float"),
    QuantizedCase(m=1, k=300, n=21, bits=8, block=16),
    QuantizedCase(m=3, k=130, n=40, bits=2, block=16, zero="uint8"),
    QuantizedCase(m=2, k=256, n=48, block=16, dtype="float16", zero="float"),
    QuantizedCase(m=64, k=96, n=17, bits=8, zero="uint8"),
    QuantizedCase(m=1, k=2050, n=9, bits=8, block=256, dtype="float16"),
    QuantizedCase(m=3, k=204, n=37, block=4, zero="table"),
    QuantizedCase(m=64, k=128, n=21, block=64, zero="table", dtype="float16"),
    QuantizedCase(m=1, k=203, n=9, bits=2, zero="table"),
]
DRAWN = [0, 1, 2]
# A small tile of a kernel whose codes are unpacked for each row.
PLAIN = {"group_rows": 4, "group_parts": 2, "item_rows": 2, "item_data": 1, "item_chunks": 1, "zero_point": "block"}


def check(target: Target, case: QuantizedCase, config: Config | None = None, seed: int = 0) -> None:
    task, drawn = quantized_task(case), case.draw(seed)
    arrays = [drawn.data, *case.matrix(drawn).arrays, poison((case.m, case.n), case.dtype)]
    limit = 1e-5 if case.dtype == "float32" else 1e-3
    assert_agrees(target, task, config or task.default_config(target), arrays, drawn.result, limit)


@each_kind("case", CASES, opencl=(0, 2, 5, 8), cuda=(5, 9), vulkan=(5, 9))
def test_default_configs(target: Target, case: QuantizedCase) -> None:
    check(target, case)


@exhaustive
@pytest.mark.parametrize(
    "device",
    [
        "opencl",
        "opencl:intel",
        f"{PHONE}:portable",
        f"{PHONE}:intel",
        "vulkan",
        *(["cuda"] if has_device(CUDA) else []),
    ],
)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 64])
def test_all_formats(m: int, bits: int, device: str) -> None:
    """An odd N, and a K that is no multiple of a block. Half of the scales are negative. Every other format is fp16,
    and with three rows the others.
    """
    name, _, chosen = device.partition(":")
    formats = itertools.product((16, 32, 64, 128), ("none", "uint8", "float"))
    dtypes = ("float16", "float32") if m == 3 else ("float32", "float16")
    for (block, zero), dtype in zip(formats, itertools.cycle(dtypes), strict=False):
        case = QuantizedCase(m=m, k=203, n=37, bits=bits, block=block, zero=zero, dtype=dtype, has_bias=True)
        model, data, expected = case.model()
        compiled = romou.compile(model, target=name, device=chosen or None, verify=False)
        error = relative_l2_error(compiled.run({"x": data})[0], expected)
        assert error < (1e-5 if dtype == "float32" else 1e-3), case
        assert ("read_imageui" in "".join(compiled.sources().values())) == name.startswith(str(PHONE)), case


@each_kind("drawn", DRAWN, opencl=(1,), cuda=(), vulkan=())
def test_random_configs(target: Target, drawn: int) -> None:
    """Fresh numbers for each config. Every choice of every knob occurs in some of them."""
    rng = np.random.default_rng(drawn)
    for case in CASES[drawn::3] if has_device(target) else CASES[:1]:
        for config in quantized_task(case).space(target).sample(rng, 1):
            check(target, case, config, seed=int(rng.integers(1 << 30)))


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_a_weight_in_an_image(case: QuantizedCase, opencl_device: tvm.runtime.Device) -> None:
    task = quantized_task(case)
    config = task.default_config(PHONE)
    assert task.image_scopes(config, PHONE) == {"w": "global.texture-2d"}
    check(PHONE, case, config)


@pytest.mark.parametrize("drawn", [0, *(pytest.param(drawn, marks=exhaustive) for drawn in (1, 2, 3, 4, 5))])
def test_random_configs_with_a_weight_in_an_image(drawn: int, opencl_device: tvm.runtime.Device) -> None:
    rng = np.random.default_rng(drawn)
    for case in CASES[drawn % 6 :: 6]:
        space = quantized_task(case).space(PHONE).narrowed({"weight": ("image",)})
        for config in space.sample(rng, 1):
            check(PHONE, case, config, seed=int(rng.integers(1 << 30)))


@pytest.mark.parametrize(
    ("target", "n", "choices", "default"),
    [
        ("opencl -device=adreno740", 40, ("buffer", "image"), "image"),
        ("opencl -device=mali_g76", 40, ("buffer", "image"), "buffer"),
        ("opencl -device=nvidia_h200", 40, ("buffer", "image"), "buffer"),
        ("opencl -device=adreno740 -images=never", 40, None, None),
        ("opencl -device=adreno740 -texture_spatial_limit=32", 40, None, None),
        ("opencl -device=host", 40, None, None),
        ("vulkan -device=adreno740", 40, None, None),
        ("cuda -device=nvidia_h200", 40, None, None),
    ],
)
def test_which_devices_choose_between_buffers_and_images(
    target: str, n: int, choices: tuple[str, ...] | None, default: str | None
) -> None:
    task = quantized_task(QuantizedCase(m=1, k=1024, n=n))
    assert task.space(Target(target)).knobs.get("weight") == choices
    assert task.default_config(Target(target)).get("weight") == default


def test_a_weight_that_fits_no_image_is_named() -> None:
    """Rows of the weight are columns of its image."""
    limits = Target("opencl -device=adreno740 -texture_spatial_limit=32").limits
    reason = "its width would be 40 texels, the device allows 32"
    assert quantized_task(QuantizedCase(m=1, k=1024, n=40)).template.kept_in_buffers(limits) == {"weight": reason}
    assert quantized_task(QuantizedCase(m=1, k=1024, n=32)).template.kept_in_buffers(limits) == {}


def test_tensor_cores_copy_out_of_buffers() -> None:
    limits = dataclasses.replace(Target("opencl -device=nvidia_h200").limits, has_tensor_cores=True)
    space = quantized_task(QuantizedCase(m=64, k=1024, n=128, dtype="float16")).template.space(limits)
    configs = space.narrowed({"tensor_cores": ("mma",)}).sample(np.random.default_rng(0), 20)
    assert {(config["tensor_cores"], config["weight"]) for config in configs} == {("mma", "buffer")}


@pytest.mark.parametrize(
    ("unpack", "staged"),
    [
        ("mask", 256),
        ("exponent", 0),
        *(pytest.param(u, s, marks=exhaustive) for u in ("shift", "mask", "bytes", "exponent") for s in (0, 256)),
    ],
)
def test_unpacking_is_exact(unpack: str, staged: int, opencl_device: tvm.runtime.Device) -> None:
    """Integers come out exactly, so that no code, place value or zero point is nearly right."""
    target = Target("opencl")
    for bits, zero in ((2, "uint8"), (4, "none"), (4, "uint8"), (8, "none"), (8, "uint8")):
        case = QuantizedCase(m=1, k=520, n=8, bits=bits, zero=zero)
        task, drawn = quantized_task(case), case.draw(bits)
        data = np.random.default_rng(bits).integers(-8, 9, (1, case.k)).astype(np.float32)
        whole = type(drawn)(**{**vars(drawn), "data": data, "scales": np.sign(drawn.scales)})
        config = task.default_config(target).replace(**PLAIN, unpack=unpack, staged_data=staged)
        assert task.space(target).is_valid(config)
        arrays = [data, *case.matrix(whole).arrays, poison((1, case.n), "float32")]
        assert_agrees(target, task, config, arrays, whole.result, 1e-12)


@pytest.mark.parametrize(
    ("dtype", "parts"),
    [
        ("float16", 4),
        *(pytest.param(dtype, parts, marks=exhaustive) for dtype, parts in (("float32", 1), ("float32", 4))),
    ],
)
def test_an_epilogue_is_part_of_the_kernel(dtype: str, parts: int, opencl_device: tvm.runtime.Device) -> None:
    target, case = Target("opencl"), QuantizedCase(m=3, k=128, n=21, dtype=dtype)
    task, drawn, rng = quantized_task(case, has_epilogue=True), case.draw(), np.random.default_rng(1)
    bias, other = (rng.standard_normal(shape).astype(dtype) for shape in ((case.n,), (case.m, case.n)))
    expected = np.maximum(drawn.result + bias.astype(np.float64), 0) * other.astype(np.float64)
    config = task.default_config(target)
    config = config.replace(**{**PLAIN, "group_parts": parts, "unpack": "shift"}) if parts > 1 else config
    assert task.space(target).is_valid(config)
    arrays = [drawn.data, *case.matrix(drawn).arrays, bias, other, poison(expected.shape, dtype)]
    assert_agrees(target, task, config, arrays, expected, 1e-5 if dtype == "float32" else 2e-3)


def test_a_model_keeps_its_weight_packed(opencl_device: tvm.runtime.Device) -> None:
    """From ONNX to a kernel of this family: the bias is its epilogue, and the model holds the packed bytes."""
    target, case = Target("opencl"), QuantizedCase(m=2, k=512, n=64, zero="uint8", has_bias=True)
    model, data, expected = case.model()
    lowered = Compilation.of(import_model(model, None), target).lowered()
    assert [task.family for task in lowered.tasks] == ["quantized_product"]
    (result,) = romou.compile(model, target=target).run({"x": data})
    assert relative_l2_error(result, expected) < 1e-5


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_formulas(case: QuantizedCase) -> None:
    """Bytes of the weight in the formulas are the packed bytes, in either memory."""
    task = quantized_task(case)
    template = task.template
    assert isinstance(template, QuantizedTemplate)
    work, limits = template.workload, PHONE.limits
    config = template.default_config(limits).replace(group_parts=1)
    configs = [config.replace(weight=memory) for memory in ("buffer", "image")]
    usage: Any = template.form(limits).usage(columns_of(configs))
    tiles = template.tiles(config)
    per_code = work.bits / 8
    weight = tiles.threads * tiles.item_rows * tiles.codes * per_code
    assert weight < usage.buffer_bytes[0] < 2 * weight + tiles.item_data * tiles.codes * 4
    assert [*usage.image_bytes] == [0, weight]
    for prefix in ("", "unshared_"):
        buffers, images = (getattr(usage, f"{prefix}{memory}_bytes") for memory in ("buffer", "image"))
        assert buffers[0] == buffers[1] + images[1]
    assert [*usage.images["weight"]] == [False, True]
    assert usage.work_groups[0] == tiles.groups


def test_a_search_checks_every_code() -> None:
    """The inputs that candidates are checked with have ones and zeros at each bit of the packed words."""
    _, words, *_ = make_inputs(quantized_task(CASES[0]), seed=0)
    assert words.dtype == np.uint32
    assert np.bitwise_or.reduce(words, axis=None) == 2**32 - 1
    assert np.bitwise_and.reduce(words, axis=None) == 0


def test_the_default_fits_every_device() -> None:
    devices = ["opencl -device=adreno740", "opencl -device=mali_g76", "vulkan -device=mali_g715", "opencl -device=host"]
    for name, case in itertools.product([*devices, "cuda -device=nvidia_h200"], CASES):
        target, task = Target(name), quantized_task(case)
        assert task.space(target).is_valid(task.default_config(target)), (name, case)
