"""Bandwidth of images at each level of the texture caches."""

from __future__ import annotations

from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes import streams
from archprobe.probes.image_cache import NO_TEXTURES
from archprobe.probes.probe import Probe


def measure(bench: Bench) -> Findings:
    rows = min(bench.device.facts.max_image_height, 1024 if bench.is_quick else 4096)
    return streams.measure(bench, "image", rows * streams.IMAGE_WIDTH * streams.VECTOR_BYTES, ("ImageCacheHierarchyPChase", "CachePixelCountLv"))


PROBE = Probe(
    name="image_bandwidth",
    aspect="ImageBandwidth",
    title="Bandwidth of images",
    method="all work-items read texels of 16 bytes over growing ranges of one image (paper, section 3.1)",
    measure=measure,
    not_on_cpu=NO_TEXTURES,
    needs_images=True,
    is_for_opencl=True,
)
