"""What the passes over `main` share: bindings emitted anew, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

import tvm
from tvm import relax, tirx


class Walker(ABC):
    """Emits the bindings of a function anew, in order. plain: variable -> what stands for it in what was emitted."""

    def __init__(self) -> None:
        self.bb = relax.BlockBuilder()
        self.plain: dict[relax.Var, relax.Expr] = {}
        self._variants: dict[tuple[str, Hashable], tvm.ir.GlobalVar] = {}

    @abstractmethod
    def visit(self, binding: relax.Binding) -> None:
        """Emit one binding."""

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """A variable of the old function in what was emitted; the place to emit what it still lacks."""
        return self.plain.get(var, var)

    def plain_expr(self, expr: relax.Expr) -> relax.Expr:
        """An expression of the old function in what was emitted."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.plain_expr(f) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.plain_expr(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [self.plain_expr(a) for a in expr.args], expr.attrs, expr.ty_args)
        return self.plain_var(expr) if isinstance(expr, relax.Var) else expr

    def match_cast(self, binding: relax.MatchCast) -> None:
        """Emit a binding that only states a type."""
        self.plain[binding.var] = self.bb.match_cast(self.plain_expr(binding.value), binding.ty)

    def variant(self, name: str, key: Hashable, make: Callable[[], tirx.PrimFunc]) -> tvm.ir.GlobalVar:
        """What `make` gives as a function of the new module, once for a name and a key."""
        if (name, key) not in self._variants:
            self._variants[name, key] = self.bb.add_func(make(), name)
        return self._variants[name, key]


def rebuild_main(mod: tvm.IRModule, walker: Walker) -> tvm.IRModule:
    """`mod` with a `main` whose bindings went through `walker`, without what is unused then.

    Functions that the walker added to its builder stand in the place of those of the same name.
    """
    main = mod["main"]
    bb = walker.bb
    with bb.function("main", list(main.params)):
        with bb.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    walker.visit(binding)
            result = bb.emit_output(walker.plain_expr(main.body.body))
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
    return relax.transform.DeadCodeElimination()(rewritten)


def with_main(mod: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """`mod` with another `main`."""
    rewritten = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    rewritten["main"] = main
    return rewritten


def outputs_of(ty: tvm.ir.Type) -> tvm.ir.Type | list[tvm.ir.Type]:
    """The type of what `relax.call_tir` returns, as it wants to be told."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else ty
