"""The probes, in the order in which they run: later ones use what earlier ones found. One file each; `PROBE` in it is the probe."""

from __future__ import annotations

import importlib

from archprobe.probes.probe import Probe

ORDER = (
    "limits",
    "launch",
    "warp_time",
    "warp_order",
    "warp_divergence",
    "cores",
    "registers",
    "buffer_cache",
    "buffer_line",
    "image_cache",
    "image_line",
    "buffer_bandwidth",
    "image_bandwidth",
    "local_bandwidth",
    "constant_bandwidth",
    "vector_width",
    "gflops",
    "write_speed",
    "barrier",
    "division",
    "throttling",
)


def all_probes() -> tuple[Probe, ...]:
    """Every probe, in running order."""
    return tuple(importlib.import_module(f"archprobe.probes.{name}").PROBE for name in ORDER)
