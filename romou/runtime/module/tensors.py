"""Tensors on a device."""

from __future__ import annotations

from typing import Any

import numpy as np


def device_tensor(array: np.ndarray, device: Any, scope: str) -> Any:
    """Copy `array` to a device, into a memory scope: "global" for a buffer, a texture scope for an image."""
    import tvm

    if scope == "global":
        return tvm.runtime.tensor(array, device)
    return tvm.runtime.empty(array.shape, str(array.dtype), device, mem_scope=scope).copyfrom(array)
