"""The line of the first cache behind buffers: a chase in order over more than it holds costs a miss for each line."""

from __future__ import annotations

from archprobe.analysis.cache import line_size
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.buffer_cache import one_by_one
from archprobe.probes.chase import BufferChase
from archprobe.probes.probe import Probe


def measure(bench: Bench) -> Findings:
    # Many times what the first level holds: it keeps nothing until the next lap, even of wide strides that touch few lines.
    first = bench.number("BufferCacheHierarchyPChase.CacheVectorCountLv1")
    size = int(min(max(16 * (first or 2**18), 2**17), 2**26)) // 4096 * 4096
    chase = BufferChase(bench, size)
    strides = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    curve = one_by_one(bench, "buffer strides", strides, lambda stride: chase.run(size, stride), x_label="stride (bytes)")
    answers = {"BufTopLevelCachelineSize": line_size(curve.xs, curve.ys, repeats=curve.repeats)}
    return Findings(answers=answers, curves=(curve.marked(answers),))


PROBE = Probe(
    name="buffer_line",
    aspect="BufferCachelineSize",
    title="Cache line behind buffers",
    method="pointer chase in order over sixteen times the first cache: latency grows with the stride up to a line",
    measure=measure,
)
