"""Knobs of many configs as columns, and functions of a few knobs computed once for each combination of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def columns_of(configs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return configs as columns of knobs, one row a config."""
    return {name: np.asarray([config[name] for config in configs]) for name in (configs[0] if configs else ())}


def tabulate(function: Callable[..., int], *columns: Any) -> np.ndarray:
    """Return `function` of each distinct combination of the columns' values, put where the combination stands."""
    found, places = combinations(*columns)
    results: np.ndarray = np.asarray([function(*values) for values in found], dtype=np.int64)[places]
    return results


def combinations(*columns: Any) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """Return the distinct combinations of the columns' values, and which of them stands where."""
    values, key = [], np.asarray(0)
    for column in columns:
        distinct, codes = np.unique(np.asarray(column), return_inverse=True)
        values.append(distinct)
        key = key * len(distinct) + codes.reshape(np.shape(column))
    keys, places = np.unique(key, return_inverse=True)
    rows = np.unravel_index(keys, [len(v) for v in values])
    return list(zip(*(v[row].tolist() for v, row in zip(values, rows, strict=True)), strict=True)), places.reshape(np.shape(key))
