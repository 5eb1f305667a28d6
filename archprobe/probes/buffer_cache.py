"""The cache hierarchy behind buffers: latency of a pointer chase over the range that it walks (paper, Listing 2 and figure 6)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from archprobe.analysis.answer import Answer
from archprobe.analysis.cache import Level, cache_levels
from archprobe.bench import Bench
from archprobe.curve import Curve, Findings
from archprobe.probes.chase import BufferChase, Chase, nanoseconds
from archprobe.probes.probe import Probe

# Most caches' line: each read is a line of its own, and none is left out.
_STRIDE = 64
# Iterations of the chase: a lap that a run can well make before it is timed.
_SHORT_LAP = 8192


def measure(bench: Bench) -> Findings:
    facts = bench.device.facts
    most = min((8 if facts.is_cpu else 128 if bench.is_quick else 256) * 2**20, facts.max_buffer_bytes, facts.global_mem_bytes // 4)
    chase = BufferChase(bench, most, is_shuffled=facts.is_cpu)
    limit_s = 5.0 if bench.is_quick else 60.0
    per_octave = 3 if bench.is_quick else 6
    ranges = np.unique((2 ** np.arange(10, np.log2(most) + 1e-9, 1 / per_octave)).astype(np.int64) // 128 * 128)
    curve = one_by_one(bench, "buffer chase", ranges.tolist(), lambda r: chase.run(r, _STRIDE), x_label="range (bytes)", limit_s=limit_s)
    levels = cache_levels(curve.xs, curve.ys, repeats=curve.repeats)
    answers = level_answers(levels, "CacheVectorCountLv")
    return Findings(answers=answers, curves=(curve.marked({k: a for k, a in answers.items() if "Count" in k}),))


def one_by_one(bench: Bench, name: str, positions: list[int], make: Callable[[int], Chase], *, x_label: str, limit_s: float = 60.0) -> Curve:
    """Measure latencies in ns, each position to its end before the next, because going back means to fill the caches again.

    Where a lap is short, a first lap in the same run is not counted: some devices empty their first cache between kernels. Positions that `limit_s`
    seconds do not reach are left out.
    """
    y, spreads = [], []
    iterations, end = 8, time.monotonic() + limit_s
    for i, position in enumerate(positions):
        run, lap = make(position)
        first = lap if lap <= _SHORT_LAP else 0
        run(1)
        iterations = bench.iterations(run, iterations if i else None)
        times = [(run(first + iterations) - (run(first) if first else 0.0)) / iterations for _ in range(3)]
        y.append(nanoseconds(max(float(np.median(times)), 1e-12)))
        spreads.append(float(np.std(times) / np.median(times)))
        bench.on_progress((i + 1) / len(positions))
        if time.monotonic() > end:
            break
    x, spread = tuple(positions[: len(y)]), float(np.median(spreads))
    return Curve(name=name, x_label=x_label, y_label="latency of a read (ns)", x=x, y=tuple(y), spread=spread, repeats=3, is_log_x=True)


def level_answers(levels: list[Level], prefix: str) -> dict[str, Answer]:
    """Return size and latency of each level by the report's keys. Sizes are in bytes, as in the original, whatever its keys' names say."""
    found = {f"{prefix}{i}": level.size for i, level in enumerate(levels, 1)}
    found |= {f"LatencyLv{i}": level.latency_ns for i, level in enumerate(levels, 1)}
    if not levels:
        found[f"{prefix}1"] = _NOTHING
    return found


_NOTHING = Answer(value=None, unit="bytes", confidence=0.0, reason="the latency is nowhere level over three ranges or more")

PROBE = Probe(
    name="buffer_cache",
    aspect="BufferCacheHierarchyPChase",
    title="Caches behind buffers",
    method="pointer chase in one work-item over growing ranges; plateaus of latency are levels (paper, Listing 2)",
    measure=measure,
)
