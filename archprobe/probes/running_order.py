"""The number of concurrent work-items of a core, by their order at an atomic counter (paper, Listing 3)."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import declined
from archprobe.analysis.warp import parallel_work_items
from archprobe.curve import Curve, Findings
from archprobe.meter import Meter
from archprobe.probes.probe import probe

_ORDER = """
__kernel void order(__global int *ranks) {
  __local int counter;
  if (get_local_id(0) == 0) counter = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  ranks[get_local_id(0)] = atomic_add(&counter, 1);
}
"""
_RUNS, _QUICK_RUNS = 32, 8


@probe(
    aspect="RunningOrder",
    title="Work-items of a core that run at once",
    method=(
        "the ranks that the work-items of one group draw from a counter: warps whose ranks alternate run in parallel"
        " (paper, Listing 3)"
    ),
    not_on_cpu="a CPU runs the work-items of a group one after another",
)
def running_order(meter: Meter) -> Findings:
    device = meter.device
    size = device.facts.max_work_group_size
    kernel, out = device.kernel(_ORDER, "order"), device.buffer(4 * size)
    runs = []
    for _ in range(_QUICK_RUNS if meter.is_quick else _RUNS):
        device.launch(kernel, size, size, out)
        runs.append(device.read(out, np.zeros(size, np.int32)))
    warp = meter.number("WarpSizeMethodA.WarpThreadCount") or meter.number("WarpSizeMethodB.WarpThreadCount")
    if warp is None:
        answer = declined("work-items", "needs the size of a warp")
    else:
        answer = parallel_work_items(np.array(runs), round(warp))
    curve = Curve(
        name="running order",
        x_label="work-item",
        y_label="rank",
        x=tuple(range(size)),
        y=tuple(runs[0].tolist()),
    )
    return Findings(answers={"ParallelWorkItems": answer}, curves=(curve,))
