"""Is the GPU worth it: a model's estimate beside what phones' CPUs take, by times of networks that others published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Estimates of both sides must differ by this factor. They do for 77 of 110 networks that others timed on both, and for
# 73 of these they say which was faster (benchmarks/published_cpus.py).
DOUBT = 1.5
FASTER, SLOWER, UNKNOWN = "faster", "slower", "unknown"


@dataclass(frozen=True)
class PhoneCpu:
    """Cores of a phone with an engine. The rates are fitted to times of whole networks (benchmarks/published_cpus.py).

    gflops: rate of arithmetic, a multiply-add counts twice.
    gbps: GB/s of operands, each moved once and in fp32.
    """

    name: str
    gflops: float
    gbps: float

    def ms(self, flops: float, fp32_bytes: float) -> float:
        """Return milliseconds for operations and for bytes of operands."""
        return 1e-6 * (flops / self.gflops + fp32_bytes / self.gbps)


PHONE_CPUS = (
    PhoneCpu("four Cortex-A73 of Snapdragon 835 (ncnn, fp32)", 61.4, 4.1),
    PhoneCpu("one Cortex-A76 of Snapdragon 855 (TensorFlow Lite 2.1, fp32)", 19.2, 5.7),
    PhoneCpu("four Cortex-A76 of Snapdragon 855+ (ncnn, fp16)", 471.7, 16.6),
)


@dataclass(frozen=True)
class OnCpu:
    """A model on a phone's CPU.

    name: of the CPU and its engine.
    ms: time of the layers that have an estimate on the GPU.
    gpu_is: "faster", "slower" or "unknown".
    layers: name of a layer -> the same for it.
    """

    name: str
    ms: float
    gpu_is: str
    layers: Mapping[str, str] = field(default_factory=dict)

    def words(self, gpu_ms: float) -> str:
        """Say which is faster, and for how many layers the CPU is."""
        near = "too near to say which is faster"
        said = near if self.gpu_is == UNKNOWN else f"the GPU is {self.gpu_is}, {self.ms / gpu_ms:.1f}x as fast"
        slower = sum(each == SLOWER for each in self.layers.values())
        own = f"; by themselves {slower} of {len(self.layers)} layers are faster on it" if slower else ""
        return f"{self.name}: {self.ms:.3g} ms, {said}{own}"


def verdict(gpu_ms: float, cpu_ms: float) -> str:
    """Return what the GPU is beside the CPU, "unknown" within the doubt of both estimates."""
    return FASTER if cpu_ms > DOUBT * gpu_ms else SLOWER if DOUBT * cpu_ms < gpu_ms else UNKNOWN
