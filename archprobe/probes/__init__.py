"""The probes: each `Probe` defined in a file of this folder.

The folder is searched, so a new probe only needs a new file here.
"""

from __future__ import annotations

import importlib
import pkgutil

from archprobe.probes.probe import Probe

# Some probes use the answers of earlier ones, so these run in this order. The other probes run after them, by name.
ORDER = (
    *("limits", "launch", "warp_time", "warp_order", "warp_divergence", "running_order", "cores", "registers"),
    "register_sweep",
    *("buffer_cache", "buffer_line", "image_cache", "image_line", "image_strides"),
    *("buffer_bandwidth", "image_bandwidth", "local_bandwidth", "constant_bandwidth", "vector_width"),
    *("gflops", "write_speed", "barrier", "division", "throttling"),
)


def all_probes() -> tuple[Probe, ...]:
    """Return every probe, in running order."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    probes = {probe.name: probe for module in modules for probe in vars(module).values() if isinstance(probe, Probe)}
    return tuple(probes[name] for name in (*ORDER, *sorted(set(probes) - set(ORDER))))
