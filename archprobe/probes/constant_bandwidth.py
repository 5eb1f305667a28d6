"""Bandwidth of constant memory."""

from __future__ import annotations

from archprobe.bench import Bench, powers
from archprobe.curve import Findings
from archprobe.probes import streams
from archprobe.probes.probe import Probe


def measure(bench: Bench) -> Findings:
    return streams.measure(bench, "constant", powers(1, min(bench.device.facts.constant_bytes, 2**16))[-1])


PROBE = Probe(
    name="constant_bandwidth",
    aspect="ConstMemBandwidth",
    title="Bandwidth of constant memory",
    method="neighbouring work-items read neighbouring vectors of 16 bytes of constant memory, over growing ranges (paper, section 3.1)",
    measure=measure,
    is_for_opencl=True,
)
