"""Bandwidth of buffers at each level of the hierarchy, to DRAM, and of a plain copy."""

from __future__ import annotations

import dataclasses

import numpy as np

from archprobe.analysis.answer import Answer
from archprobe.analysis.bandwidth import rate
from archprobe.bench import Bench, powers
from archprobe.curve import Findings
from archprobe.probes import streams
from archprobe.probes.probe import Probe

_COPY = """
__kernel void copy(int n, __global float4 *to, __global const float4 *from, uint count) {
  for (int k = 0; k < n; ++k)
    for (uint i = get_global_id(0); i < count; i += get_global_size(0)) to[i] = from[i];
}
"""


def measure(bench: Bench) -> Findings:
    facts = bench.device.facts
    most = powers(1, min((64 if facts.is_cpu else 512 if bench.is_quick else 1024) * 2**20, facts.max_buffer_bytes, facts.global_mem_bytes // 8))[-1]
    found = streams.measure(bench, "buffer", most, ("BufferCacheHierarchyPChase", "CacheVectorCountLv"))
    return dataclasses.replace(found, answers={**found.answers, "CopyBandwidth": _copy(bench, most)})


def _copy(bench: Bench, size: int) -> Answer:
    """Bytes read plus bytes written, in GB/s, of one buffer copied to another."""
    device = bench.device
    kernel = device.kernel(_COPY, "copy")
    to, source = device.buffer(size), device.buffer(size)
    local = min(256, device.facts.max_work_group_size)
    groups = device.facts.compute_units * (4 if device.facts.is_cpu else 64)
    run = lambda n: device.launch(kernel, groups * local, local, np.int32(n), to, source, np.uint32(size // 16))
    seconds, _ = bench.rate(run, start=1)
    return rate(2 * size / seconds * 1e-9, "GB/s")


PROBE = Probe(
    name="buffer_bandwidth",
    aspect="BufferBandwidth",
    title="Bandwidth of buffers",
    method="all work-items read vectors of 16 bytes over growing ranges; stretches of even bandwidth are levels (paper, section 3.1)",
    measure=measure,
)
