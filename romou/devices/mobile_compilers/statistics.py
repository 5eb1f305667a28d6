"""Statistics of a kernel, read from the output of Mesa's compilers.

The Adreno compiler (ir3) prints its final code and a summary under IR3_SHADER_DEBUG=cs and FD_MESA_DEBUG=shaderdb, the
Mali compilers (Bifrost, Valhall) under BIFROST_MESA_DEBUG=shaders,shaderdb. Both print the kernel's name before, with
the intermediate form. Checked with Mesa 25.0 and 26.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from romou.base.errors import BuildError
from romou.devices.mobile_compilers.gpus import mobile_gpu
from romou.devices.mobile_compilers.ir3.program import read_instructions

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
class _Counted:
    """An instruction, as it counts.

    slots: issue slots that it takes.
    target: index of the instruction that it jumps to.
    units: its part of `LoopStatistics.units`.
    """

    slots: int
    multiply_adds: int
    is_memory: bool
    target: int | None
    units: tuple[int, int, int] = (0, 0, 0)


def _loops(code: Sequence[_Counted]) -> LoopStatistics:
    """Return the code as a nest of loops. A loop extends from a jump's target to the last jump back to it."""
    ends: dict[int, int] = {}
    for index, instruction in enumerate(code):
        if instruction.target is not None and instruction.target <= index:
            ends[instruction.target] = index
    # Outer loops come first.
    return _nest(code, 0, len(code) - 1, sorted(ends.items(), key=lambda loop: (loop[0], -loop[1])))


def _nest(code: Sequence[_Counted], first: int, last: int, loops: Sequence[tuple[int, int]]) -> LoopStatistics:
    own: list[_Counted] = []
    inner: list[LoopStatistics] = []
    at = first
    for start, end in loops:
        if start < at or end > last:
            continue  # inside of one that was taken
        own += code[at:start]
        inside = [loop for loop in loops if start <= loop[0] and loop[1] <= end and loop != (start, end)]
        inner.append(_nest(code, start, end, inside))
        at = end + 1
    own += code[at : last + 1]
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
    kind, text = mobile_gpu(gpu), text.replace("MESA: info: ", "")
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
        if name not in memory:
            continue
        if kind.vec4_registers is not None:
            said = _read_adreno(part, before, kind.vec4_registers)
        else:
            said = _read_mali(part, _BIFROST if kind.is_bifrost else _VALHALL, kind.wave)
        if said is not None:
            private, local = memory[name]
            by_name[name] = KernelStatistics(
                name=name, gpu=gpu, private_memory_bytes=private, local_memory_bytes=local, **said
            )
    missing = sorted(set(memory) - set(by_name))
    if missing or not memory:
        last = "\n".join([line for line in text.splitlines() if line.strip() and not line.startswith("@romou")][-3:])
        raise NoStatisticsError(
            f"Mesa's compiler for {gpu} printed no statistics{' for ' + ', '.join(missing) if missing else ''}; its"
            f" last words: {last}"
        )
    return [by_name[name] for name in memory]


# Adreno's summary of a kernel, after its code
_ADRENO_SUMMARY = re.compile(
    r"; CL prog \d+/\d+: (?P<instructions>\d+) instr, .*\n"
    r"; CL prog \d+/\d+: .*?(?P<half>\d+) half, (?P<full>\d+) full,.*\n"
    r"; CL prog .*\n"
    r"; CL prog .*?(?P<loops>\d+) loops"
    r"(?:\n; CL prog .*?(?P<waves>\d+) max_waves, (?P<is_double>[01]) double_threadsize)?"
)
_ADRENO_MULTIPLY_ADDS = ("mad.f32", "mad.f16", "mul.f")
_ADRENO_MEMORY = ("ld", "st", "sam", "isam", "resinfo", "atomic")
_ADRENO_SPILL = ("stp", "ldp")


def _read_adreno(text: str, before: str, vec4_registers: int) -> dict[str, Any] | None:
    """Return what the text says of a kernel. before: the text before its name."""
    summary = _ADRENO_SUMMARY.search(text)
    start = text.rfind("\nNative code for", 0, summary.start()) if summary else -1
    if not summary or start < 0:
        return None
    # The samplers are declared before the name.
    machine_code = before[max(before.rfind("\nNIR (final form)"), 0) :] + text[start : summary.end()]
    code = read_instructions(machine_code)
    names = [instruction.operation for instruction in code]
    # The summary counts neither the preamble, which ends with shpe and runs once for many work-items, nor the padding
    # after the end.
    first = names.index("shpe") + 1 if "shpe" in names else 0
    body = code[first : names.index("end") + 1 if "end" in names else None]
    vec4 = int(summary["full"]) + (int(summary["half"]) + 1) // 2
    fitting = vec4_registers // max(1, vec4) * 2
    if summary["waves"]:
        fitting = int(summary["waves"]) * (1 + int(summary["is_double"]))
    waves = min(_ADRENO_MAX_WAVES, fitting)
    return {
        "instructions": int(summary["instructions"]),
        "loops": int(summary["loops"]),
        "registers": 4 * vec4,
        "waves": waves,
        "occupancy": waves / _ADRENO_MAX_WAVES,
        "spills": sum(instruction.operation.startswith(_ADRENO_SPILL) for instruction in body),
        "cycles": None,
        "cycles_by_unit": {},
        "code": _loops(
            [
                _Counted(
                    instruction.repeat + 1 + instruction.waits,
                    (instruction.repeat + 1) * instruction.operation.startswith(_ADRENO_MULTIPLY_ADDS),
                    instruction.operation.startswith(_ADRENO_MEMORY),
                    None if instruction.target is None else instruction.target - first,
                )
                for instruction in body
            ]
        ),
        "machine_code": machine_code,
    }


@dataclass(frozen=True, kw_only=True)
class _MaliForm:
    """A format of Mali's machine code.

    start: last text before the code.
    line: an instruction.
    label, jump: target of a jump, and the operand that names it. Without labels the operand is a distance in
        instructions from the next one.
    spill: instructions that access private memory.
    has_pairs: whether instructions are issued in pairs. The second one has no arithmetic if it passes a message.
    """

    start: str
    line: re.Pattern[str]
    label: str | None
    jump: str
    spill: re.Pattern[str]
    has_pairs: bool = False

    def code(self, text: str) -> tuple[list[str], list[_Counted]]:
        """Return the mnemonics of some code, and its instructions."""
        operations: list[str] = []
        code: list[_Counted] = []
        jumps: list[str | None] = []
        labels: dict[str, int] = {}
        is_paired = False
        for line in text.splitlines():
            if self.label is not None and (label := re.fullmatch(rf"({self.label}):", line.strip())):
                labels[label[1]] = len(code)
            elif (match := self.line.match(line)) and match["operation"] != "NOP":
                operation, jump = match["operation"], re.search(self.jump, match["operands"])
                multiply_adds = _MALI_MULTIPLY_ADDS.get(".".join(operation.split(".")[:2]), 0)
                is_memory, is_first = operation.startswith(_MALI_MEMORY), line.lstrip().startswith("*")
                # An instruction that passes a message to a unit costs no arithmetic unless it is paired with some.
                is_arithmetic, is_image = is_first or not (is_memory or is_paired), operation.startswith("TEX")
                units = (int(is_arithmetic), int(is_image), int(is_memory and not is_image))
                operations.append(operation)
                code.append(_Counted(1, multiply_adds, is_memory, None, units if self.has_pairs else (0, 0, 0)))
                jumps.append(jump[1] if jump else None)
                is_paired = is_first
            elif match:
                is_paired = False
        for index, jump_text in enumerate(jumps):
            if jump_text is not None and (self.label is not None or operations[index].startswith("BRANCH")):
                target = labels.get(jump_text) if self.label is not None else index + 1 + int(jump_text)
                code[index] = replace(code[index], target=target)
        return operations, code


_MALI_MEMORY = ("LOAD", "STORE", "TEX", "LD_", "ST_", "LEA_", "ATOM")
_MALI_MULTIPLY_ADDS = {"FMA.f32": 1, "FMA.v2f16": 2}
# Mesa 25 begins the line with "SHADER-DB:" and counts "inst", Mesa 26 counts "instrs" and registers.
_MALI_SUMMARY = re.compile(
    r"^.*\bMESA_SHADER_KERNEL shader: (?P<instructions>\d+) inst(?:rs)?, (?:\d+ tuples, \d+ clauses, )?"
    r"(?P<cycles>[\d.]+) cycles, (?P<units>\d+\.\d+ [a-z]+(?:, \d+\.\d+ [a-z]+)*), .*?(?P<threads>\d+) threads,"
    r".*?(?P<loops>\d+) loops, \d+:\d+ spills:fills",
    re.MULTILINE,
)
# A tuple has two lines, `*OP ...` for the multiply-add unit and `+OP ...` for the adder. `clause_9:` is a label, which
# jumps name.
_BIFROST = _MaliForm(
    start="\nclause_0:",
    line=re.compile(r"^ +[*+](?P<operation>[A-Z][A-Z0-9_]*(?:\.[a-z0-9_]+)*)\b(?P<operands>.*)$"),
    label=r"clause_\d+",
    jump=r"\b(clause_\d+)",
    spill=re.compile(r"(LOAD|STORE).*\.tl$"),
    has_pairs=True,
)
# One instruction per line, after the last block of the intermediate form. A jump says how many instructions it skips.
_VALHALL = _MaliForm(
    start="\n}",
    line=re.compile(r"^ +(?P<operation>[A-Z][A-Z0-9_]*(?:\.[a-zA-Z0-9_]+)*)\b(?P<operands>.*)$"),
    label=None,
    jump=r"^.*offset:(-?\d+)$",
    spill=re.compile(r"^ *(?:\S+ = )?(?:LOAD|STORE)\S*\.tl\b", re.MULTILINE),
)


def _read_mali(text: str, form: _MaliForm, wave: int) -> dict[str, Any] | None:
    """Return what the text says of a kernel."""
    summary = _MALI_SUMMARY.search(text)
    start = text.rfind(form.start, 0, summary.start()) if summary else -1
    if not summary or start < 0:
        return None
    code = text[start : summary.start()]
    operations, counted = form.code(code)
    spills = sum(form.spill.match(operation) is not None for operation in operations)
    if form is _VALHALL:
        # In machine code, private memory looks like any other. In the form before, it does not.
        spills = len(form.spill.findall(text[text.rfind("\nblock0 {", 0, start) : start]))
    # The highest register that occurs. r55 and above also hold a work-item's ids.
    registers = 1 + max((int(r) for r in re.findall(r"\br(\d+)\b", code) if int(r) < 55), default=0)
    return {
        "instructions": int(summary["instructions"]),
        "loops": int(summary["loops"]),
        "registers": registers,
        "waves": None,
        # G71 and G72, with warps of 4, never run more work-items for fewer registers.
        "occupancy": 1.0 if int(summary["threads"]) == 2 or wave == 4 else 0.5,
        "spills": spills,
        "cycles": float(summary["cycles"]),
        "cycles_by_unit": {unit: float(value) for value, unit in re.findall(r"([\d.]+) ([a-z]+)", summary["units"])},
        "code": _loops(counted),
    }
