"""The null backend: everything around kernels works without them, which shows that nothing else depends on a device
kind.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import DeviceError, UsageError
from romou.cli import main
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.backends import backend, device_backends
from romou.devices.targets import Target
from romou.runtime.module import TunedModel
from romou.runtime.rpc import Address, connect
from romou.tuner.pruning.tasks import pruned_space
from support.kernels.operators import conv, task_of
from support.models.small_networks import random_inputs, residual_net


def error_of(model: TunedModel, dtype: str = "float32") -> float:
    network = residual_net(dtype=dtype)
    inputs = random_inputs(network, seed=5)
    reference = run_onnxruntime(network, inputs)
    assert reference is not None
    return max(relative_l2_error(a, b) for a, b in zip(model.run(inputs), reference, strict=True))


@pytest.mark.parametrize(
    ("text", "dtype", "limit"), [("null", "float32", 1e-5), ("null -device=adreno640", "float16", 2e-2)]
)
def test_a_model_is_compiled_saved_and_loaded(text: str, dtype: str, limit: float, tmp_path: Path) -> None:
    compiled = romou.compile(residual_net(dtype=dtype), target=text)
    assert compiled.sources() == {}
    assert error_of(compiled, dtype) < limit
    assert error_of(romou.load(compiled.save(tmp_path / "model")), dtype) < limit


def test_a_model_is_tuned_on_the_host(tmp_path: Path) -> None:
    tuned = romou.tune(residual_net(), target="null", trials=12, work_dir=tmp_path)
    summary = tuned.summary()
    assert summary.is_right
    assert summary.outcomes == {"ok": 12}
    assert error_of(tuned) < 1e-5
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {record["device"]["kind"] for record in records} == {"null"}
    assert all(record["relative_l2_error"] == 0.0 for record in records), "what runs is the reference"


def test_spaces_and_limits_are_those_of_the_named_device() -> None:
    task = task_of(conv(32, (14, 14), 24, (3, 3), padding=(1, 1, 1, 1)))
    target = Target("null -device=adreno640")
    assert target.limits.max_work_group_size == Target("opencl -device=adreno640").limits.max_work_group_size
    assert target.limits.max_image is None
    assert pruned_space(task, target).report.kept > 0


def test_it_is_no_device() -> None:
    assert backend("null") not in device_backends()
    shown = json.loads(CliRunner().invoke(main, ["devices", "--json"]).stdout)
    assert "null" not in {entry["backend"] for entry in shown["attached"]}
    with pytest.raises(UsageError, match="null devices are not served over RPC"):
        connect(Address.parse("127.0.0.1:1/key"), kind="null")
    with pytest.raises(DeviceError, match="null devices record no runs"):
        backend("null").record(backend("null").device(), None, lambda: None)
