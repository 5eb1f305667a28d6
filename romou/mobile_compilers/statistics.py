"""What Mesa's compilers print about a kernel, read into numbers.

The Adreno compiler (ir3) prints its final code and a summary under IR3_SHADER_DEBUG=cs and FD_MESA_DEBUG=shaderdb, the Mali compiler under
BIFROST_MESA_DEBUG=shaders,shaderdb; both name the kernel in the intermediate form before. Checked with Mesa 25.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from romou.core.errors import BuildError

# Registers of four 32-bit values for a work-item and processor (Mesa, freedreno_devices.py).
_ADRENO_VEC4_REGISTERS = {"a630": 96}
_ADRENO_MAX_WAVES = 16


class NoStatisticsError(BuildError):
    """The compiler took the file and printed nothing of a kernel."""


@dataclass(frozen=True, kw_only=True)
class LoopStatistics:
    """One iteration of a loop without the loops inside it, or a whole kernel without its loops; conditional code counts as if it ran.

    instructions: on Adreno with the no-operations that the compiler puts in as waits.
    multiply_adds: multiplications with or without an addition in fp32 or fp16; one on a vector of two fp16 counts as two.
    memory: reads and writes of buffers, images, local and private memory.
    inner: the loops inside, in the order of the code.
    """

    instructions: int
    multiply_adds: int
    memory: int
    inner: tuple[LoopStatistics, ...] = ()

    @property
    def instructions_per_multiply_add(self) -> float | None:
        """instructions / multiply_adds; None where the loop multiplies nothing."""
        return self.instructions / self.multiply_adds if self.multiply_adds else None

    def busiest(self) -> LoopStatistics:
        """The innermost loop with the most multiply-adds; this one where no loop inside multiplies: compilers unroll short loops."""
        innermost = [loop.busiest() for loop in self.inner]
        busy = max(innermost, key=lambda loop: loop.multiply_adds, default=None)
        return busy if busy is not None and busy.multiply_adds else self


@dataclass(frozen=True, kw_only=True)
class KernelStatistics:
    """A kernel as Mesa's compiler for a GPU made it. Not the vendor's compiler: read the numbers as relative.

    name: of the kernel.   gpu: "a630" (Adreno 630) or "g76" (Mali-G76).
    instructions: in the code as it stands, a loop's body once; on Adreno with the no-operations that the compiler puts in as waits.
    registers: 32-bit registers of a work-item. Adreno allocates them by four; of Mali's 64, more than 32 halve the work-items in flight.
    waves: Adreno: waves of 64 work-items that the registers let a processor hold, at most 16. None on Mali.
    occupancy: share of the most work-items in flight that the registers allow, 0 to 1.
    spills: instructions that access private memory, for registers that did not suffice or for arrays that no register can hold.
    private_memory_bytes, local_memory_bytes: of a work-item and of a work group.
    cycles: Mali: bound of the code as it stands, by the slowest unit; `cycles_by_unit` has all of them. None on Adreno, whose compiler
        estimates none.
    loops: how many there are, by the compiler's count.
    code: the kernel and the loops inside it.
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

    @property
    def is_adreno(self) -> bool:
        """Whether it is the compiler whose order of instructions Romou's estimate of registers follows."""
        return self.gpu in _ADRENO_VEC4_REGISTERS

    @property
    def inner(self) -> LoopStatistics:
        """The innermost loop with the most multiply-adds; the code outside of loops where no loop multiplies."""
        return self.code.busiest()


@dataclass(frozen=True)
class _Instruction:
    """One instruction of a listing: how many issue slots it takes, and where it jumps to, as a label."""

    operation: str
    slots: int
    multiply_adds: int
    is_memory: bool
    target: str | None


@dataclass(frozen=True)
class _Listing:
    """Machine code in order; label -> index of the instruction behind it."""

    code: Sequence[_Instruction]
    labels: dict[str, int]

    def statistics(self) -> LoopStatistics:
        """The whole code as a nest of loops: a loop goes from the target of a jump back to the last such jump."""
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
            inner.append(self._nest(start, end, [loop for loop in loops if start <= loop[0] and loop[1] <= end and loop != (start, end)]))
            at = end + 1
        own += self.code[at : last + 1]
        return LoopStatistics(
            instructions=sum(i.slots for i in own),
            multiply_adds=sum(i.multiply_adds for i in own),
            memory=sum(i.is_memory for i in own),
            inner=tuple(inner),
        )


def read_statistics(text: str, gpu: str) -> list[KernelStatistics]:
    """All kernels of one file, from what stands between "@romou begin" and "@romou end".

    Mesa compiles a kernel for any offset of the work groups and once more for none; the latter, which comes second and is the one that
    a launch without an offset runs, is returned.

    BuildError where the file was not compiled (with the compiler's message), or the text is not what this was written for.
    """
    text = text.replace("MESA: info: ", "")
    failure = re.search(r"^@romou failed (.*?)(?=^@romou|\Z)", text, re.DOTALL | re.MULTILINE)
    if failure:
        raise BuildError(f"Mesa's compiler for {gpu} refuses the kernel: {failure[1].strip()}")
    memory = {m[1]: (int(m[2]), int(m[3])) for m in re.finditer(r"^@romou kernel (\S+) (\d+) (\d+)$", text, re.MULTILINE)}
    read = _read_adreno if gpu in _ADRENO_VEC4_REGISTERS else _read_mali
    # re.split with a group: text before the first kernel, name, text, name, text ...
    parts = re.split(r"^impl (?:__wrapped_)?(\w+) \{$", text, flags=re.MULTILINE)[1:]
    found: dict[str, KernelStatistics] = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        if name in memory:
            private, local = memory[name]
            for statistics in read(part, name, gpu, private, local):
                found[name] = statistics
    missing = sorted(set(memory) - set(found))
    if missing or not memory:
        said = "\n".join([line for line in text.splitlines() if line.strip() and not line.startswith("@romou")][-3:])
        raise NoStatisticsError(f"Mesa's compiler for {gpu} printed no statistics{' for ' + ', '.join(missing) if missing else ''}; its last words: {said}")
    return [found[name] for name in memory]


_ADRENO_SUMMARY = re.compile(
    r"; CL prog \d+/\d+: (?P<instructions>\d+) instr, .*\n"
    r"; CL prog \d+/\d+: .*?(?P<half>\d+) half, (?P<full>\d+) full,.*\n"
    r"; CL prog .*\n"
    r"; CL prog .*?(?P<loops>\d+) loops"
)
_ADRENO_FLAGS = r"(?:\([a-z0-9]+\) ?)*"
_ADRENO_LINE = re.compile(rf"^(?P<flags>{_ADRENO_FLAGS})(?P<operation>[a-z][a-z0-9]*(?:\.[a-z0-9]+)*)(?: (?P<operands>.*))?$")
_ADRENO_MEMORY = ("ld", "st", "sam", "isam", "resinfo", "atomic")


def _read_adreno(text: str, name: str, gpu: str, private: int, local: int) -> Iterator[KernelStatistics]:
    summary = _ADRENO_SUMMARY.search(text)
    start = text.find("\nNative code for")
    if not summary or start < 0:
        return
    listing = _adreno_listing(text[start : summary.start()])
    vec4 = int(summary["full"]) + (int(summary["half"]) + 1) // 2
    waves = min(_ADRENO_MAX_WAVES, _ADRENO_VEC4_REGISTERS[gpu] // max(1, vec4) * 2)
    yield KernelStatistics(
        name=name,
        gpu=gpu,
        instructions=int(summary["instructions"]),
        registers=4 * vec4,
        waves=waves,
        occupancy=waves / _ADRENO_MAX_WAVES,
        spills=sum(i.operation.startswith(("stp", "ldp")) for i in listing.code),
        private_memory_bytes=private,
        local_memory_bytes=local,
        cycles=None,
        cycles_by_unit={},
        loops=int(summary["loops"]),
        code=listing.statistics(),
    )


def _adreno_listing(text: str) -> _Listing:
    """`(sy)(rpt2)mad.f32 r0.x, ...`: flags, operation, operands; (rptN) repeats it N times, (nopN) waits N slots before it; `l9:` is a label.

    The summary counts neither the preamble, which ends with shpe and runs once for many work-items, nor the padding behind the end.
    """
    text = re.split(rf"^{_ADRENO_FLAGS}shpe$", text, flags=re.MULTILINE)[-1]
    end = re.search(rf"^{_ADRENO_FLAGS}end$", text, re.MULTILINE)
    text = text[: end.end()] if end else text
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label = re.fullmatch(r"(l\d+):", line.strip())
        if label:
            labels[label[1]] = len(code)
            continue
        match = _ADRENO_LINE.match(line.strip())
        if not match:
            continue
        operation = match["operation"]
        extra = {kind: int(count) for kind, count in re.findall(r"\((rpt|nop)(\d+)\)", match["flags"])}
        times = 1 + extra.get("rpt", 0)
        multiply_adds = times if operation in ("mad.f32", "mad.f16", "mul.f") else 0
        target = re.search(r"#(l\d+)", match["operands"] or "")
        code.append(_Instruction(operation, times + extra.get("nop", 0), multiply_adds, operation.startswith(_ADRENO_MEMORY), target[1] if target else None))
    return _Listing(code, labels)


_MALI_SUMMARY = re.compile(
    r"SHADER-DB: .*? shader: (?P<instructions>\d+) inst, \d+ tuples, \d+ clauses, (?P<cycles>[\d.]+) cycles, (?P<units>.*?), \d+ quadwords, "
    r"(?P<threads>\d+) threads,.*?(?P<loops>\d+) loops, \d+:\d+ spills:fills"
)
_MALI_LINE = re.compile(r"^ +[*+](?P<operation>[A-Z][A-Z0-9_]*(?:\.[a-z0-9_]+)*)\b(?P<operands>.*)$")
_MALI_MEMORY = ("LOAD", "STORE", "TEX", "LD_", "ST_", "LEA_", "ATOM")


def _read_mali(text: str, name: str, gpu: str, private: int, local: int) -> Iterator[KernelStatistics]:
    summary = _MALI_SUMMARY.search(text)
    start = text.find("\nclause_0:")
    if not summary or start < 0:
        return
    code_text = text[start : summary.start()]
    listing = _mali_listing(code_text)
    units = {unit: float(value) for value, unit in re.findall(r"([\d.]+) ([a-z]+)", summary["units"])}
    is_full = int(summary["threads"]) == 2
    # The highest register that is named; r55 and above are also where a work-item finds its ids.
    registers = 1 + max((int(r) for r in re.findall(r"\br(\d+)\b", code_text) if int(r) < 55), default=0)
    yield KernelStatistics(
        name=name,
        gpu=gpu,
        instructions=int(summary["instructions"]),
        registers=registers,
        waves=None,
        occupancy=1.0 if is_full else 0.5,
        spills=sum(i.operation.startswith(("LOAD", "STORE")) and i.operation.endswith(".tl") for i in listing.code),
        private_memory_bytes=private,
        local_memory_bytes=local,
        cycles=float(summary["cycles"]),
        cycles_by_unit=units,
        loops=int(summary["loops"]),
        code=listing.statistics(),
    )


def _mali_listing(text: str) -> _Listing:
    """Two lines a tuple, `*OP ...` for the multiply-add unit and `+OP ...` for the adder; `clause_9:` is a label, and jumps name one."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label = re.fullmatch(r"(clause_\d+):", line.strip())
        if label:
            labels[label[1]] = len(code)
            continue
        match = _MALI_LINE.match(line)
        if not match or match["operation"] == "NOP":
            continue
        operation = match["operation"]
        multiply_adds = {"FMA.f32": 1, "FMA.v2f16": 2}.get(".".join(operation.split(".")[:2]), 0)
        target = re.search(r"\b(clause_\d+)", match["operands"])
        code.append(_Instruction(operation, 1, multiply_adds, operation.startswith(_MALI_MEMORY), target[1] if target else None))
    return _Listing(code, labels)
