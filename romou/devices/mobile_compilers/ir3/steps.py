"""Steps of the simulator: what each instruction of a program does to the lanes of a machine, and the loop over them.

What the hardware waits for, (sy), (ss), (jp) and nop, changes no value here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from romou.devices.mobile_compilers.ir3.caches import Caches
from romou.devices.mobile_compilers.ir3.counts import NO_OPERATION, Counts, LineCounter
from romou.devices.mobile_compilers.ir3.instructions import OPERATIONS, TYPES, Array, Operation, convert
from romou.devices.mobile_compilers.ir3.launch import Launch
from romou.devices.mobile_compilers.ir3.machine import Machine, Read
from romou.devices.mobile_compilers.ir3.memory import OFFSET_BITS, BadAccessError, Buffer
from romou.devices.mobile_compilers.ir3.program import Instruction, Operand

# Executes an instruction. The result is the index of the next one, None for the one after it.
Step: TypeAlias = "Callable[[], int | None]"
# The buffers that active lanes access: each with the lanes, and the places of their elements (count, lanes).
Accesses: TypeAlias = "Callable[[], list[tuple[Buffer, Array, Array]]]"
# Mesa numbers images that are written behind as many buffers.
_FIRST_IMAGE = 32
_TYPE = r"[fsu](?:8_32|8|16|32)"


class Steps:
    """The steps of a program on a machine, made when they are first executed.

    caches: what loads go through. None if neither they nor lines and bank conflicts are counted.
    """

    def __init__(self, machine: Machine, launch: Launch, caches: Caches | None) -> None:
        self.machine, self.launch, self.code = machine, launch, launch.program.code
        self.textures, self.images = launch.images("texture"), launch.images("image")
        self.counter = (
            LineCounter(wave_of=machine.wave_of, group_of=machine.group_of, caches=caches) if caches else None
        )
        self._steps: list[Step | None] = [None] * len(self.code)
        self._issues, self._issued_lanes = [0] * len(self.code), [0] * len(self.code)
        # Local memory of each group, private memory of each lane
        self._own = {
            "l": (_own_memory(machine.groups, launch.local_memory_bytes), machine.group_of),
            "p": (_own_memory(machine.lanes, launch.private_memory_bytes), np.arange(machine.lanes)),
        }

    def run(self, start: int, end: int) -> None:
        """Execute instructions from `start` until all lanes ended or reached `end`."""
        machine, index = self.machine, start
        while (index := machine.merged(index)) < end:
            step = self._steps[index]
            if step is None:
                step = self._steps[index] = self._step(self.code[index], index)
            self._issues[index] += machine.waves
            self._issued_lanes[index] += machine.count
            following = step()
            index = index + 1 if following is None else following

    def counts(self) -> Counts:
        """Return what the lanes did."""
        machine, counter = self.machine, self.counter
        counts = Counts(
            divergent_branches=machine.divergent_branches,
            lines=dict(counter.lines) if counter else {},
            group_lines=counter.group_lines() if counter else {},
            bank_conflicts=counter.bank_conflicts if counter else 0,
            waves=len(machine.wave_starts),
            groups=machine.groups,
        )
        for instruction, waves, lanes in zip(self.code, self._issues, self._issued_lanes, strict=True):
            if waves:
                name, times = instruction.operation, instruction.repeat + 1
                counts.executed[name] = counts.executed.get(name, 0) + waves * times
                counts.active_lanes[name] = counts.active_lanes.get(name, 0) + lanes * times
                counts.issue_slots += waves * (times + instruction.waits)
        return counts

    def _step(self, instruction: Instruction, index: int) -> Step:
        name = instruction.operation
        if instruction.reason:
            raise instruction.unknown(instruction.reason)
        # Mesa reads the size of an image that is not needed, into no register, so that it is in the cache.
        if NO_OPERATION.fullmatch(name) or (name.startswith("resinfo.") and instruction.operand(0).index == 4 * 63):
            return lambda: None
        if (control := self._control(instruction, index)) is not None:
            return control
        if name in OPERATIONS:
            return self._arithmetic(instruction, OPERATIONS[name])
        if match := re.fullmatch(rf"(mov|cov|swz|gat|sct)\.({_TYPE})({_TYPE})", name):
            return self._move(instruction, match[1], match[2], match[3])
        makers: Mapping[str, Callable[[Instruction], Step]] = {
            **dict.fromkeys(("mova", "mova1"), self._move_address),
            **dict.fromkeys(("isam", "isaml", "sam", "saml"), self._read_image),
            **dict.fromkeys(("ldg", "ldl", "ldp"), self._load),
            **dict.fromkeys(("stg", "stl", "stp"), self._store),
            "stib": self._write_image,
            "ldc": self._load_argument,
            "stc": self._store_constant,
        }
        if (maker := makers.get(name.split(".")[0])) is None:
            raise instruction.unknown()
        return maker(instruction)

    # Category 0: control flow

    def _control(self, instruction: Instruction, index: int) -> Step | None:
        name, machine, target = instruction.operation, self.machine, instruction.target
        if name == "end":
            return machine.end
        if name == "prede":
            return lambda: machine.predicate(None)
        if name in ("predt", "predf"):
            after = next(i for i in range(index + 1, len(self.code)) if self.code[i].operation.startswith("pred"))
            return lambda: self._predicate(after, is_inverted=name == "predf")
        if name.startswith("bar."):
            return machine.barrier
        if target is None:
            return None
        if name == "jump":
            return lambda: target
        if name == "getone":
            return lambda: machine.branch(index, target, machine.first_lanes() != np.arange(machine.lanes))
        if name in ("br", "brao", "braa"):
            both = np.logical_and if name == "braa" else np.logical_or
            operands = [instruction.operand(place) for place in range(len(instruction.operands))]
            rows = [(machine.predicates[operand.index], "!" in operand.marks) for operand in operands]
            return lambda: machine.branch(index, target, both.reduce([row ^ is_not for row, is_not in rows]))
        return None

    def _predicate(self, after: int, *, is_inverted: bool) -> int | None:
        """Leave lanes active for which p0.x is true. Return the end of the region if there are none."""
        self.machine.predicate(self.machine.predicates[0] ^ is_inverted)
        return None if self.machine.count else after

    # Categories 1 to 4: moves and arithmetic

    def _arithmetic(self, instruction: Instruction, operation: Operation) -> Step:
        sources = [instruction.operand(place) for place in range(1, len(instruction.operands))]
        count = instruction.repeat + 1
        # A number has the bits of the other sources.
        halves = [operand.is_half for operand in sources if operand.file] or [instruction.operand(0).is_half]
        reads = []
        for operand in sources:
            bits = 16 if (operand.is_half if operand.file else halves[0]) else 32
            reads.append(self.machine.read(instruction, operand, TYPES[f"{operation.kind}{bits}"], count))
        write = self.machine.write(instruction, instruction.operand(0), count)
        if instruction.is_saturated and operation.kind != "f":
            raise instruction.unknown("(sat) of integers")

        def step() -> None:
            values = operation.function(*[read() for read in reads])
            write(np.clip(np.nan_to_num(values), 0, 1) if instruction.is_saturated else values)

        return step

    def _move(self, instruction: Instruction, name: str, source: str, to: str) -> Step:
        """Move or convert: one register, or several at once (swap, gather, scatter)."""
        destinations, sources = {"swz": (2, 2), "gat": (1, 4), "sct": (4, 1)}.get(name, (1, 1))
        operands = [instruction.operand(place) for place in range(destinations + sources)]
        into, out = operands[:destinations], operands[destinations:]
        into = [into[0].after(place) for place in range(4)] if name == "gat" else into
        out = [out[0].after(place) for place in range(4)] if name == "sct" else out
        count, kind = instruction.repeat + 1, TYPES[source]
        rounding = next(iter(operands[0].marks & {"even", "pos_infinity", "neg_infinity"}), "")
        reads = [self.machine.read(instruction, operand, kind, count) for operand in out]
        writes = [self.machine.write(instruction, operand, count) for operand in into]

        def step() -> None:
            # All sources are read before a destination is written.
            values = [read().copy() if len(reads) > 1 else read() for read in reads]
            for write, value in zip(writes, values, strict=True):
                write(value if source == to else convert(value, source, to, rounding))

        return step

    def _move_address(self, instruction: Instruction) -> Step:
        name, _, kind = instruction.operation.partition(".")
        row = self.machine.addresses[int(name == "mova1")]
        read = self.machine.read(instruction, instruction.operand(1), TYPES["u16" if kind else "s16"])
        return lambda: np.copyto(row, read()[0], where=self.machine.active)

    # Category 5: images that are read

    def _read_image(self, instruction: Instruction) -> Step:
        name, *suffixes = instruction.operation.split(".")
        destination, coordinate = instruction.operand(0), instruction.operand(1)
        *level, sampler, texture = map(str, instruction.operands[2:])
        # For Adreno 8xx, Mesa prints .1d where an image of two or three coordinates is read without a level.
        if set(suffixes) - {"a", "1d"} or not re.fullmatch(r"s#\d+ t#\d+", f"{sampler} {texture}") or len(level) > 1:
            raise instruction.unknown("this form of it")
        image, is_sampled = self.textures[int(texture[2:])], name.startswith("s")
        # Outside of an image, OpenCL defines no value without a sampler.
        border = "poison"
        if is_sampled:
            mode = self.launch.program.samplers.get(int(sampler[2:]))
            borders = {"clamp": "zero", "clamp_to_edge": "edge"}
            if mode is None or mode[0] not in borders or mode[1:] != (False, "nearest"):
                raise instruction.unknown(f"the sampler {mode}")
            border = borders[mode[0]]
        coordinates = self._coordinates(instruction, coordinate, 3 if "a" in suffixes else 2, is_sampled=is_sampled)
        no_level = self._coordinates(instruction, instruction.operand(2), 1, is_sampled=False) if level else None
        machine, counter, texel_bytes = self.machine, self.counter, 4 * image.array.itemsize
        start = next(place for place, other in enumerate(self.launch.arguments) if other is image) + 1 << int(
            OFFSET_BITS
        )
        (kind,) = destination.marks & TYPES.keys()
        (mask,) = (mark for mark in destination.marks if set(mark) <= set("xyzw"))
        writes = {
            place: self.machine.write(instruction, destination.after(place))
            for place, letter in enumerate("xyzw")
            if letter in mask
        }

        def step() -> None:
            if no_level is not None and no_level()[0][self.machine.active].any():
                raise instruction.unknown("a level other than 0")
            x, y, *layer = coordinates()
            # A sampler takes the nearest layer.
            layer = [np.clip(layer[0], 0, image.layers - 1)] if layer and is_sampled else layer
            places, is_inside = image.place(x, y, *layer)
            texels = image.texels[places]
            if border != "edge" and not is_inside.all():
                texels[~is_inside] = 0 if border == "zero" else _poison(texels.dtype)
            if counter is not None:
                active = np.flatnonzero(machine.active)
                counter.load("image", active, start + places[active] * texel_bytes)
            texels = texels.astype(TYPES[kind], copy=False)
            for place, write in writes.items():
                write(texels[None, :, place])

        return step

    def _coordinates(
        self, instruction: Instruction, operand: Operand, axes: int, *, is_sampled: bool
    ) -> Callable[[], list[Array]]:
        """Return a function that reads the texel of each lane: x, y, and the layer if there is one."""
        kind = TYPES[f"{'f' if is_sampled else 's'}{16 if operand.is_half else 32}"]
        places = [operand.after(place) for place in range(axes)]
        sources = [instruction.aliases.get((place.file, place.index), place) for place in places]
        reads = [self.machine.read(instruction, source, kind) for source in sources]

        def read() -> list[Array]:
            values = [self.machine.of_lanes(read()) for read in reads]
            # Samplers take the texel that a point is in.
            return [(np.floor(value) if is_sampled else value).astype(np.int64) for value in values]

        return read

    # Category 6: memory

    def _write_image(self, instruction: Instruction) -> Step:
        match = re.fullmatch(r"stib\.b\.typed\.([23])d\.([fsu](?:16|32))\.4\.imm\.base0", instruction.operation)
        data, coordinate, place = (instruction.operand(place) for place in range(3))
        if match is None or place.file:
            raise instruction.unknown("this form of it")
        machine, image = self.machine, self.images[int(place.value) - _FIRST_IMAGE]
        coordinates = self._coordinates(instruction, coordinate, int(match[1]), is_sampled=False)
        values = [machine.read(instruction, data.after(lane), TYPES[match[2]]) for lane in range(4)]

        def step() -> None:
            places, is_inside = image.place(*[axis[machine.active] for axis in coordinates()])
            if not is_inside.all():
                raise BadAccessError(f"{self.launch.program.name}: a write outside of an image: {instruction.text}")
            for lane, read in enumerate(values):
                image.texels[places, lane] = machine.of_lanes(read())[machine.active]
            image.is_written[places] = True

        return step

    def _load(self, instruction: Instruction) -> Step:
        kind, register = self._kind(instruction, instruction.operand(0))
        count = int(instruction.operand(2).value)
        accesses = self._accesses(instruction, str(instruction.operands[1]), kind, count)
        rows = self.machine.rows(register, count)

        def step() -> None:
            for buffer, lanes, elements in accesses():
                for row, values in zip(rows, buffer.view(_size(kind))[elements], strict=True):
                    row[lanes] = values

        return step

    def _store(self, instruction: Instruction) -> Step:
        kind, register = self._kind(instruction, instruction.operand(1))
        count = int(instruction.operand(2).value)
        accesses = self._accesses(instruction, str(instruction.operands[0]), kind, count)
        rows, size = self.machine.rows(register, count), _size(kind)

        def step() -> None:
            for buffer, lanes, elements in accesses():
                stored = buffer.view(size)
                for row, places in zip(rows, elements, strict=True):
                    stored[places] = row[lanes].astype(stored.dtype)
                buffer.is_written.reshape(-1, size)[elements] = True

        return step

    def _kind(self, instruction: Instruction, register: Operand) -> tuple[str, Operand]:
        """Return the type of a load's or store's elements, and its first register, which has the type's bits."""
        kind = instruction.operation.rpartition(".")[2]
        is_half = kind in TYPES and np.dtype(TYPES[kind]).itemsize == 2
        # Mesa prints registers of these without the h of halves.
        if is_half and register.file == "r" and instruction.operation.startswith(("ldl.", "stl.", "stp.")):
            register = replace(register, file="hr")
        is_known = kind in TYPES and register.file == ("hr" if is_half else "r")
        if not is_known or not re.fullmatch(rf"(?:ld|st)[glp](?:\.a)?\.{_TYPE}", instruction.operation):
            raise instruction.unknown("this form of it")
        return kind, register

    def _accesses(self, instruction: Instruction, text: str, kind: str, count: int) -> Accesses:
        """Return a function that finds the elements that active lanes access at an address."""
        addresses, size = self._addresses(instruction, text), _size(kind)
        is_load, machine, counter = instruction.operation.startswith("ld"), self.machine, self.counter

        def in_own() -> list[tuple[Buffer, Array, Array]]:
            memory, owners = self._own[text[0]]
            offsets, lanes, limit = addresses(), np.flatnonzero(machine.active), memory.array.shape[1] * 4
            if offsets.size and int(offsets.max()) + size * count > limit:
                raise BadAccessError(f"an access at byte {int(offsets.max())} of {limit} bytes: {instruction.text}")
            if counter is not None and text[0] == "l":
                counter.local(lanes, (offsets // np.uint64(4)).astype(np.int64))
            places = offsets + owners[lanes].astype(np.uint64) * np.uint64(limit)
            return [(memory, lanes, memory.elements(places, size, count))]

        def in_buffers() -> list[tuple[Buffer, Array, Array]]:
            found, lanes, accesses = addresses(), np.flatnonzero(machine.active), []
            numbers = found >> OFFSET_BITS
            for number in np.unique(numbers):
                place, own = int(number) - 1, numbers == number
                buffer = self.launch.arguments[place] if 0 <= place < len(self.launch.arguments) else None
                if number == 0 and is_load:
                    # A logarithm's table, for example: the driver hands it over.
                    raise instruction.unknown("data of the compiler's own in memory")
                if not isinstance(buffer, Buffer):
                    raise BadAccessError(f"{self.launch.program.name}: an access to no buffer: {instruction.text}")
                offsets = found[own] & np.uint64((1 << int(OFFSET_BITS)) - 1)
                accesses.append((buffer, lanes[own], buffer.elements(offsets, size, count)))
            if counter is not None and is_load:
                ends = np.stack([found, found + np.uint64(size * count - 1)])
                counter.load("buffer", lanes, ends.astype(np.int64))
            return accesses

        return in_buffers if text[0] == "g" else in_own

    def _addresses(self, instruction: Instruction, text: str) -> Read:
        """Return a function that computes addresses in bytes, of active lanes: g[r2.x+16], l[r1.w+2560], p[r0.x].

        The first register of g[] has 64 bits: it is the lower half, and the next register the upper one.
        """
        match = re.fullmatch(r"([glp])\[([^\[\]]+)\]", text)
        if match is None or "<<" in text or text.count(".") > 1:
            raise instruction.unknown(f"the address {text}")
        tree = ast.parse(re.sub(r"[rc]\d+\.[xyzw]", "base", match[2]), mode="eval").body
        offset = 0
        if isinstance(tree, ast.BinOp) and isinstance(tree.right, ast.Constant):
            offset = int(str(tree.right.value)) * (-1 if isinstance(tree.op, ast.Sub) else 1)
        number, component = re.findall(r"(\d+)\.([xyzw])", text)[0]
        base = Operand(file=match[2][0], index=4 * int(number) + "xyzw".index(component))
        reads = [self.machine.read(instruction, base.after(place), np.uint32) for place in range(1 + (text[0] == "g"))]

        def addresses() -> Array:
            low, *high = [self.machine.of_lanes(read())[self.machine.active].astype(np.uint64) for read in reads]
            if high:
                return (low | (high[0] << np.uint64(32))) + np.int64(offset).astype(np.uint64)
            # Addresses of local and private memory have 32 bits, and overflow.
            return (low + np.int64(offset).astype(np.uint64)) & np.uint64(0xFFFFFFFF)

        return addresses

    def _load_argument(self, instruction: Instruction) -> Step:
        """Load words of the kernel's arguments into registers, or groups of four words into constants (`.k`)."""
        form = re.fullmatch(r"ldc\.(?:(?:u\.)?offset(\d)\.(\d)|(\d+)\.k)\.imm", instruction.operation)
        into, offset, block = instruction.operands[0], instruction.operand(1), instruction.operand(2)
        if form is None or offset.file or block.file or block.value:
            raise instruction.unknown("this form of it")
        count = int(form[2]) if form[2] else 4 * int(form[3])
        words = self.launch.argument_words()[4 * int(offset.value) + int(form[1] or 0) :][:count, None]
        if isinstance(into, Operand):
            write = self.machine.write(instruction, into, len(words))
            return lambda: write(words)
        if into != "c[a1.x]":
            raise instruction.unknown("this form of it")

        def step() -> None:
            first = int(self.machine.addresses[1][0])
            self.machine.constants[first : first + len(words)] = words

        return step

    def _store_constant(self, instruction: Instruction) -> Step:
        match = re.fullmatch(r"c\[(a1\.x)?\+?(\d*)\]", str(instruction.operands[0]))
        if match is None or not instruction.operation.endswith("32"):
            raise instruction.unknown("this form of it")
        rows = self.machine.rows(instruction.operand(1), int(instruction.operand(2).value))

        def step() -> None:
            first = int(match[2] or 0) + (int(self.machine.addresses[1][0]) if match[1] else 0)
            self.machine.constants[first : first + len(rows)] = [row[:1] for row in rows]

        return step


def _own_memory(owners: int, size: int) -> Buffer:
    return Buffer(np.zeros((owners, -(-size // 4)), np.uint32))


def _size(kind: str) -> int:
    """Return the bytes of an element in memory."""
    return 1 if kind.startswith("u8") else np.dtype(TYPES[kind]).itemsize


def _poison(kind: np.dtype[np.generic]) -> float | int:
    return np.nan if kind.kind == "f" else int(np.iinfo(kind).max)  # type: ignore[type-var]
