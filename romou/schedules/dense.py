"""Dense layer: activations times a constant matrix, output columns packed by four in the weight.

data (m, k)      weight (k, ceil(n / 4), 4)      output (m, n)
"""

from __future__ import annotations

import numpy as np
from tvm import te

from romou.schedules.contraction import Contraction
from romou.schedules.workload import Dense, stored_as
from romou.tir.primitives import LANES

FAMILY = "dense"


def works_in_texels(w: Dense) -> bool:
    """Whether the schedule reads its data in whole texels: its rows are no texels."""
    return False


def weight_shape(w: Dense) -> tuple[int, ...]:
    """Shape of the packed weight, in elements."""
    return (w.k, w.out_texels, LANES)


def pack_weight(w: Dense, weight: np.ndarray) -> np.ndarray:
    """(k, n) -> (k, ceil(n / 4), 4), padded with zeros."""
    full = np.zeros((w.k, w.out_texels * LANES), weight.dtype)
    full[:, : w.n] = weight
    return full.reshape(w.k, w.out_texels, LANES)


def define(w: Dense, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """The plain definition: what fusion sees, and the reference that a candidate is checked against."""
    k = te.reduce_axis((0, w.k), "k")
    total = te.compute(
        (w.m, w.n),
        lambda m, n: te.sum(data[m, k].astype("float32") * weight[k, n // LANES, n % LANES].astype("float32"), axis=k),
        name="dense",
        attrs=w.block_attrs(FAMILY),
    )
    return stored_as(w.dtype, total)


def contraction(w: Dense, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False) -> Contraction:
    """The same as a contraction: rows are pixels; k is cut so that its innermost part can be unrolled."""
    step = next(s for s in (4, 2, 1) if w.k % s == 0)
    return Contraction(
        inputs=[data, weight],
        extents=(w.out_texels, 1, w.m),
        reduce={"k": w.k // step, "kstep": step},
        lhs=lambda _o, _h, m, _lane, k, s: data[m, k * step + s],
        rhs=lambda o, lane, k, s: weight[k * step + s, o, lane],
        output=lambda m, n: (n // LANES, 0, m, n % LANES),
        output_shape=(w.m, w.n),
        lhs_neighbours="reduction",
    )
