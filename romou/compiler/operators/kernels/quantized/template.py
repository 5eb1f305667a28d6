"""The base of the templates of products with packed constant matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.kernels.quantized.outputs import Operands
from romou.compiler.operators.schedule_template import Template
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.blocks import find_blocks, is_elementwise_of, is_regular, loads_of, reduced_axes
from romou.compiler.scheduling.rewrites import inlined
from romou.compiler.tir.primitives import is_image

if TYPE_CHECKING:
    from typing_extensions import Self

GROUP_PARTS = Knob(
    name="group_parts",
    choices=(1, 2, 4, 8, 16, 32),
    default=1,
    help="work-items that share a sum over k, and add up their parts in local memory",
)
# Rows of activations of a work-item without tensor cores, and on tensor cores.
PLAIN_ITEM_DATA, MMA_ITEM_DATA = (1, 2, 3, 4, 6, 8), (2, *range(4, 65, 4))
ITEM_DATA = Knob(
    name="item_data",
    choices=tuple(sorted({*PLAIN_ITEM_DATA, *MMA_ITEM_DATA})),
    default=1,
    help="rows of activations of a work-item",
    scales_outputs=True,
)


class PackedTemplate(Template):
    """The template of a function with one product with a packed matrix, and element-wise operators behind it.

    product: class of the numbers of the product, `workload`. It has `m`, `k`, `n` and `from_json`.
    annotation: annotation of the product's block with these numbers.
    block_counts: blocks that a function may have: the product, and perhaps an epilogue.
    has_norms: whether a block may reduce the rows of activations before the product.
    """

    product: ClassVar[Any]
    annotation: ClassVar[str]
    block_counts: ClassVar[tuple[int, ...]]
    has_norms: ClassVar[bool] = False

    def __init__(self, func: tirx.PrimFunc, simplified: tirx.PrimFunc, work: Any) -> None:
        self.func, self._simplified, self.workload = func, simplified, work

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> Self | None:
        """Return the template of `func`, or None if it has no such product, or an epilogue of another shape."""
        marked = [block for block in find_blocks(func) if cls.annotation in block.annotations]
        if len(marked) != 1 or any(map(is_image, func.params)) or not is_regular(func):
            return None
        simplified = inlined(func)
        product, *epilogue = blocks = find_blocks(simplified)
        if cls.has_norms and epilogue and cls.annotation not in product.annotations:
            product, *epilogue = blocks = blocks[1:]
        if len(blocks) not in cls.block_counts or cls.annotation not in product.annotations:
            return None
        if epilogue and not is_elementwise_of(epilogue[0], product.writes[0].source):
            return None
        return cls(func, simplified, cls.product.from_json(str(marked[0].annotations[cls.annotation])))

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        at = next(at for at, block in enumerate(find_blocks(self.func)) if self.annotation in block.annotations)
        product = find_blocks(func)[at]
        text = find_blocks(self.func)[at].annotations[self.annotation]
        parts = product.reads, product.writes, product.name_hint, product.body, product.init
        marked = s_tir.SBlock(product.iter_vars, *parts, annotations={self.annotation: text})
        body = structural_map(func.body, (s_tir.SBlock, lambda block: marked if block.same_as(product) else block))
        func, rows = func.with_body(body), product.iter_vars[0].dom.extent
        template = type(self)(func, inlined(func), replace(self.workload, m=rows))
        return template.schedule(config, limits)["main"]

    def _buffers(self) -> tuple[list[tirx.Buffer], tirx.Buffer, s_tir.SBlock | None]:
        """Return the factors in the order of the definition, the sums, and the epilogue, of the simplified function."""
        *_, product, epilogue = self._blocks
        assert reduced_axes(product), "the product is a sum"
        total, sources = product.writes[0].source, list[tirx.Buffer]()
        for load in loads_of(product.body.value):
            is_new = not any(load.source.same_as(other) for other in (*sources, total))
            sources += [load.source] if is_new else []
        return sources, total, epilogue

    @property
    def _blocks(self) -> tuple[s_tir.SBlock | None, s_tir.SBlock, s_tir.SBlock | None]:
        """The block that reduces rows of activations, the product, and the epilogue, of the simplified function."""
        blocks = find_blocks(self._simplified)
        at = next(at for at, block in enumerate(blocks) if self.annotation in block.annotations)
        return (blocks[0] if at else None), blocks[at], (blocks[-1] if at < len(blocks) - 1 else None)

    @property
    def operands(self) -> Operands:
        """The buffers of the product, of the simplified function."""
        raise NotImplementedError

    @property
    def names(self) -> Mapping[str, str]:
        buffers = {"data": self.operands.data, "weight": self.operands.weight, "output": self.func.params[-1]}
        return {role: str(buffer.name) for role, buffer in buffers.items()}

    @property
    def flops(self) -> int:
        return int(2 * self.workload.m * self.workload.k * self.workload.n)

    def tiles(self, columns: Columns) -> Any:
        """Return the tiles of a config, or of many."""
        raise NotImplementedError

    def registers(self, columns: Columns) -> Any:
        """Return the registers of a work-item's tiles."""
        raise NotImplementedError

    def _busy(self, configs: Sequence[Config], whole: Config, space: Space, limits: Limits) -> Config:
        """Return the first valid config that fills the device, else the last valid one, else one near to `whole`."""
        usable = [config for config in configs if space.is_valid(config)]
        tiles = map(self.tiles, usable)
        full = (c for c, t in zip(usable, tiles, strict=True) if int(t.groups * t.threads) >= limits.busy_work_items)
        return next(full, usable[-1] if usable else space.nearest_valid(whole))
