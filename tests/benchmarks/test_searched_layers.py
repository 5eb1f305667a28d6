"""Searches of networks as training data: which layers and times are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tvm.relax import op

import searched_layers
from pretrain_cost_model import LAYERS
from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families.dense import Dense
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tuner.records.record import Record
from romou.tuner.records.store import RecordStore
from searched_layers import layers_of, load_layers
from support.data.recordings import searched
from support.kernels.operators import relax_tasks

POINTWISE, DENSE = conv(16, (7, 7), 16, (1, 1)), Dense(m=1, k=64, n=16, dtype="float32")


def packed(path: Path, *folders: Path) -> str:
    result = CliRunner().invoke(searched_layers.main, [str(path), *map(str, folders)])
    assert result.exit_code == 0, result.output
    return result.output


def test_layers_of_several_searches_are_joined(tmp_path: Path) -> None:
    # An epilogue changes the kernel, not the layer.
    kernels = [task_of(POINTWISE), task_of(POINTWISE, has_epilogue=False), task_of(DENSE)]
    first, second = tmp_path / "first", tmp_path / "second"
    (record, _) = searched(first, kernels[:1])
    searched(second, kernels[1:])
    assert "2 layers, 2 configs" in packed(tmp_path / "layers", first, second)
    by_family = {layer.task.family: layer for layer in load_layers(tmp_path / "layers")}
    pointwise, dense = by_family["conv2d"], by_family["dense"]
    # The medians of 0.9, 1.1, 0.9 and 1.1, and of 1.8 and 2.2 microseconds.
    assert pointwise.times_s == pytest.approx([1.0e-6])
    assert dense.times_s == pytest.approx([2.0e-6])
    assert pointwise.configs == [Config(record.config)]
    before = (tmp_path / "layers").read_bytes()
    packed(tmp_path / "layers", first, second)
    assert (tmp_path / "layers").read_bytes() == before


def test_a_config_that_failed_has_no_time(tmp_path: Path) -> None:
    task = task_of(POINTWISE)
    (record, _) = searched(tmp_path, [task])
    failed = record.config | {"tile_w": 8}
    RecordStore(tmp_path).append(
        Record(task_key=task.key, task_name=task.name, config=failed, device=record.device, outcome=Outcome.BUILD_ERROR)
    )
    (layer,) = layers_of([tmp_path])
    assert dict(zip(layer.configs, layer.times_s, strict=True)) == {
        Config(record.config): pytest.approx(1e-6),
        Config(failed): None,
    }


def test_a_kernel_that_no_workload_describes_is_left_out(tmp_path: Path) -> None:
    (softmax,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (16, 64))
    searched(tmp_path, [softmax])
    assert list(layers_of([tmp_path])) == []


def test_records_of_two_devices_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        searched(tmp_path / name, [task_of(POINTWISE)], device=name)
    with pytest.raises(RecordError, match="records of several devices: one, two"):
        list(layers_of([tmp_path / "one", tmp_path / "two"]))


def test_records_without_their_tasks_are_refused(tmp_path: Path) -> None:
    searched(tmp_path, [task_of(POINTWISE)])
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()
    with pytest.raises(RecordError, match=r"tasks/.*\.json: no task: No such file"):
        list(layers_of([tmp_path]))


def test_this_version_has_features_of_the_layers_that_ship() -> None:
    target, layers = Target("cuda -device=nvidia_h200"), load_layers(LAYERS)
    assert len(layers) > 500
    families = set()
    for layer in layers[::40]:
        features = TaskFeatures(layer.task.template, layer.task.limits(target), target.spec)
        assert np.isfinite(features(layer.configs)).all()
        assert (features.expected(layer.configs) != 0).all()
        families.add(layer.task.family)
    assert {"conv2d", "dense", "depthwise"} <= families
