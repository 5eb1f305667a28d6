"""The knob `wave`: the width of an Adreno's waves, and weights that a wave loads once."""

from __future__ import annotations

from tvm import tirx

from romou.base.knob import Knob
from romou.base.space import Config
from romou.devices.backends.launch import UNIFORM, WAVE_KIND

DRIVER = "driver"
WAVE = Knob(
    name="wave",
    choices=(DRIVER, "half", "full", UNIFORM),
    default=DRIVER,
    help=(
        "how an Adreno's compiler forms waves: as the driver likes, of half or the full width; or as it likes, with"
        " buffers marked at whose elements all work-items of a wave load the same"
    ),
    devices="OpenCL with the target option -waves=search, until a phone says which is faster",
    exists_on=lambda limits: limits.searches_waves,
    absent=DRIVER,
)


def with_wave(func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
    """Return a scheduled function whose kernels have the waves of `config`."""
    wave = config.get(WAVE.name, DRIVER)
    return func if wave == DRIVER else func.with_attr(WAVE_KIND, wave)
