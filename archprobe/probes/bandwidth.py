"""The bandwidth of each level of buffers, images, local and constant memory.

Many work-items read ranges of growing size (paper, section 3.1), or write.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from archprobe.analysis import bandwidth
from archprobe.analysis.answer import Answer, declined, ratio
from archprobe.curve import Curve, Findings
from archprobe.meter import Meter, Quantity, Run, powers
from archprobe.probes.probe import NO_TEXTURES, probe

_VECTOR_BYTES = 16
_READS = 8
_LOCAL_BYTES = 16384
_IMAGE_WIDTH = 4096

# In iteration k, work-group g reads block (g + k * step) modulo the blocks of the range. Neighbouring work-items read
# neighbouring addresses, all groups together walk through the range, and no group keeps to one block. The range is a
# power of two.
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
"""  # noqa: E501
_COPY = """
__kernel void copy(int n, __global float4 *to, __global const float4 *from, uint count) {
  for (int k = 0; k < n; ++k)
    for (uint i = get_global_id(0); i < count; i += get_global_size(0)) to[i] = from[i];
}
"""


def measure_stream(meter: Meter, memory: str, max_bytes: int, levels: str = "") -> Findings:
    """Measure GB/s of "buffer", "image", "local" or "constant" memory over ranges up to `max_bytes`.

    `levels` is the prefix ("Aspect.KeyLv") of the keys of an earlier chase, which reports the size of each level.
    """
    curve = _stream_curve(meter, memory, max_bytes)
    answers = {
        "MaxBandwidth": bandwidth.peak(curve.xs, curve.ys, repeats=curve.repeats),
        "MinBandwidth": bandwidth.floor(curve.xs, curve.ys, repeats=curve.repeats),
    }
    below = 0.0
    for i in range(1, 5) if levels else ():
        size = meter.number(f"{levels}{i}")
        if size is None:
            break
        # A level still serves some reads of ranges several times its size, so the bandwidth of the next level shows
        # only well above that.
        answers[f"BandwidthLv{i}"] = bandwidth.within(curve.xs, curve.ys, 32 * below, 0.8 * size, repeats=curve.repeats)
        below = size
    return Findings(answers=answers, curves=(curve,))


def _stream_curve(meter: Meter, memory: str, max_bytes: int) -> Curve:
    device, facts = meter.device, meter.device.facts
    macros = {"READS": _READS, "LOCAL_VECTORS": _LOCAL_BYTES // _VECTOR_BYTES, "IMAGE_WIDTH": _IMAGE_WIDTH}
    kernel = device.kernel(_SOURCE, f"from_{memory}", **macros, **({"HAS_IMAGES": 1} if memory == "image" else {}))
    groups, size = (
        facts.units * (4 if facts.is_cpu else 32),
        min(64 if facts.is_cpu else 256, facts.max_work_group_size),
    )
    out = device.buffer(64)
    if memory == "image":
        width = min(_IMAGE_WIDTH, max_bytes // _VECTOR_BYTES)
        source = device.image(np.zeros((max_bytes // _VECTOR_BYTES // width, width, 4), np.float32))
    else:
        source = device.buffer(max(max_bytes, _LOCAL_BYTES))
    # Odd, so that every group reaches every block. Near the count of groups, so that all groups together read without
    # gaps.
    step = np.uint32(size * (groups | 1))
    bytes_each = groups * size * _READS * _VECTOR_BYTES

    def make(range_bytes: int) -> Run:
        mask = np.uint32(range_bytes // _VECTOR_BYTES - 1)
        # A run shorter than a lap would not read the whole range.
        laps = -(-2 * range_bytes // bytes_each)
        return lambda n: device.launch(kernel, groups * size, size, np.int32(n * laps), out, mask, step, source) / laps

    gbps_of = lambda _, seconds: bytes_each / seconds * 1e-9
    return meter.sweep(
        f"{memory} bandwidth",
        powers(256, max_bytes),
        make,
        x_label="range (bytes)",
        is_log_x=True,
        quantity=Quantity(label="bandwidth (GB/s)", convert=gbps_of, is_rate=True),
    )


@probe(
    aspect="BufferBandwidth",
    title="Bandwidth of buffers",
    method=(
        "all work-items read vectors of 16 bytes over growing ranges; stretches of even bandwidth are levels (paper,"
        " section 3.1)"
    ),
)
def buffer_bandwidth(meter: Meter) -> Findings:
    facts = meter.device.facts
    megabytes = (16 if meter.is_quick else 64) if facts.is_cpu else 4096
    most = powers(1, min(megabytes * 2**20, facts.max_buffer_bytes, facts.global_mem_bytes // 8))[-1]
    findings = measure_stream(meter, "buffer", most, "BufferCacheHierarchyPChase.CacheVectorCountLv")
    return dataclasses.replace(findings, answers={**findings.answers, **_copies(meter, min(most, 2**30))})


def _copies(meter: Meter, size: int) -> dict[str, Answer]:
    """Time copies of one large buffer, by a kernel and by the driver's copy command.

    The rate is bytes read plus bytes written, in GB/s.
    """
    device = meter.device
    kernel = device.kernel(_COPY, "copy")
    to, source = device.buffer(size), device.buffer(size)
    local = min(256, device.facts.max_work_group_size)
    groups = device.facts.units * (4 if device.facts.is_cpu else 64)

    by_driver = lambda times: sum(device.copy(to, source, size) for _ in range(times))
    by_kernel = lambda n: device.launch(kernel, groups * local, local, np.int32(n), to, source, np.uint32(size // 16))
    ways = {"DramBandwidth": by_kernel, "CopyBandwidth": by_driver}
    return {key: bandwidth.rate(2 * size / meter.rate(run, start=1)[0] * 1e-9, "GB/s") for key, run in ways.items()}


@probe(
    aspect="ImageBandwidth",
    title="Bandwidth of images",
    method="all work-items read texels of 16 bytes over growing ranges of one image (paper, section 3.1)",
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
def image_bandwidth(meter: Meter) -> Findings:
    rows = min(meter.device.facts.max_image_height, 1024 if meter.is_quick else 4096)
    return measure_stream(
        meter, "image", rows * _IMAGE_WIDTH * _VECTOR_BYTES, "ImageCacheHierarchyPChase.CachePixelCountLv"
    )


@probe(
    aspect="LocalMemBandwidth",
    title="Bandwidth of local memory",
    method=(
        "all work-items read vectors of 16 bytes from 16 KB of their group's local memory, over growing ranges (paper,"
        " section 3.1)"
    ),
)
def local_bandwidth(meter: Meter) -> Findings:
    return measure_stream(meter, "local", _LOCAL_BYTES)


@probe(
    aspect="ConstMemBandwidth",
    title="Bandwidth of constant memory",
    method=(
        "neighbouring work-items read neighbouring vectors of 16 bytes of constant memory, over growing ranges (paper,"
        " section 3.1)"
    ),
    is_for_opencl=True,
)
def constant_bandwidth(meter: Meter) -> Findings:
    return measure_stream(meter, "constant", powers(1, min(meter.device.facts.constant_bytes, 2**16))[-1])


_WRITE_SOURCE = """
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


@probe(
    aspect="WriteSpeed",
    title="Image writes against buffer writes",
    method="every work-item writes one vector of 16 bytes to its place in an image, or in a buffer of the same size",
)
def write_speed(meter: Meter) -> Findings:
    facts = meter.device.facts
    width = 1024 if facts.is_cpu else 4096
    size = width * width
    answers: dict[str, Answer] = {
        "BufferWriteBandwidth": _speed(meter, "to_buffer", meter.device.buffer(16 * size), width)
    }
    if not facts.has_images:
        answers["ImageWriteBandwidth"] = declined("GB/s", "no images that the probe could write")
    else:
        target = meter.device.image(np.zeros((width, width, 4), np.float32), is_written=True)
        answers["ImageWriteBandwidth"] = _speed(meter, "to_image", target, width, HAS_IMAGES=1)
    image, buffer = answers["ImageWriteBandwidth"], answers["BufferWriteBandwidth"]
    answers["ImageOverBuffer"] = ratio(image, buffer, "ratio", 0.9, "bandwidth of image writes over buffer writes")
    return Findings(answers=answers)


def _speed(meter: Meter, name: str, target: object, width: int, **macros: int) -> Answer:
    """Measure one way to write.

    Every run writes each element once, because the cache would absorb repeated writes to one address.
    """
    kernel = meter.device.kernel(_WRITE_SOURCE, name, **macros)
    size = min(256, meter.device.facts.max_work_group_size)

    def run(times: int) -> float:
        return sum(
            meter.device.launch(kernel, width * width, size, np.int32(1), target, np.int32(width)) for _ in range(times)
        )

    seconds, _ = meter.rate(run, start=1)
    return bandwidth.rate(width * width * 16 / seconds * 1e-9, "GB/s")
