"""Put a schedulable form of an operator in the place of its plain definition inside a fused function.

Fusion works on plain definitions (one block that anyone can read and that serves as the reference). Only when a config
is chosen does the operator take the form that suits it: a padded domain, a patch in local memory, a split reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.compiler.tir.traversal import nodes_in


def find_blocks(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """All blocks below the root block, in program order."""
    return nodes_in(func.body.block.body, s_tir.SBlock)


def nests_of(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    """The statements of the root block: one loop nest for each block of an unscheduled function."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def with_root(func: tirx.PrimFunc, body: tirx.Stmt, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """The function with other statements in its root block, and the buffers that they need."""
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(buffers))
    return tirx.PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)


def read_buffers(block: s_tir.SBlock) -> list[tirx.Buffer]:
    """The buffers that a block reads, in order of first use."""
    reads: list[tirx.Buffer] = []
    for region in block.reads:
        if not any(region.source.same_as(b) for b in reads):
            reads.append(region.source)
    return reads


def replace_stage(func: tirx.PrimFunc, block: s_tir.SBlock, variant: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the loop nest of `block` by the body of `variant`.

    for …: block            ->  for …: stage_1
    for …: epilogue             for …: stage_2 (writes what block wrote)
                                for …: epilogue

    The parameters of `variant` stand for the buffers that `block` reads, in order of first use, and then the one it
    writes.
    """
    actual = [*read_buffers(block), block.writes[0].source]
    formal = list(variant.params)
    if len(actual) != len(formal):
        raise ValueError(
            f"block {block.name_hint} touches {len(actual)} buffers, its variant has {len(formal)} parameters"
        )

    def rename(var: tirx.Var) -> tirx.Var:
        return next((a for f, a in zip(formal, actual, strict=True) if f.same_as(var)), var)

    root = structural_map(variant.body, (tirx.Var, rename)).block
    stages = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    old = func.body.block
    nests = nests_of(func)
    (at,) = (i for i, nest in enumerate(nests) if contains(nest, block))
    body = tirx.SeqStmt([*nests[:at], *stages, *nests[at + 1 :]])
    return with_root(func, body, [*old.alloc_buffers, *root.alloc_buffers])


def renest(
    func: tirx.PrimFunc,
    name: str,
    source: str,
    extents: Sequence[int],
    place: Callable[..., tuple[Sequence[tirx.Expr], Sequence[tirx.Expr]]],
) -> tirx.PrimFunc:
    """Let the element-wise block `name` run over what it reads of the buffer `source` instead of what it writes.

    for y: out[y] = f(source[y % 2, y // 2])
        ->  for p, q: if 2 * q + p < extent: out[2 * q + p] = f(source[p, q])

    extents: of `source`, as far as it is read.
    place(*position in source) -> (position in the output, conditions under which there is one).
    """
    (block,) = (b for b in find_blocks(func) if b.name_hint == name)
    loops = [tirx.Var(f"i{axis}", "int32") for axis in range(len(extents))]
    position = [tirx.Var(f"v{axis}", "int32") for axis in range(len(extents))]
    outputs, conditions = place(*position)
    values = {
        axis.var: tirx.const(value, "int32") if isinstance(value, int) else value
        for axis, value in zip(block.iter_vars, outputs, strict=True)
    }

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(access.source, position) if access.source.name == source else access

    # The position is put in last: what is loaded at it stands for a place already.
    body = structural_map(block.body, (tirx.Var, lambda var: values.get(var, var)))
    # Under a condition of its own: one on the block's realization would have to be affine.
    body = tirx.IfThenElse(tirx.all(*conditions), structural_map(body, (tvm.ir.TensorLoad, load)), None)
    axes = [
        tirx.IterVar(tvm.ir.Range(0, extent), var, tirx.IterVar.DataPar)
        for extent, var in zip(extents, position, strict=True)
    ]
    buffers = {region.source: region.source for region in (*block.reads, *block.writes)}
    reads, writes, _ = s_tir.analysis.get_sblock_access_region(s_tir.SBlock(axes, [], [], name, body), buffers)
    new = s_tir.SBlock(axes, reads, writes, name, body, annotations=block.annotations)
    nest: tirx.Stmt = s_tir.SBlockRealize(loops, True, new)
    for loop, extent in reversed(list(zip(loops, extents, strict=True))):
        nest = tirx.For(loop, tirx.IntImm("int32", 0), tirx.IntImm("int32", extent), tirx.ForKind.SERIAL, nest)
    stages = [nest if contains(stage, block) else stage for stage in nests_of(func)]
    return with_root(func, tirx.SeqStmt(stages), func.body.block.alloc_buffers)


def contains(nest: tirx.Stmt, block: s_tir.SBlock) -> bool:
    """Whether a block stands in a loop nest."""
    return any(b.same_as(block) for b in nodes_in(nest, s_tir.SBlock))


def as_module(func: tirx.PrimFunc) -> tvm.IRModule:
    """A module that holds `func` as its entry `main`."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
