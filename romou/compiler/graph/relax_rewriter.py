"""Library of all passes over `main`: emit its bindings again, in order, in a new function.

A pass derives from `MainRewriter`, overrides `visit`, and is run by `rebuild_main`. `MainRewriter.plain` maps variables
of the old function to expressions of the new one. Variables keep their ONNX nodes (`romou.compiler.tir.origin`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import tvm
from tvm import relax, tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import BrokenNodesError, RomouError
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import NOWHERE, Origin, bindings_of, origins_of, span_of, with_heirs
from romou.compiler.tir.traversal import copy_of, with_fields


class _Builder(relax.BlockBuilder):
    """A block builder that attaches `origin`, the ONNX nodes of the current binding, to the variables it emits."""

    origin: Origin = NOWHERE

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        span = span_of(self.origin)
        if span is None:
            return super().emit(expr, name_hint)
        value = self.normalize(self._normalize_python_tuple(expr))
        var = relax.DataflowVar(self.get_unique_name(name_hint or "lv"), value.ty, span)
        self.emit_normalized(relax.VarBinding(var, value))
        return var


class MainRewriter:
    """Base of passes that emit the bindings of a function again.

    bb: builder of the new function.
    plain: variable of the old function -> its expression in the new function.
    """

    def __init__(self) -> None:
        self.bb = _Builder()
        self.plain: dict[relax.Var, relax.Expr] = {}
        self._variants: dict[tuple[str, Hashable], tvm.ir.GlobalVar] = {}

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit one binding as it is. A pass overrides it to emit something else."""
        self.plain[binding.var] = self.bb.emit(self.plain_expr(binding.value))

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """Return the new expression of an old variable. A pass may override it to emit the expression on demand."""
        return self.plain.get(var, var)

    def plain_expr(self, expr: relax.Expr) -> relax.Expr:
        """Return `expr` with its old variables replaced by new expressions."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.plain_expr(f) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.plain_expr(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            return with_fields(expr, args=[self.plain_expr(a) for a in expr.args])
        return self.plain_var(expr) if isinstance(expr, relax.Var) else expr

    def match_cast(self, binding: relax.MatchCast) -> None:
        """Emit a binding that only states a type."""
        self.plain[binding.var] = self.bb.match_cast(self.plain_expr(binding.value), binding.ty)

    def variant(self, name: str, key: Hashable, make: Callable[[], tirx.PrimFunc]) -> tvm.ir.GlobalVar:
        """Add the function that `make` returns to the new module, once for each `name` and `key`."""
        if (name, key) not in self._variants:
            self._variants[name, key] = self.bb.add_func(make(), name)
        return self._variants[name, key]


def rebuild_main(mod: tvm.IRModule, rewriter: MainRewriter) -> tvm.IRModule:
    """Return `mod` with a `main` that `rewriter` emitted, without dead code.

    A function that the rewriter adds to its builder replaces the function of the same name. Variables emitted for a
    binding have the binding's origin.

    Raises
    ------
    BrokenNodesError
        The rewriter failed at a binding. The error names the ONNX nodes of the binding.
    """
    main = mod["main"]
    bb, origins = rewriter.bb, origins_of(main)
    with bb.function("main", list(main.params)):
        with bb.dataflow():
            for binding in bindings_of(main):
                bb.origin = origins[binding.var]
                try:
                    if isinstance(binding, relax.MatchCast):
                        rewriter.match_cast(binding)
                    else:
                        rewriter.visit(binding)
                except RomouError:
                    raise
                except Exception as error:  # TVM and the passes raise many types
                    raise BrokenNodesError.of(
                        op_name(binding.value) or "a value of the graph", bb.origin, error
                    ) from error
            result = bb.emit_output(rewriter.plain_expr(main.body.body))
        bb.emit_func_output(result)
    rewritten = bb.finalize()
    if main.attrs:
        rewritten["main"] = rewritten["main"].with_attrs(dict(main.attrs))
    made = {var.name_hint for var in rewritten.get_global_vars()}
    for var, func in mod.functions_items():
        if var.name_hint not in made:
            rewritten[var] = func
    for kind, infos in mod.global_infos.items():
        rewritten.update_global_info(kind, infos)
    rewritten = relax.transform.DeadCodeElimination()(rewritten)
    rewritten["main"] = with_heirs(main, rewritten["main"])
    return rewritten


def with_main(mod: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """Return `mod` with another `main`."""
    rewritten = copy_of(mod)
    rewritten["main"] = main
    return rewritten


def outputs_of(ty: tvm.ir.Type) -> tvm.ir.Type | list[tvm.ir.Type]:
    """Return a call's output types in the form that `relax.call_tir` takes."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else ty


def with_names(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """Return a module with other names for some functions, in their calls and as their symbols. names: old -> new."""
    new: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    for var in mod.get_global_vars():
        name = names.get(var.name_hint, var.name_hint)
        if name != var.name_hint:
            new[var] = tvm.ir.GlobalVar(name)
            relax.expr._update_type(new[var], var.ty)
    if not new:
        return mod
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    for var, func in mod.functions_items():
        changed = func
        if isinstance(func, relax.Function):
            body = structural_map(func.body, (tvm.ir.GlobalVar, lambda each: new.get(each, each)))
            changed = with_fields(func, body=body)
        if var in new and func.attrs and "global_symbol" in func.attrs:
            changed = changed.with_attr("global_symbol", new[var].name_hint)
        functions[new.get(var, var)] = changed
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=dict(mod.global_infos))
