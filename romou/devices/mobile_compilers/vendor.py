"""The vendors' own compilers, if the user has them: Arm's malioc for a Mali, and a program for an Adreno.

Romou ships neither. Both are called once for each kernel, and print the JSON of Arm's Mali Offline Compiler:

    malioc --opencl 1.2 --core Mali-G76 --name KERNEL --format json KERNEL.cl
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from romou.base import environment
from romou.base.errors import BuildError, UsageError
from romou.base.folders import HeldFolder
from romou.base.foreign import parsed, refused
from romou.base.schema import NotNegative, Range, made_of
from romou.devices.mobile_compilers.gpus import GPUS

VARIABLE = "ROMOU_ADRENO_COMPILER"
_MALIOC = "malioc"
_TIMEOUT_S = 120.0
_Count = Annotated[int, Range(0)]


@dataclass(frozen=True, kw_only=True)
class VendorStatistics:
    """Statistics of a kernel by the compiler of the GPU's vendor. What the compiler does not print is None or empty.

    compiler: its name and version.
    registers, uniform_registers: 32-bit registers of a work-item, and of values that all work-items share.
    occupancy: work-items in flight that the registers allow, as a fraction of the most.
    is_spilling, spill_bytes: whether registers are spilled to the stack, and their bytes.
    cycles_by_unit: cycles of all instructions, loops once.
    longest_by_unit: cycles of the longest path.
    bound_by: units with the most cycles.
    """

    compiler: str
    registers: int
    uniform_registers: int | None
    occupancy: float | None
    is_spilling: bool
    spill_bytes: int | None
    cycles_by_unit: Mapping[str, float]
    longest_by_unit: Mapping[str, float]
    bound_by: tuple[str, ...]

    @property
    def cycles(self) -> float:
        """Return the cycles of the busiest unit, loops once."""
        return max(self.cycles_by_unit.values(), default=0.0)


def vendor_compiler(gpu: str) -> Path | None:
    """Return the vendor's compiler for a GPU, or None if the user has none.

    gpu: a name of `GPUS`, or any other Mali, as "g78".

    UsageError if ROMOU_ADRENO_COMPILER is no program.
    """
    if _is_mali(gpu):
        path = shutil.which(_MALIOC)
        return None if path is None else Path(path)
    program = environment.from_environment().adreno_compiler if gpu in GPUS else None
    if program is not None and not (program.is_file() and os.access(program, os.X_OK)):
        raise UsageError(
            f"{VARIABLE}={str(program)!r} is no executable file", hint=f"chmod +x it, or unset {VARIABLE}."
        )
    return program


def _is_mali(gpu: str) -> bool:
    return re.fullmatch(r"g\d+", gpu) is not None


def compile_by_vendor(kernels: Sequence[tuple[str, str]], gpu: str) -> list[VendorStatistics | BuildError]:
    """Compile kernels with `vendor_compiler`, and return the statistics of each, or its error. Nothing is executed.

    kernels: name and OpenCL C of each.
    """
    program = vendor_compiler(gpu)
    assert program is not None, f"vendor_compiler({gpu!r}) is None"
    core = f"Mali-{gpu.upper()}" if _is_mali(gpu) else GPUS[gpu]
    answers: list[VendorStatistics | BuildError] = []
    with HeldFolder("vendor") as scratch:
        for name, source in kernels:
            file = Path(scratch) / f"{len(answers)}.cl"
            file.write_text(source, encoding="utf-8")
            try:
                answers.append(_answer(program, ["--core", core, "--name", name], file))
            except BuildError as error:
                answers.append(error)
    return answers


def _answer(program: Path, words: Sequence[str], file: Path) -> VendorStatistics:
    command = [str(program), "--opencl", "1.2", *words, "--format", "json", str(file)]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{program.name} took longer than {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise BuildError(f"{program} does not start: {error.strerror}") from error
    if done.returncode and not done.stdout.lstrip().startswith("{"):
        raise BuildError(
            f"{program.name} ended with code {done.returncode}: {(done.stderr + done.stdout).strip()[-500:]}"
        )
    return read_report(done.stdout, program.name)


@dataclass(frozen=True)
class _Property:
    name: str
    value: bool | int | float | str | None


@dataclass(frozen=True)
class _Properties:
    work_registers_used: _Count
    uniform_registers_used: _Count | None = None
    thread_occupancy: Annotated[float, Range(0, 100)] | None = None
    has_stack_spilling: bool = False
    stack_spill_bytes: _Count | None = None


@dataclass(frozen=True)
class _Cycles:
    cycle_count: tuple[NotNegative | None, ...]
    bound_pipelines: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class _Performance:
    pipelines: tuple[str, ...]
    total_cycles: _Cycles
    longest_path_cycles: _Cycles | None = None


@dataclass(frozen=True)
class _Variant:
    performance: _Performance
    properties: tuple[_Property, ...]


@dataclass(frozen=True)
class _Shader:
    variants: tuple[_Variant, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Producer:
    name: str
    version: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Report:
    """A report of malioc, as far as it is read here. A kernel is a shader of one variant."""

    producer: _Producer
    shaders: tuple[_Shader, ...]


def read_report(text: str, program: str) -> VendorStatistics:
    """Return the statistics in a report of one kernel. BuildError if it holds the compiler's errors, or is none.

    program: name of the compiler, for messages.
    """
    with refused(BuildError, f"the output of {program} is no report of a kernel in malioc's JSON"):
        report = made_of(_Report, parsed(text))
        if len(report.shaders) != 1:
            raise ValueError(f"it has {len(report.shaders)} shaders; expected 1")
        (shader,) = report.shaders
        if shader.errors:
            raise BuildError(f"{program} refuses the kernel: {'; '.join(shader.errors)}")
        if len(shader.variants) != 1:
            raise ValueError(f"it has {len(shader.variants)} variants; expected 1")
        performance = shader.variants[0].performance
        own = made_of(_Properties, {each.name: each.value for each in shader.variants[0].properties})
        version = ".".join(map(str, report.producer.version))
        return VendorStatistics(
            compiler=f"{report.producer.name} {version}".strip(),
            registers=own.work_registers_used,
            uniform_registers=own.uniform_registers_used,
            occupancy=None if own.thread_occupancy is None else own.thread_occupancy / 100,
            is_spilling=own.has_stack_spilling or bool(own.stack_spill_bytes),
            spill_bytes=own.stack_spill_bytes,
            cycles_by_unit=_by_unit(performance, performance.total_cycles),
            longest_by_unit=_by_unit(performance, performance.longest_path_cycles),
            bound_by=tuple(unit for unit in performance.total_cycles.bound_pipelines if unit),
        )


def _by_unit(performance: _Performance, cycles: _Cycles | None) -> dict[str, float]:
    """Return unit -> cycles. Units without a number are left out: the longest path of an unbounded loop has none."""
    counts = () if cycles is None else cycles.cycle_count
    if cycles is not None and len(counts) != len(performance.pipelines):
        raise ValueError(f"{len(counts)} cycle counts for {len(performance.pipelines)} pipelines")
    return {unit: count for unit, count in zip(performance.pipelines, counts, strict=False) if count is not None}
