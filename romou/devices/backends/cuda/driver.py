"""NVIDIA's driver through cuda-bindings."""

from __future__ import annotations

from typing import Any

from romou.base.errors import DeviceError


def cuda_driver() -> Any:
    """Return the module `cuda.bindings.driver`. DeviceError if it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "a CUDA graph takes the Python package cuda-bindings, which is not installed",
            hint="pip install 'romou[cuda]'",
        ) from error
    return driver


def value(cuda: Any, answer: tuple[Any, ...]) -> Any:
    """Return the result of a call of NVIDIA's driver without its status. DeviceError if the call failed."""
    status, *values = answer
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"NVIDIA's driver failed: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values)
