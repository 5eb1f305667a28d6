"""Pointer chases: every read says where the next one goes, so none can start before the last has ended (paper, Listing 2)."""

from __future__ import annotations

import numpy as np

from archprobe.bench import Bench, Run

_UNROLL = 8
# A run whose iteration is `_UNROLL` reads, and the iterations of one lap through the range.
Chase = tuple[Run, int]

# Each run continues the chase where the last one stopped, so the cache holds what earlier laps left, at any number of steps.
_SOURCE = """
__kernel void ring(__global int *chain, int count, int stride) {
  const int i = get_global_id(0);
  if (i < count) chain[i * stride] = (i + 1) % count * stride;
}
__kernel void chase(int n, __global int *place, __global const int *chain) {
  int at = place[0];
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) at = chain[at];
  }
  place[0] = at;
}
#ifdef HAS_IMAGES
__constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
__kernel void chase_image(int n, __global int *place, __read_only image1d_t chain) {
  int at = place[0];
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) at = read_imagei(chain, NEAREST, at).x;
  }
  place[0] = at;
}
#endif
"""
TEXEL_BYTES = 16


class BufferChase:
    """Chases through one buffer of `max_bytes`; `is_shuffled` hops at random, for devices that read ahead."""

    def __init__(self, bench: Bench, max_bytes: int, *, is_shuffled: bool = False) -> None:
        self.device = bench.device
        self.is_shuffled = is_shuffled
        self.ring, self.chase = (self.device.kernel(_SOURCE, name, UNROLL=_UNROLL) for name in ("ring", "chase"))
        self.chain = self.device.buffer(max_bytes)
        self.place = self.device.buffer(64)
        self.state = (0, 0)

    def prepare(self, range_bytes: int, stride_bytes: int) -> None:
        """Lay the chain through `range_bytes` and walk it once, so that the caches hold what they can."""
        count, stride = range_bytes // stride_bytes, stride_bytes // 4
        self.device.write(self.place, np.zeros(1, np.int32))
        if self.is_shuffled:
            order = np.random.default_rng(0).permutation(count)
            chain = np.zeros(count * stride, np.int32)
            chain[order * stride] = np.roll(order, -1) * stride
            self.device.write(self.chain, chain)
        else:
            size = min(64, self.device.facts.max_work_group_size)
            self.device.launch(self.ring, -(-count // size) * size, size, self.chain, np.int32(count), np.int32(stride))
        self.device.launch(self.chase, 1, 1, np.int32(-(-count // _UNROLL)), self.place, self.chain)
        self.state = (range_bytes, stride_bytes)

    def run(self, range_bytes: int, stride_bytes: int) -> Chase:
        """Return a chase of `range_bytes`; chases of other ranges may run in between."""

        def run(n: int) -> float:
            if self.state != (range_bytes, stride_bytes):
                self.prepare(range_bytes, stride_bytes)
            return self.device.launch(self.chase, 1, 1, np.int32(n), self.place, self.chain)

        return run, -(-(range_bytes // stride_bytes) // _UNROLL)


class ImageChase:
    """Chases through one row of texels (four 32-bit integers each)."""

    def __init__(self, bench: Bench) -> None:
        self.device = bench.device
        self.kernel = self.device.kernel(_SOURCE, "chase_image", UNROLL=_UNROLL, HAS_IMAGES=1)

    def run(self, texels: int, stride: int = 1) -> Chase:
        """Return a chase over `texels` texels, `stride` texels at a time."""
        chain = np.zeros((texels, 4), np.int32)
        stops = np.arange(0, texels, stride)
        chain[stops, 0] = np.roll(stops, -1)
        image, place = self.device.image(chain), self.device.buffer(64)
        lap = -(-stops.size // _UNROLL)
        self.device.launch(self.kernel, 1, 1, np.int32(lap), place, image)
        return lambda n: self.device.launch(self.kernel, 1, 1, np.int32(n), place, image), lap


def nanoseconds(seconds: float) -> float:
    """Return the latency of one read from the time of an iteration."""
    return seconds * 1e9 / _UNROLL
