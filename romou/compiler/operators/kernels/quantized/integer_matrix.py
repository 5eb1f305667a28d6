"""A constant matrix of 8-bit integers, packed as kernels read it, and its product with 8-bit activations.

    weight int (k, n)         ->  words uint32 (words of a row, columns)      word i of column j: rows 4 i to 4 i + 3
    activations 8 bits (m, k) ->  words uint32 (m, words of a row)            word i of row j: columns 4 i to 4 i + 3

The first of four numbers is in the lowest byte. Words of a row are a multiple of four, and columns a multiple of 16, so
that every vector is whole. What fills them up is zero.

Weights are signed. Activations are signed or unsigned, as the device multiplies them: 128 more or less moves them.

    sum((a - zero) * (w + offset)) = sum(a * w) + correction - zero * sums + offset * sum(a)

`sums` are the weight's columns summed up. The offset is 0 unless numbers of a column are outside of -128 to 127.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from romou.compiler.scheduling.statements import unravel

# Annotation of the block that is the product: the `IntegerProduct` as JSON.
PRODUCT = "quantized.integer_product"
# Numbers of a word, words of a vector of activations, and columns of the widest vector of weights.
BYTES, VECTOR, WIDEST = 4, 4, 16
# What turns a signed number into an unsigned one.
_MOVED = 128


@dataclass(frozen=True, kw_only=True)
class IntegerMatrix:
    """A matrix (k, n) of integers.

    words: the packed numbers, less `offsets`.
    sums: int32 (n,), the sum of each column.
    offsets: int32 (n,). None if all are zero.
    """

    k: int
    n: int
    words: np.ndarray
    sums: np.ndarray
    offsets: np.ndarray | None

    @classmethod
    def pack(cls, weight: np.ndarray) -> IntegerMatrix | None:
        """Return the packed form of integers (k, n). None if a column has a range of more than 8 bits."""
        k, n = weight.shape
        wide = weight.astype(np.int64)
        low, high = wide.min(axis=0), wide.max(axis=0)
        if (high - low).max() > 255:
            return None
        offsets = np.where(high > 127, high - 127, np.where(low < -128, low + 128, 0))
        product = IntegerProduct(m=1, k=k, n=n)
        full = np.zeros((product.words * BYTES, product.columns), np.int8)
        full[:k, :n] = wide - offsets
        words = np.ascontiguousarray(full.reshape(product.words, BYTES, -1).transpose(0, 2, 1)).view("<u4")[..., 0]
        return cls(
            k=k,
            n=n,
            words=np.ascontiguousarray(words.astype(np.uint32)),
            # As int32, sums wrap around as products do.
            sums=wide.sum(axis=0).astype(np.int32),
            offsets=offsets.astype(np.int32) if offsets.any() else None,
        )

    def correction(self, moved: int) -> np.ndarray:
        """Return the addend that corrects products of activations that were shifted down by `moved`."""
        offsets = 0 if self.offsets is None else self.offsets.astype(np.int64)
        corrections: np.ndarray = (moved * (self.sums.astype(np.int64) - self.k * offsets)).astype(np.int32)
        return corrections


@dataclass(frozen=True, kw_only=True)
class IntegerProduct:
    """The numbers of a product (m, k) x (k, n).

    is_signed: whether the activations are signed bytes.
    zero: zero points of the activations that the kernel reads: none, one, or one for each row.
    """

    m: int
    k: int
    n: int
    is_signed: bool = True
    zero: str = "none"

    @property
    def words(self) -> int:
        """Words of a row of activations."""
        return -(-self.k // (BYTES * VECTOR)) * VECTOR

    @property
    def columns(self) -> int:
        """Columns of the packed weight."""
        return -(-self.n // WIDEST) * WIDEST

    @property
    def exact_words(self) -> int:
        """Words of a row whose products have a sum that fp32 has exactly, a multiple of a vector."""
        return (2**24 // ((128 if self.is_signed else 255) * 128) // BYTES) // VECTOR * VECTOR

    def moved(self, dtype: str) -> int:
        """Return the amount by which packing shifts activations of `dtype` down."""
        return 0 if self.is_signed == (dtype == "int8") else _MOVED if self.is_signed else -_MOVED

    def to_json(self) -> str:
        """Return text from which `from_json` makes an equal object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> IntegerProduct:
        return cls(**json.loads(text))

    def pack(self, data: te.Tensor) -> te.Tensor:
        """Return the words of activations (..., k) of int8 or uint8, with `m` rows."""
        flip, leading = _MOVED if self.moved(str(data.dtype)) else 0, [int(extent) for extent in data.shape[:-1]]

        def byte(row: tirx.Var, column: tirx.Expr) -> tirx.Expr:
            value = data[(*unravel(row, leading), column)].astype("int32")
            value = (value ^ flip if flip else value) & 255
            is_whole = self.k == self.words * BYTES
            return value if is_whole else tirx.if_then_else(column < self.k, value, tirx.const(0, "int32"))

        def word(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
            places = [byte(row, column * BYTES + at).astype("uint32") for at in range(BYTES)]
            return sum(
                (place << tirx.const(8 * at, "uint32") for at, place in enumerate(places[1:], 1)), start=places[0]
            )

        return te.compute((self.m, self.words), word, name="packed_bytes")

    def define(
        self, data: te.Tensor, weight: te.Tensor, corrections: te.Tensor, sums: te.Tensor | None = None,
        zero: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        """Return the plain definition of the int32 result.

        data: the words of activations (m, words).
        weight: the packed weight (words, columns).
        corrections: int32 (n,), see `IntegerMatrix.correction`.
        sums, zero: sums of the weight's columns, and zero points of shape (), (1,) or (m,), or neither.
        """
        k = te.reduce_axis((0, self.words), "k")

        def products(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            terms = [
                byte_of(data[i, k], at, is_signed=self.is_signed) * byte_of(weight[k, j], at, is_signed=True)
                for at in range(BYTES)
            ]
            return te.sum((terms[0] + terms[1]) + (terms[2] + terms[3]), axis=k)

        total = te.compute((self.m, self.n), products, name="integer_product", attrs={PRODUCT: self.to_json()})

        def corrected(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            value = total[i, j] + corrections[j]
            if zero is None or sums is None:
                return value
            point = zero(*([i] if self.zero == "rows" else [0] * len(zero.shape)))
            return value - point.astype("int32") * sums[j]

        return te.compute(total.shape, corrected, name="corrected")


def byte_of(word: tirx.Expr, number: int, *, is_signed: bool) -> tirx.Expr:
    """Return byte `number` of a uint32 as an int32."""
    if is_signed:
        value = word.astype("int32")
        value = value << tirx.const(8 * (BYTES - 1 - number), "int32") if number < BYTES - 1 else value
        # This shift fills up with the sign.
        return value >> tirx.const(8 * (BYTES - 1), "int32")
    shifted = word >> tirx.const(8 * number, "uint32") if number else word
    byte = shifted if number == BYTES - 1 else shifted & tirx.const(255, "uint32")
    return byte.astype("int32")
