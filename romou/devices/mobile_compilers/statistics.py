"""Statistics of a kernel, read from the output of Mesa's compilers.

The Adreno compiler (ir3) prints its final code and a summary under IR3_SHADER_DEBUG=cs and FD_MESA_DEBUG=shaderdb, the
Mali compilers (Bifrost, Valhall) under BIFROST_MESA_DEBUG=shaders,shaderdb. Both print the kernel's name before, with
the intermediate form. Checked with Mesa 25.0 and 26.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from romou.base.errors import BuildError
from romou.devices.mobile_compilers.gpus import mobile_gpu

_ADRENO_MAX_WAVES = 16


class NoStatisticsError(BuildError):
    """The compiler accepted the file and printed no kernel."""


@dataclass(frozen=True, kw_only=True)
class LoopStatistics:
    """The instructions in one iteration of a loop, or in a kernel, without inner loops.

    Conditional code counts in full.

    instructions: on Adreno including the no-operations that the compiler inserts as waits.
    multiply_adds: multiplications with or without an addition, in fp32 or fp16. A vector of two fp16 counts as two.
    memory: reads and writes of buffers, images, local and private memory.
    units: on Bifrost (Mali-G31 to G76) pairs of instructions with arithmetic, reads of images, other memory accesses.
        Zeros on other GPUs.
    inner: the loops inside, in the order of the code.
    """

    instructions: int
    multiply_adds: int
    memory: int
    units: tuple[int, int, int] = (0, 0, 0)
    inner: tuple[LoopStatistics, ...] = ()

    @property
    def instructions_per_multiply_add(self) -> float | None:
        """Return instructions / multiply_adds. None if the loop multiplies nothing."""
        return self.instructions / self.multiply_adds if self.multiply_adds else None

    def busiest(self) -> LoopStatistics:
        """Return the innermost loop with the most multiply-adds, or this loop if no inner loop multiplies.

        Compilers unroll short loops.
        """
        innermost = [loop.busiest() for loop in self.inner]
        busy = max(innermost, key=lambda loop: loop.multiply_adds, default=None)
        return busy if busy is not None and busy.multiply_adds else self


@dataclass(frozen=True, kw_only=True)
class KernelStatistics:
    """Statistics of a kernel by Mesa's compiler for a GPU. The vendor's compiler differs, so the numbers are relative.

    name: name of the kernel.
    gpu: a name of `GPUS`, e.g. "a630" (Adreno 630).
    instructions: static count, on Adreno including the no-operations that the compiler inserts as waits.
    registers: 32-bit registers of a work-item. Adreno allocates them by four. More than 32 of Mali's 64 halve the
        work-items in flight.
    waves: on Adreno the waves of 64 work-items that fit into a processor's registers, at most 16. Mesa 26 prints it,
        local memory considered. None on Mali.
    occupancy: work-items in flight that the registers allow, as a fraction of the most, 0 to 1.
    spills: instructions that access private memory, because of spilled registers or of arrays in private memory.
    private_memory_bytes, local_memory_bytes: of a work-item and of a work group.
    cycles: on Mali the static bound of the slowest unit. `cycles_by_unit` has all units. None on Adreno, whose compiler
        does not estimate any.
    loops: their number, as the compiler counts them.
    code: the kernel and the loops inside it.
    machine_code: what Adreno's compiler prints of the kernel, which `ir3.read_program` reads. Empty on Mali.
    """

    name: str
    gpu: str
    instructions: int
    registers: int
    waves: int | None
    occupancy: float
    spills: int
    private_memory_bytes: int
    local_memory_bytes: int
    cycles: float | None
    cycles_by_unit: dict[str, float]
    loops: int
    code: LoopStatistics
    machine_code: str = field(default="", repr=False, compare=False)

    @property
    def is_adreno(self) -> bool:
        """Return whether Romou's estimate of registers simulates this compiler."""
        return mobile_gpu(self.gpu).vec4_registers is not None

    @property
    def inner(self) -> LoopStatistics:
        """Return the innermost loop with the most multiply-adds, or the code outside of loops if no loop multiplies."""
        return self.code.busiest()


@dataclass(frozen=True)
class _Instruction:
    """An instruction of a listing.

    slots: issue slots that it takes.
    target: label that it jumps to.
    units: its part of `LoopStatistics.units`.
    """

    operation: str
    slots: int
    multiply_adds: int
    is_memory: bool
    target: str | None
    units: tuple[int, int, int]


@dataclass(frozen=True)
class _Listing:
    """Machine code in order, and label -> index of the next instruction."""

    code: Sequence[_Instruction]
    labels: dict[str, int]

    def statistics(self) -> LoopStatistics:
        """Return the code as a nest of loops. A loop extends from a jump's target to the last jump back to it."""
        ends: dict[int, int] = {}
        for index, instruction in enumerate(self.code):
            start = self.labels.get(instruction.target or "", index + 1)
            if start <= index:
                ends[start] = index
        # Outer loops come first.
        return self._nest(0, len(self.code) - 1, sorted(ends.items(), key=lambda loop: (loop[0], -loop[1])))

    def _nest(self, first: int, last: int, loops: Sequence[tuple[int, int]]) -> LoopStatistics:
        own: list[_Instruction] = []
        inner: list[LoopStatistics] = []
        at = first
        for start, end in loops:
            if start < at or end > last:
                continue  # inside of one that was taken
            own += self.code[at:start]
            inner.append(
                self._nest(
                    start, end, [loop for loop in loops if start <= loop[0] and loop[1] <= end and loop != (start, end)]
                )
            )
            at = end + 1
        own += self.code[at : last + 1]
        return LoopStatistics(
            instructions=sum(i.slots for i in own),
            multiply_adds=sum(i.multiply_adds for i in own),
            memory=sum(i.is_memory for i in own),
            units=(sum(i.units[0] for i in own), sum(i.units[1] for i in own), sum(i.units[2] for i in own)),
            inner=tuple(inner),
        )


def read_statistics(text: str, gpu: str) -> list[KernelStatistics]:
    """Return all kernels of one file, from the text between "@romou begin" and "@romou end".

    Mesa compiles a kernel for any offset of the work groups, then for none. The second version is returned, because
    launches without an offset run it.

    BuildError with the compiler's message if the file was not compiled, or if the text has another form.
    """
    text = text.replace("MESA: info: ", "")
    failure = re.search(r"^@romou failed (.*?)(?=^@romou|\Z)", text, re.DOTALL | re.MULTILINE)
    if failure:
        raise BuildError(f"Mesa's compiler for {gpu} refuses the kernel: {failure[1].strip()}")
    memory = {
        m[1]: (int(m[2]), int(m[3])) for m in re.finditer(r"^@romou kernel (\S+) (\d+) (\d+)$", text, re.MULTILINE)
    }
    # re.split with a group: text before the first kernel, name, text, name, text ...
    first, *parts = re.split(r"^impl (?:__wrapped_)?(\w+) \{$", text, flags=re.MULTILINE)
    by_name: dict[str, KernelStatistics] = {}
    for before, name, part in zip([first, *parts[1::2]], parts[::2], parts[1::2], strict=False):
        if name in memory:
            # The samplers are declared before the name.
            declared = before[max(before.rfind("\nNIR (final form)"), 0) :]
            statistics = _read(part, name, gpu, *memory[name], declared)
            by_name |= {name: statistics} if statistics else {}
    missing = sorted(set(memory) - set(by_name))
    if missing or not memory:
        said = "\n".join([line for line in text.splitlines() if line.strip() and not line.startswith("@romou")][-3:])
        raise NoStatisticsError(
            f"Mesa's compiler for {gpu} printed no statistics{' for ' + ', '.join(missing) if missing else ''}; its"
            f" last words: {said}"
        )
    return [by_name[name] for name in memory]


@dataclass(frozen=True, kw_only=True)
class _Form:
    """A compiler's format of machine code.

    summary: summary of a kernel, after its code.
    start: last text before the code.
    line: an instruction.
    label, jump: target of a jump, and the operand that names it. Without labels the operand is a distance in
        instructions from the next one.
    spill: instructions that access private memory.
    memory: prefixes of instructions that access memory.
    multiply_adds: instruction -> its multiply-adds.
    has_pairs: whether instructions are issued in pairs. The second one has no arithmetic if it passes a message.
    """

    summary: re.Pattern[str]
    start: str
    line: re.Pattern[str]
    label: str | None
    jump: str
    spill: re.Pattern[str]
    memory: tuple[str, ...]
    multiply_adds: Mapping[str, int]
    has_pairs: bool = False

    def listing(self, text: str) -> _Listing:
        """Return the instructions of some code.

        Adreno's flag (rptN) repeats an instruction N times, and (nopN) waits N slots before it.
        """
        code: list[_Instruction] = []
        labels: dict[str, int] = {}
        is_paired = False
        for line in text.splitlines():
            if self.label is not None and (label := re.fullmatch(rf"({self.label}):", line.strip())):
                labels[label[1]] = len(code)
            elif (match := self.line.match(line)) and match["operation"] != "NOP":
                operation, extra = (
                    match["operation"],
                    {kind: int(count) for kind, count in re.findall(r"\((rpt|nop)(\d+)\)", match["flags"])},
                )
                times, target = 1 + extra.get("rpt", 0), re.search(self.jump, match["operands"] or "")
                multiply_adds = times * self.multiply_adds.get(".".join(operation.split(".")[:2]), 0)
                is_memory, is_first = operation.startswith(self.memory), line.lstrip().startswith("*")
                # An instruction that passes a message to a unit costs no arithmetic unless it is paired with some.
                is_arithmetic, is_image = is_first or not (is_memory or is_paired), operation.startswith("TEX")
                units = (
                    (int(is_arithmetic), int(is_image), int(is_memory and not is_image))
                    if self.has_pairs
                    else (0, 0, 0)
                )
                code.append(
                    _Instruction(
                        operation, times + extra.get("nop", 0), multiply_adds, is_memory, target and target[1], units
                    )
                )
                is_paired = is_first
            elif match:
                is_paired = False
        if self.label is None:
            labels = {str(index): index for index in range(len(code))}
            jumps = [instruction.target if instruction.operation.startswith("BRANCH") else None for instruction in code]
            code = [
                replace(instruction, target=jump and str(index + 1 + int(jump)))
                for index, (instruction, jump) in enumerate(zip(code, jumps, strict=True))
            ]
        return _Listing(code, labels)


_FLAGS = r"(?:\([a-z0-9]+\) ?)*"
# `(sy)(rpt2)mad.f32 r0.x, ...`: flags, operation, operands; `l9:` is a label.
_ADRENO = _Form(
    summary=re.compile(
        r"; CL prog \d+/\d+: (?P<instructions>\d+) instr, .*\n"
        r"; CL prog \d+/\d+: .*?(?P<half>\d+) half, (?P<full>\d+) full,.*\n"
        r"; CL prog .*\n"
        r"; CL prog .*?(?P<loops>\d+) loops"
        r"(?:\n; CL prog .*?(?P<waves>\d+) max_waves, (?P<is_double>[01]) double_threadsize)?"
    ),
    start="\nNative code for",
    line=re.compile(rf"^\s*(?P<flags>{_FLAGS})(?P<operation>[a-z][a-z0-9]*(?:\.[a-z0-9]+)*)(?: (?P<operands>.*))?$"),
    label=r"l\d+",
    jump=r"#(l\d+)",
    spill=re.compile("stp|ldp"),
    memory=("ld", "st", "sam", "isam", "resinfo", "atomic"),
    multiply_adds={"mad.f32": 1, "mad.f16": 1, "mul.f": 1},
)
# Mesa 25 begins the line with "SHADER-DB:" and counts "inst", Mesa 26 counts "instrs" and registers.
_MALI_SUMMARY = re.compile(
    r"^.*\bMESA_SHADER_KERNEL shader: (?P<instructions>\d+) inst(?:rs)?, (?:\d+ tuples, \d+ clauses, )?"
    r"(?P<cycles>[\d.]+) cycles, (?P<units>\d+\.\d+ [a-z]+(?:, \d+\.\d+ [a-z]+)*), .*?(?P<threads>\d+) threads,"
    r".*?(?P<loops>\d+) loops, \d+:\d+ spills:fills",
    re.MULTILINE,
)
# A tuple has two lines, `*OP ...` for the multiply-add unit and `+OP ...` for the adder. `clause_9:` is a label, which
# jumps name.
_BIFROST = _Form(
    summary=_MALI_SUMMARY,
    start="\nclause_0:",
    line=re.compile(r"^ +[*+](?P<flags>)(?P<operation>[A-Z][A-Z0-9_]*(?:\.[a-z0-9_]+)*)\b(?P<operands>.*)$"),
    label=r"clause_\d+",
    jump=r"\b(clause_\d+)",
    spill=re.compile(r"(LOAD|STORE).*\.tl$"),
    memory=("LOAD", "STORE", "TEX", "LD_", "ST_", "LEA_", "ATOM"),
    multiply_adds={"FMA.f32": 1, "FMA.v2f16": 2},
    has_pairs=True,
)
# One instruction per line, after the last block of the intermediate form. A jump says how many instructions it skips.
_VALHALL = _Form(
    summary=_MALI_SUMMARY,
    start="\n}",
    line=re.compile(r"^ +(?P<flags>)(?P<operation>[A-Z][A-Z0-9_]*(?:\.[a-zA-Z0-9_]+)*)\b(?P<operands>.*)$"),
    label=None,
    jump=r"^.*offset:(-?\d+)$",
    spill=re.compile(r"^ *(?:\S+ = )?(?:LOAD|STORE)\S*\.tl\b", re.MULTILINE),
    memory=_BIFROST.memory,
    multiply_adds=_BIFROST.multiply_adds,
)


def _read(text: str, name: str, gpu: str, private: int, local: int, declared: str) -> KernelStatistics | None:
    kind = mobile_gpu(gpu)
    form = _ADRENO if kind.vec4_registers is not None else _BIFROST if kind.is_bifrost else _VALHALL
    summary = form.summary.search(text)
    start = text.rfind(form.start, 0, summary.start()) if summary else -1
    if not summary or start < 0:
        return None
    code = text[start : summary.start()]
    listing = form.listing(_counted(code) if form is _ADRENO else code)
    spills = sum(form.spill.match(i.operation) is not None for i in listing.code)
    if form is _VALHALL:
        # In machine code, private memory looks like any other. In the form before, it does not.
        spills = len(form.spill.findall(text[text.rfind("\nblock0 {", 0, start) : start]))
    return KernelStatistics(
        name=name,
        gpu=gpu,
        instructions=int(summary["instructions"]),
        spills=spills,
        private_memory_bytes=private,
        local_memory_bytes=local,
        loops=int(summary["loops"]),
        code=listing.statistics(),
        machine_code=declared + text[start : summary.end()] if form is _ADRENO else "",
        **(
            _mali_resources(summary, code, kind.wave)
            if kind.vec4_registers is None
            else _adreno_resources(summary, kind.vec4_registers)
        ),
    )


def _counted(code: str) -> str:
    """Return the code that Adreno's summary counts: without the preamble and without padding after the end.

    The preamble ends with shpe and runs once for many work-items.
    """
    code = re.split(rf"^{_FLAGS}shpe$", code, flags=re.MULTILINE)[-1]
    end = re.search(rf"^{_FLAGS}end$", code, re.MULTILINE)
    return code[: end.end()] if end else code


def _adreno_resources(summary: re.Match[str], vec4_registers: int) -> dict[str, Any]:
    vec4 = int(summary["full"]) + (int(summary["half"]) + 1) // 2
    fitting = vec4_registers // max(1, vec4) * 2
    if summary["waves"]:
        fitting = int(summary["waves"]) * (1 + int(summary["is_double"]))
    waves = min(_ADRENO_MAX_WAVES, fitting)
    return {
        "registers": 4 * vec4,
        "waves": waves,
        "occupancy": waves / _ADRENO_MAX_WAVES,
        "cycles": None,
        "cycles_by_unit": {},
    }


def _mali_resources(summary: re.Match[str], code: str, wave: int) -> dict[str, Any]:
    # G71 and G72, with warps of 4, never run more work-items for fewer registers.
    # The highest register that occurs. r55 and above also hold a work-item's ids.
    registers = 1 + max((int(r) for r in re.findall(r"\br(\d+)\b", code) if int(r) < 55), default=0)
    units = {unit: float(value) for value, unit in re.findall(r"([\d.]+) ([a-z]+)", summary["units"])}
    occupancy = 1.0 if int(summary["threads"]) == 2 or wave == 4 else 0.5
    return {
        "registers": registers,
        "waves": None,
        "occupancy": occupancy,
        "cycles": float(summary["cycles"]),
        "cycles_by_unit": units,
    }
