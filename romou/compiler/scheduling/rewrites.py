"""Rewrites of unscheduled functions: one block or nest is replaced, the rest of the fused function stays.

Fusion works on plain definitions: one block each, which serves as the reference. When a config is chosen, the block is
replaced by the form that the config needs: a padded domain, a tile in local memory, a split reduction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_walk

from romou.compiler.scheduling import blocks
from romou.compiler.scheduling.statements import typed
from romou.compiler.tir.expressions import bounds_of
from romou.compiler.tir.traversal import nodes_in, sequence_of, statements_of, substitute, with_fields

# Indices of an element, and conditions. The tensor has the element if all of them hold.
GuardedIndex: TypeAlias = tuple[Sequence[tirx.Expr], Sequence[tirx.Expr]]


def as_module(func: tirx.PrimFunc) -> tvm.IRModule:
    """Return a module with `func` as its entry `main`."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def with_root(func: tirx.PrimFunc, body: tirx.Stmt, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """Replace the statements of the root block, and the buffers that it allocates."""
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(buffers))
    return with_fields(func, body=s_tir.SBlockRealize([], True, root))


def with_fresh_variables(nest: tirx.Stmt) -> tirx.Stmt:
    """Copy a nest with new loop variables and block axes."""
    variables: list[tirx.Var] = []
    structural_walk(
        nest,
        [
            (tirx.For, lambda loop: variables.append(loop.loop_var)),
            (s_tir.SBlock, lambda block: variables.extend(axis.var for axis in block.iter_vars)),
        ],
    )
    fresh = {var: tirx.Var(var.name, var.ty) for var in variables}
    return substitute(nest, fresh)


def replace_stage(func: tirx.PrimFunc, block: s_tir.SBlock, variant: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the loop nest of `block` by the body of `variant`.

    for …: block            ->  for …: stage_1
    for …: epilogue             for …: stage_2 (writes the buffer that `block` wrote)
                                for …: epilogue

    The parameters of `variant` are the buffers that `block` reads, in order of first use, and then the written one.
    """
    actual = [*blocks.read_buffers(block), block.writes[0].source]
    formal = list(variant.params)
    if len(actual) != len(formal):
        raise ValueError(
            f"block {block.name_hint} touches {len(actual)} buffers, its variant has {len(formal)} parameters"
        )

    def rename(var: tirx.Var) -> tirx.Var:
        return next((a for f, a in zip(formal, actual, strict=True) if f.same_as(var)), var)

    root = structural_map(variant.body, (tirx.Var, rename)).block
    nests = blocks.nests_of(func)
    (at,) = (i for i, nest in enumerate(nests) if blocks.contains(nest, block))
    body = tirx.SeqStmt([*nests[:at], *statements_of(root.body), *nests[at + 1 :]])
    return with_root(func, body, [*func.body.block.alloc_buffers, *root.alloc_buffers])


def join(first: tirx.PrimFunc, second: tirx.PrimFunc, position: int) -> tirx.PrimFunc:
    """Join two functions: `second` reads the result of `first` as its parameter `position`.

    a(x, w, y), b(y, v, z)      ->      ab(x, w, v, z), with y as an intermediate buffer
    """
    # Both may be the same function, and no variable is bound twice.
    second = s_tir.renew_defs(second)
    taken = {str(p.name) for p in second.params}
    result, old = first.params[-1], second.params[position]
    between = tirx.decl_buffer(result.shape, result.dtype, "between")
    renamed = {result: between}
    for parameter in first.params[:-1]:
        name = str(parameter.name)
        while name in taken:
            name = f"{name}_first"
        taken.add(name)
        renamed[parameter] = tirx.decl_buffer(parameter.shape, parameter.dtype, name, scope=str(parameter.scope()))
    bodies = [substitute(func.body, names) for func, names in ((first, renamed), (second, {old: between}))]
    funcs = [tirx.PrimFunc([], body) for body in bodies]
    roots = [func.body.block for func in funcs]
    body = tirx.SeqStmt([nest for func in funcs for nest in blocks.nests_of(func)])
    params = [*(renamed[p] for p in first.params[:-1]), *(p for p in second.params if not p.same_as(old))]
    joined = tirx.PrimFunc(
        params,
        with_root(second, body, [between, *(b for root in roots for b in root.alloc_buffers)]).body,
        second.ret_type,
        second.attrs,
    )
    return joined.without_attr("global_symbol") if joined.attrs and "global_symbol" in joined.attrs else joined


def without_repeats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop nests that compute again what an earlier nest has computed.

    a = sum(x), b = sum(x), y = f(a, b)      ->      a = sum(x), y = f(a, a)
    """
    kept: list[tuple[tirx.Stmt, s_tir.SBlock]] = []
    same: dict[tirx.Var, tirx.Buffer] = {}
    inner = list(func.body.block.alloc_buffers)

    def renamed(nest: tirx.Stmt, names: Mapping[tirx.Var, tirx.Buffer]) -> tirx.Stmt:
        return substitute(nest, names)

    for original in blocks.nests_of(func):
        nest = renamed(original, same)
        (block,) = nodes_in(nest, s_tir.SBlock)
        written = block.writes[0].source
        for other, before in kept if any(written.same_as(buffer) for buffer in inner) else ():
            into = before.writes[0].source
            reads = zip(blocks.read_buffers(block), blocks.read_buffers(before), strict=False)
            # Structural equality takes one tensor for another.
            if all(a.same_as(b) for a, b in reads) and structural_equal(other, renamed(nest, {written: into})):
                same[written] = into
                break
        else:
            kept.append((nest, block))
    left = [buffer for buffer in inner if buffer not in same]
    return with_root(func, tirx.SeqStmt([nest for nest, _ in kept]), left) if same else func


def renest(
    func: tirx.PrimFunc,
    name: str,
    source: str,
    extents: Sequence[int | tirx.Expr],
    output_index: Callable[..., GuardedIndex],
) -> tirx.PrimFunc:
    """Loop the element-wise block `name` over the buffer `source` that it reads, not over its output.

    for y: out[y] = f(source[y % 2, y // 2])
        ->  for p, q: if 2 * q + p < extent: out[2 * q + p] = f(source[p, q])

    extents: the part of `source` that is read.
    output_index(*index in source) -> (index in the output, conditions for the output to have that element).
    """
    (block,) = (b for b in blocks.find_blocks(func) if b.name_hint == name)
    loops = [tirx.Var(f"i{axis}", "int32") for axis in range(len(extents))]
    position = [tirx.Var(f"v{axis}", "int32") for axis in range(len(extents))]
    outputs, conditions = output_index(*position)
    values = {
        axis.var: tirx.const(value, "int32") if isinstance(value, int) else value
        for axis, value in zip(block.iter_vars, outputs, strict=True)
    }

    def load(access: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(access.source, position) if access.source.name == source else access

    # Loads of `source` are replaced last: their new indices must not be substituted again.
    body = substitute(block.body, values)
    body = structural_map(body, (TensorLoad, load))
    # An if statement, because a predicate of the block's realization would have to be affine.
    body = tirx.IfThenElse(tirx.all(*conditions), body, None)
    axes = [
        tirx.IterVar(tvm.ir.Range(0, extent), var, tirx.IterVar.DataPar)
        for extent, var in zip(extents, position, strict=True)
    ]
    buffers = {region.source: region.source for region in (*block.reads, *block.writes)}
    reads, writes, _ = s_tir.analysis.get_sblock_access_region(s_tir.SBlock(axes, [], [], name, body), buffers)
    block_over_source = s_tir.SBlock(axes, reads, writes, name, body, annotations=block.annotations)
    nest: tirx.Stmt = s_tir.SBlockRealize(loops, True, block_over_source)
    for loop, extent in reversed(list(zip(loops, extents, strict=True))):
        nest = tirx.For(loop, tirx.IntImm("int32", 0), typed(extent, loop), tirx.ForKind.SERIAL, nest)
    stages = [nest if blocks.contains(stage, block) else stage for stage in blocks.nests_of(func)]
    return with_root(func, tirx.SeqStmt(stages), func.body.block.alloc_buffers)


def inlined(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute every spatial block but the last one at its uses.

    a[i] = exp(x[i])
    out[i] = a[i] + 1      ->      out[i] = exp(x[i]) + 1
    """
    if len(blocks.find_blocks(func)) == 1:
        return as_module(func)["main"]
    if bounds_of(func):
        return _substituted(func)
    # TVM's scheduler may change a function in place, so it gets a copy.
    sch = s_tir.Schedule(copy.deepcopy(as_module(func)))
    root = sch.get_sblock("root")
    (output,) = sch.get_output_blocks(root)
    for block in sch.get_child_blocks(root):
        if not sch.get(block).same_as(sch.get(output)) and not blocks.reduced_axes(sch.get(block)):
            sch.compute_inline(block)
    return sch.mod["main"]


def _substituted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline as `inlined` does. TVM does not prove that a block covers its tensor if extents follow from sizes."""
    values: dict[tirx.Buffer, tuple[list[tirx.Expr], tirx.Expr]] = {}

    def load(access: TensorLoad) -> tirx.Expr:
        axes, value = values.get(access.source, ([], access))
        return substitute(value, dict(zip(axes, access.indices, strict=True))) if axes else value

    def stage(block: s_tir.SBlock) -> s_tir.SBlock:
        return with_fields(block, body=structural_map(block.body, (TensorLoad, load)))

    nests = []
    for nest in blocks.nests_of(func):
        nests.append(structural_map(nest, (s_tir.SBlock, stage)))
        (block,) = nodes_in(nests[-1], s_tir.SBlock)
        store = block.body
        if not store.buffer.same_as(func.params[-1]) and not blocks.reduced_axes(block):
            values[store.buffer] = list(store.indices), store.value
            nests.pop()
    return with_root(func, sequence_of(nests), func.body.block.alloc_buffers)


# Blocks with several results


def split_tuples(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split a block that computes two independent reductions, such as a sum and a sum of squares.

                                                                  a[i] = a[i] + x[i, k]
    a[i], b[i] = a[i] + x[i, k], b[i] + x[i, k] * x[i, k]    ->
                                                                  b[i] = b[i] + x[i, k] * x[i, k]
    """

    def split(nest: tirx.Stmt) -> list[tirx.Stmt]:
        (block,) = [block for block in blocks.find_blocks(func) if blocks.contains(nest, block)]
        stores = _independent_stores(block)
        if stores is None:
            return [nest]
        nests = []
        for store, start in stores:
            writes = [region for region in block.writes if region.source.same_as(store.buffer)]
            single = s_tir.SBlock(block.iter_vars, block.reads, writes, str(store.buffer.name), store, start)
            nests.append(with_fresh_variables(structural_map(nest, (s_tir.SBlock, lambda _, single=single: single))))
        return nests

    func = _without_idle_axes(func)
    if all(len(block.writes) == 1 for block in blocks.find_blocks(func)):
        return func
    body = tirx.SeqStmt([single for nest in blocks.nests_of(func) for single in split(nest)])
    return with_root(func, body, func.body.block.alloc_buffers)


def _without_idle_axes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop the axis of extent 1 that TVM gives a block of a scalar.

    v = axis(1): out[()] = s[()] / 8      ->      out[()] = s[()] / 8

    If nothing is reduced, the output keeps it, because a kernel of elements needs an axis.
    """
    has_reductions, output = bool(blocks.reductions_of(func)), func.params[-1]

    def drop(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        block = realize.block
        is_dropped = blocks.is_of_scalar(block) and (has_reductions or not block.body.buffer.same_as(output))
        if not is_dropped:
            return realize
        return with_fields(realize, iter_values=[], block=with_fields(block, iter_vars=[], init=None))

    return func.with_body(structural_map(func.body, (s_tir.SBlockRealize, drop)))


def _independent_stores(block: s_tir.SBlock) -> list[tuple[tirx.BufferStore, tirx.BufferStore]] | None:
    """Return each store of a block with its initial store, or None if one reads a buffer that another one writes."""
    if len(block.writes) < 2 or not isinstance(block.body, tirx.SeqStmt) or not isinstance(block.init, tirx.SeqStmt):
        return None
    bound = {stmt.var: stmt.value for stmt in block.body.seq if isinstance(stmt, tirx.Bind)}
    stores = [stmt for stmt in block.body.seq if isinstance(stmt, tirx.BufferStore)]
    has_other_statements = len(bound) + len(stores) != len(block.body.seq)
    if len(stores) != len(block.writes) or len(block.init.seq) != len(stores) or has_other_statements:
        return None
    values = [
        bound.get(store.value, store.value) if isinstance(store.value, tirx.Var) else store.value for store in stores
    ]
    for store, value in zip(stores, values, strict=True):
        others = [other.buffer for other in stores if not other.same_as(store)]
        if any(load.source.same_as(buffer) for load in blocks.loads_of(value) for buffer in others):
            return None
    return [
        (tirx.BufferStore(s.buffer, v, s.indices), start)
        for s, v, start in zip(stores, values, block.init.seq, strict=True)
    ]


# Reductions of one term


def without_single_terms(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute a reduction over a single term, as in a 1x1 convolution of one channel, like an element-wise block.

    s[i] = 0
    for k in range(1): s[i] += a[i, k]      ->      s[i] = 0 + a[i, 0]

    TVM's schedule rules drop axes of extent 1 but keep the initial value. They then apply the epilogue to both: f(f(0)
    + a) for f(a).
    """
    return func.with_body(structural_map(func.body, (s_tir.SBlockRealize, _elementwise)))


def _elementwise(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    block = realize.block
    reduced = blocks.reduced_axes(block)
    has_single_term = all(isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) == 1 for axis in reduced)
    if block.init is None or not has_single_term:
        return realize
    body = _with_first_values(block.body, block.init)
    if body is None:
        return realize
    firsts = {axis.var: axis.dom.min for axis in reduced}
    spatial = [
        (axis, value)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if axis.var not in firsts
    ]
    reads, writes = (substitute(regions, firsts) for regions in (block.reads, block.writes))
    elementwise = with_fields(
        block,
        iter_vars=[axis for axis, _ in spatial],
        reads=[region for region in reads if not any(region.source.same_as(write.source) for write in writes)],
        writes=writes,
        body=substitute(body, firsts),
        init=None,
    )
    return with_fields(realize, iter_values=[value for _, value in spatial], block=elementwise)


def _with_first_values(body: tirx.Stmt, init: tirx.Stmt) -> tirx.Stmt | None:
    """Replace loads of the results in `body` by their initial values, or None if a load is at another index."""
    starts = list(statements_of(init))
    if not all(isinstance(start, tirx.BufferStore) for start in starts):
        return None
    stored: list[tirx.Buffer] = []
    fits: list[bool] = []

    def first(load: TensorLoad) -> tirx.Expr:
        start = next((start for start in starts if start.buffer.same_as(load.source)), None)
        if start is None:
            return load
        is_same = len(start.indices) == len(load.indices) and all(map(structural_equal, start.indices, load.indices))
        fits.append(is_same and not any(start.buffer.same_as(buffer) for buffer in stored))
        return start.value

    stmts = []
    for stmt in statements_of(body):
        if not isinstance(stmt, tirx.BufferStore | tirx.Bind):
            return None
        stmts.append(structural_map(stmt, (TensorLoad, first)))
        if isinstance(stmt, tirx.BufferStore):
            stored.append(stmt.buffer)
    if not all(fits):
        return None
    return sequence_of(stmts)
