"""The texture caches: latency of a pointer chase through a row of texels (paper, Listing 2 and figure 6)."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.cache import cache_levels
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.buffer_cache import level_answers, one_by_one
from archprobe.probes.chase import TEXEL_BYTES, ImageChase
from archprobe.probes.probe import Probe

NO_TEXTURES = "a CPU has no texture units: its driver reads images from memory like buffers"


def measure(bench: Bench) -> Findings:
    chase = ImageChase(bench)
    most = min(bench.device.facts.max_image_width, 2**16)
    per_octave = 4 if bench.is_quick else 8
    texels = np.unique((2 ** np.arange(4, np.log2(most) + 1e-9, 1 / per_octave)).astype(np.int64) // 2 * 2)
    ranges = (texels * TEXEL_BYTES).tolist()
    curve = one_by_one(bench, "image chase", ranges, lambda r: chase.run(r // TEXEL_BYTES), x_label="range (bytes)")
    answers = level_answers(cache_levels(curve.xs, curve.ys, repeats=curve.repeats), "CachePixelCountLv")
    return Findings(answers=answers, curves=(curve.marked({k: a for k, a in answers.items() if "Count" in k}),))


PROBE = Probe(
    name="image_cache",
    aspect="ImageCacheHierarchyPChase",
    title="Texture caches",
    method="pointer chase in one work-item through a row of texels of 16 bytes; plateaus of latency are levels (paper, Listing 2)",
    measure=measure,
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
