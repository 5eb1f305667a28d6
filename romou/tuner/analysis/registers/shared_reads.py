"""Common subexpressions, which a compiler computes once: texels, coordinates, indices, local addresses.

    v = image[x, y]            t = image[x, y]
    ...                   ->   ...
    w = image[x, y]            v and w are copies of t

A shared value is live from its first to its last use. So reads that unrolled iterations share take more registers than
reads of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from romou.tuner.analysis.registers.instructions import BlockEnd, Code, Index, Instruction, Loop, Value


class SharedReads:
    """The rewrite of one function's code.

    sizes: registers of each value. The new values are added to it
    """

    def __init__(self, sizes: dict[Value, float]) -> None:
        self._sizes = sizes
        # The values that were computed, in the branches and loops that are open.
        self._there: list[set[Value]] = [set()]
        # A variable that is defined again gives other indices.
        self._definitions: Counter[Value] = Counter()

    def of(self, code: Sequence[Code]) -> list[Code]:
        """Return the code with each shared value computed once."""
        result: list[Code] = []
        for item in code:
            if isinstance(item, Instruction):
                result += self._instruction(item)
                self._definitions.update(item.defines)
            elif isinstance(item, Loop):
                self._there.append(set())
                result.append(Loop(self.of(item.body)))
                self._there.pop()
            else:
                result.append(item)
                if isinstance(item, BlockEnd) and item.opens:
                    self._there.append(set())
                elif isinstance(item, BlockEnd) and item.closes:
                    self._there.pop()
        return result

    def _instruction(self, access: Instruction) -> list[Code]:
        if access.base is not None:
            address: Value = ("address", access.base, access.offset + access.moved)
            return self._with_indices(replace(access, base=None), [address] if access.base else [])
        keys = [self._key(part) for part in access.index]
        indices: list[Value] = [
            ("index", key) for part, key in zip(access.index, keys, strict=True) if _is_computed(part)
        ]
        if access.kind != "load" or access.place != "image" or not keys:
            return self._with_indices(access, indices)
        texels: list[Value] = [("texel", *keys, lane) for lane in range(len(access.defines))]
        copy = Instruction("copy", tuple(texels), access.defines)
        if not self._new(texels):
            return [copy]
        self._sizes.update(zip(texels, (self._sizes[value] for value in access.defines), strict=True))
        return [*self._with_indices(replace(access, defines=tuple(texels)), indices), copy]

    def _with_indices(self, access: Instruction, indices: list[Value]) -> list[Code]:
        """Return an access that uses these values, after the instruction that computes the new ones."""
        new = self._new(indices)
        self._sizes.update(dict.fromkeys(new, 1))
        computed: list[Code] = [Instruction("index", access.indices or access.uses, new)] if new else []
        if access.kind == "load":
            return [*computed, replace(access, uses=(*access.uses, *indices))]
        return [*computed, replace(access, indices=(*access.indices, *indices)) if indices else access]

    def _new(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return the values that are not there yet, and keep them."""
        new = tuple(value for value in dict.fromkeys(values) if not any(value in scope for scope in self._there))
        self._there[-1].update(new)
        return new

    def _key(self, part: Index) -> tuple[Any, ...]:
        variables = frozenset((value, factor, self._definitions[value]) for value, factor in part.variables)
        return variables, part.counters, part.constant


def _is_computed(part: Index) -> bool:
    """Return whether an index is computed, rather than a constant or a variable."""
    terms = [*part.variables, *part.counters]
    return bool(terms) and (bool(part.constant) or len(terms) > 1 or terms[0][1] != 1)
