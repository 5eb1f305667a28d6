"""A constant matrix quantized in blocks, packed as kernels read it, and its product with activations.

    q: uint8 (n, k)                              codes of `bits` bits, a scale and perhaps a zero point for each block
    ->  words: uint32 (chunks, n, 4)             a chunk of a row is four words, 128 bits
        scales: float (blocks, n)
        zeros: uint8 or float (blocks, n)        None: 2^(bits - 1) everywhere
        table: float32 (2^bits,)                 the numbers that codes stand for; None: integers less their zero points

In a chunk, code p of word j belongs to element 4 * p + j. So code p of all four words is a vector of four neighbours,
which meets one vector of activations. Rows are the inner axis: neighbouring work-items compute neighbouring rows.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

# Annotation of the block that is the product: the `QuantizedProduct` as JSON.
PRODUCT = "quantized.product"
_WORD_BITS, _WORDS = 32, 4
BITS = (2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix:
    """A matrix (n, k) of `bits` bits in blocks of `block` neighbours along k."""

    bits: int
    block: int
    k: int
    words: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    table: np.ndarray | None = None

    @classmethod
    def pack(
        cls,
        codes: np.ndarray,
        scales: np.ndarray,
        zeros: np.ndarray | None = None,
        table: np.ndarray | None = None,
        *,
        bits: int,
        block: int,
    ) -> QuantizedMatrix:
        """Return the packed form of codes (n, k), scales (n, blocks) and zero points (n, blocks) or a table.

        Raises
        ------
        ValueError
            The number of bits is unknown, or the scales, zero points or the table do not fit.
        """
        n, k = codes.shape
        if bits not in BITS:
            raise ValueError(f"codes of {bits} bits; known are {', '.join(map(str, BITS))}")
        blocks = -(-k // block)
        for name, values in (("scales", scales), ("zero points", zeros)):
            if values is not None and values.shape != (n, blocks):
                raise ValueError(f"{name} of shape {values.shape} for {n} rows of {blocks} blocks")
        if table is not None and (zeros is not None or table.shape != (1 << bits,)):
            raise ValueError(f"a table of {table.size} numbers for codes of {bits} bits, or zero points beside it")
        per_word, chunk = _WORD_BITS // bits, _WORD_BITS // bits * _WORDS
        chunks = -(-k // chunk)
        full = np.zeros((n, chunks * chunk), np.uint8)
        full[:, :k] = codes
        split = full.reshape(n, chunks, per_word, _WORDS)
        words = np.zeros((n, chunks, _WORDS), np.uint32)
        for position in range(per_word):
            words |= split[:, :, position].astype(np.uint32) << np.uint32(bits * position)
        return cls(
            bits=bits,
            block=block,
            k=k,
            words=np.ascontiguousarray(words.transpose(1, 0, 2)),
            scales=np.ascontiguousarray(scales.T),
            zeros=None if zeros is None else np.ascontiguousarray(zeros.T),
            table=None if table is None else table.astype(np.float32),
        )

    @property
    def arrays(self) -> list[np.ndarray]:
        """The tensors that a kernel reads."""
        return [self.words, self.scales, *(array for array in (self.zeros, self.table) if array is not None)]

    def product(self, m: int, dtype: str) -> QuantizedProduct:
        """Return the numbers of a product with `m` rows of activations."""
        zero = "none" if self.zeros is None else str(self.zeros.dtype)
        n = self.words.shape[1]
        return QuantizedProduct(
            m=m,
            k=self.k,
            n=n,
            bits=self.bits,
            block=self.block,
            zero=zero,
            dtype=dtype,
            has_table=self.table is not None,
        )


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return `count` codes of each row of bytes. The first code of a byte is in its lowest bits."""
    codes = [(packed >> np.uint8(shift)) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(codes, axis=-1).reshape(packed.shape[0], -1)[:, :count]


@dataclass(frozen=True, kw_only=True)
class QuantizedProduct:
    """The numbers of a product (m, k) x (n, k)^T with a quantized matrix.

    zero: type of the zero points, "none" if all are 2^(bits - 1).
    dtype: type of the activations and of the result in memory.
    has_table: whether codes stand for the numbers of a table, which is an operand.
    """

    m: int
    k: int
    n: int
    bits: int
    block: int
    zero: str = "none"
    dtype: str = "float32"
    has_table: bool = False

    @property
    def per_word(self) -> int:
        """Codes of a word."""
        return _WORD_BITS // self.bits

    @property
    def chunk(self) -> int:
        """Codes of a chunk."""
        return _WORDS * self.per_word

    @property
    def chunks(self) -> int:
        """Chunks of a row. The last one may be filled up with zeros."""
        return -(-self.k // self.chunk)

    @property
    def blocks(self) -> int:
        """Blocks of a row. The last one may be shorter."""
        return -(-self.k // self.block)

    @property
    def common_zero(self) -> int:
        """The zero point of a matrix without stored ones."""
        return 1 << self.bits - 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of the codes and scales. Zero points have a byte each, or the activations' type."""
        width = 2 if self.dtype == "float16" else 4
        zero = {"none": 0, "uint8": 1}.get(self.zero, width)
        return self.n * (16 * self.chunks + self.blocks * (width + zero))

    def to_json(self) -> str:
        """Return text from which `from_json` makes an equal object."""
        numbers = dataclasses.asdict(self)
        # Products without tables keep the text, and so the task keys, that records have.
        return json.dumps(numbers if self.has_table else {k: v for k, v in numbers.items() if k != "has_table"})

    @classmethod
    def from_json(cls, text: str) -> QuantizedProduct:
        return cls(**json.loads(text))

    def define(self, data: te.Tensor, words: te.Tensor, scales: te.Tensor, other: te.Tensor | None = None) -> te.Tensor:
        """Return the plain definition: out[i, j] = sum over k of data[i, k] * (q[j, k] - zero[j, k]) * scale[j, k].

        With a table, out[i, j] = sum over k of data[i, k] * table[q[j, k]] * scale[j, k].

        other: the zero points, or the table.
        """
        k, wide = te.reduce_axis((0, self.k), "k"), "float32"

        def weight(j: tirx.Var) -> tirx.Expr:
            place, block = k % self.chunk, k // self.block
            word = words[k // self.chunk, j, place % _WORDS]
            code = (word >> (place // _WORDS * self.bits).astype("uint32")) & tirx.const((1 << self.bits) - 1, "uint32")
            if self.has_table:
                assert other is not None, "the table is an operand"
                return other[code.astype("int32")] * scales[block, j].astype(wide)
            zero = tirx.const(float(self.common_zero), wide) if other is None else other[block, j].astype(wide)
            return (code.astype(wide) - zero) * scales[block, j].astype(wide)

        total = te.compute(
            (self.m, self.n),
            lambda i, j: te.sum(data[i, k].astype(wide) * weight(j), axis=k),
            name="quantized_product",
            attrs={PRODUCT: self.to_json()},
        )
        if self.dtype == wide:
            return total
        return te.compute(total.shape, lambda *i: total[i].astype(self.dtype), name="store")
