"""romou.operators: single convolutions and their gradients, in the layouts of ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import romou
from romou.base.errors import UsageError
from romou.compiler.operators.families.conv2d_backward_filter import filter_gradient, training_passes
from romou.compiler.operators.families.conv2d_transpose import convolve_back
from training_reference import relative_error


def test_the_passes_of_a_layer_are_tuned_by_themselves(
    tmp_path: Path, opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    layer = romou.operators.conv2d(
        in_channels=6, size=(9, 7), out_channels=10, kernel=3, stride=2, padding=(1, 0), batch=3, dtype="float16"
    )
    rng = np.random.default_rng(2)
    x, w, y = (
        rng.standard_normal(shape).astype("float16")
        for shape in ((3, 6, 9, 7), (10, 6, 3, 3), (3, 10, *layer.work.out_hw))
    )
    _, by_input, by_filter = training_passes(layer.work)
    right = (
        convolve_back(by_input, y.astype("float64"), w.astype("float64")),
        filter_gradient(by_filter, x.astype("float64"), y.astype("float64")),
    )
    backward = romou.operators.conv2d_backward_input(layer), romou.operators.conv2d_backward_filter(layer)
    for operator, inputs, expected in zip(
        backward, ({"gradient": y, "weight": w}, {"data": x, "gradient": y}), right, strict=True
    ):
        tuned = romou.tune_operator(operator, target="opencl", trials=1, work_dir=tmp_path / operator.work.name)
        assert sum(row.trials for row in tuned.summary().rows) == 1
        assert relative_error(tuned.run(inputs)[0], expected) < 2e-3, "fp16 is storage alone"


def test_a_search_on_an_operator_takes_the_options_of_tune(opencl_device: object) -> None:
    layer = romou.operators.conv2d(in_channels=4, size=6, out_channels=4, kernel=1)
    trials: list[romou.Trial] = []
    romou.tune_operator(
        layer, trials=2, explorer="random", measure={"repeat": 1}, callback=trials.append, work_dir=False, verify=False
    )
    assert [trial.number for trial in trials] == [1, 2]
    with pytest.raises(UsageError, match="unknown option of tune_operator 'explorr'.*\nDid you mean 'explorer'"):
        romou.tune_operator(layer, explorr="random")  # type: ignore[call-arg]


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="3 to 8 channels in 2 groups"):
        romou.operators.conv2d(in_channels=3, size=9, out_channels=8, kernel=3, groups=2)
    with pytest.raises(UsageError, match=r"a window of \(5, 5\) with dilation \(3, 3\) does not fit into \(9, 9\)"):
        romou.operators.conv2d(in_channels=4, size=9, out_channels=8, kernel=5, dilation=3)
    with pytest.raises(UsageError, match="stride=0: expected a positive number, or two"):
        romou.operators.conv2d(in_channels=4, size=9, out_channels=8, kernel=3, stride=0)
    with pytest.raises(UsageError, match="an operator is made by a function of romou.operators; got str"):
        romou.tune_operator("model.onnx")  # type: ignore[arg-type]
