"""Products of 8-bit integers with packed weights, and their results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from romou.compiler.operators.kernels.quantized.integer_matrix import IntegerMatrix, IntegerProduct
from romou.compiler.task import TunableTask
from romou.tuner.measure.verify import poison


@dataclass(frozen=True, kw_only=True)
class IntegerCase:
    """A product of uint8 activations. is_extreme: all numbers are the largest or smallest."""

    m: int
    k: int
    n: int
    is_signed: bool = True
    zero: str = "none"
    is_extreme: bool = False
    has_epilogue: bool = False

    def draw(self, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the arguments of a kernel, the output poisoned, and the result."""
        rng = np.random.default_rng(seed)
        weight, data = rng.integers(-128, 128, (self.k, self.n)), rng.integers(0, 256, (self.m, self.k))
        if self.is_extreme:
            weight[:, : self.n // 2], weight[:, self.n // 2 :], data[0] = -128, 127, 255
        matrix, work = IntegerMatrix.pack(weight), self.work
        assert matrix is not None
        count = {"none": 0, "one": 1, "rows": self.m}[self.zero]
        points = rng.integers(0, 256, count).astype(np.uint8)
        full = np.zeros((self.m, work.words * 4), np.uint8)
        full[:, : self.k] = data.astype(np.uint8) ^ (128 if self.is_signed else 0)
        arrays = [full.view(np.uint32), matrix.words, matrix.correction(work.moved("uint8"))]
        arrays += [matrix.sums, points] if count else []
        result = (data - (points[:, None].astype(np.int64) if count else 0)) @ weight
        if self.has_epilogue:
            bias = rng.integers(-1000, 1000, self.n).astype(np.int32)
            arrays, result = [*arrays, bias], np.maximum(result + bias, 0)
        return [*arrays, poison(result.shape, "int32")], result

    @property
    def work(self) -> IntegerProduct:
        """The numbers of the product."""
        return IntegerProduct(m=self.m, k=self.k, n=self.n, is_signed=self.is_signed, zero=self.zero)

    def task(self) -> TunableTask:
        """Return the product as a task, perhaps followed by a bias and a ReLU."""
        arrays = self.draw()[0][:-1]
        operands = [te.placeholder(a.shape, str(a.dtype), f"p{at}") for at, a in enumerate(arrays)]
        read = operands[:-1] if self.has_epilogue else operands
        total = self.work.define(*read)
        if self.has_epilogue:
            total = te.compute(
                total.shape, lambda i, j: te.max(total[i, j] + operands[-1][j], tirx.const(0, "int32")), name="out"
            )
        task = TunableTask.of(te.create_prim_func([*operands, total]))
        assert task is not None
        return task
