"""ArchProbe's probes on a simulated Adreno, whose caches, wave and registers are set: they find what was set.

Mesa's offline compiler for Adreno 630 compiles the probes' kernels, and the simulator of its machine code executes
them. Time is a model: a core issues one instruction in a cycle, a wave waits for each of its
results and for the slowest line of each load, and waves that fit into the registers overlap.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import archprobe.meter
import archprobe.probes.caches
from archprobe.analysis.answer import Answer, answered
from archprobe.devices.base import Device, Facts, defines
from archprobe.devices.opencl import PRELUDE
from archprobe.errors import KernelError
from archprobe.meter import Meter
from archprobe.probes import all_probes, registers
from romou.devices.mobile_compilers import (
    KernelStatistics,
    MobileCompilersMissingError,
    compile_all,
    find_compilers,
)
from romou.devices.mobile_compilers.ir3 import Buffer, Caches, Image, Launch, Level, Program, execute, read_program
from romou.devices.mobile_compilers.ir3.instructions import Array
from romou.devices.mobile_compilers.ir3.program import Instruction, Operand
from support.suite.exhaustive import exhaustive, few

GPU = "a630"
# A run is long enough for the probes after some thousand cycles.
CLOCK_MHZ = 10.0
LAUNCH_CYCLES, ALU_CYCLES, PRIVATE_CYCLES = 40, 4, 80
# Level that a load comes from -> cycles
CYCLES = {"memory": 200, "l2": 60, "l1": 20}
# The quick sweep of group sizes shows one step of waves as long as this.
_LONG_WAVE = 128
# The quick sweep of registers has enough counts below these.
_MANY_REGISTERS = 80
# Grids of more groups do the same in each, and one is executed.
MOST_GROUPS = 64
# Waves of a core, by Mesa
MOST_WAVES = 16
# Iterations after which each further one of a loop does the same
_FEW = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting that the probes have to find.

    registers: 32-bit registers of a work-item. What a kernel needs beyond them is in private memory.
    pool: 32-bit registers of a core, for the lanes of its waves.
    """

    wave: int
    registers: int
    pool: int
    cores: int
    l1_bytes: int
    l1_line: int
    l2_bytes: int
    l2_line: int = 64

    def resident(self, registers: int) -> int:
        """Return the waves of a core that registers allow, by Mesa's rule: registers by four, waves in pairs."""
        return min(MOST_WAVES, self.pool // (2 * self.wave * 4 * -(-registers // 4)) * 2)


class TimedCaches(Caches):
    """Caches that add up the cycles that waves wait for loads."""

    cycles = 0

    def load(self, what: str, waves: Array, lines: Array) -> None:
        for wave in dict.fromkeys(waves.tolist()):
            before = dict(self.served)
            own = waves == wave
            super().load(what, waves[own], lines[own])
            grown = {level for level, amount in self.served.items() if amount > before.get(level, 0)}
            self.cycles += next((cycles for level, cycles in CYCLES.items() if level in grown), 0)


@dataclass
class Kernel:
    """A compiled kernel, its machine code, and the kinds of its parameters."""

    statistics: KernelStatistics
    program: Program
    kinds: list[str]

    @functools.cached_property
    def live(self) -> list[int]:
        """Return the registers of the loop with most of them.

        Mesa's own number is the largest for which as many waves fit. Those before the loops are part of it.
        """
        code = self.program.code
        loops = [code[jump.target : at] for at, jump in enumerate(code) if jump.target is not None and jump.target < at]
        used = [{index for i in loop for index in _registers(i)} for loop in loops]
        return sorted(max([*used, {0, 1, 2, 3}], key=len))

    def in_registers(self, count: int) -> Program:
        """Return the program for `count` registers: a wait before each instruction for each other one it has."""
        private = set(self.live[count:])
        code: list[Instruction] = []
        starts = []
        for instruction in self.program.code:
            starts.append(len(code))
            code += [_PRIVATE] * sum(index in private for index in _registers(instruction))
            code.append(instruction)
        code = [i if i.target is None else replace(i, target=starts[i.target]) for i in code]
        return replace(self.program, code=tuple(code))


# The simulator does nothing for it.
_PRIVATE = Instruction(text="an access to private memory", operation="sleep.private")


def _registers(instruction: Instruction) -> list[int]:
    return [operand.index for operand in instruction.operands if isinstance(operand, Operand) and operand.file == "r"]


class SimulatedAdreno(Device):
    """An Adreno of a setting."""

    # Text of a file -> its kernels
    compiled: dict[str, list[KernelStatistics]] = {}  # noqa: RUF012 - for all devices

    def __init__(self, setting: Setting, width: int | None = None) -> None:
        self.setting = setting
        self.caches = self.empty_caches()
        self.done: dict[Any, tuple[float, float]] = {}
        self.facts = Facts(
            api="opencl",
            name="simulated Adreno",
            vendor="",
            driver="",
            platform="",
            version="",
            is_cpu=False,
            compute_units=setting.cores,
            clock_mhz=1,
            max_work_group_size=4 * setting.wave,
            local_mem_bytes=1 << 15,
            constant_bytes=1 << 16,
            global_mem_bytes=1 << 24,
            max_buffer_bytes=8 * setting.l2_bytes,
            has_images=True,
            max_image_width=width or 4 * setting.l2_bytes // 16,
            max_image_height=1024,
            timer_step_ns=1,
        )

    def empty_caches(self) -> TimedCaches:
        setting = self.setting
        return TimedCaches(
            first=Level(bytes=setting.l1_bytes, line_bytes=setting.l1_line),
            second=Level(bytes=setting.l2_bytes, line_bytes=setting.l2_line),
        )

    @classmethod
    def prepare(cls, texts: list[str]) -> None:
        """Compile files at once: starting the compiler takes longer than its work."""
        missing = [text for text in dict.fromkeys(texts) if text not in cls.compiled]
        for text, answer in zip(missing, compile_all(missing, GPU) if missing else [], strict=True):
            assert isinstance(answer, list), answer
            cls.compiled[text] = answer

    def kernel(self, source: str, name: str, **macros: Any) -> Kernel:
        text = defines(macros) + PRELUDE + source
        self.prepare([text])
        (statistics,) = (each for each in self.compiled[text] if each.name == name)
        parameters = re.findall(rf"void {name}\(([^)]*)\)", text)[-1].split(", ")
        kinds = ["buffer" if "*" in p else "texture" if " image" in p else "scalar" for p in parameters]
        return Kernel(statistics, read_program(statistics.machine_code, name), kinds)

    def launch(self, kernel: Kernel, global_size: int, local_size: int, *arguments: Any) -> float:
        setting, waves, groups = self.setting, -(-local_size // self.setting.wave), global_size // local_size
        resident = setting.resident(min(len(kernel.live), setting.registers))
        if waves > resident:
            raise KernelError(f"{waves} waves need more registers than a core has", kernel=kernel.statistics.name)
        issued, waited = self.work(kernel, groups, local_size, *arguments)
        on_core, at_once = -(-groups // setting.cores), resident // waves
        rounds, rest = divmod(on_core, at_once)
        cycles = sum(
            max(n * waves * issued, ALU_CYCLES * issued + waited) for n in [at_once] * rounds + [rest] * (rest > 0)
        )
        return (LAUNCH_CYCLES + cycles) / (CLOCK_MHZ * 1e6)

    def work(self, kernel: Kernel, groups: int, local_size: int, *arguments: Any) -> tuple[float, float]:
        """Return the instructions of a wave, and the cycles that it waits for memory."""
        statistics, setting = kernel.statistics, self.setting
        if statistics.name in ("divide", "registers") and arguments[0] > _FEW:
            few, more = (self.work(kernel, groups, local_size, n, *arguments[1:]) for n in (_FEW - 1, _FEW))
            issued, waited = (
                (int(arguments[0]) - _FEW) * (high - low) + high for low, high in zip(few, more, strict=True)
            )
            return issued, waited
        key = (id(statistics), groups, local_size, *(a for a in arguments if not isinstance(a, (Buffer, Image))))
        # The time of these depends on what the caches hold.
        has_state = statistics.name in ("ring", "chase", "chase_image")
        if has_state or key not in self.done:
            caches = self.caches if has_state else self.empty_caches()
            caches.cycles = 0
            counts = execute(
                Launch(
                    program=kernel.in_registers(setting.registers),
                    arguments=[_argument(argument) for argument in arguments],
                    kinds=kernel.kinds,
                    groups=(groups, 1, 1),
                    work_group=(local_size, 1, 1),
                    private_memory_bytes=statistics.private_memory_bytes,
                    wave=setting.wave,
                ),
                None if groups <= MOST_GROUPS else [0],
                caches=caches,
            )
            private = sum(n for name, n in counts.executed.items() if name.startswith(("ldp", "stp", "sleep.private")))
            issued = sum(counts.executed.values()) / counts.waves
            self.done[key] = issued, (caches.cycles + PRIVATE_CYCLES * private) / counts.waves
        return self.done[key]

    def enqueue(self, kernel: Kernel, global_size: int, local_size: int, *arguments: Any) -> None:
        self.launch(kernel, global_size, local_size, *arguments)

    def finish(self) -> None:
        pass

    def buffer(self, data: np.ndarray | int) -> Buffer:
        return Buffer(np.zeros(-(-data // 4), np.int32) if isinstance(data, int) else data.copy())

    def write(self, buffer: Buffer, data: np.ndarray) -> None:
        buffer.bytes[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def read(self, buffer: Buffer, like: np.ndarray) -> np.ndarray:
        return buffer.bytes[: like.nbytes].view(like.dtype).reshape(like.shape).copy()

    def copy(self, to: Buffer, source: Buffer, size: int) -> float:
        raise NotImplementedError

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Image:
        return Image(np.ascontiguousarray(texels.reshape(1, -1, *texels.shape[-2:])))


def _argument(argument: Any) -> Buffer | Image | int:
    if isinstance(argument, (Buffer, Image)):
        return argument
    return int(np.asarray(argument).reshape(1).view(np.int32)[0])


def findings(
    device: Device, *names: str, least_s: float = 3e-4, known: dict[str, Answer] | None = None, is_quick: bool = True
) -> dict[str, Answer]:
    """Run probes in order, and return their answers by aspect and key. known: those of earlier probes."""
    answers = dict(known or {})
    for probe in all_probes():
        if probe.name in names:
            meter = Meter(device=device, is_quick=is_quick, earlier_answers=answers, least_s=least_s, tolerance=0.01)
            found = probe.measure(meter)
            assert found.state == "done", found.reason
            answers |= {f"{probe.aspect}.{key}": answer for key, answer in found.answers.items()}
    return answers


SETTINGS = (
    Setting(wave=64, registers=96, pool=4 * 96 * 64, cores=2, l1_bytes=512, l1_line=32, l2_bytes=4096),
    Setting(wave=128, registers=64, pool=2 * 64 * 128, cores=3, l1_bytes=1024, l1_line=64, l2_bytes=8192),
    Setting(wave=32, registers=48, pool=4 * 48 * 32, cores=4, l1_bytes=2048, l1_line=128, l2_bytes=16384),
)
IDS = [f"waves of {setting.wave}" for setting in SETTINGS]


@pytest.fixture(autouse=True)
def _compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_compilers()
    except MobileCompilersMissingError as error:
        pytest.skip(f"NOT TESTED, the mobile compilers are missing: {str(error).splitlines()[0]}")
    # The probes' time limits are for devices, not for their simulation.
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    for module in (archprobe.meter, archprobe.probes.caches):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.parametrize("setting", few(SETTINGS, 0), ids=IDS)
def test_wave_and_cores_are_found(setting: Setting) -> None:
    device = SimulatedAdreno(setting)
    found = findings(device, "warp_time", "cores", is_quick=setting.wave < _LONG_WAVE)
    assert found["WarpSizeMethodB.WarpThreadCount"].value == setting.wave
    assert found["Cores.CoreCount"].value == setting.cores
    # Long runs: the preamble is no part of the branches.
    assert findings(device, "warp_divergence", least_s=3e-3)["WarpDivergence.WarpThreadCount"].value == setting.wave


@exhaustive
@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_caches_are_found(setting: Setting) -> None:
    """Sizes of both caches, and the line of the first, which is searched for in a larger second one."""
    found = findings(SimulatedAdreno(setting), "image_cache") | findings(SimulatedAdreno(setting), "buffer_cache")
    first = found["ImageCacheHierarchyPChase.CachePixelCountLv1"]
    assert first.value == setting.l1_bytes
    assert found["ImageCacheHierarchyPChase.CachePixelCountLv2"].value == setting.l2_bytes
    assert found["BufferCacheHierarchyPChase.CacheVectorCountLv1"].value == setting.l2_bytes
    large = SimulatedAdreno(replace(setting, l2_bytes=1 << 17), width=24 * setting.l1_bytes // 16)
    line = findings(large, "image_line", known={"ImageCacheHierarchyPChase.CachePixelCountLv1": first})
    assert line["ImageCachelineSize.ImgCachelineSize"].value == setting.l1_line


@exhaustive
@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_registers_are_found(setting: Setting) -> None:
    """By time only: the driver reports no private memory."""
    device, is_quick = SimulatedAdreno(setting), setting.registers > _MANY_REGISTERS
    counts = [*range(16, 301, 8 if is_quick else 4), *range(setting.registers - 12, setting.registers + 16)]
    device.prepare([PRELUDE + registers.source(count) for count in counts])
    known = {
        "Cores.CoreCount": answered(setting.cores, "count", 0.99, "set"),
        "WarpSizeMethodB.WarpThreadCount": answered(setting.wave, "work-items", 0.99, "set"),
    }
    # Long runs: what a kernel does before its loop is no part of an iteration.
    found = findings(device, "registers", least_s=3e-2, known=known, is_quick=is_quick)
    # The loop's counter takes one register.
    assert found["RegCount.RegCount"].value == setting.registers - 1
    assert found["RegCount.RegType"].value == "Pooled"
    low, high = found["RegCount.RegPool"].interval
    assert low <= setting.pool <= high


@exhaustive
def test_the_pool_is_found_by_sizes_of_groups() -> None:
    """Figure 5. Mesa gives a work-item 192 registers at most, so groups of up to 256 spill before the pool is full."""
    setting = replace(SETTINGS[0], registers=192, pool=48 * 1024)
    device = SimulatedAdreno(setting)
    device.facts = replace(device.facts, max_work_group_size=1024)
    device.prepare([PRELUDE + registers.source(count, group="") for count in range(16, 257, 24)])
    found = findings(device, "register_sweep", least_s=3e-2)["RegisterSweep.PoolByGroups"]
    assert "384, 512, 768, 1024" in found.reason
    low, high = found.interval
    assert low <= setting.pool <= high < 1.1 * low
