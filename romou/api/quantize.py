"""romou.quantize: weights of products in 2, 4 or 8 bits, rounded to the nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import UsageError
from romou.base.headline import Headline
from romou.compiler.frontend.onnx_file import load_onnx
from romou.compiler.frontend.quantized import LEAST_BLOCK
from romou.compiler.frontend.round_weights import with_rounded_weights
from tvm_patches.quantized_matrix import BITS

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True, repr=False)
class Quantized(Headline):
    """A model with quantized weights.

    Parameters
    ----------
    model
        The model, with `com.microsoft.MatMulNBits` in place of products with constants.
    errors
        Name of a weight -> relative L2 error of its rounding. Empty if the model has no such product.
    """

    model: onnx.ModelProto
    errors: Mapping[str, float]

    @property
    def headline(self) -> str:
        """The number of weights, and the largest error."""
        worst = f", relative L2 errors up to {max(self.errors.values()):.1e}" if self.errors else ""
        return f"quantized weights: {len(self.errors)}{worst}"


def quantize(model: onnx.ModelProto | str | Path, bits: int = 4, block: int = 32) -> Quantized:
    """Round the constant weights of a model's products to a few bits. Activations stay as they are.

    MatMul and Gemm with a constant matrix of fp32 or fp16 become MatMulNBits. No data is needed.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.
    bits
        Bits of a weight: 2, 4 or 8.
    block
        Weights of a row that share a scale, a power of two from 16 on.

    Raises
    ------
    ModelError
        The file is missing or broken.
    UsageError
        There are no kernels for the bits or the block.
    """
    if bits not in BITS:
        raise UsageError(f"bits={bits!r}: kernels exist for {', '.join(map(str, BITS))}")
    if not isinstance(block, int) or block < LEAST_BLOCK or block & (block - 1):
        raise UsageError(f"block={block!r} is no power of two from {LEAST_BLOCK} on")
    quantized, errors = with_rounded_weights(load_onnx(model), bits, block)
    return Quantized(model=quantized, errors=errors)
