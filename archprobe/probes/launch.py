"""What an empty kernel costs: on the device, and on the host from call to call and from call to result."""

from __future__ import annotations

import time

import numpy as np

from archprobe.analysis.answer import declined
from archprobe.analysis.bandwidth import rate
from archprobe.bench import Bench
from archprobe.curve import Curve, Findings
from archprobe.probes.probe import Probe

_SOURCE = "__kernel void nothing(__global int *out) { if (out[0] != 0) out[1] = 1; }"
_BATCH = 200


def measure(bench: Bench) -> Findings:
    device = bench.device
    kernel = device.kernel(_SOURCE, "nothing")
    out = device.buffer(64)
    on_device = [device.launch(kernel, 1, 1, out) * 1e6 for _ in range(100)][20:]
    kernel_time = rate(np.array(on_device), "us", tolerance=0.25)
    if device.facts.is_remote:
        far = declined("us", "not applicable: from here, the time of the network would be measured")
        return Findings(answers={"KernelTime": kernel_time, "LaunchTime": far, "RoundTripTime": far})
    round_trips, streams = [], []
    for _ in range(15 if bench.is_quick else 40):
        start = time.perf_counter()
        device.enqueue(kernel, 1, 1, out)
        device.finish()
        round_trips.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        for _ in range(_BATCH):
            device.enqueue(kernel, 1, 1, out)
        device.finish()
        streams.append((time.perf_counter() - start) * 1e6 / _BATCH)
    curve = Curve(name="launch", x_label="repeat", y_label="time of a launch (us)", x=tuple(range(len(streams))), y=tuple(streams))
    answers = {
        "KernelTime": kernel_time,
        "LaunchTime": rate(np.array(streams), "us", tolerance=0.25),
        "RoundTripTime": rate(np.array(round_trips), "us", tolerance=0.25),
    }
    return Findings(answers=answers, curves=(curve,))


PROBE = Probe(
    name="launch",
    aspect="LaunchOverhead",
    title="Cost of a launch",
    method="an empty kernel: its time by the device's clock, from launch to launch in a batch of 200, and from call to result",
    measure=measure,
)
