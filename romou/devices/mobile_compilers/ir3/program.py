"""Adreno's machine code (ir3), parsed from the text that Mesa prints with it.

    (sy)(rpt3)mad.f32 r4.x, c9.w, (neg)(r)r11.z, (r)r13.z      flags, mnemonic, destination, sources

Registers `r` have 32 bits and `hr` 16. From Adreno 6xx on, hr0.x and hr0.y are the halves of r0.x. r48 to r55 are
shared by a wave. `c` are constants, `p0` predicates. Checked with Mesa 25.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from romou.base.errors import BuildError

_FLAGS = re.compile(r"\(([a-z]+?)(\d*)\) ?")
_PREFIX = re.compile(r"\((neg|abs|absneg|not|r|last|even|ei|sat|pos_infinity|neg_infinity|[fsu](?:8|16|32)|[xyzw]+)\)")
_REGISTER = re.compile(r"(!?)(h?[rc]|u?p|a)(\d+)\.([xyzw])")
_RELATIVE = re.compile(r"(h?[rc])<a0\.x(?: ([+-]) (\d+))?>")
_BITS = frozenset({"bits"})
_NAMED_FLOATS = {
    "e": 2.718281828459045,
    "pi": 3.141592653589793,
    "1/pi": 0.3183098861837907,
    "1/log2(e)": 0.6931471805599453,
    "log2(e)": 1.4426950408889634,
    "1/log2(10)": 0.30102999566398120,
    "log2(10)": 3.3219280948873626,
}


class UnknownInstructionError(BuildError):
    """The machine code has something that the simulator does not know. It names the mnemonic and the line."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A register, a constant register or a number.

    file: "r", "hr", "c", "hc", "p" or "a"; "" for a number.
    index: 4 * number + component.
    is_relative: whether a0.x is added to the index.
    marks: what stands before it in parentheses, "neg", "r" or "xyzw" for example; "!" inverts a predicate, and "bits"
        says that a number is the bits of a float.
    """

    file: str = ""
    index: int = 0
    value: float | int = 0
    is_relative: bool = False
    marks: frozenset[str] = frozenset()

    @property
    def is_half(self) -> bool:
        """Return whether it has 16 bits."""
        return self.file.startswith("h")

    def after(self, count: int) -> Operand:
        """Return the register that follows `count` registers later."""
        return replace(self, index=self.index + count, marks=frozenset())


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction.

    repeat: n of (rptn): it is executed n + 1 times, on the next registers each time.
    waits: n of (nopn): issue slots without work before it.
    operands: the destination first. Addresses in memory, images (t#1) and samplers stay text.
    target: index of the instruction that it jumps to.
    aliases: file and index of a register -> operand that a texture instruction reads instead.
    reason: why the simulator cannot execute it, "" if that is not known before.
    """

    text: str
    operation: str
    operands: tuple[Operand | str, ...] = ()
    repeat: int = 0
    waits: int = 0
    is_saturated: bool = False
    target: int | None = None
    aliases: Mapping[tuple[str, int], Operand] = field(default_factory=dict)
    reason: str = ""

    def unknown(self, what: str = "") -> UnknownInstructionError:
        """Return the error that refuses this instruction."""
        reason = f" ({what})" if what else ""
        return UnknownInstructionError(
            f"the simulator of Adreno's machine code does not know {self.operation}{reason}: {self.text}",
            hint="Nothing is guessed: add the instruction to romou/devices/mobile_compilers/ir3/instructions.py.",
        )

    def operand(self, place: int) -> Operand:
        """Return an operand that is a register or a number."""
        operand = self.operands[place] if place < len(self.operands) else None
        if not isinstance(operand, Operand):
            raise self.unknown(f"operand {place}")
        return operand


@dataclass(frozen=True, kw_only=True)
class Program:
    """The machine code of a kernel, and where its inputs lie.

    constants: dword of the constant file -> value.
    inputs: system value -> first register.
    driver_params: dword of the constant file where Mesa's driver parameters begin.
    argument_ranges: (dword of the constant file, first byte, end byte) of the kernel's arguments that are put there.
    samplers: index -> (addressing mode, whether coordinates are normalized, filter).
    """

    name: str
    code: tuple[Instruction, ...]
    constants: Mapping[int, int]
    inputs: Mapping[str, int]
    driver_params: int | None
    argument_ranges: tuple[tuple[int, int, int], ...]
    samplers: Mapping[int, tuple[str, bool, str]]


def read_program(listing: str, name: str) -> Program:
    """Parse a kernel's part of the compiler's output, from its intermediate form's header to its summary."""
    dword = r"c(\d+)\.([xyzw])"
    ranges = re.findall(rf"^;     offset: +{dword}\n;     size: +\d+ vec4 \((\d+)b -> (\d+)b\)", listing, re.MULTILINE)
    blocks = re.findall(r"^;     block: +(\d+)", listing, re.MULTILINE)
    if set(blocks) - {"0"}:
        raise BuildError(f"{name}: the simulator knows constants of the arguments only, not of block {max(blocks)}")
    params = re.search(rf"^;   driver_params +{dword}", listing, re.MULTILINE)
    values = re.findall(r"\b(r\d+\.[xyzw]) \(SYSTEM_VALUE_(\w+)", next(iter(re.findall("CL: inputs:.*", listing)), ""))
    return Program(
        name=name,
        code=read_instructions(listing),
        constants={
            _index(number, component) + place: int(word, 16)
            for number, component, words in re.findall(rf"^@const\({dword}\)\s*(.*)$", listing, re.MULTILINE)
            for place, word in enumerate(words.split(", "))
        },
        inputs={value: _index(*re.findall(r"r(\d+)\.(.)", register)[0]) for register, value in values},
        driver_params=_index(*params.groups()) if params else None,
        argument_ranges=tuple((_index(n, c), int(first), int(end)) for n, c, first, end in ranges),
        samplers={
            int(index): (mode, normalized == "true", kind)
            for index, mode, normalized, kind in re.findall(
                r"sampler #(\d+) \([\d, ]+\) = \{ (\w+), (\w+), (\w+) \}", listing
            )
        },
    )


def _index(number: str, component: str) -> int:
    return 4 * int(number) + "xyzw".index(component)


def read_instructions(listing: str) -> tuple[Instruction, ...]:
    """Parse the instructions of a kernel, the preamble first, padding last. See `read_program`.

    An instruction of another form has a reason, which is an error when it is executed.
    """
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    aliases: dict[tuple[str, int], Operand] = {}
    for line in listing[listing.rindex("\nNative code for") :].splitlines()[2:]:
        text = line.strip()
        if not text or text[0] in ";@":
            continue
        if re.fullmatch(r"l\d+:", text):
            labels[text[:-1]] = len(code)
            continue
        instruction = _instruction(text)
        if re.fullmatch(r"alias\.tex\.b(16|32)\.\d+", instruction.operation):
            replaced, source = instruction.operand(0), instruction.operand(1)
            aliases[replaced.file, replaced.index] = source if source.file else replace(source, marks=_BITS)
            instruction = replace(instruction, operation="nop")
        elif aliases and instruction.operation.startswith(("isam", "sam")):
            instruction, aliases = replace(instruction, aliases=aliases), {}
        elif aliases:
            instruction, aliases = replace(instruction, reason="aliases of registers before it"), {}
        code.append(instruction)
    return tuple(_linked(instruction, labels) for instruction in code)


def _linked(instruction: Instruction, labels: Mapping[str, int]) -> Instruction:
    last = instruction.operands[-1] if instruction.operands else None
    if isinstance(last, str) and last.startswith("#l"):
        return replace(instruction, target=labels.get(last[1:]), operands=instruction.operands[:-1])
    return instruction


def _instruction(text: str) -> Instruction:
    rest, flags = text, {}
    while match := _FLAGS.match(rest):
        flags[match[1]] = int(match[2] or 0)
        rest = rest[match.end() :]
    operation, _, operands = rest.partition(" ")
    unknown = flags.keys() - {"sy", "ss", "jp", "ul", "rpt", "nop", "sat", "eq", "eolm", "eogm"}
    return Instruction(
        text=text,
        operation=operation,
        operands=tuple(_operand(part.strip()) for part in operands.split(", ")) if operands else (),
        repeat=flags.get("rpt", 0),
        waits=flags.get("nop", 0),
        is_saturated="sat" in flags,
        reason=f"the flag {min(unknown)}" if unknown else "",
    )


def _operand(text: str) -> Operand | str:
    rest, marks = text, set()
    while match := _PREFIX.match(rest):
        marks.add(match[1])
        rest = rest[match.end() :]
    if match := _REGISTER.fullmatch(rest):
        marks |= {"!"} if match[1] else set()
        return Operand(file=match[2].removeprefix("u"), index=_index(match[3], match[4]), marks=frozenset(marks))
    if match := _RELATIVE.fullmatch(rest):
        offset = int(f"{match[2] or ''}{match[3] or 0}")
        return Operand(file=match[1], index=offset, is_relative=True, marks=frozenset(marks))
    if (value := _number(rest.removeprefix("h").removeprefix("(").removesuffix(")") if "(" in rest else rest)) is None:
        return text
    return Operand(value=value, marks=frozenset(marks))


def _number(text: str) -> float | int | None:
    """Return 12, -1, 0x1f or 0.5, None for another text."""
    if text in _NAMED_FLOATS:
        return _NAMED_FLOATS[text]
    for read in (lambda: int(text, 0), lambda: float(text)):
        try:
            return read()
        except ValueError:
            continue
    return None
