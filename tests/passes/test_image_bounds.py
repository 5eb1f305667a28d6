"""Images that are only read within their bounds: the proof, and right kernels that read without a sampler."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes.image_bounds import read_inside
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import set_image
from romou.devices.targets import Target
from support.kernels.operators import conv, error_of, random_arrays, reference, run, task_of

TARGET = Target("opencl -device=adreno640 -half=storage")


@I.ir_module
class Reads:
    """Reads of eight images of 14 x 8 texels: A, C, E and G are read inside."""

    @T.prim_func
    def main(
        A: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        B: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        C: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        D: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        E: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        F: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        G: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        H: T.Buffer((14, 8, 4), "float32", scope="global.texture"),
        out: T.Buffer((16, 8, 4), "float32"),
    ):
        for y, x in T.grid(14, 8):
            out[y, x, 0:4] = A[y, x, T.Ramp(0, 1, 4)]
        for y, x in T.grid(16, 8):
            out[y, x, 0:4] = B[y, x, T.Ramp(0, 1, 4)] + A[y // 2, x, T.Ramp(0, 1, 4)]
            if y < 14:
                out[y, x, 0:4] = C[y, x, T.Ramp(0, 1, 4)] + D[y, x + 1, T.Ramp(0, 1, 4)]
            else:
                out[y, x, 0:4] = E[y - 14, x, T.Ramp(0, 1, 4)] + F[y - 2, x, T.Ramp(0, 1, 4)] + F[y, x, T.Ramp(0, 1, 4)]
            out[y, x, 0:4] = T.if_then_else(y >= 2, G[y - 2, x, T.Ramp(0, 1, 4)], H[y - 2, x, T.Ramp(0, 1, 4)])


def test_what_is_proven() -> None:
    func = Reads["main"]
    found = read_inside(func, [p for p in func.params if str(p.name) != "out"])
    assert [str(image.name) for image in found] == ["A", "C", "E", "G"]


# Tiles that divide rows and channels, a prime number of pixels, for which the last tile reads the last one twice, a
# window over the padding, and one without padding.
WORKS = [
    (conv(16, (4, 14), 32, (1, 1)), True),
    (conv(7, (3, 13), 9, (1, 1)), True),
    (conv(8, (6, 8), 8, (3, 3), padding=(1, 1, 1, 1)), False),
    (conv(8, (6, 10), 16, (3, 3)), True),
]


@pytest.mark.parametrize(("work", "is_inside"), WORKS, ids=lambda v: getattr(v, "name", v))
def test_kernels(opencl_device: tvm.runtime.Device, work: Conv2d, is_inside: bool) -> None:
    func = task_of(work).func
    for name in ("data", "relu"):
        func = set_image(func, name, "global.texture")
    task = TunableTask.of(func)
    assert task is not None
    config = task.default_config(TARGET).replace(
        tile_h=1, tile_w=4 if work.out_hw[1] % 4 == 0 else 2, wg_w=1, tile_o=1, wg_o=1
    )
    if "algorithm" in config:
        config = config.replace(algorithm="direct")
    source = build_task(task, config, TARGET).imports[0].inspect_source()
    assert ("READ_INSIDE_IMAGEF(data" in source) == is_inside
    assert ("READ_IMAGEF(data" in source) != is_inside
    assert "__read_only image2d_array_t data" in source
    arrays = random_arrays(task, np.random.default_rng(6))
    assert error_of(run(task, config, arrays, TARGET, opencl_device), reference(task, arrays)) < 1e-5
