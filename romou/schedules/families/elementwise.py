"""Functions that compute every element of their output by itself; `romou/schedules/elementwise.py` has their template."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.relax import op

from romou.schedules import elementwise
from romou.schedules.family import Case, Family


class ElementwiseFamily(Family):
    """Chains of element-wise operators, broadcasts, transposes, slices, concatenations."""

    name = elementwise.FAMILY
    precedence = 10

    def template_of(self, func: tirx.PrimFunc) -> elementwise.Elementwise | None:
        return elementwise.template_of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="chain",
                inputs=[(3, 7, 11), (3, 7, 11), (11,)],
                build=lambda a, b, c: op.nn.relu(op.add(op.multiply(a, b), c)),
                compute=lambda a, b, c: np.maximum(a * b + c, 0),
            ),
            Case(name="concat", inputs=[(5, 7), (5, 13)], build=lambda a, b: op.concat([a, b], axis=1), compute=lambda a, b: np.concatenate([a, b], axis=1)),
            Case(
                name="transpose",
                inputs=[(2, 13, 20)],
                build=lambda a: op.exp(op.permute_dims(a, [0, 2, 1])),
                compute=lambda a: np.exp(a.transpose(0, 2, 1)),
            ),
        ]


FAMILY = ElementwiseFamily()
