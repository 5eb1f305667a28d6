"""The contract of every operator family, on its typical cases.

A new file in `romou/compiler/operators/families` is tested here without another line.
"""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi.structural import structural_equal

from romou.base.space import ConfigBlock
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.operators.families import families, family_of, workload_of
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.family import Case, Family
from romou.compiler.task import TunableTask
from romou.compiler.tir.traversal import nodes_in
from romou.compiler.typical import graph_of
from romou.devices.targets import Target
from support.docs.documents import ROOT
from support.kernels.operators import assert_agrees, error_of, quick_configs, random_arrays, reference
from support.suite.exhaustive import few

SEED = 3
CASES = [(family, case) for family in families() for case in family.cases]
PHONE = Target("opencl -device=adreno640")
TARGETS = [
    PHONE,
    *map(
        Target,
        (
            "opencl -device=mali_g76",
            "opencl -device=host",
            "opencl -device=nvidia_h200",
            "vulkan -device=mali_g715",
            "cuda -device=nvidia_h200",
        ),
    ),
]
SPACES = Path(__file__).parent / "space_sizes.json"
each_case = pytest.mark.parametrize(
    ("family", "case"), CASES, ids=[f"{family.name}-{case.name}" for family, case in CASES]
)


GRAPHS = {id(case): functools.cache(functools.partial(graph_of, case, PHONE)) for _, case in CASES}


def task_of_case(family: Family, case: Case) -> TunableTask:
    (task,) = (task for task in extract_tasks(GRAPHS[id(case)]()[0])[0] if task.family == family.name)
    return task


def test_every_family_has_cases_and_a_name_of_its_own() -> None:
    assert {family.name for family, _ in CASES} == {family.name for family in families()}
    assert len({family.name for family in families()}) == len(families())


def test_stages_walk_the_families_and_name_none() -> None:
    """Stages import no family but those whose kernels may be joined into one."""
    stages = [
        *(ROOT / "romou/compiler/graph").glob("*.py"),
        *(ROOT / "romou/compiler").glob("*.py"),
        ROOT / "tests/stress/check_operators.py",
    ]
    pattern = r"operators\.families\.(?!bases\b)(\w+)"
    named = {path.name: re.findall(pattern, path.read_text(encoding="utf-8")) for path in stages}
    assert {name: found for name, found in named.items() if found} == {
        "join_chains.py": ["depthwise_pointwise", "quantized_product", "row_reduction"]
    }


@each_case
def test_it_is_recognised(family: Family, case: Case) -> None:
    """The case becomes one kernel of a graph, and its workload survives a record."""
    task = task_of_case(family, case)
    assert task.calls == 1
    if isinstance(task.template, ContractionTemplate) and task.template.contracted.operator is family:
        work = task.template.workload
        assert family_of(work) is family
        assert workload_of(json.loads(json.dumps(work.to_dict()))) == work


@each_case
def test_the_plain_definition_is_what_numpy_says(family: Family, case: Case) -> None:
    """The packed and fused graph on the CPU agrees with NumPy in double precision."""
    mod, weights = GRAPHS[id(case)]()
    inputs = [np.random.default_rng(SEED).standard_normal(shape).astype("float32") for shape in case.inputs]
    output = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    expected = case.compute(*(array.astype("float64") for array in (*inputs, *weights)))
    assert output.numpy().shape == expected.shape
    assert error_of(output.numpy(), expected) < 1e-5


@each_case
def test_configs_agree_with_the_plain_definition(family: Family, case: Case, opencl_device: tvm.runtime.Device) -> None:
    task, target, rng = task_of_case(family, case), Target("opencl"), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    # One random config for each family.
    is_first = next(other for same, other in CASES if same.name == family.name) is case
    drawn = quick_configs(task, target, rng, 1) if is_first else []
    for config in [task.default_config(target), *drawn]:
        assert_agrees(target, task, config, arrays, expected, 1e-5)


@each_case
def test_default_configs_are_of_the_space(family: Family, case: Case) -> None:
    """A default may not have a knob that the device's space lacks."""
    task = task_of_case(family, case)
    for target in TARGETS:
        space, config = task.space(target), task.default_config(target)
        assert space.at(space.index_of(config)) == config
        assert space.is_valid(config), str(target)


@pytest.mark.parametrize(
    ("family", "case"),
    few(CASES, *{family.name: place for place, (family, _) in enumerate(CASES)}.values()),
    ids=lambda value: value.name,
)
def test_a_schedule_binds_each_variable_once(family: Family, case: Case) -> None:
    """TVM cannot copy a function that binds a variable twice, and buffer slices are written by copies of functions."""
    task, rng = task_of_case(family, case), np.random.default_rng(SEED)
    for target in TARGETS:
        for config in [*task.starts(target), *task.space(target).sample(rng, 1)]:
            func = task.schedule(config, target)["main"]
            bound = [loop.loop_var for loop in nodes_in(func.body, tirx.For)]
            bound += [axis.var for block in nodes_in(func.body, s_tir.SBlock) for axis in block.iter_vars]
            twice = [str(var.name) for at, var in enumerate(bound) if any(var.same_as(other) for other in bound[:at])]
            assert not twice, (str(target), config)
            assert structural_equal(s_tir.renew_defs(func), func)


def configs_in(block: ConfigBlock) -> int:
    return block.places.size * math.prod(block.digits[axis].size for axis in block.free)


def test_spaces_keep_their_size(request: pytest.FixtureRequest) -> None:
    """The number of configs within a phone's limits is reviewed: a change needs new records."""
    spaces = {
        f"{family.name}-{case.name}": task_of_case(family, case).with_free_images().space(PHONE)
        for family, case in CASES
    }
    sizes = {name: sum(map(configs_in, space.blocks())) for name, space in spaces.items()}
    if request.config.getoption("--update-golden"):
        SPACES.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
    assert sizes == json.loads(SPACES.read_text(encoding="utf-8")), (
        "if that is meant: pytest tests/operators --update-golden"
    )
