"""Warp size by divergence: neighbouring blocks of work-items take different branches, which costs both where they share a warp."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.warp import warp_by_divergence
from archprobe.bench import Bench, powers
from archprobe.curve import Findings
from archprobe.probes.probe import Probe

# The branches work on different types, lest the compiler merge them into one with selected operands.
_SOURCE = """
__kernel void diverge(int n, __global float *out, float c, int block) {
  float x = 1.5f + get_local_id(0);
  int y = 3 + get_local_id(0);
  if ((get_local_id(0) / block & 1) == 1) {
    for (int k = 0; k < n; ++k) { x = c / x; x = x * c + 1.0f; }
  } else {
    for (int k = 0; k < n; ++k) { y = y * 1664525 + 1013904223; y ^= y >> 7; y = y * 22695477 + block; y ^= y >> 9; y = y * 69069 + 1; y ^= y << 3; }
  }
  if (x + y == 12345.0f) out[0] = x;
}
"""


def measure(bench: Bench) -> Findings:
    facts = bench.device.facts
    size = min(512, facts.max_work_group_size)
    kernel, out = bench.device.kernel(_SOURCE, "diverge"), bench.device.buffer(64)
    groups = facts.units
    make = lambda block: lambda n: bench.device.launch(kernel, groups * size, size, np.int32(n), out, np.float32(3.0), np.int32(block))
    curve = bench.sweep("divergence", powers(1, size // 2), make, x_label="work-items in a block", is_log_x=True)
    answers = {"WarpThreadCount": warp_by_divergence(curve.xs, curve.ys, repeats=curve.repeats)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


PROBE = Probe(
    name="warp_divergence",
    aspect="WarpDivergence",
    title="Warp size by divergence",
    method="blocks of n work-items take two branches alternately: both are paid for until a block fills a warp",
    measure=measure,
    not_on_cpu="a CPU's work-items branch one by one; there is no warp that runs both sides",
)
