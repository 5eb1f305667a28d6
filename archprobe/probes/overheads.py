"""The cost of a kernel launch and of a barrier."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.bandwidth import rate
from archprobe.curve import Curve, Findings
from archprobe.meter import Meter, Run, powers
from archprobe.probes.probe import probe

_NOTHING = "__kernel void nothing(__global int *out) { if (out[0] != 0) out[1] = 1; }"
_BATCH = 200


@probe(
    aspect="LaunchOverhead",
    title="Cost of a launch",
    method=(
        "an empty kernel: its time by the device's clock, from launch to launch in a batch of 200, and from call to"
        " result"
    ),
)
def launch(meter: Meter) -> Findings:
    device = meter.device
    kernel = device.kernel(_NOTHING, "nothing")
    out = device.buffer(64)
    on_device = [device.launch(kernel, 1, 1, out) * 1e6 for _ in range(100)][20:]
    kernel_time = rate(np.array(on_device), "us", tolerance=0.25)
    if device.facts.is_remote:
        far = declined("us", "not applicable: from here, the time of the network would be measured")
        return Findings(answers={"KernelTime": kernel_time, "LaunchTime": far, "RoundTripTime": far})
    round_trips, streams = [], []
    for _ in range(15 if meter.is_quick else 40):
        start = time.perf_counter()
        device.enqueue(kernel, 1, 1, out)
        device.finish()
        round_trips.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        for _ in range(_BATCH):
            device.enqueue(kernel, 1, 1, out)
        device.finish()
        streams.append((time.perf_counter() - start) * 1e6 / _BATCH)
    curve = Curve(
        name="launch", x_label="repeat", y_label="time of a launch (us)", x=tuple(range(len(streams))), y=tuple(streams)
    )
    answers = {
        "KernelTime": kernel_time,
        "LaunchTime": rate(np.array(streams), "us", tolerance=0.25),
        "RoundTripTime": rate(np.array(round_trips), "us", tolerance=0.25),
    }
    return Findings(answers=answers, curves=(curve,))


# Without the barrier, only the multiplications remain: the difference is the cost of the barrier.
_WAIT = """
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


@probe("Barrier", "Cost of a barrier", "one group, a loop with and without a barrier in it, over the size of the group")
def barrier(meter: Meter) -> Findings:
    device = meter.device
    out = device.buffer(64)
    sizes = powers(1, device.facts.max_work_group_size)
    kernels = {True: device.kernel(_WAIT, "wait", WAITS=1), False: device.kernel(_WAIT, "wait")}

    def maker(waits: bool) -> Callable[[int], Run]:
        return lambda size: lambda n: device.launch(kernels[waits], size, size, np.int32(n), out, np.float32(0.5))

    label = "work-items in a group"
    curves = [
        meter.part(0.5 * i, 0.5 * i + 0.5).sweep(
            f"{'with' if waits else 'without'} barrier", sizes, maker(waits), x_label=label, is_log_x=True
        )
        for i, waits in enumerate((True, False))
    ]
    cost = curves[0].ys - curves[1].ys
    error = 3 * max(c.spread for c in curves) * curves[0].ys
    answers = {}
    for size in (64, 256, sizes[-1]):
        if size in sizes:
            i = sizes.index(size)
            answers[f"BarrierTime{size}"] = difference(float(cost[i]), float(error[i]), size)
    return Findings(answers=answers, curves=tuple(curves))


def difference(cost_ns: float, error_ns: float, size: int) -> Answer:
    """Return the time of a barrier: the loop's time with barriers less the time without.

    The answer is declined if the loop is faster with barriers by more than its error, which a busy machine or the
    compiler causes.
    """
    reason = f"with barriers less without, in one group of {size}"
    if cost_ns + error_ns <= 0:
        return declined("ns", f"{reason}: {cost_ns:.3g} ns, so something else than the barrier was measured")
    value = max(cost_ns, 0.0)
    return answered(value, "ns", 0.9, reason, low=max(0.0, cost_ns - error_ns), high=max(cost_ns + error_ns, value))
