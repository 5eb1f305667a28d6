"""The key of a task: what its function computes, independent of how TIR spells it.

    parameters                      type, shape and memory of each
    a block that has a workload     the workload, and the tensors that it reads
    any other block                 its axes, and the element that it stores as an expression of them

Tensors and axes are numbered from the outputs on. So names, and the order of blocks that do not need each other, are no
part of the key. A workload stands for its definition, whose loops may be written otherwise in another version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.tirx.buffer import BufferType

from romou.compiler.scheduling.blocks import find_blocks
from romou.compiler.tir.traversal import nodes_in

# Attributes that all functions have, and fields of nodes without a meaning.
_COMMON = ("s_tir", "tirx.noalias")
_UNREAD = ("span", "name_hint", "name", "ty", "reads", "writes")
# Expressions whose type does not follow from their operands.
_TYPED = (tirx.IntImm, tirx.FloatImm, tirx.Cast, ir.Call)


def task_key(func: tirx.PrimFunc, family: str, annotation: str) -> str:
    """Return 16 hex digits of a family and of what a function computes.

    annotation: annotation of a block with its workload, from which its definition follows.
    """
    text = "\n".join([family, *_Lines(func, annotation).lines()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Lines:
    """The text of a function: a line for its attributes and for each parameter and block, from the outputs on."""

    def __init__(self, func: tirx.PrimFunc, annotation: str) -> None:
        self._func, self._annotation = func, annotation
        # Names of parameters, of other tensors as they are met, and of variables of the block that is written.
        self._names = {param: f"p{at}" for at, param in enumerate(func.params)}
        self._tensors: list[tirx.Buffer] = []
        self._variables: dict[tirx.Var, str] = {}
        self._predicates = {r.block: r.predicate for r in nodes_in(func.body, s_tir.SBlockRealize)}

    def lines(self) -> Iterator[str]:
        attrs = self._func.attrs.items() if self._func.attrs else ()
        yield " ".join(self._tokens([sorted((str(key), value) for key, value in attrs if key not in _COMMON)]))
        yield from map(self._described, self._func.params)
        left = find_blocks(self._func)
        self._tensors = [p for p in self._func.params if any(_writes(block, p) for block in left)]
        for tensor in self._tensors:  # grows by the tensors that blocks read
            for block in [block for block in left if _writes(block, tensor)]:
                left.remove(block)
                yield self._line_of(block, tensor)

    def _line_of(self, block: s_tir.SBlock, tensor: tirx.Buffer) -> str:
        self._variables = {}
        if self._annotation in block.annotations:
            # Of a product, either factor may come first. So parameters are in their own order.
            read = [region.source for region in block.reads]
            tensors = [*(p for p in self._func.params if any(p.same_as(r) for r in read)), *read]
            tensors = list(dict.fromkeys(tensors))
            return " ".join([self._described(tensor), *self._tokens([block.annotations, tensors])])
        axes = [f"{self._name(axis.var)}={axis.dom.extent}:{axis.iter_type}" for axis in block.iter_vars]
        parts = [block.annotations, self._predicates.get(block), block.init, block.body]
        return " ".join([self._described(tensor), *axes, *self._tokens(parts)])

    def _described(self, tensor: tirx.Buffer) -> str:
        return f"{self._name(tensor)} {tensor.dtype} {list(map(int, tensor.shape))} {tensor.scope()}"

    def _name(self, var: tirx.Var) -> str:
        if var in self._names:
            return self._names[var]
        if isinstance(var.ty, BufferType):
            self._tensors.append(var)
            return self._names.setdefault(var, f"t{len(self._names)}")
        return self._variables.setdefault(var, f"v{len(self._variables)}")

    def _tokens(self, root: Any) -> Iterator[str]:
        """Yield a node's parts in prefix notation. Long sums are deep, so it does not recurse."""
        stack = [root]
        while stack:
            node = stack.pop()
            kind: Any = type(node)
            if isinstance(node, tirx.Var):
                yield self._name(node)
            elif kind is ir.Op:
                yield str(node.name)
            elif kind in (list, tuple, tvm_ffi.Array):
                yield f"[{len(node)}"
                stack += reversed(node)
            elif isinstance(node, tvm_ffi.Map):
                stack.append(sorted((str(key), value) for key, value in node.items()))
            elif isinstance(node, tvm_ffi.Object):
                yield f"{kind.__name__}:{node.ty}" if isinstance(node, _TYPED) else kind.__name__
                stack += [getattr(node, name) for name in _fields(kind)]
            else:
                yield repr(node)


def _writes(block: s_tir.SBlock, tensor: tirx.Buffer) -> bool:
    return any(region.source.same_as(tensor) for region in block.writes)


@cache
def _fields(kind: Any) -> Sequence[str]:
    """Return the fields of a node that have a meaning, the last one first."""
    names: list[str] = []
    info = kind.__tvm_ffi_type_info__
    while info is not None:
        names = [field.name for field in info.fields if field.name not in _UNREAD] + names
        info = info.parent_type_info
    return names[::-1]
