"""Outputs against references: right ones are distinguished from wrong ones at every scale."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.compilation import Compilation
from romou.devices.targets import Target
from romou.driver.options import CheckOptions
from romou.tuner.measure.verify import compare
from support.models.small_networks import NetworkBuilder


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("float16", s) for s in (1e-3, 1.0, 1e3)]
    + [(d, s) for d in ("float32", "float64") for s in (1e-30, 1e-3, 1.0, 1e3, 1e30)],
)
def test_a_right_output_passes_and_one_wrong_element_does_not(dtype: str, scale: float) -> None:
    reference = (np.random.default_rng(0).standard_normal(20_000) * scale).astype(dtype)
    right = (reference * (1 + 1e-9)).astype(dtype)
    found = compare(right, reference)
    assert found.problem is None
    assert found.relative_l2_error is not None
    assert found.relative_l2_error < 1e-3
    wrong = right.copy()
    wrong[7] += np.asarray(scale, dtype)
    assert "off by more than" in (compare(wrong, reference).problem or "")


def test_tf32_rounds_factors_and_a_share_of_a_percent_is_wrong() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 512), dtype="float32"), rng.standard_normal((512, 300), dtype="float32")

    def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        # In double precision, because the order in which a BLAS sums depends on the processor.
        return (left.astype("float64") @ right.astype("float64")).astype("float32")

    reference = product(a, b)
    rounded = [((x.view("uint32") + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view("float32") for x in (a, b)]
    output = product(*rounded)
    found = compare(output, reference, "tf32")
    assert found.problem is None
    assert found.relative_l2_error == pytest.approx(2.8e-4, rel=0.1)
    assert "relative L2 error" in (compare(output, reference).problem or "")
    assert "relative L2 error 1.0" in (compare(output * np.float32(1.01), reference, "tf32").problem or "")
    one = output.copy()
    one[7, 7] += np.float32(0.02 * (abs(one[7, 7]) + np.sqrt((one**2).mean())))
    assert "1 of 19200 elements are off by more than 0.01" in (compare(one, reference, "tf32").problem or "")


def test_a_huge_output_is_wrong() -> None:
    reference = np.random.default_rng(0).standard_normal(100).astype("float32")
    found = compare(reference + np.float32(1e30), reference)
    assert found.problem is not None
    assert np.isfinite([found.relative_l2_error, found.max_error]).all()


def test_zeros_are_compared_by_their_difference() -> None:
    zeros = np.zeros(100, "float32")
    assert compare(zeros, zeros).problem is None
    assert compare(zeros + np.float32(0.1), zeros).problem is not None


def test_sums_in_fp16_are_held_to_their_precision_whatever_the_output_is() -> None:
    """The last layer of a network in fp16 ends with a cast. Seen with Mesa's Adreno 630: an error of 1.2e-3."""
    g = NetworkBuilder({"x": (1, 1280)})
    model = g.model(g.add("Gemm", "x", g.weight(1280, 100), g.weight(100)))
    target = Target("opencl -device=adreno640")
    imported = CheckOptions(precision="float16").imported(model)
    (task,) = (t for t in Compilation.of(imported, target).lowered().tasks if t.template.sums_products)
    config = task.default_config(target)
    assert str(task.func.params[-1].dtype) == "float32"
    assert config["accumulate"] == "mixed"
    expected = np.ones(1000, np.float32)
    rounded = expected * np.float32(1 + 3e-3)
    found = {sums: task.precision(config.replace(accumulate=sums)) for sums in ("float32", "float16", "mixed")}
    assert {sums: compare(rounded, expected, name).problem is None for sums, name in found.items()} == {
        "float32": False,
        "float16": True,
        "mixed": True,
    }


def test_what_a_function_rounds_to_fp16_may_stay_in_fp32() -> None:
    """A cast to fp16 and back is left out. The difference is fp16's rounding error, and no more is right."""
    g = NetworkBuilder({"x": (1, 20, 30)})
    imported = CheckOptions(precision="float16").imported(g.model(g.add("Transpose", "x", perm=[0, 2, 1])))
    (task,) = Compilation.of(imported, Target("opencl -device=adreno640")).lowered().tasks
    assert [str(parameter.dtype) for parameter in task.func.params] == ["float32", "float32"]
    values = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    precision = task.precision(task.default_config(Target("opencl -device=adreno640")))
    assert compare(values, values.astype(np.float16).astype(np.float32), precision).problem is None
    assert compare(values, values * np.float32(1.01), precision).problem is not None
