"""A depthwise convolution and the pointwise one that reads it, as one kernel: what lies between the two never goes to memory.

data -> windows -> bias, activation -> local memory -> products with the pointwise weight -> bias, residual, activation -> output

The pointwise convolution is the contraction that it is by itself. Of what it stages in local memory, `local` texels of channels at a time, every
element is computed where it would be loaded: a window of the depthwise convolution and its epilogue, by the work-items of the group together. Groups
along the output channels compute the same windows again, so kernels whose groups take many channels do least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, te, tirx
from tvm_ffi.structural import structural_map

from romou.core.limits import Limits
from romou.core.space import Config, Space
from romou.schedules import depthwise
from romou.schedules.blocks import with_own_axes
from romou.schedules.contraction import Contraction
from romou.schedules.contraction.defaults import default_config
from romou.schedules.splice import find_blocks, nests_of, replace_stage
from romou.schedules.template import ContractionTemplate
from romou.schedules.workload import Conv2d, window_index
from romou.tir.calls import extern_name
from romou.tir.primitives import LANES, MULTIPLY_ADD, is_image

FAMILY = "depthwise_pointwise"
# What stands around a window's sum until it has a register of its own.
_WINDOW = "romou_window"
# Of the config that is tried first: texels of channels staged together, and a tile of many channels.
_WANTED = {"local": 4, "tile_o": 2}


def is_pair(first: Conv2d, second: Conv2d) -> bool:
    """Whether the second convolution reads one pixel of the depthwise first one for each of its own."""
    is_pointwise = second.kernel == second.stride == (1, 1) and not any(second.padding) and second.groups == 1
    return depthwise.is_mine(first) and is_pointwise and second.in_channels == first.out_channels


def join(first: tirx.PrimFunc, second: tirx.PrimFunc, position: int) -> tirx.PrimFunc:
    """One function of two, of which the second reads what the first one gives as its parameter `position`.

    a(x, w, y), b(y, v, z)      ->      ab(x, w, v, z), inside of which y is a buffer of its own
    """
    taken = {str(p.name) for p in second.params}
    given, old = first.params[-1], second.params[position]
    between = tirx.decl_buffer(given.shape, given.dtype, "between")
    renamed = {given: between}
    for parameter in first.params[:-1]:
        name = str(parameter.name)
        while name in taken:
            name = f"{name}_depthwise"
        taken.add(name)
        renamed[parameter] = tirx.decl_buffer(parameter.shape, parameter.dtype, name, scope=str(parameter.scope()))
    parts = [
        structural_map(func.body, (tirx.Var, lambda var, names=names: names.get(var, var)))  # type: ignore[misc]
        for func, names in ((first, renamed), (second, {old: between}))
    ]
    funcs = [tirx.PrimFunc([], part) for part in parts]
    roots = [func.body.block for func in funcs]
    body = tirx.SeqStmt([nest for func in funcs for nest in nests_of(func)])
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=[between, *(b for root in roots for b in root.alloc_buffers)])
    params = [*(renamed[p] for p in first.params[:-1]), *(p for p in second.params if not p.same_as(old))]
    joined = tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root), second.ret_type, second.attrs)
    return joined.without_attr("global_symbol") if joined.attrs and "global_symbol" in joined.attrs else joined


class DepthwisePointwiseTemplate(ContractionTemplate):
    """That of a function with both convolutions. Its contraction is the pointwise one; its data is that of the depthwise one."""

    def __init__(self, func: tirx.PrimFunc, first: s_tir.SBlock, second: s_tir.SBlock) -> None:
        super().__init__(func, second)
        self.family = FAMILY
        self._first = first
        self._pointwise = ContractionTemplate(func, second)
        self.windows = Conv2d.from_json(str(first.annotations["romou.workload"]))

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> DepthwisePointwiseTemplate | None:
        """The template for `func`: it holds a depthwise convolution and after it a pointwise one that fit together, and no other contraction."""
        blocks = find_blocks(func)
        marked = [b for b in blocks if "romou.family" in b.annotations]
        if [str(b.annotations["romou.family"]) for b in marked] != [depthwise.FAMILY, "conv2d"]:
            return None
        first, second = marked
        at = blocks.index(second)
        kept = {write.source for block in blocks[:at] for write in block.writes}
        # What the epilogue reads once more would have to be in memory after all.
        is_read_again = any(read.source in kept for block in blocks[at + 1 :] for read in block.reads)
        is_whole = [int(d) for d in func.params[-1].shape] == [int(d) for d in second.writes[0].source.shape]
        works = (Conv2d.from_json(str(block.annotations["romou.workload"])) for block in marked)
        return cls(func, first, second) if is_whole and not is_read_again and is_pair(*works) else None

    @property
    def name(self) -> str:
        """Readable name of both operators."""
        return f"{FAMILY}_{self.windows.name}_{self.workload.out_channels}"  # type: ignore[union-attr]

    @property
    def flops(self) -> int:
        """Multiplications and additions of both, once each."""
        return self.windows.flops + self.workload.flops

    @property
    def works_in_texels(self) -> bool:
        """As both do."""
        return True

    def contraction(self, flat: bool, config: Mapping[str, Any] | None = None) -> Contraction:
        """The pointwise convolution of what lies between the two."""
        return self._pointwise.contraction(flat, config)

    @property
    def _data(self) -> tirx.Buffer:
        return self._first.reads[0].source

    @property
    def window_weight(self) -> tirx.Buffer:
        """The depthwise convolution's, (kh, kw, c / 4, 4)."""
        return next(region.source for region in self._first.reads if not region.source.same_as(self._data))

    @property
    def activations(self) -> set[str]:
        """Parameters that may lie in images: all whose last axis holds lanes, but for the two weights."""
        return super().activations - {str(self.window_weight.name)}

    def operands(self, config: Mapping[str, Any]) -> dict[str, int]:
        """The data and both weights."""
        return {**super().operands(config), str(self.window_weight.name): self.element_bytes}

    def space(self, limits: Limits) -> Space:
        """The knobs of the pointwise convolution, with something staged in local memory; by ALUs, as tensor cores load by themselves."""
        space = self._direct_space(replace(limits, has_tensor_cores=False))
        space.knobs["local"] = tuple(steps for steps in space.knobs["local"] if steps)
        space.knobs["split_k"] = (1,)
        # What is computed on the way to local memory cannot be on its way while something else is computed.
        space.knobs["local_buffers"] = (1,)
        return space

    def starts(self, limits: Limits) -> list[Config]:
        """One config, whose groups give many channels, so that few windows are computed twice."""
        space = self.space(limits)
        config = default_config(space, self.contraction(flat=True), self.contraction(flat=False), limits)
        for name, wanted in _WANTED.items():
            larger = config.replace(**{name: max((int(c) for c in space.knobs[name] if int(c) <= wanted), default=config[name])})
            config = larger if space.is_valid(larger) else config
        return [config]

    def _marked(self, func: tirx.PrimFunc) -> DepthwisePointwiseTemplate:
        template = DepthwisePointwiseTemplate.of(func)
        assert template is not None, "a mark on a parameter changes nothing that the template looks at"
        return template

    def _schedule(self, config: Config) -> tvm.IRModule:
        func = replace_stage(self.func, self._first, self._windows())
        mod = ContractionTemplate(func, self.block)._schedule(config)
        return tvm.IRModule({"main": _keep_windows(mod["main"], config["multiply_add"])})

    def _windows(self) -> tirx.PrimFunc:
        """The depthwise convolution with its windows written out: what has no reduction can be inlined."""
        w, (data, weight) = self.windows, (te.placeholder([int(d) for d in b.shape], str(b.dtype), b.name) for b in (self._data, self.window_weight))
        is_zero_outside = is_image(self._data)

        def value(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            total = None
            for kh, kw in ((kh, kw) for kh in range(w.kernel[0]) for kw in range(w.kernel[1])):
                tap = window_index(w, y, x, kh, kw, lambda iy, ix: data[n, c, iy, ix, lane], is_zero_outside=is_zero_outside)
                product = tap.astype("float32") * weight[kh, kw, c, lane].astype("float32")
                total = product if total is None else total + product
            return tirx.call_pure_extern("float32", _WINDOW, total)

        return te.create_prim_func([data, weight, te.compute(w.output_shape, value, name="windows")])


def _keep_windows(func: tirx.PrimFunc, spelling: str) -> tirx.PrimFunc:
    """What an epilogue uses twice, as hard swish does, is summed once. spelling: of multiply-adds, a choice of that knob.

    for lane: patch[…] = activation(sum(…), sum(…))      ->      for lane: window[lane] = sum(…)
                                                                 for lane: patch[…] = activation(window[lane], window[lane])
    """
    window = tirx.decl_buffer((LANES,), "float32", "window", scope="local")
    marks = {} if spelling == "plain" else {MULTIPLY_ADD: spelling}

    def keep(loop: tirx.For) -> tirx.Stmt:
        block = getattr(loop.body, "block", None)
        if loop.kind != tirx.ForKind.VECTORIZED or block is None or block.name_hint != "patch":
            return loop
        store, sums = block.body, []

        def load(call: tvm.ir.Call) -> tirx.Expr:
            if extern_name(call) != _WINDOW:
                return call
            sums.append(call.args[1])
            return tirx.BufferLoad(window, store.indices[-1:])

        activated = tirx.BufferStore(store.buffer, structural_map(store.value, (tvm.ir.Call, load)), store.indices)
        summed = tirx.BufferStore(window, sums[0], store.indices[-1:])
        return tirx.SeqStmt([with_own_axes(nest_of(loop, "window", summed, marks)), nest_of(loop, "patch", activated, block.annotations)])

    def nest_of(loop: tirx.For, name: str, store: tirx.BufferStore, annotations: Mapping[str, Any]) -> tirx.For:
        realized = loop.body
        block = s_tir.SBlock(realized.block.iter_vars, [], [], name, store)
        buffers = {buffer: buffer for buffer in (window, *(region.source for region in (*realized.block.reads, *realized.block.writes)))}
        reads, writes, _ = s_tir.analysis.get_sblock_access_region(block, buffers)
        block = s_tir.SBlock(realized.block.iter_vars, reads, writes, name, store, annotations=annotations)
        body = s_tir.SBlockRealize(realized.iter_values, realized.predicate, block)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step)

    root = structural_map(func.body, (tirx.For, keep)).block
    root = s_tir.SBlock([], [], [], "root", root.body, alloc_buffers=[*root.alloc_buffers, window])
    return func.with_body(s_tir.SBlockRealize([], True, root))
