"""Short-time Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest

import romou
from support.models.nodes import model_of

SAMPLES, STEP, LENGTH = 70, 5, 16
WINDOW = np.hanning(LENGTH).astype("float32")


@pytest.mark.parametrize("parts", [1, 2])
def test_short_time_fourier_transforms(parts: int) -> None:
    """Signals are real and complex: with a window, without one, and with one that is computed at run time."""
    rng = np.random.default_rng(4)
    inputs = {"x": rng.standard_normal((2, SAMPLES, parts)).astype("float32"), "computed": WINDOW}
    onesided = {"onesided": 0} if parts == 2 else {}
    nodes = {
        "constant": ("STFT", "x step window length", onesided),
        "without_length": ("STFT", "x step window", onesided),
        "at_run_time": ("STFT", "x step computed length", onesided),
        "ones": ("STFT", "x step window length", onesided),
    }
    constants = {"step": np.int64(STEP), "length": np.int64(LENGTH), "window": WINDOW}
    model = model_of(nodes, inputs, constants)
    model.graph.node[-1].input[2] = ""
    found = romou.compile(model, target="opencl", strict=True, verify=False).run(inputs)
    signal = inputs["x"][..., 0] + (1j * inputs["x"][..., 1] if parts == 2 else 0)
    frames = np.lib.stride_tricks.sliding_window_view(signal, LENGTH, axis=1)[:, ::STEP]
    for name in nodes:
        expected = np.fft.fft(frames * (1 if name == "ones" else WINDOW))
        expected = expected[..., : LENGTH // 2 + 1] if parts == 1 else expected
        np.testing.assert_allclose(found[name][..., 0] + 1j * found[name][..., 1], expected, atol=1e-5, err_msg=name)
