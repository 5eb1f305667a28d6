"""Reductions of whole rows and what is made of them; `romou/schedules/row_reduction.py` has their template."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.relax import op

from romou.schedules import row_reduction
from romou.schedules.family import Case, Family


class RowReductionFamily(Family):
    """Softmax, layer and group norm, means, sums and norms of rows: what reduces without a moving window."""

    name = row_reduction.FAMILY
    precedence = 11

    def template_of(self, func: tirx.PrimFunc) -> row_reduction.RowReduction | None:
        return row_reduction.template_of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(name="softmax", inputs=[(2, 5, 37)], build=lambda x: op.nn.softmax(x, axis=-1), compute=_softmax),
            Case(
                name="layer norm",
                inputs=[(3, 7, 48), (48,), (48,)],
                build=lambda x, scale, shift: op.nn.layer_norm(x, scale, shift, axes=[-1]),
                compute=lambda x, scale, shift: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift,
            ),
            Case(name="mean of columns", inputs=[(31, 60)], build=lambda x: op.mean(x, axis=[0]), compute=lambda x: x.mean(0)),
        ]


def _softmax(x: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(x - x.max(-1, keepdims=True))
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


FAMILY = RowReductionFamily()
