"""A kernel that is written with the builder computes what its Python text says."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

import romou.compiler.pipeline as pipeline
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.rewrites import as_module
from romou.devices.targets import Target

COUNT, PARTS = 10, 4


def sums_of_columns(rows: int, parts: int) -> tirx.PrimFunc:
    """Return a kernel whose `parts` work-items each add up some rows of 10 numbers, and then store some of the sums."""
    data, output = (tirx.decl_buffer(shape, "float32", name) for shape, name in (((rows, COUNT), "a"), ((COUNT,), "b")))
    k = KernelBuilder()
    k.axis("blockIdx.x", "group", 1)
    part = k.axis("threadIdx.y", "part", parts)
    x = k.axis("threadIdx.x", "x", 1)
    sums = k.array("sums", COUNT // 2, 2)
    partial = k.array("partial", COUNT, parts, 1, scope="shared")
    sums.fill(0)
    with k.spread(rows, part, parts) as row:
        for pair, lane in k.lanes_of(sums):
            sums[pair, lane] += tirx.BufferLoad(data, [row, pair * 2 + lane])
    for at in range(COUNT):
        partial[at, part, x] = sums.flat()[at]
    for place, total in k.sums_of_parts(partial, [x], part, parts):
        k.emit(tirx.BufferStore(output, total, [place]))
    return k.launched(tirx.PrimFunc([data, output], tirx.Evaluate(tirx.const(0, "int32"))))


@pytest.mark.parametrize(("rows", "parts"), [(9, PARTS), (8, PARTS), (1, PARTS), (3, 1)])
def test_work_items_share_rows_and_sums(rows: int, parts: int, opencl_device: tvm.runtime.Device) -> None:
    func = sums_of_columns(rows, parts)
    built = tvm.tirx.build(as_module(func), target=Target("opencl").tvm_target, pipeline=pipeline.NAME)
    data = np.random.default_rng(rows).standard_normal((rows, COUNT)).astype("float32")
    arguments = [tvm.runtime.tensor(array, opencl_device) for array in (data, np.full(COUNT, np.nan, "float32"))]
    built["main"](*arguments)
    np.testing.assert_allclose(arguments[1].numpy(), data.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_an_array_is_row_major_and_a_colon_is_a_vector() -> None:
    k = KernelBuilder()
    array = k.array("a", 2, 3, 4)
    assert int(array[1, 2, 3].indices[0]) == 23
    ramp = array[1, 0, :].indices[0]
    assert isinstance(ramp, tirx.Ramp)
    assert (int(ramp.base), int(ramp.lanes)) == (12, 4)
    with pytest.raises(ValueError, match="zip"):
        array[1, 2]
