"""The bandwidth of each level of a memory: many work-items read ranges of growing size (paper, section 3.1)."""

from __future__ import annotations

import dataclasses

import numpy as np

from archprobe.analysis import bandwidth
from archprobe.analysis.answer import Answer
from archprobe.bench import Bench, Run, powers
from archprobe.curve import Curve, Findings

VECTOR_BYTES = 16
_READS = 8
_LOCAL_BYTES = 16384

# In iteration k, work-group g reads block (g + k * step) modulo the blocks of the range. Neighbours read neighbours, all groups together walk through
# the range, and no group keeps to one block. The range is a power of two.
_SOURCE = """
#define HEAD(MEMORY) int n, __global float *out, uint mask, uint step, MEMORY
#define BLOCKS uint at = get_global_id(0);
#define LOOP(READ) \\
  float4 sum = FLOAT4(0, 0, 0, 0); \\
  for (int k = 0; k < n; ++k) { \\
    _Pragma("unroll") for (int u = 0; u < READS; ++u) { const uint i = at & mask; sum += READ; at += step; } \\
  } \\
  if (TOTAL4(sum) == 12345.0f) out[0] = 1;
__kernel void from_buffer(HEAD(__global const float4 *src)) { BLOCKS LOOP(src[i]) }
__kernel void from_constant(HEAD(__constant float4 *src)) { BLOCKS LOOP(src[i]) }
__kernel void from_local(HEAD(__global const float4 *src)) {
  __local float4 own[LOCAL_VECTORS];
  for (int i = get_local_id(0); i < LOCAL_VECTORS; i += get_local_size(0)) own[i] = src[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  BLOCKS LOOP(own[i])
}
#ifdef HAS_IMAGES
__constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
__kernel void from_image(HEAD(__read_only image2d_t src)) { BLOCKS LOOP(read_imagef(src, NEAREST, (int2)(i & (IMAGE_WIDTH - 1), i / IMAGE_WIDTH))) }
#endif
"""
IMAGE_WIDTH = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Streams:
    """The kernel of one kind of memory ("buffer", "image", "local", "constant") and its launch."""

    bench: Bench
    memory: str
    max_bytes: int

    def curve(self, low: int = 256) -> Curve:
        """Measure GB/s over ranges of powers of two from `low` to `max_bytes`."""
        bench, device = self.bench, self.bench.device
        macros = {"READS": _READS, "LOCAL_VECTORS": _LOCAL_BYTES // VECTOR_BYTES, "IMAGE_WIDTH": IMAGE_WIDTH}
        kernel = device.kernel(_SOURCE, f"from_{self.memory}", **macros, **({"HAS_IMAGES": 1} if self.memory == "image" else {}))
        groups, size = self._grid()
        out = device.buffer(64)
        if self.memory == "image":
            width = min(IMAGE_WIDTH, self.max_bytes // VECTOR_BYTES)
            source = device.image(np.zeros((self.max_bytes // VECTOR_BYTES // width, width, 4), np.float32))
        else:
            source = device.buffer(max(self.max_bytes, _LOCAL_BYTES))
        # Odd, so that every group comes to every block; near the count of groups, so that all together read on without gaps.
        step = np.uint32(size * (groups | 1))
        bytes_each = groups * size * _READS * VECTOR_BYTES

        def make(range_bytes: int) -> Run:
            mask = np.uint32(range_bytes // VECTOR_BYTES - 1)
            # A run shorter than a lap would not read the whole range.
            laps = -(-2 * range_bytes // bytes_each)
            return lambda n: device.launch(kernel, groups * size, size, np.int32(n * laps), out, mask, step, source) / laps

        convert = lambda _, seconds: bytes_each / seconds * 1e-9
        return bench.sweep(
            f"{self.memory} bandwidth",
            powers(low, self.max_bytes),
            make,
            x_label="range (bytes)",
            y_label="bandwidth (GB/s)",
            convert=convert,
            is_log_x=True,
            is_absolute=True,
        )

    def _grid(self) -> tuple[int, int]:
        facts = self.bench.device.facts
        size = min(64 if facts.is_cpu else 256, facts.max_work_group_size)
        return facts.units * (4 if facts.is_cpu else 32), size


def answers_of(curve: Curve) -> dict[str, Answer]:
    """Return the bandwidth of the best and the last level, by the original's keys."""
    ways = {"MaxBandwidth": bandwidth.peak, "MinBandwidth": bandwidth.floor}
    return {key: find(curve.xs, curve.ys, repeats=curve.repeats) for key, find in ways.items()}


def levels_of(bench: Bench, curve: Curve, prefix: str, aspect: str) -> dict[str, Answer]:
    """Return the bandwidth of each level whose size an earlier chase found.

    A level still serves some reads of ranges several times its size, so the next one's own bandwidth shows only well above that.
    """
    found: dict[str, Answer] = {}
    below = 0.0
    for i in range(1, 5):
        size = bench.number(f"{aspect}.{prefix}{i}")
        if size is None:
            break
        found[f"BandwidthLv{i}"] = bandwidth.within(curve.xs, curve.ys, 32 * below, 0.8 * size, repeats=curve.repeats)
        below = size
    return found


def measure(bench: Bench, memory: str, max_bytes: int, chase: tuple[str, str] | None = None) -> Findings:
    """Measure one kind of memory; `chase` is (aspect, key prefix) of the probe that knows its levels."""
    curve = Streams(bench=bench, memory=memory, max_bytes=max_bytes).curve()
    answers = answers_of(curve)
    if chase:
        answers |= levels_of(bench, curve, chase[1], chase[0])
    return Findings(answers=answers, curves=(curve,))
