"""The levels and lines of the caches behind buffers and images, by pointer chases.

The chases walk growing ranges (paper, Listing 2 and figure 6).

In a chase every read returns the address of the next one, so no read can start before the last has ended.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from archprobe.analysis import cache
from archprobe.analysis.answer import Answer, declined
from archprobe.curve import Curve, Findings
from archprobe.meter import Meter, Run
from archprobe.probes.probe import NO_TEXTURES, probe

_UNROLL = 8
# A run with `_UNROLL` reads in each iteration, and the iterations of one lap through the range.
Chase = tuple[Run, int]

# Each run continues the chase where the last one stopped, so the cache holds the data of earlier laps, at any number of
# steps.
_CHASE = """
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
# The line of most caches: each read touches a new line, and no line is skipped.
_STRIDE = 64
# Iterations of the chase: a lap this short can be completed before the timing starts.
_SHORT_LAP = 8192
# All texels are zero, but the next read waits for the last one, so the compiler cannot hoist it out of the loop.
_AGAIN = """
__constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
__kernel void again(int n, __global int *out, __read_only image2d_t zeros, int is_down) {
  const int i = get_local_id(0);
  int last = 0;
  for (int k = 0; k < n; ++k) {
    const int at = i + last;
    last = read_imagei(zeros, NEAREST, is_down ? (int2)(0, at) : (int2)(at, 0)).x;
  }
  if (last) out[0] = last;
}
"""


class BufferChase:
    """Chases through one buffer of `max_bytes`. With `is_shuffled` the order is random, for devices that prefetch."""

    def __init__(self, meter: Meter, max_bytes: int, *, is_shuffled: bool = False) -> None:
        self.device = meter.device
        self.is_shuffled = is_shuffled
        self.ring, self.chase = (self.device.kernel(_CHASE, name, UNROLL=_UNROLL) for name in ("ring", "chase"))
        self.chain = self.device.buffer(max_bytes)
        self.place = self.device.buffer(64)
        self.state = (0, 0)

    def prepare(self, range_bytes: int, stride_bytes: int) -> None:
        """Write the chain into `range_bytes` and walk it once, so that the caches are filled."""
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
        """Return a chase of `range_bytes`. Chases of other ranges may run in between."""

        def run(n: int) -> float:
            if self.state != (range_bytes, stride_bytes):
                self.prepare(range_bytes, stride_bytes)
            return self.device.launch(self.chase, 1, 1, np.int32(n), self.place, self.chain)

        return run, -(-(range_bytes // stride_bytes) // _UNROLL)


class ImageChase:
    """Chases through one row of texels (four 32-bit integers each)."""

    def __init__(self, meter: Meter) -> None:
        self.device = meter.device
        self.kernel = self.device.kernel(_CHASE, "chase_image", UNROLL=_UNROLL, HAS_IMAGES=1)

    def run(self, texels: int, stride: int = 1) -> Chase:
        """Return a chase over `texels` texels, `stride` texels at a time."""
        chain = np.zeros((texels, 4), np.int32)
        stops = np.arange(0, texels, stride)
        chain[stops, 0] = np.roll(stops, -1)
        image, out = self.device.image(chain), self.device.buffer(64)
        lap = -(-stops.size // _UNROLL)
        self.device.launch(self.kernel, 1, 1, np.int32(lap), out, image)
        return lambda n: self.device.launch(self.kernel, 1, 1, np.int32(n), out, image), lap


def nanoseconds(seconds: float) -> float:
    """Return the latency of one read from the time of an iteration."""
    return seconds * 1e9 / _UNROLL


@probe(
    aspect="BufferCacheHierarchyPChase",
    title="Caches behind buffers",
    method="pointer chase in one work-item over growing ranges; plateaus of latency are levels (paper, Listing 2)",
)
def buffer_cache(meter: Meter) -> Findings:
    facts = meter.device.facts
    most = min(
        (8 if facts.is_cpu else 128 if meter.is_quick else 256) * 2**20,
        facts.max_buffer_bytes,
        facts.global_mem_bytes // 4,
    )
    chase = BufferChase(meter, most, is_shuffled=facts.is_cpu)
    limit_s = 5.0 if meter.is_quick else 60.0
    ranges = np.unique(
        (2 ** np.arange(10, np.log2(most) + 1e-9, 1 / (3 if meter.is_quick else 6))).astype(np.int64) // 128 * 128
    )
    curve = one_by_one(
        meter,
        "buffer chase",
        ranges.tolist(),
        lambda r: chase.run(r, _STRIDE),
        x_label="range (bytes)",
        limit_s=limit_s,
    )
    return _level_findings(curve, "CacheVectorCountLv")


@probe(
    aspect="ImageCacheHierarchyPChase",
    title="Texture caches",
    method=(
        "pointer chase in one work-item through a row of texels of 16 bytes; plateaus of latency are levels (paper,"
        " Listing 2)"
    ),
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
def image_cache(meter: Meter) -> Findings:
    chase = ImageChase(meter)
    most = min(meter.device.facts.max_image_width, 2**16)
    texels = np.unique(
        (2 ** np.arange(4, np.log2(most) + 1e-9, 1 / (4 if meter.is_quick else 8))).astype(np.int64) // 2 * 2
    )
    ranges = (texels * TEXEL_BYTES).tolist()
    curve = one_by_one(meter, "image chase", ranges, lambda r: chase.run(r // TEXEL_BYTES), x_label="range (bytes)")
    return _level_findings(curve, "CachePixelCountLv")


@probe(
    aspect="ImageStrides",
    title="Latency of the texture cache by range and stride",
    method="pointer chases through a row of texels, for strides of 1 to 16 texels (paper, figure 6)",
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
def image_strides(meter: Meter) -> Findings:
    first = meter.number("ImageCacheHierarchyPChase.CachePixelCountLv1") or 4096
    most = int(min(meter.device.facts.max_image_width, 4 * first // TEXEL_BYTES))
    chase = ImageChase(meter)
    texel_counts = np.unique(np.linspace(16, most, 12 if meter.is_quick else 32).astype(np.int64) // 16 * 16)
    curves = []
    for stride in (1, 2, 4, 8, 16):

        def run(size: int, stride: int = stride) -> Chase:
            return chase.run(size // TEXEL_BYTES, stride)

        curve = one_by_one(
            meter,
            f"stride {stride * TEXEL_BYTES} bytes",
            (texel_counts * TEXEL_BYTES).tolist(),
            run,
            x_label="range (bytes)",
            limit_s=10.0,
        )
        curves.append(dataclasses.replace(curve, picture="latency by range and stride", is_log_x=False))
    return Findings(curves=tuple(curves))


def one_by_one(
    meter: Meter, name: str, positions: list[int], make: Callable[[int], Chase], *, x_label: str, limit_s: float = 60.0
) -> Curve:
    """Measure latencies in ns, finishing each position before the next.

    Returning to a position would mean filling the caches again.

    If a lap is short, the first lap of a run is not counted: some devices empty their first cache between kernels.
    Positions that `limit_s` seconds do not reach are left out.
    """
    y, spreads = [], []
    iterations, end = 8, time.monotonic() + limit_s
    for i, position in enumerate(positions):
        run, lap = make(position)
        first = lap if lap <= _SHORT_LAP else 0
        run(1)
        iterations = meter.iterations(run, iterations if i else None)
        times = [(run(first + iterations) - (run(first) if first else 0.0)) / iterations for _ in range(3)]
        y.append(nanoseconds(max(float(np.median(times)), 1e-12)))
        spreads.append(float(np.std(times) / np.median(times)))
        meter.on_progress((i + 1) / len(positions))
        if time.monotonic() > end:
            break
    x, spread = tuple(positions[: len(y)]), float(np.median(spreads))
    return Curve(
        name=name,
        x_label=x_label,
        y_label="latency of a read (ns)",
        x=x,
        y=tuple(y),
        spread=spread,
        repeats=3,
        is_log_x=True,
    )


def _level_findings(curve: Curve, prefix: str) -> Findings:
    """Return size and latency of each level by the report's keys.

    Sizes are in bytes, as in the original, although some keys' names suggest otherwise.
    """
    levels = cache.cache_levels(curve.xs, curve.ys, repeats=curve.repeats)
    sizes: dict[str, Answer] = {f"{prefix}{i}": level.size for i, level in enumerate(levels, 1)}
    if not levels:
        sizes[f"{prefix}1"] = declined("bytes", "the latency is nowhere level over three ranges or more")
    latencies = {f"LatencyLv{i}": level.latency_ns for i, level in enumerate(levels, 1)}
    return Findings(answers=sizes | latencies, curves=(curve.marked(sizes),))


@probe(
    aspect="BufferCachelineSize",
    title="Cache line behind buffers",
    method="pointer chase in order over sixteen times the first cache: latency grows with the stride up to a line",
)
def buffer_line(meter: Meter) -> Findings:
    # Many times the size of the first level, so that no line survives until the next lap, even with wide strides that
    # touch few lines.
    first = meter.number("BufferCacheHierarchyPChase.CacheVectorCountLv1")
    size = int(min(max(16 * (first or 2**18), 2**17), 2**26)) // 4096 * 4096
    chase = BufferChase(meter, size)
    strides = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    curve = one_by_one(
        meter, "buffer strides", strides, lambda stride: chase.run(size, stride), x_label="stride (bytes)"
    )
    answers = {"BufTopLevelCachelineSize": cache.line_size(curve.xs, curve.ys, repeats=curve.repeats)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


@probe(
    aspect="ImageCachelineSize",
    title="Texture cache line",
    method="texels that fit the cache side by side and one below the other; chase through a row by growing strides",
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
def image_line(meter: Meter) -> Findings:
    device = meter.device
    most = min(256 if meter.is_quick else 512, device.facts.max_work_group_size)
    zeros, out = device.image(np.zeros((most, most, 4), np.int32)), device.buffer(64)
    kernel = device.kernel(_AGAIN, "again")
    counts = {}
    curves = []
    for is_down, axis in enumerate("XY"):
        make = lambda size, is_down=is_down: (
            lambda n: device.launch(kernel, size, size, np.int32(n), out, zeros, np.int32(is_down))
        )
        work_items = sorted({*range(1, 97), *range(96, most + 1, 8)})
        part = meter.part(0.35 * is_down, 0.35 * (is_down + 1))
        curve = part.sweep(f"texels along {axis}", work_items, make, x_label="work-items, a texel each")
        counts[axis] = cache.concurrent_reads(curve.xs, curve.ys, repeats=curve.repeats)
        curves.append(curve.marked({f"ImgMinTimeConcurThreadCount{axis}": counts[axis]}))
    level = meter.earlier_answers.get(
        "ImageCacheHierarchyPChase.CachePixelCountLv1", declined("bytes", "the size of the first level is not known")
    )
    by_count = cache.texture_line(counts["X"], counts["Y"], level)
    width = device.facts.max_image_width
    first = level.value if isinstance(level.value, (int, float)) else 0
    texels = int(min(width, max(24 * first, 2**16) // TEXEL_BYTES))
    chase = ImageChase(meter)
    # Wide strides leave too few texels in the row: the cache would hold the lines of all of them.
    strides = [s * TEXEL_BYTES for s in (1, 2, 3, 4, 6, 8, 12, 16) if texels // s * TEXEL_BYTES >= 1.5 * first]

    def run(stride: int) -> Chase:
        step = stride // TEXEL_BYTES
        return chase.run(texels // step * step, step)

    ramp = one_by_one(meter, "image strides", strides, run, x_label="stride (bytes)")
    by_chase = (
        cache.line_size(ramp.xs, ramp.ys, repeats=ramp.repeats)
        if first
        else declined("bytes", f"needs the size of the first level: {level.reason}")
    )
    line = by_count if not by_count.is_declined else by_chase
    if not by_count.is_declined and not by_chase.is_declined and by_count.value != by_chase.value:
        line = declined("bytes", f"counting texels gives {by_count.value} bytes, the chase {by_chase.value}")
    answers = {
        "ImgCachelineSize": line,
        "ImgCachelineDim": cache.texture_axis(counts["X"], counts["Y"]),
        "ImgMinTimeConcurThreadCountX": counts["X"],
        "ImgMinTimeConcurThreadCountY": counts["Y"],
    }
    return Findings(answers=answers, curves=(*curves, ramp.marked({"ImgCachelineSize": line})))
