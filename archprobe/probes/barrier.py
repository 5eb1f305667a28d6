"""What a barrier costs a work-group, over the size of the group."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from archprobe.analysis.answer import answered
from archprobe.bench import Bench, Run, powers
from archprobe.curve import Findings
from archprobe.probes.probe import Probe

# Without the barrier, the multiplications alone: the difference is the barrier.
_SOURCE = """
__kernel void wait(int n, __global float *out, float c) {
  float x = get_local_id(0);
  for (int k = 0; k < n; ++k) {
    x = x * c + 1.0f;
#ifdef WAITS
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
  }
  if (x == 12345.0f) out[0] = x;
}
"""


def measure(bench: Bench) -> Findings:
    device = bench.device
    out = device.buffer(64)
    sizes = powers(1, device.facts.max_work_group_size)
    kernels = {True: device.kernel(_SOURCE, "wait", WAITS=1), False: device.kernel(_SOURCE, "wait")}

    def maker(waits: bool) -> Callable[[int], Run]:
        return lambda size: lambda n: device.launch(kernels[waits], size, size, np.int32(n), out, np.float32(0.5))

    label = "work-items in a group"
    curves = [
        bench.sweep(f"{'with' if waits else 'without'} barrier", sizes, maker(waits), x_label=label, is_log_x=True, share=(0.5 * i, 0.5 * i + 0.5))
        for i, waits in enumerate((True, False))
    ]
    cost = curves[0].ys - curves[1].ys
    error = 3 * max(c.spread for c in curves) * curves[0].ys
    answers = {}
    for size in (64, 256, sizes[-1]):
        if size in sizes:
            i = sizes.index(size)
            value = float(max(cost[i], 0.0))
            low, high = max(0.0, float(cost[i] - error[i])), float(cost[i] + error[i])
            answers[f"BarrierTime{size}"] = answered(value, "ns", 0.9, f"with barriers less without, in one group of {size}", low=low, high=high)
    return Findings(answers=answers, curves=tuple(curves))


PROBE = Probe(
    name="barrier",
    aspect="Barrier",
    title="Cost of a barrier",
    method="one group, a loop with and without a barrier in it, over the size of the group",
    measure=measure,
)
