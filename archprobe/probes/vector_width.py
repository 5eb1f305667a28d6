"""The best width of a load from a buffer: the least time for each word."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.throughput import vector_width
from archprobe.bench import Bench, Run
from archprobe.curve import Findings
from archprobe.devices.base import defines
from archprobe.probes.arithmetic import full_grid
from archprobe.probes.probe import Probe

_SOURCE = """
__kernel void load(int n, __global float *out, __global const V *src, uint mask, uint step) {
  uint at = get_global_id(0);
  V sum = (V)(0.0f);
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < 8; ++u) { sum += src[at & mask]; at += step; }
  }
  if (TOTAL == 12345.0f) out[0] = 1;
}
"""
# Fits the first cache of nearly every device: the load itself is to be seen, not memory.
_RANGE_BYTES = 16384


def measure(bench: Bench) -> Findings:
    device = bench.device
    groups, size = full_grid(bench)
    source, out = device.buffer(np.zeros(_RANGE_BYTES // 4, np.float32)), device.buffer(64)

    def make(width: int) -> Run:
        total = " + ".join(f"sum{device.lane(i)}" for i in range(width))
        vector = {"V": "float", "TOTAL": "sum"} if width == 1 else {"V": f"float{width}", "TOTAL": total}
        kernel = device.kernel(defines(vector) + _SOURCE, "load")
        mask = np.uint32(_RANGE_BYTES // 4 // width - 1)
        return lambda n: device.launch(kernel, groups * size, size, np.int32(n), out, source, mask, np.uint32(size))

    label = "time of 8 loads by all work-items (ns)"
    widths = [width for width in (1, 2, 4, 8, 16) if width <= device.widest]
    curve = bench.sweep("vector loads", widths, make, x_label="32-bit words of a load", y_label=label, is_log_x=True)
    answers = {"BufferVecSize": vector_width(curve.xs, curve.ys, noise=max(curve.spread, 0.002), repeats=curve.repeats)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


PROBE = Probe(
    name="vector_width",
    aspect="BufferVecWidth",
    title="Best vector width of a load",
    method="loads of 1 to 16 words from 16 KB; the narrowest whose time for a word is near the least",
    measure=measure,
)
