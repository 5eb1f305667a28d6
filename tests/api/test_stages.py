"""The first stages of all entry points are the same: a node that cannot be compiled runs on the
host for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

import romou
from romou.base.errors import BuildError
from romou.compiler import compilation
from romou.tuner.measure import DeviceFingerprint, LocalBuilder
from romou.tuner.search import TuningSession
from support.models.nodes import model_of

HOST = "opencl -device=host"
STAGES: dict[str, Callable[..., Any]] = {
    "inspect": romou.inspect,
    "spaces": romou.pruned_spaces,
    "bench": lambda model, target: romou.bench(model, target=target, times=False),
    "compile": romou.compile,
}


def has_tangent(fused: tvm.IRModule) -> bool:
    """Return whether the device is to compute a tangent: a sine by a cosine."""
    return any("sin" in var.name_hint and "cos" in var.name_hint for var in fused.get_global_vars())


@pytest.mark.parametrize("stage", STAGES)
def test_what_fails_in_code_generation_alone_runs_on_the_host(
    stage: str, fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = compilation.compile_model

    def without_tan(fused: Any, *rest: Any) -> Any:
        if has_tangent(fused):
            raise BuildError("no such function")
        return compiled(fused, *rest)

    monkeypatch.setattr(compilation, "compile_model", without_tan)
    model = model_of({"t": ("Tan", "x"), "y": ("Softmax", "t")}, {"x": np.zeros((3, 5), np.float32)})
    STAGES[stage](model, target=HOST)
    assert "no kernels for Tan (t): they run on the host" in caplog.text


@pytest.mark.parametrize(("is_right", "has_reference"), [(True, True), (False, True), (False, False)])
def test_a_model_that_compiles_while_it_is_tuned(
    is_right: bool,
    has_reference: bool,
    fallbacks: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trials begin before it is known whether the model compiles. If it does not, the search continues with the nodes
    that stay on the device.
    """
    compiled, of_facts = compilation.compile_model, DeviceFingerprint.of_facts
    threads: list[str] = []

    def compile_later(fused: Any, *rest: Any) -> Any:
        threads.append(threading.current_thread().name)
        if not is_right and has_tangent(fused):
            raise BuildError("no such function")
        return compiled(fused, *rest)

    monkeypatch.setattr(compilation, "compile_model", compile_later)
    # Pretend that kernels run on other cores.
    monkeypatch.setattr(
        DeviceFingerprint,
        "of_facts",
        staticmethod(lambda *given, **named: replace(of_facts(*given, **named), is_host_cpu=False)),
    )
    weight, x = (
        np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32),
        np.random.default_rng(1).random((20, 40)).astype(np.float32),
    )
    model = model_of({"t": ("Tan", "x"), "y": ("MatMul", "t w")}, {"x": x}, {"w": weight})
    search, start, before = TuningSession.run, LocalBuilder.start, []

    def started(*given: Any, **named: Any) -> Any:
        before.append(len(threads))
        return start(*given, **named)

    monkeypatch.setattr(LocalBuilder, "start", started)

    def searched(session: TuningSession, *rest: Any) -> Any:
        if has_reference or len(threads) > 1:
            return search(session, *rest)
        raise BuildError("no reference")

    monkeypatch.setattr(TuningSession, "run", searched)
    tuned = romou.tune(model, target=HOST, trials=3, work_dir=False)
    assert threads[0].startswith("romou-later")
    # The first candidates do not wait for it.
    assert (before[0] == 0) == has_reference
    assert (len(threads) == 1) == is_right
    assert ("no kernels for Tan (t): they run on the host" in caplog.text) != is_right
    assert sum(tuned.summary().outcomes.values()) == 3
    np.testing.assert_allclose(tuned.run({"x": x})["y"], np.tan(x) @ weight, rtol=1e-4, atol=1e-4)
