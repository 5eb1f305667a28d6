"""Warp size, method B: many groups of 1, 2, 3, ... work-items that divide; time steps up with every further warp (paper, figure 7)."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.warp import warp_by_time
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.probe import Probe

# Division keeps a core busy without memory; its result feeds the next one.
_SOURCE = """
__kernel void divide(int n, __global float *out, float c) {
  float x = 1.5f + get_local_id(0), y = 2.5f + get_local_id(0);
  for (int k = 0; k < n; ++k) { x = c / x; y = c / y; }
  if (x + y == 12345.0f) out[0] = x;
}
"""


def measure(bench: Bench) -> Findings:
    facts = bench.device.facts
    kernel, out = bench.device.kernel(_SOURCE, "divide"), bench.device.buffer(64)
    groups = facts.units * 256
    make = lambda size: lambda n: bench.device.launch(kernel, groups * size, size, np.int32(n), out, np.float32(3.0))
    most = min(160 if bench.is_quick else 272, facts.max_work_group_size)
    curve = bench.sweep("warp by time", range(1, most + 1), make, x_label="work-items in a group")
    answers = {"WarpThreadCount": warp_by_time(curve.xs, curve.ys)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


PROBE = Probe(
    name="warp_time",
    aspect="WarpSizeMethodB",
    title="Warp size by time",
    method="many groups of n work-items that divide; the period of the stairs in time over n (paper, section 3.1, figure 7)",
    measure=measure,
    not_on_cpu="a CPU runs the work-items of a group one after another or in vectors that the compiler chose; there is no warp",
)
