"""Functions that stand before the kernels that call them, one for each number of lanes."""

from __future__ import annotations

import re

# Eigen's rational function of the error function: within 8 units in the last place, of the 16 that OpenCL allows.
_ERF = """TYPE erf_TYPE(TYPE x) {
  TYPE c = clamp(x, -3.925f, 3.925f), s = c * c;
  TYPE p = ((s * -2.7261423e-10f + 2.7706814e-08f) * s - 2.1010240e-06f) * s - 5.6925064e-05f;
  TYPE q = ((s * -1.4566072e-05f - 2.1337406e-04f) * s - 1.6828270e-03f) * s - 7.3733293e-03f;
  p = ((p * s - 7.3499063e-04f) * s - 2.9545998e-03f) * s - 1.6096033e-02f;
  q = q * s - 1.4264739e-02f;
  return select(clamp(c * p / q, -1.0f, 1.0f), x, isnan(x));
}
"""
_CALLED = re.compile(r"\berf_(float\d*)\(")


def erf_name(lanes: int) -> str:
    """Name of the function for vectors of so many lanes."""
    return f"erf_float{lanes if lanes > 1 else ''}"


def definitions(texts: list[str]) -> str:
    """Return the definitions of the functions that kernels call."""
    return "".join(_ERF.replace("TYPE", name) for name in sorted({name for text in texts for name in _CALLED.findall(text)}))
