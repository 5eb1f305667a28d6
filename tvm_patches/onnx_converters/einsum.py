"""Einsum as matrix products of pairs of operands: the wheel's is one loop nest that no schedule for products takes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import relax, topi

from tvm_patches.onnx_converters.node import Node, converter, shape_of

op = relax.op


@dataclass(frozen=True)
class Term:
    """An operand, and the letter of each of its axes."""

    value: relax.Expr
    letters: str

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.letters, shape_of(self.value), strict=True))


@converter("Einsum")
def einsum(node: Node) -> relax.Expr:
    """Convert Einsum to products of pairs of operands, from left to right.

    The operands of bhqd,bkhd->bhqk are transposed, reshaped and multiplied as (b, h, q, d) x (b, h, d, k).
    """
    equation = node.attributes["equation"]
    equation = equation.decode() if isinstance(equation, bytes) else equation
    values = [value for value in node.inputs if value is not None]
    operands, result = parse(equation, [len(shape_of(value)) for value in values])
    if any(len(set(letters)) < len(letters) for letters in operands):
        # A diagonal.
        return node.builder.emit_te(topi.einsum, equation, *values)
    terms = [Term(value, letters) for value, letters in zip(values, operands, strict=True)]
    while len(terms) > 1:
        needed = set(result).union(*(term.letters for term in terms[2:]))
        terms[:2] = [_product(node, terms[0], terms[1], needed)]
    only = _summed(node, terms[0], set(result))
    return node.builder.normalize(op.permute_dims(only.value, [only.letters.index(letter) for letter in result]))


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand's axes and the result's letters.

    An ellipsis gets letters that the equation does not use.

    ValueError if the equation does not fit operands of these ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        raise ValueError(f"the equation {equation!r} is for {len(operands)} operands, not {len(ranks)}")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    covered = [rank - len(term.replace("...", "")) for term, rank in zip(operands, ranks, strict=True)]
    if any(count < 0 or (count and "..." not in term) for term, count in zip(operands, covered, strict=True)):
        raise ValueError(f"the equation {equation!r} does not fit operands of {', '.join(map(str, ranks))} dimensions")
    most = max([count for term, count in zip(operands, covered, strict=True) if "..." in term], default=0)
    dots = "".join(free[:most])
    if not arrow:
        letters = "".join(operands).replace("...", "")
        right = ("..." if most else "") + "".join(
            sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        )
    named = [term.replace("...", dots[most - count :]) for term, count in zip(operands, covered, strict=True)]
    return named, right.replace("...", dots)


def _summed(node: Node, term: Term, needed: set[str]) -> Term:
    """Sum over the axes that nothing else reads."""
    axes = [i for i, letter in enumerate(term.letters) if letter not in needed]
    if not axes:
        return term
    value = node.builder.normalize(op.sum(term.value, axes))
    return Term(value, "".join(letter for letter in term.letters if letter in needed))


def _product(node: Node, first: Term, second: Term, needed: set[str]) -> Term:
    """Multiply two operands, and sum over the axes that both have and nothing else reads."""
    a, b = (_without_broadcast(node, term, other) for term, other in ((first, second), (second, first)))
    a, b = _summed(node, a, needed | set(b.letters)), _summed(node, b, needed | set(a.letters))
    both = [letter for letter in a.letters if letter in b.letters]
    batch, inner = ([letter for letter in both if (letter in needed) == is_kept] for is_kept in (True, False))
    rows, columns = ([letter for letter in term.letters if letter not in both] for term in (a, b))
    sizes = a.sizes | b.sizes
    letters = "".join((*batch, *rows, *columns))
    if not inner:
        wide = [*(sizes[letter] for letter in (*batch, *rows)), *(1 for _ in columns)], [
            *(sizes[letter] for letter in batch), *(1 for _ in rows), *(sizes[letter] for letter in columns)
        ]  # fmt: skip
        left, right = (
            _arranged(node, term, order, shape)
            for term, order, shape in ((a, (*batch, *rows), wide[0]), (b, (*batch, *columns), wide[1]))
        )
        return Term(node.builder.normalize(op.multiply(left, right)), letters)
    m, k, n = (prod(sizes[letter] for letter in group) for group in (rows, inner, columns))
    # Axes of a batch are not merged, so a transpose of them becomes part of the product's index.
    outer = [sizes[letter] for letter in batch]
    left = _arranged(node, a, (*batch, *rows, *inner), [*outer, m, k])
    right = _arranged(node, b, (*batch, *inner, *columns), [*outer, k, n])
    product = node.builder.normalize(op.matmul(left, right))
    return Term(_shaped(node, product, [sizes[letter] for letter in letters]), letters)


def _without_broadcast(node: Node, term: Term, other: Term) -> Term:
    """Drop axes of one element if the other operand has more elements there. Axes of an ellipsis may be like that."""
    axes = [i for i, letter in enumerate(term.letters) if term.sizes[letter] == 1 and other.sizes.get(letter, 1) != 1]
    if not axes:
        return term
    value = node.builder.normalize(op.squeeze(term.value, axes))
    return Term(value, "".join(letter for i, letter in enumerate(term.letters) if i not in axes))


def _arranged(node: Node, term: Term, order: Sequence[str], shape: Sequence[int]) -> relax.Expr:
    """Transpose an operand into an order of its letters, and reshape it."""
    perm = [term.letters.index(letter) for letter in order]
    value = term.value if perm == list(range(len(perm))) else node.builder.normalize(op.permute_dims(term.value, perm))
    return _shaped(node, value, shape)


def _shaped(node: Node, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    return value if shape_of(value) == tuple(shape) else node.builder.normalize(op.reshape(value, list(shape)))
