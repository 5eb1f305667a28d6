"""PTX in OpenCL C, which NVIDIA's compiler takes (`backends/ptx.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from romou.devices.backends.ptx import needed, ptx_functions

_FUNCTION = "static inline __attribute__((always_inline)) int "
_FUNCTIONS = {
    **ptx_functions(
        {"FUNCTION": _FUNCTION, "LOCAL": "__local ", "GLOBAL": "__global ", "LOCAL_ADDRESS": "(uint)(size_t)"}
    ),
    # Kernels of a queue run one after another.
    **{name: f"{_FUNCTION}{name}() {{ return 0; }}\n" for name in ("wait_for_kernels_before", "start_kernels_behind")},
}


def definitions(texts: Sequence[str]) -> str:
    """Return the functions in front of kernels that call them. "" if none does."""
    return needed(_FUNCTIONS, "".join(texts))
