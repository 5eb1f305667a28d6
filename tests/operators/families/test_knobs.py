"""Knobs are declared once: every one changes some feature, and a new one is seen everywhere without another edit."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from tvm.relax import op

from romou.base.knob import Knob
from romou.base.space import Config, Space
from romou.cli import main
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families import declared_knobs, elementwise
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.records import to_t4
from support.kernels.operators import (
    conv,
    conv_transpose,
    joined_task,
    matmul,
    pair_of,
    relax_tasks,
    small_tasks,
    task_of,
)
from support.kernels.streams import OPERATORS
from support.models.integers import IntegerCase
from support.models.quantized import QuantizedCase, quantized_task

PHONE, GPU = Target("opencl -device=adreno640"), Target("opencl -device=nvidia_h200")
TARGETS = [
    PHONE,
    Target("opencl -device=adreno730"),
    Target("opencl -device=adreno730 -waves=search"),
    GPU,
    Target("cuda -device=nvidia_h200"),
    Target("cuda -device=nvidia_h200 -tf32=allow"),
]
PADDED = (1, 1, 1, 1)


@functools.cache
def tasks() -> Sequence[TunableTask]:
    """Return operators of all families. Their spaces together have every choice of every knob."""
    works = [
        conv(64, (28, 28), 64, (3, 3), padding=PADDED),
        conv(64, (28, 28), 64, (3, 3), "float16", padding=PADDED),
        conv(24, (14, 14), 24, (3, 3), groups=24, padding=PADDED),
        conv(32, (14, 14), 64, (3, 3), groups=4, padding=PADDED),
        conv(256, (64, 64), 512, (1, 1)),
        conv_transpose(16, (7, 7), 12, (4, 4), stride=(2, 2), padding=PADDED),
        matmul((2,), 33, 64, 20),
    ]
    streams = [*OPERATORS.values(), (lambda a: op.nn.softmax(a, axis=-1), (512, 1024))]
    contractions = [*(task_of(work).with_free_images() for work in works), *small_tasks(), pair_of(16, (14, 14), 32)]
    contractions.append(
        joined_task(lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), axis=-1), v), *[(3, 128, 128)] * 3)
    )
    contractions.append(quantized_task(QuantizedCase(m=8, k=1024, n=128)))
    contractions.append(quantized_task(QuantizedCase(m=128, k=1024, n=128, dtype="float16")))
    contractions.append(IntegerCase(m=8, k=1024, n=1024).task())
    scatters = relax_tasks(op.scatter_elements, (3, 40), (3, 9), (3, 9), dtype=("float32", "int64", "float32"))
    return [*contractions, *scatters, *(task for build, *shapes in streams for task in relax_tasks(build, *shapes))]  # type: ignore[arg-type]


def configs_apart(space: Space, name: str) -> tuple[Config, Config] | None:
    """Return two valid configs that differ in one knob only, or None if there are none."""
    rng = np.random.default_rng(3)
    for config in space.sample(rng, 40, where={name: space.knobs[name][-1]}):
        for choice in space.knobs[name][:-1]:
            other = config.replace(**{name: choice})
            if space.is_valid(other):
                return config, other
    return None


def test_every_knob_of_every_family_changes_a_feature() -> None:
    seen: set[str] = set()
    for task in tasks():
        for target in TARGETS:
            space = task.space(target)
            features = TaskFeatures(task.template, target.limits, target.spec)
            for name, choices in space.knobs.items():
                pair = None if len(choices) == 1 or name in seen else configs_apart(space, name)
                if pair is not None:
                    first, second = features(pair)
                    assert not np.array_equal(first, second), (
                        f"{task.name} on {target}: no feature tells {pair[0]} and {pair[1]} apart"
                    )
                    seen.add(name)
    gc.collect()  # knobs of a family that another test added are declared as long as its class is there
    # An algorithm has its own space, so other knobs change with it. A variant has a single choice of `store`.
    assert seen | {"algorithm", "store"} == {*declared_knobs()}


def test_softmax_has_a_row_of_features_for_each_config() -> None:
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (512, 1024))
    configs = list(task.space(GPU))
    rows = TaskFeatures(task.template, GPU.limits, GPU.spec)(configs)
    assert len(configs) > 250
    assert len(np.unique(rows, axis=0)) == len(configs)


def test_spaces_have_the_declared_knobs_with_declared_choices() -> None:
    for task in tasks():
        table = {knob.name: knob for knob in task.template.knobs}
        for target in TARGETS:
            space = task.space(target)
            assert space.declared.items() <= table.items()
            for name, choices in space.knobs.items():
                assert {*choices} <= {*table[name].choices}, f"{task.name} on {target}: {name}"
            assert space.is_valid(task.default_config(target))


def test_one_name_is_one_knob() -> None:
    declared = declared_knobs()
    for task in tasks():
        assert all(declared[knob.name] is knob for knob in task.template.knobs)
    for knob in declared.values():
        assert knob.default in knob.choices
        assert knob.help
        assert "\n" not in knob.help


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Knob:
    """Yield a knob that one line in one table declares."""
    knob = Knob(
        name="prefetch", choices=("none", "near", "far"), default="near", help="how far ahead a vector is loaded"
    )
    monkeypatch.setattr(elementwise.Elementwise, "knobs", (*elementwise.KNOBS, knob))
    return knob


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Return a model of one element-wise function."""
    shape = [1, 64, 32]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "toy", ends[:1], ends[1:])
    path = tmp_path / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_new_knob_needs_no_other_edit(toy: Knob, model: str) -> None:
    (task,) = relax_tasks(lambda a: op.sigmoid(a), (64, 32))
    config = task.default_config(PHONE)
    assert config["prefetch"] == "near"
    assert task.space(PHONE).knobs["prefetch"] == toy.choices
    features = TaskFeatures(task.template, PHONE.limits, PHONE.spec)
    # A word that is not declared is still a number.
    words = (*toy.choices, "farther")
    column = features([config.replace(prefetch=word) for word in words])[:, features.columns.index("prefetch")]
    assert column.tolist() == [0, 1, 2, 3]

    def said(*arguments: str) -> str:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(main, [*arguments, model, "--target", str(PHONE)])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "prefetch" in said("space")
    assert json.loads(said("space", "--json"))["tasks"][0]["knobs"]["prefetch"] == ["none", "near", "far"]
    table = said("inspect", "--knobs")
    assert "none, near, far" in table
    assert toy.help in table
    (row,) = (row for row in json.loads(said("inspect", "--knobs", "--json"))["knobs"] if row["knob"] == "prefetch")
    assert row == {
        "knob": "prefetch",
        "choices": ["none", "near", "far"],
        "default": "near",
        "tasks": 1,
        "devices": "all",
        "help": toy.help,
    }


def test_records_are_exported_with_what_their_knobs_mean(toy: Knob) -> None:
    from romou.tuner.records import Record

    record = Record(
        task_key="a" * 16,
        task_name="sigmoid",
        config={"prefetch": "far", "items": 2, "unknown": 1},
        device={"kind": "opencl", "name": "made up"},
        outcome="ok",
        times_s=(1e-5,),
        romou="1.0",
        tvm="1.0",
    )
    knobs = to_t4([record])["metadata"]["romou"]["knobs"]
    assert knobs.keys() == {"prefetch", "items"}
    assert knobs["prefetch"] == {"choices": list(toy.choices), "default": "near", "help": toy.help}


def test_a_knob_may_be_missing_on_a_device() -> None:
    knob = Knob(name="steps", choices=(1, 2), default=1, help="steps", exists_on=lambda limits: limits.has_tensor_cores)
    limits = dataclasses.replace(PHONE.limits, has_tensor_cores=True)
    assert Space.of([knob], PHONE.limits, {}).knobs == {}
    assert Space.of([knob], limits, {}).knobs == {"steps": (1, 2)}
    assert Space.of([knob], limits, {"steps": []}).knobs == {}
    assert dict(Space.of([knob], limits, {"steps": [2, 4]}).default()) == {"steps": 2}
