"""Liveness: turns instructions into basic blocks with their live-in and live-out values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from romou.compiler.operators.analysis.registers.instructions import (
    BasicBlock,
    BlockEnd,
    Code,
    Instruction,
    Loop,
    Value,
)


def blocks_of(code: Sequence[Code], sizes: dict[Value, float]) -> Iterator[BasicBlock]:
    """Yield the basic blocks of a function.

    sizes: registers of each value. The far addresses are added to it
    """
    yield from _flat(_live(code, frozenset(), sizes))


def merged_values(code: Sequence[Code]) -> set[Value]:
    """Return the values that may come from two places: an iteration and the one before, or the two sides of a branch.

    A value that one iteration defines and uses is among them. It is not live where iterations meet. So are vectors that
    are computed from such vectors as a whole: a depthwise window's sums of guarded data. Products with one lane are
    not among them.
    """
    merged: set[Value] = set()
    depth = 0
    for item in code:
        if isinstance(item, Loop):
            merged |= _defined_in(item.body)
        elif isinstance(item, BlockEnd):
            depth += item.opens - item.closes
        elif isinstance(item, Instruction) and (depth or _is_of_whole_vectors(item, merged)):
            merged.update(item.defines)
    return merged


def _is_of_whole_vectors(item: Instruction, vectors: set[Value]) -> bool:
    """Return whether an instruction computes whole vectors from some of these."""
    is_computed = item.kind in ("value", "copy") and not any("lane" in value for value in item.defines)
    return is_computed and any(value in vectors and "lane" not in value for value in item.uses)


def _flat(code: Sequence[Code]) -> Iterator[BasicBlock]:
    for item in code:
        if isinstance(item, BasicBlock):
            yield item
        elif isinstance(item, Loop):
            yield from _flat(item.body)


def _live(code: Sequence[Code], behind: frozenset[Value], sizes: dict[Value, float]) -> list[Code]:
    """Return the code in blocks, from the end.

    Loops are visited twice, because an iteration uses values of the previous one.
    """
    blocks: list[Code] = []
    live = behind

    def close(instructions: list[Instruction]) -> None:
        nonlocal live
        if instructions:
            whole = _with_far_addresses(instructions[::-1], sizes)
            now = set(live)
            for instruction in reversed(whole):
                now.difference_update(instruction.defines)
                now.update(instruction.uses, instruction.indices)
            blocks.append(BasicBlock(whole, frozenset(now), live))
            live = frozenset(now)
            instructions.clear()

    instructions: list[Instruction] = []
    for item in reversed(code):
        if isinstance(item, Instruction):
            instructions.append(item)
            continue
        close(instructions)
        if isinstance(item, Loop):
            first = _before(_live(item.body, live, sizes), live)
            body = _live(item.body, live | first, sizes)
            if body and isinstance(body[0], BasicBlock):
                body[0] = replace(body[0], carried=first & _defined_in(item.body))
            blocks.append(Loop(body))
            live = _before(body, live | first)
    close(instructions)
    return blocks[::-1]


def _with_far_addresses(instructions: Sequence[Instruction], sizes: dict[Value, float]) -> list[Instruction]:
    """Return a basic block with the addresses that it needs in local memory."""
    with_addresses: list[Instruction] = []
    there: set[Value] = set()
    for instruction in instructions:
        address = instruction.far_address
        if address is None:
            with_addresses.append(instruction)
            continue
        if address not in there:
            there.add(address)
            sizes[address] = 1
            with_addresses.append(
                Instruction(
                    "index",
                    instruction.uses if instruction.kind == "load" else instruction.indices,
                    (address,),
                    slots=1,
                )
            )
        with_addresses.append(replace(instruction, uses=(*instruction.uses, address)))
    return with_addresses


def _defined_in(code: Sequence[Code]) -> frozenset[Value]:
    return frozenset(
        value
        for item in code
        for value in (
            item.defines if isinstance(item, Instruction) else _defined_in(item.body) if isinstance(item, Loop) else ()
        )
    )


def _before(code: Sequence[Code], behind: frozenset[Value]) -> frozenset[Value]:
    """Return the live-in values of the code that `_live` returned."""
    for item in code:
        if isinstance(item, BasicBlock):
            return item.before
        return _before(item.body, behind) if isinstance(item, Loop) else behind
    return behind
