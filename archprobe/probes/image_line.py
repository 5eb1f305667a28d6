"""The line of the first texture cache: by a chase over more than it holds, and by how many texels fit side by side and below."""

from __future__ import annotations

import numpy as np

from archprobe.analysis import cache
from archprobe.analysis.answer import declined
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.buffer_cache import one_by_one
from archprobe.probes.chase import TEXEL_BYTES, Chase, ImageChase
from archprobe.probes.image_cache import NO_TEXTURES
from archprobe.probes.probe import Probe

# All texels are zero, but the next read waits for the last one: it cannot be taken out of the loop.
_SOURCE = """
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


def measure(bench: Bench) -> Findings:
    device = bench.device
    most = min(256 if bench.is_quick else 512, device.facts.max_work_group_size)
    zeros, out = device.image(np.zeros((most, most, 4), np.int32)), device.buffer(64)
    kernel = device.kernel(_SOURCE, "again")
    counts = {}
    curves = []
    for is_down, axis in enumerate("XY"):
        make = lambda size, is_down=is_down: lambda n: device.launch(kernel, size, size, np.int32(n), out, zeros, np.int32(is_down))
        places = sorted({*range(1, 97), *range(96, most + 1, 8)})
        curve = bench.sweep(f"texels along {axis}", places, make, x_label="work-items, a texel each", share=(0.35 * is_down, 0.35 * (is_down + 1)))
        counts[axis] = cache.concurrent_reads(curve.xs, curve.ys, repeats=curve.repeats)
        curves.append(curve.marked({f"ImgMinTimeConcurThreadCount{axis}": counts[axis]}))
    level = bench.known.get("ImageCacheHierarchyPChase.CachePixelCountLv1", declined("bytes", "the size of the first level is not known"))
    by_count = cache.texture_line(counts["X"], counts["Y"], level)
    width = device.facts.max_image_width
    first = level.value if isinstance(level.value, (int, float)) else 0
    texels = int(min(width, max(6 * first, 2**16) // TEXEL_BYTES))
    chase = ImageChase(bench)
    # Wide strides leave so few texels in the row that the cache holds them all, line by line.
    strides = [s * TEXEL_BYTES for s in (1, 2, 3, 4, 6, 8) if texels // s * TEXEL_BYTES >= 1.5 * first]

    def run(stride: int) -> Chase:
        step = stride // TEXEL_BYTES
        return chase.run(texels // step * step, step)

    ramp = one_by_one(bench, "image strides", strides, run, x_label="stride (bytes)")
    by_chase = cache.line_size(ramp.xs, ramp.ys, repeats=ramp.repeats) if first else declined("bytes", f"needs the size of the first level: {level.reason}")
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


PROBE = Probe(
    name="image_line",
    aspect="ImageCachelineSize",
    title="Texture cache line",
    method="texels that fit the cache side by side and one below the other; chase through a row by growing strides",
    measure=measure,
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
