"""Contractions on tensor cores that take whole matrices: their numbers by kernels with emulated matrices, the targets
that offer them, and their use of the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tvm

from romou.base.errors import BuildError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.contraction.tensor_core import COOPMAT, MMA
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes.warp_nest import WarpNest
from romou.compiler.task import TunableTask
from romou.devices.backends import backend
from romou.devices.backends.vulkan import glslang
from romou.devices.targets import Target
from support.kernels.emulated_matrices import emulated_error, error_on_device
from support.kernels.operators import conv, task_of
from support.kernels.shaders import shaders_of, validate
from support.kernels.tensor_core_works import DENSE, FILLED, FIRST, HALF, ODD, PLAIN, POINTWISE, warp_config
from support.suite.exhaustive import few

TARGET = Target("vulkan -device=nvidia_h200")
SEED = 20
SHAPES = [PLAIN, ODD, POINTWISE, DENSE, FILLED, FIRST]


def matrix_config(task: TunableTask, **knobs: int | str) -> Config:
    """Return a config of one warp with the smallest tile, except for `knobs`."""
    return warp_config(task, TARGET, **{"multiply_add": COOPMAT, "tile_w": 4, **knobs})


@pytest.mark.parametrize(
    ("work", "knobs"),
    few(
        [
            (PLAIN, {"tile_o": 2, "split_k": 2}),
            (PLAIN, {"steps": 2, "unroll": "window", "pixels": "rows"}),
            (conv(32, (6, 7), 40, (3, 2), **HALF), {"unroll": "window", "pixels": "rows"}),
            (ODD, {"wg_w": 16}),
            (ODD, {"unroll": "taps", "split_k": 2, "tile_w": 8}),
            (SHAPES[2], {"tile_o": 4, "tile_w": 8}),
            (SHAPES[3], {"split_k": 2, "steps": 2}),
            (SHAPES[3], {"steps": 4, "tile_o": 2, "tile_w": 4}),
            (SHAPES[4], {"tile_w": 8, "split_k": 2, "steps": 2}),
            (SHAPES[5], {"split_k": 4}),
        ],
        0,
        2,
        4,
        6,
        9,
    ),
    ids=str,
)
def test_numbers(work: Conv2d | Dense, knobs: dict[str, int | str]) -> None:
    """Every output is written, by the work-item that the nest gives it to."""
    task = task_of(work)
    assert emulated_error(task, matrix_config(task, **knobs), TARGET) < 1e-3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("rows, columns_0, sums[0]", "rows, columns_0, sums[1]"),
        lambda text: text.replace(", 6, gl_Coop", ", 4, gl_Coop", 1),
        # The second one is what factors are waited for by.
        lambda text: text.replace("subgroupBarrier();", "", 2),
    ],
    ids=["sums of other rows", "columns too near", "nobody waits"],
)
def test_the_emulation_knows_wrong_kernels(change: Callable[[str], str]) -> None:
    task = task_of(PLAIN)
    assert not emulated_error(task, matrix_config(task), TARGET, change) < 0.1


def test_without_the_pass_every_work_item_sums_up_by_itself() -> None:
    task = task_of(PLAIN)
    config = matrix_config(task, tile_o=2)
    with tvm.transform.PassContext(disabled_pass=["use_tensor_cores"]):
        module = build_task(task, config, TARGET)
    assert "coopMat" not in module.imports[0].inspect_source()
    assert error_on_device(task, config, module) < 1e-3


@pytest.mark.parametrize("work", few(SHAPES, 1, 5), ids=lambda w: w.name)
def test_drawn_configs_are_valid_shaders(work: Conv2d | Dense) -> None:
    task, rng = task_of(work), np.random.default_rng(SEED)
    configs = task.space(TARGET).sample(rng, 40, where={"algorithm": "direct", "multiply_add": COOPMAT})[:2]
    assert configs
    for config in configs:
        (kernel,) = shaders_of(task.schedule(config, TARGET), TARGET)
        assert "coopMatMulAdd" in kernel.text
        assert {"cooperativeMatrix", "shaderFloat16"} <= set(kernel.needs)
        validate(kernel)


def test_who_is_offered_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole texels of fp16 are multiplied, if the driver lists matrices of 16 x 16 x 16."""

    def choices(work: Conv2d | Dense, target: Target) -> tuple[object, ...]:
        return task_of(work).space(target).knobs["multiply_add"]

    assert COOPMAT in choices(PLAIN, TARGET)
    assert MMA not in choices(PLAIN, TARGET)
    for target in (
        Target("vulkan -device=adreno640"),
        Target("cuda -device=nvidia_h200"),
        Target("opencl -device=nvidia_h200"),
    ):
        assert COOPMAT not in choices(PLAIN, target)
    for work in (
        dataclasses.replace(PLAIN, groups=2),
        dataclasses.replace(PLAIN, dtype="float32"),
        Dense(m=8, k=62, n=64, **HALF),
    ):
        assert COOPMAT not in choices(work, TARGET)
    monkeypatch.setattr(glslang, "version", lambda: "11:12.0.0")
    assert COOPMAT not in choices(PLAIN, TARGET)
    _, describe = TARGET.backend.toolchain()
    assert "too old for cooperative matrices" in describe()


def test_the_default_config_has_them_and_a_search_begins_there() -> None:
    task = task_of(PLAIN)
    default, *others = task.starts(TARGET)
    assert default["multiply_add"] == task.default_config(TARGET)["multiply_add"] == COOPMAT
    assert all(task.space(TARGET).is_valid(config) for config in [default, *others])


def test_a_device_without_them_is_not_given_any() -> None:
    facts = {**backend("vulkan").facts(0), "has_cooperative_matrix": False}
    limited = TARGET.limited_to(facts)
    assert limited.options["without"] == "multiply_add:coopmat"
    assert COOPMAT not in task_of(PLAIN).space(limited).knobs["multiply_add"]
    assert (
        TARGET.with_options(without="data:image").limited_to(facts).options["without"]
        == "data:image+multiply_add:coopmat"
    )
    asked = backend("vulkan").asked_of(facts)
    assert asked["has_cooperative_matrices"] is False


@pytest.mark.skipif(
    bool(backend("vulkan").facts(0)["has_cooperative_matrix"]), reason="the device has cooperative matrices"
)
def test_the_runtime_refuses_them_by_name() -> None:
    task = task_of(PLAIN)
    config = matrix_config(task)
    with pytest.raises(RuntimeError, match="needs cooperative matrices of 16x16x16 float16 in subgroups of 32"):
        error_on_device(task, config, build_task(task, config, TARGET))


def test_the_cost_model_knows_every_choice() -> None:
    task = task_of(PLAIN)
    space, rng = task.space(TARGET), np.random.default_rng(SEED)
    configs = [
        *task.starts(TARGET),
        *(config for name in ("fma", COOPMAT) for config in space.sample(rng, 100, where={"multiply_add": name})),
    ]
    assert {config["multiply_add"] for config in configs} >= {"fma", COOPMAT}
    assert np.isfinite(TaskFeatures(task.template, TARGET.limits, TARGET.spec)(configs)).all()


def test_a_tile_that_fills_no_matrix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(PLAIN)
    whole = WarpNest.__init__

    def narrow(nest: WarpNest, *arguments: object) -> None:
        whole(nest, *arguments)  # type: ignore[arg-type]
        nest.pixels = 2

    monkeypatch.setattr(WarpNest, "__init__", narrow)
    with pytest.raises(BuildError, match="warps of 4 x 8 work-items with 4 pixels each fill matrices"):
        build_task(task, matrix_config(task), TARGET)
