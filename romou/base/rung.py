"""Ways to compute a node of a model, from a fused kernel down to the host."""

from __future__ import annotations

import enum

# Share of a model's operations that may run on the host before it counts as one that is not compiled.
MOST_ON_HOST = 0.2


class Rung(enum.IntEnum):
    """A way to compute a node. A node moves one rung down if its rung fails.

    FUSED: with its neighbours, by an operator family.
    APART: each operator as a separate kernel, by a family.
    RULES: by TVM's schedule rules.
    PLAIN: by TVM's simplest schedule, a work-item for each element.
    HOST: by onnxruntime.
    """

    FUSED = 0
    APART = 1
    RULES = 2
    PLAIN = 3
    HOST = 4
