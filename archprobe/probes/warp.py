"""The warp size in three ways.

They are the order of an atomic counter, the time of growing work-groups, and the cost of divergence.
"""

from __future__ import annotations

import numpy as np

from archprobe.analysis.warp import warp_by_divergence, warp_by_order, warp_by_time
from archprobe.curve import Curve, Findings
from archprobe.meter import Meter, powers
from archprobe.probes.probe import probe

# Division keeps a core busy without memory. Its result feeds the next one.
_DIVIDE = """
__kernel void divide(int n, __global float *out, float c) {
  float x = 1.5f + get_local_id(0), y = 2.5f + get_local_id(0);
  for (int k = 0; k < n; ++k) { x = c / x; y = c / y; }
  if (x + y == 12345.0f) out[0] = x;
}
"""
# Every work-item first waits for a word of memory that is zero. So warps reach the counter in no fixed order, while the
# lanes of a warp still reach it together.
_DRAW = """
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
_DRAW_GROUPS = 64
# The branches work on different types, so that the compiler cannot merge them into one with selected operands.
_DIVERGE = """
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
"""  # noqa: E501


@probe(
    aspect="WarpSizeMethodB",
    title="Warp size by time",
    method=(
        "many groups of n work-items that divide; the period of the stairs in time over n (paper, section 3.1,"
        " figure 7)"
    ),
    not_on_cpu=(
        "a CPU runs the work-items of a group one after another or in vectors that the compiler chose; there is no warp"
    ),
)
def warp_time(meter: Meter) -> Findings:
    facts = meter.device.facts
    kernel, out = meter.device.kernel(_DIVIDE, "divide"), meter.device.buffer(64)
    groups = facts.units * 256
    make = lambda size: lambda n: meter.device.launch(kernel, groups * size, size, np.int32(n), out, np.float32(3.0))
    most = min(160 if meter.is_quick else 272, facts.max_work_group_size)
    curve = meter.sweep("warp by time", range(1, most + 1), make, x_label="work-items in a group")
    answers = {"WarpThreadCount": warp_by_time(curve.xs, curve.ys)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


@probe(
    aspect="WarpSizeMethodA",
    title="Warp size by order",
    method=(
        "the ranks that work-items draw from an atomic counter run on inside a warp and break between warps (paper,"
        " Listing 3)"
    ),
    not_on_cpu="a CPU runs the work-items of a group one after another; ranks follow that loop, not a warp",
)
def warp_order(meter: Meter) -> Findings:
    device = meter.device
    size = min(512, device.facts.max_work_group_size)
    words = 2**22
    zeros, order = device.buffer(4 * words), device.buffer(4 * size * _DRAW_GROUPS)
    device.launch(device.kernel(_DRAW, "draw"), size * _DRAW_GROUPS, size, zeros, order, np.int32(words - 1))
    ranks = device.read(order, np.zeros((_DRAW_GROUPS, size), np.int32))
    answers = {"WarpThreadCount": warp_by_order(ranks)}
    curve = Curve(
        name="order of drawing", x_label="work-item", y_label="rank", x=tuple(range(size)), y=tuple(ranks[0].tolist())
    )
    return Findings(answers=answers, curves=(curve,))


@probe(
    aspect="WarpDivergence",
    title="Warp size by divergence",
    method="blocks of n work-items take two branches alternately: both are paid for until a block fills a warp",
    not_on_cpu="a CPU's work-items branch one by one; there is no warp that runs both sides",
)
def warp_divergence(meter: Meter) -> Findings:
    facts = meter.device.facts
    size = min(512, facts.max_work_group_size)
    kernel, out = meter.device.kernel(_DIVERGE, "diverge"), meter.device.buffer(64)
    make = lambda block: (
        lambda n: meter.device.launch(
            kernel, facts.units * size, size, np.int32(n), out, np.float32(3.0), np.int32(block)
        )
    )
    curve = meter.sweep("divergence", powers(1, size // 2), make, x_label="work-items in a block", is_log_x=True)
    answers = {"WarpThreadCount": warp_by_divergence(curve.xs, curve.ys, repeats=curve.repeats)}
    return Findings(answers=answers, curves=(curve.marked(answers),))
