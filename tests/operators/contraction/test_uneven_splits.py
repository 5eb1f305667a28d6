"""Split sums whose tiles are dealt out to the work-items of the split: numbers, and local memory."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from romou.base.errors import InvalidConfigError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, conv, random_arrays, reference, task_of

TARGET = Target("opencl -device=adreno640")


FIXED = {"algorithm": "direct", "pixels": "rows", "unroll": "lanes", "accumulate": "float32", "local": 0, "wg_h": 1}


def of_split(task: TunableTask, **knobs: Any) -> Config:
    default = task.default_config(TARGET)
    return default.replace(**{name: value for name, value in {**FIXED, **knobs}.items() if name in default})


@pytest.mark.parametrize("arrangement", ["blocked", "striped"])
@pytest.mark.parametrize(("tile_o", "tile_h", "tile_w", "split"), [(2, 1, 7, 2), (1, 2, 3, 2), (4, 1, 3, 4)])
def test_an_axis_that_the_split_divides_is_dealt_out(
    arrangement: str, tile_o: int, tile_h: int, tile_w: int, split: int
) -> None:
    """Its pieces take no local memory beside the sums, whatever the other axes are."""
    task = task_of(conv(32, (13, 21), 24, (3, 3), padding=(1, 1, 1, 1))).with_free_images()
    tile = {"tile_o": tile_o, "tile_h": tile_h, "tile_w": tile_w, "split_k": split}
    config = of_split(
        task, **tile, data="image", weight="buffer", output="buffer", wg_o=2, wg_w=2, arrangement=arrangement
    )
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET)
    (texels,) = re.findall(r"__local float4 \w+\[(\d+)\]", kernel.source)
    assert int(texels) == split * 4 * tile_o * tile_h * tile_w
    arrays = random_arrays(task, np.random.default_rng(split))
    assert_agrees(TARGET, task, config, arrays, reference(task, arrays), 1e-4)


def test_a_kernel_beyond_the_local_memory_is_excluded() -> None:
    """Each piece has an element where a tile has fewer texels than pieces. The space and the check know that."""
    task = task_of(conv(512, (14, 14), 144, (1, 1), batch=5)).with_free_images()
    places = {"data": "image", "weight": "buffer", "output": "image"}
    config = of_split(task, **places, tile_o=1, tile_h=2, tile_w=1, wg_o=1, wg_w=4, split_k=64)
    assert not task.space(TARGET).is_valid(config)
    with pytest.raises(InvalidConfigError, match="262144 bytes of local memory, the device allows 32768"):
        build_task(task, config, TARGET)
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET)
    # Only arrays of dynamic size may have the memory that a language asks for.
    asking = replace(TARGET.limits, asked_local_memory_bytes=1 << 20)
    assert task.template.excess(kernel.lowered, asking) is not None
