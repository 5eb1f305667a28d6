"""Rewriting of kernels statement by statement: thousands of small trees with the same callbacks.

tvm-ffi's `structural_mutate` and `structural_walk` inspect each callback's signature at every call, which takes longer
than most statements. These functions do the same, but inspect their callbacks once.

tvm-ffi owns callbacks in C++, outside of Python's garbage collector. If an object holds the result and a callback holds
the object, none of them is ever freed, nor is the kernel that it read. So objects of bound methods are held weakly
here.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_walk

Kinds: TypeAlias = type | tuple[type, ...]


def function_pass(rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Return a pass of TVM that rewrites each TIR function of a module."""
    made: Callable[[tvm.IRModule], tvm.IRModule] = tirx.transform.prim_func_pass(
        lambda func, _mod, _context: rewrite(func), opt_level=0, name=rewrite.__name__
    )
    return made


def rewriting(*callbacks: tuple[Kinds, Callable[[Any, Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that runs `structural_mutate` on a root. Callbacks are called with (node, mutator)."""
    mutate = tvm_ffi.get_global_func("ffi.StructuralMutate")
    entries = tvm_ffi.convert([(index, function, False) for index, function in _entries(callbacks)])
    return lambda root: mutate(root, entries)


def walking(*callbacks: tuple[Kinds, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that runs `structural_walk` on a root with these callbacks, children first."""
    walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
    entries, children_first = tvm_ffi.convert(list(_entries(callbacks))), int(tvm_ffi.structural.WalkOrder.POSTORDER)
    return lambda root: walk(root, entries, [], children_first)


def _entries(callbacks: tuple[tuple[Kinds, Callable[..., Any]], ...]) -> Iterator[tuple[int, Callable[..., Any]]]:
    for kinds, callback in callbacks:
        function = _weak(callback) if inspect.ismethod(callback) else callback
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            yield kind.__tvm_ffi_type_info__.type_index, function  # type: ignore[attr-defined]


def _weak(method: Any) -> Callable[..., Any]:
    """Return a function that calls `method` and does not keep its object alive."""
    owner, function = weakref.ref(method.__self__), method.__func__
    return lambda *arguments: function(owner(), *arguments)


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """Replace variables in an expression or statement by their `values`."""
    return structural_map(node, (tirx.Var, lambda var: values.get(var, var)))


def copy_of(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module with the same functions, of which some may then be replaced."""
    return tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=dict(mod.global_infos))


def with_fields(node: Any, **fields: Any) -> Any:
    """Return a node of TVM's IR with other values of some fields, by the names of its constructor's parameters."""
    kind: Any = type(node)
    return kind(**{name: getattr(node, name) for name in _parameters(kind)} | fields)


@functools.cache
def _parameters(kind: Any) -> list[str]:
    # The parameters of a node are its fields, but for the type of a call.
    return [name for name in inspect.signature(kind).parameters if name != "ret_ty" or hasattr(kind, name)]


def nodes_in(node: Any, *kinds: type) -> list[Any]:
    """Return the nodes of some kinds in a statement or an expression, itself included. Inner nodes come first."""
    nodes: list[Any] = []
    structural_walk(node, (kinds, nodes.append))
    return nodes


def statements_of(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """Return the statements of a sequence, with nested sequences opened."""
    if isinstance(stmt, tirx.SeqStmt):
        for child in stmt.seq:
            yield from statements_of(child)
    else:
        yield stmt


def sequence_of(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Return statements as one statement."""
    return tirx.SeqStmt(list(statements)) if len(statements) > 1 else statements[0]


def has_var(node: Any, var: tirx.Var) -> bool:
    """Return whether a statement or an expression has a variable."""
    return any(var.same_as(each) for each in nodes_in(node, tirx.Var))
