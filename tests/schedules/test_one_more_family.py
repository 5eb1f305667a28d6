"""A family is one file: conv1d_family.py, laid into the package of families as it stands, is recognised, packed, scheduled, pruned and right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from operators import assert_agrees, random_arrays, reference

import romou.schedules.families as package
from romou.layout.typical import graph_of
from romou.schedules.families import families
from romou.schedules.family import Family
from romou.target import Target
from romou.tasks.extract import extract_tasks
from romou.tasks.operators import task_of

FILE = Path(__file__).parent / "conv1d_family.py"
PHONE = Target("opencl -device=adreno640")


@pytest.fixture
def conv1d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """The family while its file is in the package; found as the others are."""
    shutil.copy(FILE, tmp_path / "conv1d.py")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    families.cache_clear()
    yield next(family for family in families() if family.name == "conv1d")
    families.cache_clear()


def test_one_file_makes_a_family(conv1d: Family, opencl_device: tvm.runtime.Device) -> None:
    (case,), rng, target = conv1d.cases, np.random.default_rng(5), Target("opencl")
    mod, _weights = graph_of(case, PHONE)
    ((task,), _) = extract_tasks(mod)
    assert (task.family, task.name) == ("conv1d", f"conv1d_{case.name}")
    arrays = random_arrays(task, rng)
    assert arrays[1].shape == (3, 6, 3, 4)
    expected = reference(task, arrays)
    np.testing.assert_allclose(case.compute(arrays[0], arrays[1].reshape(3, 6, 12)), expected, rtol=1e-4, atol=1e-5)
    for config in [task.default_config(target), *task.space(target).sample(rng, 2)]:
        assert_agrees(target, task, config, arrays, expected, 1e-5)
    report = task.pruned_space(PHONE).report
    assert 0 < report.kept < report.before


def test_it_is_a_task_by_itself_too(conv1d: Family) -> None:
    work = conv1d.typical[0]  # type: ignore[attr-defined]
    assert task_of(work).family == "conv1d"
    assert package.workload_of(work.to_dict()) == work
