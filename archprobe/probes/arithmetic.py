"""Multiply-add kernels that several probes share: chains that no compiler can shorten, since their factors come at run time."""

from __future__ import annotations

import numpy as np

from archprobe.bench import Bench, Run
from archprobe.devices.base import defines

# Independent values that a work-item keeps in flight; enough to hide the latency of a multiply-add.
LANES = 16
_UNROLL = 8

# T is the scalar type, V the vector. Every value depends on its last one alone, and each component starts from a number of its own, or
# the compiler would see that all are one.
_SOURCE = """
#ifdef USES_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
__kernel void multiply_add(int n, __global float *out, float factor, float term) {
  const FACTOR a = (FACTOR)((T)(factor));
  const V b = (V)((T)(term));
  V x[CHAINS];
  V lanes;
  FILL_LANES
  for (int i = 0; i < CHAINS; ++i) x[i] = lanes + (V)((T)(get_local_id(0) + i));
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      #pragma unroll
      for (int i = 0; i < CHAINS; ++i) x[i] = MULTIPLY_ADD;
    }
  }
  V sum = x[0];
  for (int i = 1; i < CHAINS; ++i) sum += x[i];
  /* Never true, which only the run shows: nothing is written, and nothing can be removed. */
  if (TOTAL(sum) == (T)(12345)) out[0] = 1;
}
"""


def vector(base: str, components: int) -> str:
    return base if components == 1 else f"{base}{components}"


def multiply_add(
    bench: Bench, *, base: str = "float", components: int = 1, groups: int, group_size: int, is_broadcast: bool = False, is_fused: bool = True
) -> tuple[Run, float]:
    """Return a run of multiply-add chains, and the operations (2 for each multiply-add) of one iteration over all work-items.

    With `is_broadcast` the factor is one scalar for all components, else a vector (paper, section 4.1). A product of scalar and vector cannot be written
    as fma, so without `is_fused` the compiler fuses.
    """
    chains = max(1, LANES // components)
    macros = {
        "T": base,
        "V": vector(base, components),
        "CHAINS": chains,
        "UNROLL": _UNROLL,
        "MULTIPLY_ADD": "fma(x[i], a, b)" if is_fused else "x[i] * a + b",
        "FILL_LANES": " ".join(f"lanes{'' if components == 1 else bench.device.lane(lane)} = (T)({lane}.5f);" for lane in range(components)),
        "FACTOR": base if is_broadcast else vector(base, components),
        # All components: those that nobody reads would not be computed.
        "TOTAL(v)": "v" if components == 1 else " + ".join(f"(v){bench.device.lane(lane)}" for lane in range(components)),
    }
    source = defines(macros) + _SOURCE
    if base == "half":
        source = "#define USES_HALF\n" + source
    kernel = bench.device.kernel(source, "multiply_add")
    out = bench.device.buffer(64)
    factor, term = np.float32(0.999), np.float32(1e-3)

    def run(iterations: int) -> float:
        return bench.device.launch(kernel, groups * group_size, group_size, np.int32(iterations), out, factor, term)

    return run, 2.0 * groups * group_size * chains * components * _UNROLL


def full_grid(bench: Bench, group_size: int = 256) -> tuple[int, int]:
    """Return (groups, group size) that fill every unit several times over."""
    facts = bench.device.facts
    size = min(group_size, facts.max_work_group_size)
    return (facts.units * 4, min(size, 64)) if facts.is_cpu else (facts.units * 32, size)
