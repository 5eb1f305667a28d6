"""Classes of rows of activations: products with packed weights have other kernels for one row, for few and for more.

One row is bound by the bytes of the weight. Of few rows, as in speculative decoding, a work-item multiplies all with
each unpacked weight. More rows are tiles. All kernels read the same packing.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from romou.compiler.tir.traversal import nodes_in
from tvm_patches.quantized_matrix import PRODUCT, QuantizedProduct

# Most rows of activations that count as few.
MOST_FEW = 8


def last_sizes(mod: tvm.IRModule, most: int) -> list[int]:
    """Return the last size of each class but the last, of a dimension that is in the rows of packed products.

    A product has such rows if their number is a multiple of the dimension's size.

    mod: an imported model in which the dimension has the size `most`.
    """
    blocks = [
        block
        for _, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
        for block in nodes_in(func.body, s_tir.SBlock)
        if PRODUCT in block.annotations
    ]
    rows = {QuantizedProduct.from_json(str(block.annotations[PRODUCT])).m for block in blocks}
    factors = [count // most for count in rows if count % most == 0]
    return sorted({last for factor in factors for few in (1, MOST_FEW) if 0 < (last := few // factor) < most})
