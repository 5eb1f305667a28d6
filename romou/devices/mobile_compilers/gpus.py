"""The mobile GPUs that Mesa compiles OpenCL for, and the device files that each of them represents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from romou.base.errors import UsageError, unknown_name

# Name for the GPU of a target.
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class MobileGpu:
    """A GPU that Mesa compiles for.

    driver: Mesa's driver.
    environment: variables that choose the GPU, and make the driver print machine code and statistics.
    wave: work-items that run in step.
    vec4_registers: Adreno's registers of four 32-bit values for a work-item and processor (Mesa, freedreno_devices.py).
        None on Mali.
    is_bifrost: whether a Mali's instructions are printed in clauses of tuples.
    mesa: the first version of Mesa, of those that the set-up script fetches, with a compiler for the GPU.
    devices: names of the device files whose GPU has the same instruction set.
    """

    title: str
    driver: str
    environment: Mapping[str, str]
    wave: int
    vec4_registers: int | None = None
    is_bifrost: bool = False
    mesa: int = 25
    devices: tuple[str, ...]


def _adreno(number: int, vec4_registers: int, *devices: str, mesa: int = 25) -> MobileGpu:
    environment = {"FD_GPU_ID": str(number), "IR3_SHADER_DEBUG": "cs", "FD_MESA_DEBUG": "shaderdb"}
    return MobileGpu(
        title=f"Adreno {number}",
        driver="freedreno",
        environment=environment,
        wave=64,
        vec4_registers=vec4_registers,
        mesa=mesa,
        devices=devices,
    )


def _mali(name: str, identity: str, wave: int, *devices: str) -> MobileGpu:
    environment = {"PAN_GPU_ID": identity, "BIFROST_MESA_DEBUG": "shaders,shaderdb"}
    return MobileGpu(
        title=f"Mali-{name}",
        driver="panfrost",
        environment=environment,
        wave=wave,
        is_bifrost=wave < 16,
        devices=devices,
    )


MOBILE_GPUS: Mapping[str, MobileGpu] = {
    "a618": _adreno(618, 96, "adreno618"),
    "a630": _adreno(630, 96, "adreno630", "adreno640"),
    "a660": _adreno(660, 64, "adreno620", "adreno642l", "adreno650", "adreno660", "adreno690"),
    "a730": _adreno(730, 96, "adreno730"),
    "a740": _adreno(740, 96, "adreno740", "adreno_x1_45", "adreno_x1_85"),
    "a750": _adreno(750, 96, "adreno750"),
    "a810": _adreno(810, 96, mesa=26),
    "a830": _adreno(830, 96, "adreno830", mesa=26),
    "g52": _mali("G52", "7212", 8, "mali_g52"),
    "g57": _mali("G57", "9093", 16, "mali_g57", "mali_g68", "mali_g77", "mali_g78"),
    "g71": _mali("G71", "6000", 4, "mali_g71"),
    "g72": _mali("G72", "6221", 4),
    "g76": _mali("G76", "7211", 8, "mali_g76"),
    "g610": _mali("G610", "a867", 16, "mali_g610", "mali_g710"),
}
# Name -> title.
GPUS = {name: gpu.title for name, gpu in MOBILE_GPUS.items()}


def mobile_gpu(name: str) -> MobileGpu:
    """Return a GPU by name. UsageError lists the known names and the nearest one."""
    if name not in MOBILE_GPUS:
        raise unknown_name("mobile GPU", name, MOBILE_GPUS)
    return MOBILE_GPUS[name]


def compiler_for(device_name: str | None) -> str:
    """Return the name of the GPU that represents a device file. UsageError if Mesa has no compiler for it."""
    own = next((name for name, gpu in MOBILE_GPUS.items() if device_name in gpu.devices), None)
    if own is None:
        what = "a target without -device=" if device_name is None else device_name
        raise UsageError(
            f"Mesa has no compiler for {what}; it has them for {', '.join(GPUS)}",
            hint="Name one, e.g. --gpu a740; its code is then another GPU's.",
        )
    return own
