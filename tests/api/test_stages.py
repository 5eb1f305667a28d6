"""What each entry point does before its own work is the same: a node that cannot be compiled runs on the host for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nodes import model_of

import romou
import romou.api.graph
from romou.core.errors import BuildError

HOST = "opencl -device=host"
STAGES: dict[str, Callable[..., Any]] = {
    "inspect": romou.inspect,
    "spaces": romou.pruned_spaces,
    "bench": lambda model, target: romou.bench(model, target=target, times=False),
    "compile": romou.compile,
}


@pytest.mark.parametrize("stage", STAGES)
def test_what_fails_in_code_generation_alone_runs_on_the_host(stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    compiled = romou.api.graph.compile_model

    def without_tan(fused: Any, *rest: Any) -> Any:
        if any("tan" in var.name_hint for var in fused.get_global_vars()):
            raise BuildError("no such function")
        return compiled(fused, *rest)

    monkeypatch.setattr(romou.api.graph, "compile_model", without_tan)
    model = model_of({"t": ("Tan", "x"), "y": ("Softmax", "t")}, {"x": np.zeros((3, 5), np.float32)})
    STAGES[stage](model, target=HOST)
    assert "no kernels for Tan (t): they run on the host" in caplog.text
