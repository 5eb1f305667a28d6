"""Element types of at most 8 bits, and bfloat16, that kernels store as integers.

    float8_e4m3fn, ..., float4_e2m1fn      ->      uint8, the bits
    bfloat16                               ->      uint16, the bits
    int4, int2, uint4, uint2               ->      int8, uint8, the values

TVM packs numbers of four bits, and no device language has these types.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_BITS = {
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn": "uint8",
    "bfloat16": "uint16",
}
_VALUES = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}
# Name of a short type in NumPy -> type of its tensors on a device.
STORAGE = {**_BITS, **_VALUES}


def stored(array: np.ndarray) -> np.ndarray:
    """Return an array as a device holds it. Other types stay as they are."""
    if array.dtype.name in _BITS:
        return array.view(_BITS[array.dtype.name])
    return array.astype(_VALUES[array.dtype.name]) if array.dtype.name in _VALUES else array


def restored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array of a device as numbers of `dtype`, the inverse of `stored`."""
    if dtype in _BITS:
        return array.view(getattr(ml_dtypes, dtype))
    return array.astype(getattr(ml_dtypes, dtype)) if dtype in _VALUES else array


def info_of(dtype: str) -> Any:
    """Return the limits of a type, short or not: what `numpy.finfo` or `numpy.iinfo` returns for NumPy's own."""
    find: Any = ml_dtypes.finfo if "float" in dtype else ml_dtypes.iinfo
    return find(getattr(ml_dtypes, dtype, dtype))
