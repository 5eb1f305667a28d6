"""Rows that are reduced by sub-group functions: results on every device that has them, texts, and devices without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.relax import op

from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.task import TunableTask
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.devices.platforms import INTEL
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.kernel_usage import read_usage
from support.kernels.operators import error_of, error_on, random_arrays, reference, relax_tasks, run, target_of
from support.kernels.shaders import shaders_of, validate
from support.kernels.streams import OPERATORS
from support.suite.exhaustive import few

# Sub-groups of 64 with shuffles, and of 16 without. Intel's runtime for the CPU has both sizes; lavapipe has sub-groups
# of 8.
ADRENO, MALI = Target("opencl -device=adreno730 -half=storage"), Target("opencl -device=mali_g610 -half=storage")
VULKAN, CUDA = Target("vulkan"), target_of("cuda")
# Target, work-items of a row, rows of a group. A row has fewer work-items than a sub-group, which rows then share, or
# one whole sub-group, or several.
SHAPES = [
    (ADRENO, 4, 16),
    (ADRENO, 32, 4),
    (ADRENO, 64, 2),
    (ADRENO, 256, 1),
    (MALI, 16, 2),
    (MALI, 128, 1),
    (VULKAN, 2, 8),
    (VULKAN, 8, 1),
    (VULKAN, 64, 2),
]


def shape_id(value: object) -> str:
    return f"{value.device_name or value.kind}" if isinstance(value, Target) else str(value)


def device_of(target: Target, config: pytest.Config) -> tvm.runtime.Device:
    """Return a device with sub-groups that runs kernels for the target."""
    if target.kind == "vulkan":
        return tvm.device("vulkan", 0)
    INTEL.require(config)
    platforms = [facts["platform"] for facts in backend("opencl").list_devices()]
    return tvm.opencl(platforms.index(INTEL.title))


def config_of(task: TunableTask, target: Target, threads: int, rows: int, **knobs: object) -> Config:
    """Return the default config with these work-items, in sub-groups."""
    assert target.limits.sub_groups is not None
    wanted = {
        "threads": threads,
        "rows": rows,
        "combine": "serial",
        "sub_group": target.limits.sub_groups.size,
        "keep": "memory",
        "vector_width": 1,
        # Intel's native exponential is off by 1.5e-4.
        "functions": "accurate",
        **knobs,
    }
    config = task.default_config(target)
    config = config.replace(**{name: value for name, value in wanted.items() if name in config})
    assert task.space(target).is_valid(config), config
    return config


def source_of(task: TunableTask, target: Target, config: Config) -> str:
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    return kernel.source


def long_softmax(dtype: str = "float32") -> TunableTask:
    """Return a softmax of ten rows of 509 elements, which no group divides."""
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (10, 509), dtype=dtype)
    return task


@pytest.mark.parametrize(("target", "threads", "rows"), few(SHAPES, 0, 2, 3, 4, 6, 7), ids=shape_id)
def test_rows_add_up_right(target: Target, threads: int, rows: int, pytestconfig: pytest.Config) -> None:
    device = device_of(target, pytestconfig)
    layer_norm = relax_tasks(lambda a, b, c: op.nn.layer_norm(a, b, c, axes=[-1]), (10, 509), (509,), (509,))
    columns = relax_tasks(lambda a: op.mean(a, axis=[0]), (509, 60))
    for task, knobs in [
        (long_softmax(), {}),
        (layer_norm[0], {}),
        (columns[0], {"vector_width": 4}),
        (long_softmax("float16"), {}),
    ]:
        arrays = random_arrays(task, np.random.default_rng(7))
        found = run(task, config_of(task, target, threads, rows, **knobs), arrays, target, device)
        bound = 1e-3 if str(task.func.params[0].dtype) == "float16" else 1e-5
        assert error_of(found, reference(task, arrays)) < bound, task.name


@pytest.mark.parametrize(("threads", "rows"), few([(8, 4), (32, 2), (128, 1)], 1))
def test_warps_of_cuda_exchange_in_pairs(threads: int, rows: int) -> None:
    for name in ("softmax of long rows", "global maximum"):
        (task,) = relax_tasks(*OPERATORS[name])
        arrays = random_arrays(task, np.random.default_rng(7))
        config = config_of(task, CUDA, threads, rows)
        assert "sub_group_shuffle_xor_of_32(" in source_of(task, CUDA, config)
        assert error_on(CUDA, task, config, arrays, reference(task, arrays)) in (None, pytest.approx(0, abs=1e-5))
        assert error_of(run_on_cpu(task, config, arrays, CUDA), reference(task, arrays)) < 1e-5


@pytest.mark.parametrize(
    ("target", "threads", "rows"), [(ADRENO, 16, 4), (MALI, 32, 2), (VULKAN, 4, 4), (VULKAN, 16, 1)], ids=shape_id
)
def test_nan_stays_where_it_was(target: Target, threads: int, rows: int, pytestconfig: pytest.Config) -> None:
    """NaN stays in its row, also if the row shares a sub-group with another one. Infinities are ordinary values."""
    device = device_of(target, pytestconfig)
    for name in ("maximum", "minimum", "softmax"):
        build = {
            "maximum": lambda a: op.max(a, axis=[-1]),
            "minimum": lambda a: op.min(a, axis=[-1]),
            "softmax": lambda a: op.nn.softmax(a, axis=-1),
        }[name]
        (task,) = relax_tasks(build, (10, 509))
        arrays = random_arrays(task, np.random.default_rng(3))
        arrays[0][3, 400], arrays[0][5, 0], arrays[0][6, 508] = np.nan, np.nan, -np.inf
        found = run(task, config_of(task, target, threads, rows), arrays, target, device).reshape(10, -1)
        assert (
            set(np.flatnonzero(np.isnan(found).all(axis=1)))
            == {3, 5}
            == set(np.flatnonzero(np.isnan(found).any(axis=1)))
        ), name


def test_sub_groups_of_another_size_give_nan(vulkan_device: tvm.runtime.Device) -> None:
    """A kernel for sub-groups of 16 gives NaN on a device with sub-groups of 8."""
    assert backend("vulkan").facts(0)["subgroup_size"] != 16
    target = Target("vulkan -device=mali_g610 -half=storage")
    task = long_softmax()
    arrays = random_arrays(task, np.random.default_rng(7))
    assert np.isnan(run(task, config_of(task, target, 16, 2), arrays, target, vulkan_device)).all()


@pytest.mark.parametrize(
    ("target", "suffix", "threads", "rows"),
    [
        (ADRENO, "cl", 128, 1),
        (ADRENO, "cl", 16, 4),
        (Target("vulkan -device=adreno730 -half=storage"), "comp", 128, 1),
        (VULKAN, "comp", 4, 2),
    ],
    ids=shape_id,
)
def test_texts(target: Target, suffix: str, threads: int, rows: int, request: pytest.FixtureRequest) -> None:
    """Whole sub-groups reduce, and leave their parts in local memory.

    In a sub-group that rows share, work-items exchange values in pairs, without a barrier.
    """
    (task,) = relax_tasks(lambda a: op.max(a, axis=[-1]), (10, 509))
    config = config_of(task, target, threads, rows)
    source = source_of(task, target, config)
    golden = Path(__file__).parent / "sub_groups" / f"maximum_{threads}x{rows}.{suffix}"
    if request.config.getoption("--update-golden"):
        golden.write_text(source, encoding="utf-8")
    assert source == golden.read_text(encoding="utf-8"), (
        f"{golden.name} reads otherwise now; if that is meant: pytest {__file__} --update-golden"
    )
    if suffix == "comp":
        (shader,) = shaders_of(task.schedule(config, target), target)
        validate(shader)


@pytest.mark.parametrize("name", ["softmax of long rows", "layer norm", "softmax of channels"])
@pytest.mark.parametrize(("threads", "rows"), [(4, 2), (8, 1), (16, 2)])
def test_shaders_follow_vulkans_rules(name: str, threads: int, rows: int) -> None:
    (task,) = relax_tasks(*OPERATORS[name])
    (shader,) = shaders_of(task.schedule(config_of(task, VULKAN, threads, rows), VULKAN), VULKAN)
    validate(shader)


@pytest.mark.parametrize(("target", "threads", "rows"), SHAPES, ids=shape_id)
def test_formulas_and_tir_agree(target: Target, threads: int, rows: int) -> None:
    for keep in ("memory", "local"):
        task = long_softmax()
        config = config_of(task, target, threads, rows, keep=keep)
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
        exact, formula = (
            read_usage([kernel.lowered], task.template, config),
            task.template.form(target.limits).usage(columns_of([config])),
        )
        for name in (
            "local_memory_bytes",
            "work_group_size",
            "work_groups",
            "buffer_bytes",
            "unshared_buffer_bytes",
            "padding",
        ):
            assert np.asarray(getattr(formula, name)).item() == getattr(exact, name), name


def choices(
    target: Target, build: object = None, shape: Sequence[int] = (10, 509), dtype: str = "float32"
) -> tuple[object, ...]:
    (task,) = relax_tasks(build or (lambda a: op.nn.softmax(a, axis=-1)), shape, dtype=dtype)
    return task.space(target).knobs.get("sub_group", ())


def test_they_are_offered_where_a_device_has_them() -> None:
    assert choices(ADRENO) == (1, 64)
    assert choices(Target("opencl -device=adreno640")) == ()
    assert choices(Target("opencl -device=adreno730 -without=sub_group:64")) == (1,)
    # Products and whole numbers have no functions.
    assert choices(ADRENO, lambda a: op.prod(a, axis=[-1])) == (1,)
    assert choices(ADRENO, lambda a: op.max(a, axis=[-1]), dtype="int32") == (1,)


def test_work_items_of_a_sub_group_that_rows_share_need_shuffles() -> None:
    task = long_softmax()
    assert all(task.space(MALI).is_valid(config_of(task, MALI, threads, 1)) for threads in (16, 64))
    with pytest.raises(AssertionError):
        config_of(task, MALI, 8, 2)
    # Half a sub-group is none.
    with pytest.raises(AssertionError):
        config_of(task, ADRENO, 32, 1)


def test_the_default_uses_none() -> None:
    assert long_softmax().default_config(ADRENO)["sub_group"] == 1


@pytest.mark.parametrize(
    ("target", "changes", "left"),
    [
        (ADRENO, {"extensions": "cl_khr_fp16"}, (1,)),
        (ADRENO, {"extensions": "cl_khr_subgroups cl_qcom_subgroup_shuffle"}, (1,)),
        (ADRENO, {"extensions": "cl_khr_subgroups cl_qcom_reqd_sub_group_size"}, (1,)),
        (ADRENO, {"extensions": "cl_khr_subgroups cl_qcom_subgroup_shuffle cl_qcom_reqd_sub_group_size"}, (1, 64)),
        (ADRENO, {"extensions": "cl_intel_subgroups cl_khr_subgroup_shuffle", "sub_group_sizes": [8, 16]}, (1,)),
        (MALI, {"extensions": "cl_khr_subgroups", "name": "Mali-G610 r0p0"}, (1, 16)),
        (MALI, {"extensions": "cl_khr_subgroups", "name": "another GPU"}, (1,)),
    ],
)
def test_a_device_that_lacks_them_takes_them_away(
    target: Target, changes: dict[str, object], left: tuple[int, ...]
) -> None:
    facts = {**backend("opencl").facts(0), "type": "gpu", "sub_group_sizes": [], **changes}
    assert choices(target.limited_to(facts)) == left


def test_an_old_compiler_of_qualcomms_is_not_given_any() -> None:
    extensions = "cl_khr_subgroups cl_qcom_subgroup_shuffle cl_qcom_reqd_sub_group_size"
    facts = {
        **backend("opencl").facts(0),
        "type": "gpu",
        "platform": "QUALCOMM Snapdragon(TM)",
        "extensions": extensions,
        "sub_group_sizes": [],
    }
    assert choices(ADRENO.limited_to({**facts, "driver": "OpenCL 3.0 QUALCOMM Compiler E031.38.01.01"})) == (1,)
    assert choices(ADRENO.limited_to({**facts, "driver": "OpenCL 3.0 QUALCOMM Compiler E031.38.11.12"})) == (1, 64)


def test_a_vulkan_device_takes_them_away() -> None:
    target = Target("vulkan -device=adreno730 -half=storage")
    facts = {
        **backend("vulkan").facts(0),
        "subgroup_size": 64,
        "has_subgroup_reductions": True,
        "has_subgroup_shuffles": True,
    }
    assert choices(target.limited_to(facts)) == (1, 64)
    assert choices(target.limited_to({**facts, "subgroup_size": 128})) == (1,)
    assert choices(target.limited_to({**facts, "has_subgroup_shuffles": False})) == (1,)
