"""Static measures of the kernels of whole networks with default schedules may not become worse, on any machine.

    pytest tests/regression --update-baseline       after an intended change

A worse measure fails. Another text, config or operator is reported in pytest's warnings. The texts themselves are kept
in tests/golden.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import pytest

import romou
from romou import models
from romou.tools.inspection.kernels import inspect_function
from romou.tools.regression import operators
from support.models.small_networks import residual_net
from support.suite.exhaustive import few

BASELINES = Path(__file__).parent / "baselines"
# A phone of each kind of memory, one with images first and one with buffers only, and a desktop GPU.
NETWORKS = {"squeezenet1_0": "adreno640", "mobilenetv1_100": "mali_g76 -images=never", "resnet18": "nvidia_h200"}


@pytest.mark.parametrize("name", few(NETWORKS, 0))
def test_no_kernel_became_worse(name: str, request: pytest.FixtureRequest) -> None:
    path = BASELINES / file_of(name)
    current = romou.bench(
        models.load(name), target=f"opencl -device={NETWORKS[name]}", times=False, label=f"bundled:{name}"
    )
    if request.config.getoption("--update-baseline"):
        current.save(path)
    found = romou.compare(path, current, fail_over=0, times=False)
    for row in found.rows:
        if row.notes:
            warnings.warn(
                f"{name}: {row.name}: {'; '.join(row.notes)}; if that is meant: pytest tests/regression"
                " --update-baseline",
                stacklevel=1,
            )
    assert not found.regressions, "\n".join(
        f"{row.name}: {rise.measure} {rise.before:g} -> {rise.after:g}"
        for row in found.regressions
        for rise in row.rises
    )


def test_each_baseline_is_tested() -> None:
    assert {p.name for p in BASELINES.glob("*.json")} == set(map(file_of, NETWORKS))


def file_of(name: str) -> str:
    return f"{name}_{NETWORKS[name].split()[0]}.json"


def test_a_pass_left_out_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network, target = residual_net(), "opencl -device=adreno640"
    before = romou.bench(network, target=target, times=False)
    monkeypatch.setattr(operators, "inspect_function", partial(inspect_function, without=["eliminate_addresses"]))
    after = romou.bench(network, target=target, times=False)
    worse = {
        rise.measure for row in romou.compare(before, after, fail_over=0, times=False).regressions for rise in row.rises
    }
    assert "integer_operations_in_loops_weighted" in worse
    assert romou.compare(before, before, fail_over=0, times=False).regressions == []
