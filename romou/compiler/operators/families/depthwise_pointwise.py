"""A depthwise convolution and the pointwise convolution that reads it, in one kernel without a tensor between them.

    data  ->  windows  ->  bias, activation  ->  local memory
          ->  products with the pointwise weight  ->  bias, residual, activation  ->  output

The pointwise convolution is scheduled as usual: it stages `local` texels of channels at a time in local memory. Instead
of loading an element, the group computes it there: a window of the depthwise convolution and its epilogue. Groups along
the output channels recompute the same windows, so a group should compute many channels.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx
from tvm_ffi.structural import structural_map

from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.algorithms.algorithm import DIRECT, Algorithm, Contracted, DirectAlgorithm
from romou.compiler.operators.algorithms.closed_form import ClosedForm
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.contraction.data_reads import PITCH, DataReads, Pixels, Steps
from romou.compiler.operators.contraction.defaults import default_config
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.families.convolution import CONV2D, DEPTHWISE
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.native_functions import with_functions
from romou.compiler.operators.workload import FAMILY as FAMILY_ATTRIBUTE
from romou.compiler.operators.workload import WORKLOAD, Conv2d, Expr
from romou.compiler.scheduling.blocks import find_blocks, read_buffers
from romou.compiler.scheduling.rewrites import replace_stage, with_fresh_variables, with_root
from romou.compiler.tir.calls import extern_name
from romou.compiler.tir.evaluate import count_distinct
from romou.compiler.tir.expressions import extents_of
from romou.compiler.tir.primitives import LANES, MULTIPLY_ADD, MemoryKind, is_image
from romou.compiler.tir.traversal import with_fields

# A call that marks a window's sum until the sum has its own register.
_WINDOW = "romou_window"
# Settings of the default config: texels of channels staged together, and a tile of several output texels.
_WANTED = {"local": 4, "tile_o": 2}


def is_pair(first: Conv2d, second: Conv2d) -> bool:
    """Return whether `second` is a pointwise convolution of the result of the depthwise convolution `first`."""
    is_pointwise = second.kernel == second.stride == (1, 1) and not any(second.padding) and second.groups == 1
    return (
        type(first) is type(second) is Conv2d
        and DEPTHWISE.is_mine(first)
        and is_pointwise
        and second.in_channels == first.out_channels
    )


class DepthwisePointwiseTemplate(ContractionTemplate):
    """The template of a function with both convolutions.

    Its contraction is the pointwise convolution, its data the depthwise convolution's input.
    """

    def __init__(self, first: s_tir.SBlock, second: Contracted) -> None:
        super().__init__(second)
        self._first = first
        self.family = FAMILY.name
        self.windows, self._pointwise = (
            Conv2d.from_json(str(block.annotations[WORKLOAD])) for block in (first, second.block)
        )

    @classmethod
    def of_pair(cls, func: tirx.PrimFunc) -> DepthwisePointwiseTemplate | None:
        """Return the template for `func` if it holds just a depthwise convolution and a matching pointwise one."""
        blocks = find_blocks(func)
        marked = [b for b in blocks if FAMILY_ATTRIBUTE in b.annotations]
        if [str(b.annotations[FAMILY_ATTRIBUTE]) for b in marked] != [DEPTHWISE.name, CONV2D.name]:
            return None
        first, second = marked
        second_at = blocks.index(second)
        intermediates = {write.source for block in blocks[:second_at] for write in block.writes}
        # A buffer that the epilogue reads again would have to be stored after all.
        is_read_again = any(read.source in intermediates for block in blocks[second_at + 1 :] for read in block.reads)
        is_whole = [int(d) for d in func.params[-1].shape] == [int(d) for d in second.writes[0].source.shape]
        works = (Conv2d.from_json(str(block.annotations[WORKLOAD])) for block in marked)
        return (
            cls(first, Contracted(func, second, CONV2D)) if is_whole and not is_read_again and is_pair(*works) else None
        )

    def _on(self, func: tirx.PrimFunc) -> DepthwisePointwiseTemplate:
        template = DepthwisePointwiseTemplate.of_pair(func)
        assert template is not None, "a mark on a parameter changes nothing that the template looks at"
        return template

    @property
    def name(self) -> str:
        return f"{self.family}_{self.windows.name}_{self._pointwise.out_channels}"

    @property
    def flops(self) -> int:
        return self.windows.flops + self.workload.flops

    @property
    def data(self) -> tirx.Buffer:
        """The depthwise convolution's input."""
        return self._first.reads[0].source

    @property
    def window_weight(self) -> tirx.Buffer:
        """The depthwise convolution's weight, (kh, kw, c / 4, 4)."""
        return next(region.source for region in self._first.reads if not region.source.same_as(self.data))

    @property
    def activations(self) -> set[str]:
        """Parameters that may be images: all with lanes as last axis, except the two weights."""
        return super().activations - {str(self.window_weight.name)}

    @functools.cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """The direct algorithm only. Winograd's transforms would read the intermediate tensor from memory."""
        return {DIRECT: DirectAlgorithm(self.contracted, self.placement)}

    def form(self, limits: Limits) -> DepthwisePointwiseForm:
        return DepthwisePointwiseForm(self, limits)

    def space(self, limits: Limits) -> Space:
        """Return the pointwise convolution's knobs with staging in local memory.

        Tensor cores are left out, because they load their operands themselves.
        """
        space = super().space(replace(limits, has_tensor_cores=False, has_cooperative_matrices=False))
        space.knobs["local"] = tuple(steps for steps in space.knobs["local"] if steps)
        space.knobs["split_k"] = (1,)
        # Elements computed during staging cannot be prefetched.
        space.knobs["local_buffers"] = (1,)
        return space

    def starts(self, limits: Limits) -> list[Config]:
        """Return one config with many channels in each group, so that few windows are computed twice."""
        space = self.space(limits)
        config = default_config(space, self.contraction(flat=True), self.contraction(flat=False), limits)
        for name, wanted in _WANTED.items():
            larger = config.replace(
                **{name: max((int(c) for c in space.knobs[name] if int(c) <= wanted), default=config[name])}
            )
            config = larger if space.is_valid(larger) else config
        return [config]

    def scheduled(self, config: Config) -> tirx.PrimFunc:
        return with_functions(self.direct(self.contracted, config), config)

    def direct(self, contracted: Contracted, config: Config) -> tirx.PrimFunc:
        """Return the scheduled pointwise convolution, into which the windows are inlined."""
        first = find_blocks(contracted.func)[find_blocks(self.func).index(self._first)]
        second = replace(contracted, func=replace_stage(contracted.func, first, self._windows(first)))
        return _keep_windows(super().direct(second, config), config["multiply_add"])

    def _windows(self, block: s_tir.SBlock) -> tirx.PrimFunc:
        """Return the depthwise convolution with unrolled windows. Without a reduction, it can be inlined."""
        buffers = read_buffers(block)
        data, weight = (te.placeholder(extents_of(b.shape), str(b.dtype), b.name) for b in buffers)
        w, is_zero_outside = replace(self.windows, in_hw=tuple(data.shape[2:4])), is_image(buffers[0])

        def value(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            def product(*tap: int) -> tirx.Expr:
                def load(iy: Expr, ix: Expr) -> tirx.Expr:
                    return w.data_number(data[n, c, iy, ix, lane])

                under = w.under_window((y, x), tap, load, is_zero_outside=is_zero_outside)
                return under.astype("float32") * w.weight_number(weight[(*tap, c, lane)]).astype("float32")

            taps = itertools.product(*map(range, w.kernel))
            return tirx.call_pure_extern(
                "float32", _WINDOW, functools.reduce(operator.add, itertools.starmap(product, taps))
            )

        shape = extents_of(block.writes[0].source.shape)
        return te.create_prim_func([data, weight, te.compute(shape, value, name="windows")])


def _keep_windows(func: tirx.PrimFunc, spelling: str) -> tirx.PrimFunc:
    """Keep a window's sum in a register, so that an epilogue that uses it twice (hard swish) sums once.

    for lane: patch[…] = activation(sum(…), sum(…))
        ->  for lane: window[lane] = sum(…)
            for lane: patch[…] = activation(window[lane], window[lane])

    spelling: of multiply-adds, a choice of that knob.
    """
    window = tirx.decl_buffer((LANES,), "float32", "window", scope="local")
    marks = {} if spelling == "plain" else {MULTIPLY_ADD: spelling}

    def keep(loop: tirx.For) -> tirx.Stmt:
        block = getattr(loop.body, "block", None)
        if loop.kind != tirx.ForKind.VECTORIZED or block is None or block.name_hint != Stage.PATCH:
            return loop
        store, sums = block.body, []

        def load(call: tvm.ir.Call) -> tirx.Expr:
            if extern_name(call) != _WINDOW:
                return call
            sums.append(call.args[1])
            return tirx.BufferLoad(window, store.indices[-1:])

        activated = tirx.BufferStore(store.buffer, structural_map(store.value, (tvm.ir.Call, load)), store.indices)
        summed = tirx.BufferStore(window, sums[0], store.indices[-1:])
        return tirx.SeqStmt(
            [
                with_fresh_variables(nest_of(loop, "window", summed, marks)),
                nest_of(loop, Stage.PATCH, activated, block.annotations),
            ]
        )

    def nest_of(loop: tirx.For, name: str, store: tirx.BufferStore, annotations: Mapping[str, Any]) -> tirx.For:
        realized = loop.body
        block = s_tir.SBlock(realized.block.iter_vars, [], [], name, store)
        buffers = {
            buffer: buffer
            for buffer in (window, *(region.source for region in (*realized.block.reads, *realized.block.writes)))
        }
        reads, writes, _ = s_tir.analysis.get_sblock_access_region(block, buffers)
        block = with_fields(block, reads=reads, writes=writes, annotations=annotations)
        body = with_fields(realized, block=block)
        return with_fields(loop, body=body)

    root = structural_map(func.body, (tirx.For, keep)).block
    return with_root(func, root.body, [*root.alloc_buffers, window])


class DepthwisePointwiseForm(ClosedForm):
    """The formulas of one pair of convolutions: the pointwise formulas, plus the staged windows."""

    def __init__(self, template: DepthwisePointwiseTemplate, limits: Limits) -> None:
        super().__init__(template.algorithms, limits, template.number_bytes)
        self._kernel = template.windows.kernel
        self._reads = _WindowReads(self._forms, template.windows)

    def _contraction_usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        usage = super()._contraction_usage(columns, counts)
        taps, is_image = math.prod(self._kernel), columns["data"] == MemoryKind.IMAGE
        # Texels that a work-item computes in one iteration. An unfused pointwise convolution would load one texel for
        # each.
        staged = -(
            -(columns["local"] * columns["tile_h"] * columns["wg_w"] * columns["tile_w"]) // usage.work_group_size
        )
        texel_bytes = LANES * self._element_bytes * usage.work_group_size * staged
        return replace(
            usage,
            buffer_bytes=usage.buffer_bytes + taps * columns["local"] * LANES * self._element_bytes,
            unshared_buffer_bytes=usage.unshared_buffer_bytes
            + texel_bytes * (taps + (taps - 1) * np.logical_not(is_image)),
            unshared_image_bytes=usage.unshared_image_bytes + texel_bytes * (taps - 1) * is_image,
            multiply_adds=usage.multiply_adds + taps * staged * LANES,
        )


class _WindowReads(DataReads):
    """Counts of reads of the depthwise convolution's input.

    Its output, the pointwise convolution's input, is not read.
    """

    def __init__(self, forms: Mapping[str, Contraction], windows: Conv2d) -> None:
        super().__init__(forms)
        self._windows = windows
        self.is_padded = any(windows.padding)
        self._pixels_read = functools.cache(self._count_pixels)

    def _distinct(self, pixels: Pixels, steps: Steps, group_o: int) -> int:
        """Return the product of texels and pixels.

        An iteration's channels are whole texels, each with the same pixels.
        """
        return self._pixels_read(pixels.order, pixels.is_image, pixels.tile_h, pixels.width) * steps.together * LANES

    def _count_pixels(self, order: str, is_image: bool, tile_h: int, width: int) -> int:
        """Count the input pixels under the windows of the first group. In an image, padding counts too."""
        w, at = self._windows, self._forms[order].extents
        _, place, _ = w.pixels(order == "flat")
        h, x, kh, kw = np.ix_(*map(np.arange, (tile_h, width, *w.kernel)))
        n, oy, ox = place(np.minimum(h, at[1] - 1), np.minimum(x, at[2] - 1))
        y, x = (
            o * s + k * d - p
            for o, s, k, d, p in zip((oy, ox), w.stride, (kh, kw), w.dilation, w.padding[:2], strict=True)
        )
        key: Any = (n * PITCH + y) * PITCH + x
        inside = (y >= 0) & (y < w.in_hw[0]) & (x >= 0) & (x < w.in_hw[1])
        return count_distinct(key if is_image else key[np.broadcast_to(inside, key.shape)])


class DepthwisePointwiseFamily(Family):
    """Pairs of convolutions in one kernel.

    No Relax operator is a pair. `romou/compiler/graph/join_chains.py` finds pairs among fused functions.
    """

    name = "depthwise_pointwise"
    precedence = 2

    def template_of(self, func: tirx.PrimFunc) -> DepthwisePointwiseTemplate | None:
        return DepthwisePointwiseTemplate.of_pair(func)

    @property
    def cases(self) -> Sequence[Case]:
        first = Conv2d.of(10, (9, 7), 10, (3, 3), padding=1, groups=10)
        second = Conv2d.of(10, first.out_hw, 12, (1, 1))
        depthwise, pointwise = DEPTHWISE.case(first), CONV2D.case(second)

        def build(x: relax.Expr, a: relax.Expr, b: relax.Expr) -> relax.Expr:
            return pointwise.build(depthwise.build(x, a), b)

        def compute(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return pointwise.compute(depthwise.compute(x, a), b)

        return [
            Case(
                name=f"{first.name}_12",
                inputs=depthwise.inputs,
                weights=[*depthwise.weights, *pointwise.weights],
                build=build,
                compute=compute,
            )
        ]


FAMILY = DepthwisePointwiseFamily()
