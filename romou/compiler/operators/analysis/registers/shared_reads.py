"""Common subexpressions, which a compiler computes once: texels, coordinates, indices, local addresses.

    v = image[x, y]            t = image[x, y]
    ...                   ->   ...
    w = image[x, y]            v and w are copies of t

A shared value is live from its first to its last use. So reads that unrolled iterations share take more registers than
reads of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from romou.compiler.operators.analysis.registers.instructions import BlockEnd, Code, Index, Instruction, Loop, Value

# The operation of ic & 1.
_PARITY = "BitwiseAnd(#, #)"


class SharedReads:
    """The rewrite of one function's code.

    sizes: registers of each value. The new values are added to it
    """

    def __init__(self, sizes: dict[Value, float]) -> None:
        self._sizes = sizes
        # The values that were computed, in the branches and loops that are open.
        self._there: list[set[Value]] = [set()]
        # Variables that are constants in an unrolled iteration, such as the number of a buffer of two.
        self._constants: dict[Value, int] = {}
        # Variable -> its value. A variable that is defined again has another one.
        self._numbers: dict[Value, Value] = {}
        self._fresh = itertools.count()

    def of(self, code: Sequence[Code]) -> list[Code]:
        """Return the code with each shared value computed once."""
        result: list[Code] = []
        for item in code:
            if isinstance(item, Instruction):
                result += self._instruction(item)
                if not item.operation:
                    self._numbers.update((value, (value, next(self._fresh))) for value in item.defines)
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
            base = frozenset(term for term in access.base if term[0] not in self._constants)
            constant = sum(factor * self._constants.get(value, 0) for value, factor in access.base)
            address: Value = ("address", base, access.offset + access.moved + constant)
            return self._with_indices(replace(access, base=None), [address] if base else [])
        parts = [part for part in access.index if part is not None]
        if access.operation:
            return self._operation(access, parts)
        keys = [self._key(part) for part in parts]
        # The first part of a texel is the image.
        indices = self._sums(parts[access.place == "image" :])
        if access.kind == "load" and access.place == "buffer" and access.uses:
            # A 64-bit address is computed from the index, for its sign, and from the index in bytes. Constants are
            # added to both, so unrolled iterations share the bytes beside the index.
            variables = frozenset(self._numbers.get(value, value) for value in access.uses)
            indices.append(("bytes", variables, frozenset(counter for part in parts for counter in part.counters)))
        if access.kind != "load" or access.place != "image":
            return self._with_indices(access, indices)
        integers: list[Code] = []
        if access.is_sampled:
            integers = self._with_indices(Instruction("index", access.uses), indices)[:-1]
            changing = (part for part in parts[1:] if part.variables or part.counters)
            indices = [("float", self._key(part)) for part in changing]
        if len(parts) < len(access.index):
            return [*integers, *self._with_indices(access, indices)]
        texels: list[Value] = [("texel", *keys, lane) for lane in range(len(access.defines))]
        copy = Instruction("copy", tuple(texels), access.defines)
        if not self._new(texels):
            return [copy]
        self._sizes.update(zip(texels, (self._sizes[value] for value in access.defines), strict=True))
        return [*integers, *self._with_indices(replace(access, defines=tuple(texels)), indices), copy]

    def _operation(self, access: Instruction, parts: list[Index]) -> list[Code]:
        """Return integer arithmetic, or a copy of its value if that is there."""
        computed: Value = ("computed", access.operation, *map(self._key, parts))
        (value,) = access.defines
        self._numbers[value] = computed
        self._constants.pop(value, None)
        if access.operation == _PARITY and not any(part.variables or part.counters for part in parts):
            number, mask = parts
            self._constants[value] = number.constant & mask.constant
        copy = Instruction("copy", (computed,), access.defines)
        if not self._new([computed]):
            return [copy]
        self._sizes[computed] = 0 if value in self._constants else 1
        # A sum is shared without its common factor: x + 2 * i in (29 * x + 58 * i) >> 8.
        indices = self._sums([part.without_factor() for part in parts])
        return [*self._with_indices(replace(access, defines=(computed,)), indices), copy]

    def _sums(self, parts: Sequence[Index]) -> list[Value]:
        """Return the values of the indices that are computed."""
        return [("index", self._key(part)) for part in parts if _is_computed(part)]

    def _with_indices(self, access: Instruction, indices: list[Value]) -> list[Code]:
        """Return an access that uses these values, after the instruction that computes the new ones."""
        new = self._new(indices)
        self._sizes.update(dict.fromkeys(new, 1))
        computed: list[Code] = [Instruction("index", access.indices or access.uses, new)] if new else []
        if access.kind != "store":
            return [*computed, replace(access, uses=(*access.uses, *indices))]
        return [*computed, replace(access, indices=(*access.indices, *indices)) if indices else access]

    def _new(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return the values that are not there yet, and keep them."""
        new = tuple(value for value in dict.fromkeys(values) if not any(value in scope for scope in self._there))
        self._there[-1].update(new)
        return new

    def _key(self, part: Index) -> tuple[Any, ...]:
        variables = frozenset((self._numbers.get(value, value), factor) for value, factor in part.variables)
        return variables, part.counters, part.constant


def _is_computed(part: Index) -> bool:
    """Return whether an index is computed, rather than a constant or a variable."""
    terms = [*part.variables, *part.counters]
    return bool(terms) and (bool(part.constant) or len(terms) > 1 or terms[0][1] != 1)
