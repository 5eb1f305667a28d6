"""Random graphs by number: the same seed and number give the same graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_cases import FLOATS, Builder, Case, UnfitError
from graph_operators import GENERATORS


def case(seed: int, number: int, *, special: bool = True, dtypes: Sequence[str] = FLOATS) -> Case:
    """Return the graph of a number. The same seed and number give the same graph."""
    rng = np.random.default_rng([seed, number])
    while True:
        builder = Builder(rng, is_special=special and bool(rng.random() < 0.4), dtypes=dtypes)
        wanted = builder.pick((1, 2, 2, 3, 3, 4))
        for _ in range(60):
            if len(builder.nodes) >= wanted:
                break
            before = len(builder.nodes)
            try:
                builder.pick(GENERATORS)(builder)
            except UnfitError:
                # The tensors drawn for it stay unread, and are left out in the end.
                del builder.nodes[before:]
        made = builder.case()
        if made.nodes and made.inputs:
            return made
