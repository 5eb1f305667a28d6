"""A family is one file: conv1d_family.py, copied into the package of families, works from an ONNX model to a kernel.
halves_family.py has a template of its own, with a form.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm

import romou
import romou.compiler.operators.families as package
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families import families, template_of
from romou.compiler.operators.family import Family
from romou.compiler.single_operator import task_of
from romou.compiler.typical import graph_of
from romou.devices.targets import Target
from romou.tuner.pruning.prune import prune
from romou.tuner.pruning.tasks import pruned_space
from support.kernels import operators
from support.kernels.operators import assert_agrees, random_arrays, reference
from support.models.small_networks import NetworkBuilder, random_inputs

FOLDER = Path(__file__).parent
PHONE = Target("opencl -device=adreno640")


@contextlib.contextmanager
def added(name: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Family]:
    """Yield the family of a file while a copy of the file is in the package."""
    shutil.copy(FOLDER / f"{name}_family.py", folder / f"{name}.py")
    patch.setattr(package, "__path__", [*package.__path__, str(folder)])
    families.cache_clear()
    template_of.cache_clear()
    yield next(family for family in families() if type(family).__module__.endswith(f".{name}"))
    families.cache_clear()
    template_of.cache_clear()
    # Its template is declared for as long as the class is there, which tasks of built kernels keep.
    operators.forget_built()
    del sys.modules[f"{package.__name__}.{name}"]
    delattr(package, name)


@pytest.fixture
def conv1d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    with added("conv1d", tmp_path, monkeypatch) as family:
        yield family


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    with added("halves", tmp_path, monkeypatch) as family:
        yield family


def test_one_file_makes_a_family(conv1d: Family, opencl_device: tvm.runtime.Device) -> None:
    (case,), rng, target = conv1d.cases, np.random.default_rng(5), Target("opencl")
    mod, _weights = graph_of(case, PHONE)
    ((task,), _) = extract_tasks(mod)
    assert (task.family, task.name) == ("conv1d_nwc", f"conv1d_nwc_{case.name}")
    arrays = random_arrays(task, rng)
    assert arrays[1].shape == (3, 6, 3, 4)
    expected = reference(task, arrays)
    np.testing.assert_allclose(
        case.compute(arrays[0], arrays[1].reshape(3, 6, 12).transpose(2, 1, 0)), expected, rtol=1e-4, atol=1e-5
    )
    for config in [task.default_config(target), *task.space(target).sample(rng, 2)]:
        assert_agrees(target, task, config, arrays, expected, 1e-5)
    report = pruned_space(task, PHONE).report
    assert 0 < report.kept < report.before


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
def test_it_is_reached_from_onnx(conv1d: Family, target: str, opencl_device: tvm.runtime.Device) -> None:
    """The family gives the only kernel of a model, with the ReLU as its epilogue."""
    g = NetworkBuilder({"x": (2, 19, 6)})
    x = g.add("Conv", g.add("Transpose", "x", perm=[0, 2, 1]), g.weight(12, 6, 3), kernel_shape=[3])
    model = g.model(g.add("Relu", g.add("Transpose", x, perm=[0, 2, 1])))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    compiled = romou.compile(model, target=target, device=0)
    assert [row.name for row in compiled.summary().rows] == ["conv1d_nwc_2x19x6_12_3"]
    assert relative_l2_error(compiled.run(inputs)[0], expected[0]) < 1e-5


def test_it_is_a_task_by_itself_too(conv1d: Family) -> None:
    work = conv1d.typical[0]  # type: ignore[attr-defined]
    assert task_of(work).family == "conv1d_nwc"
    assert package.workload_of(work.to_dict()) == work


def test_one_file_makes_a_template(halves: Family, opencl_device: tvm.runtime.Device) -> None:
    """The form of the template, which no other file names, prunes the space and ranks configs."""
    (case,), rng, target = halves.cases, np.random.default_rng(5), Target("opencl")
    ((task,), _) = extract_tasks(graph_of(case, PHONE)[0])
    assert (task.family, task.name) == ("halves", "halves_17")
    arrays = random_arrays(task, rng)
    expected = case.compute(arrays[0])
    for config in task.space(target):
        assert_agrees(target, task, config, arrays, expected, 1e-6)
    pruned = prune(task.template, task.space(PHONE), PHONE.spec, PHONE.limits, least_kept=1)
    (kept,) = pruned
    assert kept["halves_items"] == 16, "17 elements in groups of 64 are mostly padding"
    assert task.template.has_formulas
    assert TaskFeatures(task.template, PHONE.limits, PHONE.spec).expected([kept])[0] != 0
