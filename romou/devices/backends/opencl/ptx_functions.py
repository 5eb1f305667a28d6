"""PTX in OpenCL C, which NVIDIA's compiler takes (`backends/ptx.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from romou.devices.backends.ptx import needed, ptx_functions

_INLINE = "static inline __attribute__((always_inline)) "
_WORDS = {
    "INLINE": _INLINE,
    "LOCAL": "__local ",
    "GLOBAL": "__global ",
    "LOCAL_ADDRESS": "(uint)(size_t)",
    "TEXEL": "ulong ",
    "FLOATS": "(float4)",
    "BITS_OF": "as_uint",
    "FLOAT_OF": "as_float",
}
_OF_OVERLAPPED_LAUNCHES = "wait_for_kernels_before", "start_kernels_behind"
_FUNCTIONS = {
    **ptx_functions(_WORDS),
    # Kernels of a queue run one after another.
    **{name: f"{_INLINE}int {name}() {{ return 0; }}\n" for name in _OF_OVERLAPPED_LAUNCHES},
}


def definitions(texts: Sequence[str]) -> str:
    """Return the functions in front of kernels that call them. "" if none does."""
    return needed(_FUNCTIONS, "".join(texts))
