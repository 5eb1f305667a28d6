"""Convolutions of bytes in vectors of pixels are exact: windows, strides, short rows, several images, and residuals."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tvm import te, tirx

from romou.base.space import Config
from romou.compiler.operators.algorithms.algorithm import WORDS
from romou.compiler.operators.families import family_of
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.families.bases.convolution import convolve
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.kernels.operators import conv, error_on
from support.suite.exhaustive import exhaustive

SCALE = 0.0625
RANGES = {"uint8": (0, 256), "int8": (-128, 128)}


@dataclass(frozen=True, kw_only=True)
class WordCase:
    """A convolution of bytes, and what its epilogue makes of the sums: bytes, perhaps with a residual, or fp32."""

    work: Conv2d
    output: str = "int8"
    has_residual: bool = False

    def draw(self, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the arguments of a kernel, the output poisoned, and the result."""
        w, rng = self.work, np.random.default_rng(seed)
        low, high = RANGES[w.data_type]
        data = rng.integers(low, high, (w.batch, w.in_channels, *w.in_hw))
        weight = rng.integers(-128, 128, (w.out_channels, w.in_channels // w.groups, *w.kernel))
        scales = (rng.random(w.out_channels) * 0.01).astype("float32")
        texels = family_of(w).stored_weight(w, weight.astype("float32"))
        sums = convolve(w, (data - w.data_zero).astype("int64"), weight).astype("float32")
        result = sums * scales[:, None, None]
        arrays = [_packed(data, w.data_type, w.data_zero), texels, _packed(scales[None, :, None, None], "float32", 0)]
        if self.has_residual:
            residual = rng.integers(0, 256, result.shape)
            arrays.append(_packed(residual, "uint8", 0))
            result = result + residual.astype("float32")
        if self.output in RANGES:
            result = np.clip(np.rint(result / np.float32(SCALE)), RANGES[self.output][0], RANGES[self.output][1] - 1)
        return [*arrays, poison(w.output_shape, self.output)], _packed(result, self.output, 0)

    def task(self) -> TunableTask:
        """Return the convolution as a task."""
        arrays = self.draw()[0][:-1]
        operands = [te.placeholder(a.shape, str(a.dtype), f"p{at}") for at, a in enumerate(arrays)]
        total = family_of(self.work).define(self.work, *operands[:2])

        def value(n: tirx.Var, o: tirx.Var, y: tirx.Var, x: tirx.Var, lane: tirx.Var) -> tirx.Expr:
            result = total[n, o, y, x, lane] * operands[2][0, o, 0, 0, lane]
            if self.has_residual:
                result = result + operands[3][n, o, y, x, lane].astype("float32")
            if self.output not in RANGES:
                return result
            low, high = (tirx.const(float(end), "float32") for end in RANGES[self.output])
            rounded = te.nearbyint(result / tirx.const(SCALE, "float32"))
            return te.min(te.max(rounded, low), high - 1).astype("int32").astype(self.output)

        task = TunableTask.of(te.create_prim_func([*operands, te.compute(total.shape, value, name="out")]))
        assert task is not None
        return task


def _packed(array: np.ndarray, dtype: str, fill: int) -> np.ndarray:
    """Return (n, c, h, w) with channels packed by four."""
    n, c, *pixels = array.shape
    full = np.full((n, -(-c // 4) * 4, *pixels), fill, array.dtype)
    full[:, :c] = array
    return np.ascontiguousarray(full.reshape(n, -1, 4, *pixels).transpose(0, 1, 3, 4, 2).astype(dtype))


def bytes_of(w: Conv2d, data: str = "int8", zero: int = -128) -> Conv2d:
    return replace(w, has_integers=True, weight_type="int8", data_type=data, data_zero=zero)


CASES = {
    "pointwise": WordCase(work=bytes_of(conv(20, (7, 7), 16, (1, 1)))),
    "pointwise_residual": WordCase(work=bytes_of(conv(8, (9, 11), 12, (1, 1), batch=2), zero=3), has_residual=True),
    "pointwise_whole": WordCase(work=bytes_of(conv(6, (4, 16), 7, (1, 1)), "uint8", 255), output="uint8"),
    "pointwise_floats": WordCase(work=bytes_of(conv(6, (3, 7), 9, (1, 1)), "uint8", 0), output="float32"),
    "first": WordCase(work=bytes_of(conv(3, (21, 39), 10, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)), zero=7)),
    "window": WordCase(
        work=bytes_of(conv(5, (6, 33), 8, (3, 2), padding=(2, 1, 0, 3), dilation=(2, 3), batch=2), "uint8", 100),
        has_residual=True,
    ),
    "strided": WordCase(work=bytes_of(conv(8, (9, 37), 4, (1, 1), stride=(3, 2)), zero=1)),
    "depthwise": WordCase(
        work=bytes_of(conv(10, (7, 7), 10, (3, 3), padding=(1, 1, 1, 1), groups=10), zero=-128), has_residual=True
    ),
    "depthwise_strided": WordCase(
        work=bytes_of(conv(6, (8, 70), 6, (5, 3), stride=(2, 2), padding=(2, 1, 2, 1), groups=6, batch=2), "uint8", 9)
    ),
    "depthwise_row": WordCase(work=bytes_of(conv(4, (5, 34), 4, (3, 3), padding=(1, 1, 1, 1), groups=4), zero=5)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_default(name: str) -> None:
    """CPUs take the kernel by default."""
    target, case = Target("opencl"), CASES[name]
    config = case.task().default_config(target)
    if target.limits.is_cpu:
        assert config["algorithm"] == WORDS
    assert_exact(case, config, seed=1)


def assert_exact(case: WordCase, config: Config, seed: int) -> None:
    arrays, expected = case.draw(seed)
    assert error_on(Target("opencl"), case.task(), config, arrays, expected) == 0, config


@pytest.mark.parametrize("drawn", [0, *(pytest.param(seed, marks=exhaustive) for seed in range(1, 6))])
def test_random_configs(drawn: int) -> None:
    rng, target = np.random.default_rng(drawn), Target("opencl")
    if not target.limits.is_cpu:
        pytest.skip("the kernel is for CPUs")
    for case in CASES.values():
        space = template_of(case).algorithms[WORDS].space(target.limits)
        for config in space.sample(rng, 2):
            assert_exact(case, Config({"algorithm": WORDS, **config}), seed=int(rng.integers(1 << 30)))


def template_of(case: WordCase) -> ContractionTemplate:
    template = case.task().template
    assert isinstance(template, ContractionTemplate)
    return template


def test_registers_are_vectors() -> None:
    """Registers are vectors of 16 lanes. Behind a pointer to numbers they would stay in memory."""
    target = Target("opencl")
    if not target.limits.is_cpu:
        pytest.skip("the kernel is for CPUs")
    task = CASES["pointwise"].task()
    (kernel,) = inspect_function(task.schedule(task.default_config(target), target)["main"], target)
    registers = re.findall(r"^ *(float|uint)(\d*) (?:sums_\d+|words|stored|numbers)_0;", kernel.source, re.MULTILINE)
    assert len(registers) == 16 + 3
    assert {lanes for _, lanes in registers} == {"16"}
    assert not re.search(r"(?:sums_\d+|words|stored|numbers)_ptr", kernel.source)


def test_other_devices_lack_it() -> None:
    for name in ("opencl -device=adreno640", "vulkan -device=mali_g77", "cuda -device=nvidia_h200"):
        assert not template_of(CASES["window"]).algorithms[WORDS].fits(Target(name).limits), name
