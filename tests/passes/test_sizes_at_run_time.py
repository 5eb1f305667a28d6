"""Passes of kernels that take a size: buffers of constant size, and divisions by numbers of tiles."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx

from romou.compiler.pipeline import NAME
from romou.compiler.tir.primitives import LARGEST_SIZES
from romou.devices.targets import Target

# Rows plus their first element, one group for each tile of four columns of a row, through local memory
SOURCE = """
@I.ir_module
class Shifted:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((3, "size"), "float32"), B: T.Buffer((3, "size"), "float32"), size: T.int32):
        with T.sblock("root"):
            row = T.sblock_alloc_buffer((64,), scope="shared")
            for group in T.thread_binding((size + 3) // 4 * 3, thread="blockIdx.x"):
                for item in T.thread_binding(4, thread="threadIdx.x"):
                    for i in range(size):
                        with T.sblock("load"):
                            v = T.axis.spatial(size, i)
                            g = T.axis.spatial((size + 3) // 4 * 3, group)
                            row[v] = A[g // ((size + 3) // 4), v]
                    with T.sblock("store"):
                        g = T.axis.spatial((size + 3) // 4 * 3, group)
                        x = T.axis.spatial(size, group % ((size + 3) // 4) * 4 + item)
                        T.where(group % ((size + 3) // 4) * 4 + item < size)
                        B[g // ((size + 3) // 4), x] = row[x] + row[0]
"""


def test_numbers_and_text(opencl_device: tvm.runtime.Device) -> None:
    target = Target("opencl -device=host")
    func = tvm.script.from_source(SOURCE)["main"].with_attr(LARGEST_SIZES, [64])
    built = tirx.build(tvm.IRModule({"main": func}), target=target.tvm_target, pipeline=NAME)
    text = str(built.imports[0].inspect_source())
    assert "row_ptr[64]" in text
    assert "select" not in text, "a division looks at signs"
    for size in (1, 4, 7, 64):
        a = np.random.default_rng(size).standard_normal((3, size)).astype("float32")
        b = tvm.runtime.tensor(np.zeros_like(a), opencl_device)
        built["main"](tvm.runtime.tensor(a, opencl_device), b, size)
        np.testing.assert_array_equal(b.numpy(), a + a[:, :1])
