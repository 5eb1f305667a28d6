"""A task's key says what its function computes: not how TIR spells it, and what older versions kept is found."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tvm import relax, te, tirx
from tvm.relax import op
from tvm_ffi.structural import structural_map

from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.families import families
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask, structure_of
from romou.compiler.typical import typical_tasks
from romou.devices.targets import Target
from romou.driver.search.records import recorded_configs, valid_configs
from romou.tuner.records import Origin, Record, RecordStore
from romou.tuner.records.task_files import keep_tasks, kept_task, other_tasks
from romou.tuner.search import TuningOptions, TuningSession
from support.devices.made_up_device import Builder, Runner
from support.kernels.operators import relax_tasks
from support.models.small_networks import attention_net

TARGET = Target("opencl -device=host")
PHONE = Target("opencl -device=adreno640")
KEYS = Path(__file__).parent / "task_keys.json"
CONV = conv(16, (8, 8), 16, (3, 3), padding=(1, 1, 1, 1))


def with_factors_exchanged(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.with_body(structural_map(func.body, (tirx.Mul, lambda product: product.b * product.a)))


def test_a_definition_may_be_written_otherwise() -> None:
    task = task_of(CONV)
    other = TunableTask.of(with_factors_exchanged(task.func))
    assert other is not None
    assert other.structure != task.structure
    assert other.key == task.key


def of_two_branches(prefix: str, *, is_second_first: bool) -> tirx.PrimFunc:
    """Return exp(a) * tanh(b), with both factors in tensors of their own."""
    a, b = (te.placeholder((6, 40), "float32", f"{prefix}{name}") for name in "ab")
    made: dict[str, Any] = {}
    steps: list[tuple[str, Callable[[], te.Tensor]]] = [
        ("exp", lambda: te.compute(a.shape, lambda i, j: te.exp(a[i, j]), name=f"{prefix}exp")),
        ("tanh", lambda: te.compute(b.shape, lambda i, j: te.tanh(b[i, j]), name=f"{prefix}tanh")),
    ]
    for name, step in reversed(steps) if is_second_first else steps:
        made[name] = step()
    out = te.compute(a.shape, lambda i, j: made["exp"][i, j] * made["tanh"][i, j], name=f"{prefix}out")
    func = te.create_prim_func([a, b, out])
    return with_blocks_reversed(func) if is_second_first else func


def with_blocks_reversed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Exchange the first two loop nests, which do not need each other."""

    def exchanged(sequence: tirx.SeqStmt) -> tirx.Stmt:
        first, second, *rest = sequence.seq
        return tirx.SeqStmt([second, first, *rest])

    return func.with_body(structural_map(func.body, (tirx.SeqStmt, exchanged)))


def test_names_and_the_order_of_blocks_are_no_part() -> None:
    plain, renamed, reordered = (
        TunableTask.of(of_two_branches(prefix, is_second_first=is_second_first))
        for prefix, is_second_first in (("", False), ("other_", False), ("", True))
    )
    assert plain is not None
    assert renamed is not None
    assert reordered is not None
    assert plain.key == renamed.key == reordered.key
    assert plain.structure != reordered.structure


def test_each_typical_case_has_a_key_of_its_own() -> None:
    tasks = typical_tasks(PHONE)
    of_structures = {task.structure: task.key for task in tasks}
    assert len(set(of_structures.values())) == len(of_structures) > 40
    assert not {task.key for task in tasks} & {task.with_free_images().key for task in tasks if task.template.images}


def scaled(factor: float, *, is_max: bool = False) -> Callable[[relax.Var], relax.Expr]:
    def build(x: relax.Var) -> relax.Expr:
        limit = relax.const(0.5, "float32")
        return (op.maximum if is_max else op.minimum)(op.multiply(x, relax.const(factor, "float32")), limit)

    return build


def test_other_work_has_another_key() -> None:
    convolutions = [CONV, dataclasses.replace(CONV, stride=(2, 2)), dataclasses.replace(CONV, dtype="float16")]
    tasks = [task_of(work) for work in convolutions]
    for factor, is_max, shape in (
        (2.0, False, (6, 40)),
        (3.0, False, (6, 40)),
        (2.0, True, (6, 40)),
        (2.0, False, (40, 6)),
    ):
        tasks += relax_tasks(scaled(factor, is_max=is_max), shape)
    keys = [task.key for task in tasks]
    assert len(set(keys)) == len(keys) == 7


def test_keys_stay(request: pytest.FixtureRequest) -> None:
    """Records, kept choices and the schedule database name tasks by key: packed ahead, and packed by each call."""
    contractions = [family for family in families() if isinstance(family, ContractionFamily)]
    keys = {
        f"{family.name} {work.name}": [
            task_of(work, is_weight_computed=is_computed).key
            for is_computed in (False, family.has_constant_weight and family.name != "dense")
        ]
        for family in contractions
        for work in family.typical
    }
    if request.config.getoption("--update-golden"):
        KEYS.write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")
    assert keys == json.loads(KEYS.read_text(encoding="utf-8")), (
        "these operators lose their records; for new operators: pytest tests/compiler --update-golden"
    )


# What versions before 0.2.0 kept.


def old(task: TunableTask, config: Config) -> Record:
    origin = dataclasses.asdict(Origin.here(Runner().fingerprint().to_dict()))
    outcome = {"outcome": Outcome.OK, "times_s": (1e-6,)}
    return Record(task_key=task.structure, task_name=task.name, config=dict(config), **outcome, **origin)


def test_a_search_resumes_from_old_records(tmp_path: Path) -> None:
    task = task_of(CONV)
    config = task.default_config(TARGET)
    with RecordStore(tmp_path) as store:
        store.append(old(task, config))
        options = TuningOptions(trials=4, confirm=0)
        session = TuningSession([task], TARGET, store=store, builder=Builder(), runner=Runner(), options=options)
        result = session.run()[task.key]
        assert [Config(record.config) for record in store].count(config) == 1
    assert (result.task_key, result.best_ms) == (task.key, 1e-3)


def test_the_best_old_record_is_found(tmp_path: Path) -> None:
    compilation = Compilation.of(import_model(attention_net(), {}), TARGET).with_default_kernels()
    task = compilation.tasks[0]
    config = next(c for c in task.space(TARGET) if c != task.default_config(TARGET))
    with RecordStore(tmp_path) as store:
        store.append(old(task, config))
    seconds, configs = recorded_configs(tmp_path, compilation, TARGET)
    assert (seconds, configs) == ({task.key: 1e-6}, {task.key: config})
    assert valid_configs(compilation.tasks, {task.key: config}, TARGET) == {task.key: config}


def test_a_kept_task_is_found_by_its_old_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(CONV)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("romou.compiler.task"), "key_of", lambda plain, _: structure_of(plain))
        old_task = task_of(CONV)
        keep_tasks(tmp_path, [old_task])
    assert old_task.key == task.structure != task.key
    assert kept_task(tmp_path, task.structure).key == task.key
    assert [found.key for found in other_tasks(tmp_path, Counter({task.structure: 3}))] == [task.key]
