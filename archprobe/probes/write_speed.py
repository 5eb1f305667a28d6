"""Writes to an image against writes to a buffer, of the same bytes."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import Answer, declined, ratio
from archprobe.analysis.bandwidth import rate
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.probe import Probe

_SOURCE = """
__kernel void to_buffer(int n, __global float4 *out, int width) {
  const int i = get_global_id(0);
  for (int k = 0; k < n; ++k) out[i] = FLOAT4(i, k, n, 1);
}
#ifdef HAS_IMAGES
__kernel void to_image(int n, __write_only image2d_t out, int width) {
  const int i = get_global_id(0);
  for (int k = 0; k < n; ++k) write_imagef(out, (int2)(i % width, i / width), FLOAT4(i, k, n, 1));
}
#endif
"""


def measure(bench: Bench) -> Findings:
    facts = bench.device.facts
    width = 1024 if facts.is_cpu else 4096
    size = width * width
    answers: dict[str, Answer] = {"BufferWriteBandwidth": _speed(bench, "to_buffer", bench.device.buffer(16 * size), width)}
    if not facts.has_images:
        answers["ImageWriteBandwidth"] = declined("GB/s", "no images that the probe could write")
    else:
        target = bench.device.image(np.zeros((width, width, 4), np.float32), is_written=True)
        answers["ImageWriteBandwidth"] = _speed(bench, "to_image", target, width, HAS_IMAGES=1)
    image, buffer = answers["ImageWriteBandwidth"], answers["BufferWriteBandwidth"]
    answers["ImageOverBuffer"] = ratio(image, buffer, "ratio", 0.9, "bandwidth of image writes over buffer writes")
    return Findings(answers=answers)


def _speed(bench: Bench, name: str, target: object, width: int, **macros: int) -> Answer:
    """Measure one way to write. Every run writes each element once, because the cache would absorb a loop over one place."""
    kernel = bench.device.kernel(_SOURCE, name, **macros)
    size = min(256, bench.device.facts.max_work_group_size)

    def run(times: int) -> float:
        return sum(bench.device.launch(kernel, width * width, size, np.int32(1), target, np.int32(width)) for _ in range(times))

    seconds, _ = bench.rate(run, start=1)
    return rate(width * width * 16 / seconds * 1e-9, "GB/s")


PROBE = Probe(
    name="write_speed",
    aspect="WriteSpeed",
    title="Image writes against buffer writes",
    method="every work-item writes one vector of 16 bytes to its place in an image, or in a buffer of the same size",
    measure=measure,
)
