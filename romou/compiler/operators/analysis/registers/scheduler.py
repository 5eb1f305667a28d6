"""The order of a basic block by Mesa's scheduler, and its live registers (Mesa 25, ir3_sched.c)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Set

from romou.compiler.operators.analysis.registers.instructions import DELAY, SLOTS, BasicBlock, Value

# Number of loads in flight, from memory and from local memory, at which the scheduler waits for one.
_UNDER_WAY = 8
# While an address is computed it takes more registers (an index, its sign, half an address, a carry). Four addresses
# are computed at a time, because a result can be used three cycles later.
_COMPUTED, _COMPUTED_AT_ONCE = 4, 4
# fp16 values are in the lower half of the registers, which they fill without gaps: of 43 kernels with fp16 sums for
# Adreno 660 and 740, all nine that spill have 98 such registers or more, and one of 34 others. Other values spill from
# 170 of 192 registers on, so an fp16 register counts as _FP16 of them.
_FP16 = 1.75
# A value that is defined again is another value. The pair is its key and the number of the defining instruction, -1 for
# values from before the block.
_Definition = tuple[Value, int]


class _Dependences:
    """The dependences between instructions of a block, by their numbers. Copies are left out."""

    def __init__(self, block: BasicBlock, sizes: dict[Value, float]) -> None:
        self.instructions = [instruction for instruction in block.instructions if instruction.kind != "copy"]
        self.used: list[list[_Definition]] = []
        self.uses_left: dict[_Definition, int] = {}
        self.sources: list[set[int]] = []
        self.address_sources: list[set[int]] = []
        self.followers: list[list[int]] = [[] for _ in self.instructions]
        # The access of the same memory that has to come before. -1 for none.
        self.previous: list[int] = []
        self.barriers: list[int] = []
        current: dict[Value, _Definition] = {value: (value, -1) for value in block.before}
        accesses: set[int] = set()
        latest: dict[str | None, int] = {}
        for instruction in block.instructions:
            if instruction.kind == "copy":
                same = [current.get(value, (value, -1)) for value in instruction.uses]
                current.update(
                    zip(instruction.defines, same * len(instruction.defines) if len(same) == 1 else same, strict=False)
                )
                continue
            number = len(self.used)
            used = [current.get(value, (value, -1)) for value in (*instruction.uses, *instruction.indices)]
            for definition in used:
                self.uses_left[definition] = self.uses_left.get(definition, 0) + 1
            self.used.append(used)
            self.sources.append({source for _, source in used if source >= 0})
            # A store's address does not wait for the stored value.
            in_address = used if instruction.kind == "load" else used[len(instruction.uses) :]
            self.address_sources.append(
                {source for _, source in in_address if source >= 0} if instruction.address else set()
            )
            self.previous.append(-1)
            if instruction.kind in ("load", "store"):
                accesses.add(number)
                if instruction.place != "image":
                    self.previous[-1] = latest.get(instruction.place, -1)
                    latest[instruction.place] = number
            elif instruction.kind == "barrier":
                self.sources[-1] |= accesses
                accesses = set()
                self.barriers.append(number)
            for source in self.sources[-1]:
                self.followers[source].append(number)
            current.update((value, (value, number)) for value in instruction.defines)
        # Definition -> the values behind the block that it defines.
        self.final: dict[_Definition, list[Value]] = {}
        for value in block.behind:
            self.final.setdefault(current.get(value, (value, -1)), []).append(value)
        # Registers of values that each instruction defines and another instruction uses.
        self.defined = [
            sum(
                sizes[value]
                for value in instruction.defines
                if (value, number) in self.uses_left or (value, number) in self.final
            )
            for number, instruction in enumerate(self.instructions)
        ]


def live_as_written(
    block: BasicBlock, sizes: dict[Value, float], merged: Set[Value], unpacked: Mapping[Value, float]
) -> float:
    """Return the most live registers if instructions keep their order, each address right before its access.

    merged: values that may come from two places. Mesa's compilers for Mali split a vector there: each fp16 lane has a
        register. So has each lane of what is computed from lanes, such as all sums of a loop.
    unpacked: registers of each value with a register for each lane.
    """
    dependences = _Dependences(block, sizes)
    left = dict(dependences.uses_left)
    split = {(value, -1) for value in block.before & merged}

    def registers(definition: _Definition) -> float:
        value = definition[0]
        return unpacked.get(value, sizes[value]) if definition in split else sizes[value]

    now = peak = sum(registers((value, -1)) for value in block.before)
    for number, instruction in enumerate(dependences.instructions):
        used = dependences.used[number]
        for definition in used:
            left[definition] -= 1
        ended = {definition for definition in used if not left[definition] and definition not in dependences.final}
        defined = [(value, number) for value in instruction.defines]
        is_split = instruction.kind == "value" and not split.isdisjoint(used)
        split.update(
            definition
            for definition in defined
            if is_split or not merged.isdisjoint(dependences.final.get(definition, ()))
        )
        peak = max(peak, now + instruction.address * (instruction.kind == "load"))
        now -= sum(map(registers, ended))
        now += sum(
            registers(definition)
            for definition in defined
            if definition in dependences.uses_left or definition in dependences.final
        )
        peak = max(peak, now)
    return peak


class Scheduler:
    """The scheduler of one basic block. Loads and stores are scheduled in two steps, their address first."""

    def __init__(self, block: BasicBlock, sizes: dict[Value, float], fp16: Set[Value] = frozenset()) -> None:
        dependences = _Dependences(block, sizes)
        self._instructions, self._sizes, self._carried = dependences.instructions, sizes, block.carried
        self._fp16 = fp16
        self._used, self._uses_left, self._final = dependences.used, dependences.uses_left, dependences.final
        self._sources, self._address_sources, self._followers = (
            dependences.sources,
            dependences.address_sources,
            dependences.followers,
        )
        self._previous, self._barriers, self._defined = dependences.previous, dependences.barriers, dependences.defined
        self._waits = [len(sources) for sources in self._sources]
        self._address_waits = [len(sources) for sources in self._address_sources]
        self._loads_left = sum(
            instruction.kind == "load" and instruction.place != "local" for instruction in self._instructions
        )
        self._is_done = [False] * len(self._instructions)
        # Instructions with ready sources: the ones without an address yet, and all others.
        self._addresses: list[int] = []
        self._ready: list[int] = []
        # Is local -> loads in flight, and the number of instructions for which their uses are delayed.
        self._under_way: dict[bool, set[int]] = {True: set(), False: set()}
        self._delay = {True: 0, False: 0}
        self._now = self._peak = self._written = sum(sizes[value] for value in block.before)
        self._now_fp16 = self._peak_fp16 = sum(sizes[value] for value in block.before & fp16)

    def run(self) -> tuple[float, float]:
        """Return the most live registers, and the registers written in sequence.

        The second number includes the registers live before the block.
        """
        for number, instruction in enumerate(self._instructions):
            if instruction.address:
                self._waits[number] += 1  # for its address
                if not self._address_waits[number]:
                    insort(self._addresses, number)
            elif not self._waits[number]:
                insort(self._ready, number)
        while self._addresses or self._ready:
            self._advance()
        return max(self._peak, _FP16 * self._peak_fp16), self._written

    def _advance(self) -> None:
        """Schedule the next instruction.

        An instruction that frees registers or adds none comes first, then the one with the nearest use. An instruction
        that would wait comes last.
        """
        ready = [number for number in self._ready if not self._is_barred(number)]
        put_off = [number for number in ready if self._is_put_off(number)]
        waits = set(put_off)
        for numbers in ([number for number in ready if number not in waits], put_off):
            nearest: tuple[int, int] | None = None
            for number in numbers:
                if self._effect(number) <= 0:
                    return self._do(number)
                use = (self._nearest_use(number), number)
                nearest = use if nearest is None else min(nearest, use)
            if self._addresses and (nearest is None or self._addresses[0] <= nearest[0]):
                return self._compute_address()
            if nearest is not None:
                return self._do(nearest[1])
        raise AssertionError("something is ready as long as anything is left")

    def _effect(self, number: int) -> float:
        """Return the number of registers that an instruction adds, as Mesa counts them."""
        instruction = self._instructions[number]
        return (
            self._defined[number]
            - instruction.address
            - self._freed(number, counted_only=True) * (instruction.kind != "load" or not instruction.address)
        )

    def _nearest_use(self, number: int) -> int:
        if self._instructions[number].kind == "load" and self._defined[number] > 1:
            return number
        return min((f for f in self._followers[number] if not self._is_done[f]), default=len(self._instructions))

    def _is_put_off(self, number: int) -> bool:
        instruction, sources, previous = self._instructions[number], self._sources[number], self._previous[number]
        if self._delay[True] and (sources & self._under_way[True] or previous in self._under_way[True]):
            return True
        if (
            self._delay[False]
            and self._loads_left
            and (sources & self._under_way[False] or previous in self._under_way[False])
        ):
            return True
        return instruction.kind == "load" and len(self._under_way[instruction.place == "local"]) >= _UNDER_WAY

    def _is_barred(self, number: int) -> bool:
        if self._instructions[number].kind not in ("load", "store"):
            return False
        previous = self._previous[number]
        return (previous >= 0 and not self._is_done[previous]) or (bool(self._barriers) and number > self._barriers[0])

    def _do(self, number: int) -> None:
        self._ready.remove(number)
        self._is_done[number] = True
        instruction = self._instructions[number]
        if instruction.kind == "barrier":
            self._barriers.remove(number)
        self._now -= instruction.address
        if instruction.kind == "load":
            assert instruction.place is not None
            is_local = instruction.place == "local"
            if not instruction.address:
                self._use(number)
            self._under_way[is_local].add(number)
            self._loads_left -= not is_local
            self._written += self._defined[number]
            self._pass(1)
            self._delay[is_local] = DELAY[instruction.place]
            self._define(number)
            return
        for is_local, loads in self._under_way.items():
            if self._sources[number] & loads:
                loads.clear()
                self._delay[is_local] = 0
        self._pass(instruction.slots if instruction.kind == "index" else max(1, int(self._defined[number])))
        self._use(number)
        self._define(number)

    def _pass(self, slots: int) -> None:
        for is_local in (True, False):
            self._delay[is_local] = max(0, self._delay[is_local] - slots)

    def _compute_address(self) -> None:
        number = self._addresses.pop(0)
        instruction = self._instructions[number]
        assert instruction.place is not None
        if instruction.kind == "load":
            self._use(number)
        self._now += instruction.address
        self._written += instruction.address
        self._pass(SLOTS[instruction.place] + instruction.slots)
        self._peak = max(
            self._peak,
            self._now + (instruction.place != "local") * _COMPUTED * min(_COMPUTED_AT_ONCE, 1 + len(self._addresses)),
        )
        self._wait_no_more(number)

    def _use(self, number: int) -> None:
        self._now -= self._freed(number)
        if self._fp16:
            self._now_fp16 -= self._freed(number, fp16_only=True)
        for definition in self._used[number]:
            self._uses_left[definition] -= 1

    def _define(self, number: int) -> None:
        self._now += self._defined[number]
        self._peak = max(self._peak, self._now)
        if self._fp16:
            self._now_fp16 += sum(
                self._sizes[value]
                for value in self._instructions[number].defines
                if value in self._fp16 and ((value, number) in self._uses_left or (value, number) in self._final)
            )
            self._peak_fp16 = max(self._peak_fp16, self._now_fp16)
        for follower in self._followers[number]:
            if number in self._address_sources[follower]:
                self._address_waits[follower] -= 1
                if not self._address_waits[follower]:
                    insort(self._addresses, follower)
            self._wait_no_more(follower)

    def _wait_no_more(self, number: int) -> None:
        self._waits[number] -= 1
        if not self._waits[number]:
            insort(self._ready, number)

    def _freed(self, number: int, *, counted_only: bool = False, fp16_only: bool = False) -> float:
        """Return the number of registers last used by an instruction.

        counted_only: only the registers that Mesa counts. Values live before the block count only if a loop carries
            them
        fp16_only: only the registers of fp16 values.
        """
        return sum(
            self._sizes[definition[0]]
            for definition in self._used[number]
            if self._uses_left[definition] == 1
            and definition not in self._final
            and not (counted_only and definition[1] < 0 and definition[0] not in self._carried)
            and not (fp16_only and definition[0] not in self._fp16)
        )
