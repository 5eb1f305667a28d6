"""Output buffers in local memory: work-items sum there, and their group stores in the order of the output's memory."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from romou.base.space import Config
from romou.base.variants import VARIANTS
from romou.compiler.operators.analysis.expressions import dtype_of
from romou.compiler.operators.families.dense import Dense
from romou.compiler.task import TunableTask
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.traversal import nodes_in
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.kernel_structure import stores_in
from support.kernels.operators import assert_agrees, conv, each_kind, matmul, random_arrays, reference, task_of

SEED = 16
SAME = (1, 1, 1, 1)
# Rows, pixels, channels and columns fill neither groups nor texels.
WORKS = [
    conv(10, (13, 11), 18, (3, 3), padding=SAME),
    conv(13, (9, 7), 10, (1, 1), batch=2),
    Dense(m=13, k=31, n=37, dtype="float32"),
    matmul((3,), 13, 20, 30),
    conv(8, (17, 9), 8, (3, 3), padding=SAME, groups=8, stride=(2, 2)),
    conv(8, (9, 11), 7, (1, 7), "float16"),
]


def of_variant(task: TunableTask, target: Target) -> Target:
    """Return the target with the variant that has output buffers for the task."""
    there = (target.with_options(variant=name) for name in VARIANTS if name.endswith("buffered"))
    return next(t for t in there if task.template.has_variant(t.limits))


@each_kind("work", WORKS, opencl=(0, 1, 2, 3), cuda=(0, 2), vulkan=(1, 2))
def test_outputs_from_local_memory_are_right(work: object, target: Target) -> None:
    task = task_of(work)
    target = of_variant(task, target)
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task, arrays)
    configs = [task.default_config(target), *task.space(target).sample(np.random.default_rng(SEED), 1)]
    for config in configs:
        assert config["store"] == "group"
        assert_agrees(target, task, config, arrays, expected, 1e-3 if work in WORKS[-1:] else 1e-5)


def stored_apart(task: TunableTask, config: Config, target: Target) -> set[int]:
    """Return the distances, in vectors, between the stores of neighbouring work-items of the first group."""
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target)
    body, extents, env = kernel.lowered.body, {}, {}
    for attr in nodes_in(body, tirx.AttrStmt):
        if attr.attr_key == "thread_extent":
            tag = str(attr.node.thread_tag)
            extents[tag] = int(attr.value)
            ids = np.arange(extents[tag]).reshape((-1, 1) if tag.endswith("y") else -1)
            env[attr.node.var] = ids if tag.startswith("threadIdx") else 0
    for bind in nodes_in(body, tirx.Bind):
        if dtype_of(bind.value).startswith(("int", "bool")):
            env[bind.var] = evaluate(bind.value, env)
    shape = extents["threadIdx.y"], extents["threadIdx.x"]
    stores = [np.broadcast_to(evaluate(store.indices[0], env), shape).ravel() for store in stores_in(body, "relu")]
    assert stores
    return {int(apart) for store in stores for apart in np.diff(store)}


@pytest.mark.parametrize("work", [conv(64, (32, 32), 64, (1, 1)), Dense(m=64, k=64, n=256, dtype="float32")])
def test_neighbours_store_neighbours(work: object) -> None:
    """Stores of a group are in order, except where a row of its outputs ends."""
    task = task_of(work)
    plain = Target("opencl -device=adreno640 -images=never")
    target = of_variant(task, plain)
    space = task.space(target)
    sides = {"tile_o": 2, "tile_h": 1, "tile_w": 4, "wg_o": 8, "wg_w": 8, "arrangement": "blocked"}
    config = task.default_config(target).replace(**{name: side for name, side in sides.items() if name in space.knobs})
    assert space.is_valid(config)
    apart = stored_apart(task, config, target)
    assert 1 in apart
    assert len(apart) <= 2
    alone = Config({name: value for name, value in config.items() if name != "store"})
    assert 1 not in stored_apart(task, alone, plain), "a work-item's own stores are a tile apart"


@pytest.mark.parametrize("work", WORKS[:3])
def test_only_the_variants_have_the_knob(work: object) -> None:
    task = task_of(work)
    for target in (
        Target("opencl -device=adreno640"),
        Target("opencl -device=host"),
        Target("cuda -device=nvidia_h200"),
    ):
        assert "store" not in task.space(target).knobs
        assert "store" not in task.default_config(target)
        buffered = of_variant(task, target)
        for config in task.space(buffered).sample(np.random.default_rng(SEED), 20):
            is_spread = config["arrangement"] == "blocked" and config["tile_w" if "pixels" in config else "tile_o"] > 1
            assert is_spread or ("pixels" not in config and config["wg_w"] > 1), "stores are coalesced already"
