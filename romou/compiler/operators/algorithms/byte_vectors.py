"""The algorithm of convolutions of bytes on CPUs: vectors of pixels instead of vectors of channels."""

from __future__ import annotations

from functools import cached_property

from tvm import ir, s_tir, tirx

from romou.base.knob import nearest
from romou.base.limits import Limits
from romou.base.preset import Algorithms
from romou.base.space import Config, Space
from romou.compiler.operators.algorithms.algorithm import DirectAlgorithm
from romou.compiler.operators.contraction.knobs import FP32
from romou.compiler.operators.kernels.byte_convolution import (
    BYTE_TYPES,
    PIXELS,
    WordKernel,
    has_vectors,
    is_of_words,
    staged_floats,
)
from romou.compiler.operators.workload import WORKLOAD, Conv2d
from romou.compiler.scheduling.blocks import find_blocks, has_vector_form, is_elementwise_of, is_regular, read_buffers
from romou.compiler.scheduling.rewrites import as_module, inlined
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.primitives import MemoryKind, is_image
from romou.compiler.tir.traversal import nodes_in

# Instruction slots of a product, in those of a direct one.
_SLOTS = 0.5
_FLOAT_BYTES = 4


class WordsAlgorithm(DirectAlgorithm):
    """Convolutions of bytes, with one group or one for each channel. Knobs count vectors of 16 pixels, not pixels."""

    @cached_property
    def _blocks(self) -> tuple[tirx.PrimFunc, s_tir.SBlock, s_tir.SBlock] | None:
        """The function with its epilogue in one block, the sum, and the epilogue. None if they have no such kernel."""
        work, func = self.work, self.contracted.func
        if not isinstance(work, Conv2d) or work.data_type not in BYTE_TYPES or not has_vectors(work):
            return None
        if any(map(is_image, func.params)) or not is_regular(func) or not has_vector_form(func):
            return None
        simplified = inlined(func)
        product, *epilogue = find_blocks(simplified)
        if len(epilogue) != 1 or WORKLOAD not in product.annotations:
            return None
        total, (block,) = product.writes[0].source, epilogue
        has_branches = any(is_conditional(call) for call in nodes_in(block.body.value, ir.Call))
        if has_branches or not is_elementwise_of(block, total) or not is_of_words(work, block, total):
            return None
        return simplified, product, block

    def fits(self, limits: Limits) -> bool:
        is_wide = limits.is_cpu and limits.has_vector_arithmetic and limits.vector_lanes >= PIXELS
        return is_wide and limits.variant is None and self._blocks is not None and self._space(limits) is not None

    def space(self, limits: Limits) -> Space:
        space = self._space(limits)
        assert space is not None, "the algorithm fits the device"
        return space

    def _space(self, limits: Limits) -> Space | None:
        whole, weight = self._whole_space(limits), self.contracted.weight
        tiles = [
            texels
            for texels in whole.knobs["tile_o"]
            if isinstance(texels, int)
            and int(self.contracted.func.params[-1].shape[1]) % texels == 0
            and _FLOAT_BYTES * staged_floats(weight, texels) <= limits.local_memory_bytes
        ]
        fixed = {name: (nearest(whole.knobs[name], choice),) for name, choice in _FIXED.items() if name in whole.knobs}
        return whole.narrowed({**fixed, "tile_o": tuple(tiles)}) if tiles else None

    def starts(self, limits: Limits) -> list[Config]:
        space = self.space(limits)
        widest = max(int(texels) for texels in space.knobs["tile_o"])
        spelled = limits.preset.vector_tiles.multiply_add if limits.preset.vector_tiles is not None else "fma"
        config = space.default(tile_o=widest, multiply_add=spelled)
        return [config if space.is_valid(config) else space.nearest_valid(config)]

    def slots(self, limits: Limits, costs: Algorithms, start: Config) -> float:
        return _SLOTS * super().slots(limits, costs, start)

    def schedule(self, config: Config) -> s_tir.Schedule:
        assert self._blocks is not None, "the function has such a kernel"
        assert isinstance(self.work, Conv2d), "so it is a convolution"
        func, product, epilogue = self._blocks
        total = product.writes[0].source
        data, weight = read_buffers(product)
        kernel = WordKernel(func, self.work, (data, weight), total, epilogue, config)
        return s_tir.Schedule(as_module(kernel.function()))

    def dimensions(self, config: Config) -> None:
        """Return no lines: the kernel's ids are of vectors."""


# Knobs that the kernel does not have.
_FIXED = {
    "data": MemoryKind.BUFFER.value,
    "weight": MemoryKind.BUFFER.value,
    "output": MemoryKind.BUFFER.value,
    "pixels": "flat",
    "accumulate": FP32,
    "wg_h": 1,
    "tile_h": 1,
    "wg_o": 1,
    "wg_w": 1,
    "split_k": 1,
    "arrangement": "blocked",
    "local": 0,
    "unroll": "lanes",
    "vector_width": 4,
    "autobroadcast": True,
    "local_buffers": 1,
}
