"""Sustained against burst speed: the rate of one arithmetic kernel that runs over and over."""

from __future__ import annotations

import time

from archprobe.analysis.throughput import sustained
from archprobe.bench import Bench
from archprobe.curve import Curve, Findings
from archprobe.probes.arithmetic import full_grid, multiply_add
from archprobe.probes.probe import Probe


def measure(bench: Bench) -> Findings:
    groups, size = full_grid(bench)
    run, operations = multiply_add(bench, groups=groups, group_size=size)
    iterations = bench.calibrate(run, least_s=0.02)
    span = 2.0 if bench.is_quick else 20.0
    start = time.monotonic()
    seconds: list[float] = []
    rates: list[float] = []
    while (now := time.monotonic() - start) < span or len(rates) < 12:
        rates.append(operations * iterations / run(iterations) * 1e-9)
        seconds.append(now)
        bench.on_progress(min(1.0, now / span))
    curve = Curve(name="sustained", x_label="time since the start (s)", y_label="GFLOPS", x=tuple(seconds), y=tuple(rates))
    rate, ratio = sustained(curve.xs, curve.ys)
    return Findings(answers={"SustainedGflops": rate, "SustainedOverBurst": ratio}, curves=(curve,))


PROBE = Probe(
    name="throttling",
    aspect="Throttling",
    title="Sustained against burst speed",
    method="multiply-adds on all cores for 20 seconds (2 in a quick run); the last quarter's rate against the first's",
    measure=measure,
)
