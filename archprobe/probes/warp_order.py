"""Warp size, method A: the order in which work-items draw from an atomic counter (paper, Listing 3 and figure 8)."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.warp import warp_by_order
from archprobe.bench import Bench
from archprobe.curve import Curve, Findings
from archprobe.probes.probe import Probe

# Every work-item first waits for a word of memory that is zero. So warps come to the counter in no fixed order, and the lanes of a warp still come
# together.
_SOURCE = """
__kernel void draw(__global const int *zeros, __global int *order, int mask) {
  __local int counter;
  const int i = get_local_id(0), size = get_local_size(0), group = get_group_id(0);
  if (i == 0) counter = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  int delay = 0;
  for (int k = 0; k < 4; ++k) delay = zeros[(i * 97 + group * 7919 + k * 3571 + delay) & mask];
  order[group * size + i] = atomic_add(&counter, 1 + delay);
}
"""
_GROUPS = 64


def measure(bench: Bench) -> Findings:
    device = bench.device
    size = min(512, device.facts.max_work_group_size)
    words = 2**22
    zeros, order = device.buffer(4 * words), device.buffer(4 * size * _GROUPS)
    device.launch(device.kernel(_SOURCE, "draw"), size * _GROUPS, size, zeros, order, np.int32(words - 1))
    ranks = device.read(order, np.zeros((_GROUPS, size), np.int32))
    answers = {"WarpThreadCount": warp_by_order(ranks)}
    curve = Curve(name="order of drawing", x_label="work-item", y_label="rank", x=tuple(range(size)), y=tuple(ranks[0].tolist()))
    return Findings(answers=answers, curves=(curve,))


PROBE = Probe(
    name="warp_order",
    aspect="WarpSizeMethodA",
    title="Warp size by order",
    method="the ranks that work-items draw from an atomic counter run on inside a warp and break between warps (paper, Listing 3)",
    measure=measure,
    not_on_cpu="a CPU runs the work-items of a group one after another; ranks follow that loop, not a warp",
)
