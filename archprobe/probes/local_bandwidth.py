"""Bandwidth of local memory."""

from __future__ import annotations

from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes import streams
from archprobe.probes.probe import Probe

PROBE = Probe(
    name="local_bandwidth",
    aspect="LocalMemBandwidth",
    title="Bandwidth of local memory",
    method="all work-items read vectors of 16 bytes from 16 KB of their group's local memory, over growing ranges (paper, section 3.1)",
    measure=lambda bench: measure(bench),
)


def measure(bench: Bench) -> Findings:
    return streams.measure(bench, "local", 16384)
