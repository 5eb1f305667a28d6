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
    megabytes = (16 if bench.is_quick else 64) if facts.is_cpu else 4096
    most = powers(1, min(megabytes * 2**20, facts.max_buffer_bytes, facts.global_mem_bytes // 8))[-1]
    found = streams.measure(bench, "buffer", most, ("BufferCacheHierarchyPChase", "CacheVectorCountLv"))
    copies = _copies(bench, min(most, 2**30))
    return dataclasses.replace(found, answers={**found.answers, **copies})


def _copies(bench: Bench, size: int) -> dict[str, Answer]:
    """Time copies of one large buffer, by a kernel and by the driver's own command: bytes read plus bytes written, in GB/s."""
    device = bench.device
    kernel = device.kernel(_COPY, "copy")
    to, source = device.buffer(size), device.buffer(size)
    local = min(256, device.facts.max_work_group_size)
    groups = device.facts.units * (4 if device.facts.is_cpu else 64)

    by_driver = lambda times: sum(device.copy(to, source, size) for _ in range(times))
    by_kernel = lambda n: device.launch(kernel, groups * local, local, np.int32(n), to, source, np.uint32(size // 16))
    ways = {"DramBandwidth": by_kernel, "CopyBandwidth": by_driver}
    return {key: rate(2 * size / bench.rate(run, start=1)[0] * 1e-9, "GB/s") for key, run in ways.items()}


PROBE = Probe(
    name="buffer_bandwidth",
    aspect="BufferBandwidth",
    title="Bandwidth of buffers",
    method="all work-items read vectors of 16 bytes over growing ranges; stretches of even bandwidth are levels (paper, section 3.1)",
    measure=measure,
)
