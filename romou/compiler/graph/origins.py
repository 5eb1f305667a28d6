"""Map fused functions back to ONNX nodes, and apply the rungs of nodes that need a simpler lowering.

Fusion makes new variables, and merges equal groups into one function. So the graphs before and after fusion are
compared by value numbers: a value keeps the origin that it had before fusion.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

import tvm
from tvm import relax, tirx

from romou.base.rung import Rung
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main, with_main
from romou.compiler.operators.families import RUNG
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import NOWHERE, Origin, bindings_of, origins_of, with_origins
from romou.compiler.tir.traversal import copy_of

# First output of a node -> how the node is lowered. Nodes without an entry are on the first rung.
Rungs: TypeAlias = "Mapping[str, Rung]"
NO_RUNGS: Rungs = {}


def nodes_from(rungs: Rungs, lowest: Rung) -> Origin:
    """Return the nodes on the rung `lowest` or on one below it."""
    return frozenset(name for name, rung in rungs.items() if rung >= lowest)


class _Values:
    """A value numbering: values computed by the same operator from the same values have one number."""

    def __init__(self, before: tvm.IRModule) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._origins: dict[int, Origin] = {}
        main = before["main"]
        self.params = {var: self._number(("param", i)) for i, var in enumerate(main.params)}
        origins, values = origins_of(main), dict(self.params)
        for binding in bindings_of(main):
            number = values[binding.var] = self.of(binding.value, values)
            self._origins[number] = self._origins.get(number, NOWHERE) | origins[binding.var]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def of(self, value: relax.Expr, values: Mapping[relax.Var, int]) -> int:
        """Return the number of an expression. values: the numbers of the variables that it reads."""
        if isinstance(value, relax.Var):
            return values.get(value, -1)
        if isinstance(value, relax.Tuple):
            return self._number(("tuple", *(self.of(field, values) for field in value.fields)))
        if isinstance(value, relax.TupleGetItem):
            return self._number(("item", self.of(value.tuple_value, values), int(value.index)))
        if isinstance(value, relax.Call):
            callee = (
                value.op.name_hint if isinstance(value.op, tvm.ir.GlobalVar) else str(getattr(value.op, "name", ""))
            )
            return self._number((callee, *(self.of(arg, values) for arg in value.args)))
        if isinstance(value, tvm.ir.GlobalVar):
            return self._number(("function", value.name_hint))
        # Constants are numbered by type. Two values that differ only in constants share the union of their origins,
        # and a failure of one lowers the rung of both.
        return self._number(("other", str(value.ty)))

    def origin(self, number: int) -> Origin:
        return self._origins.get(number, NOWHERE)


def fused_origins(before: tvm.IRModule, after: tvm.IRModule) -> dict[relax.Var, Origin]:
    """Return the ONNX nodes of each variable that `main` of `after` binds, and of the variables in the groups it calls.

    before: calls of single operators.
    after: the same computation with some operators in groups (Relax functions).
    """
    table, main = _Values(before), after["main"]
    values = dict(zip(main.params, table.params.values(), strict=True))
    origins: dict[relax.Var, Origin] = {}
    for binding in bindings_of(main):
        call, group = binding.value, _group_of(binding.value, after)
        if group is None:
            values[binding.var] = table.of(call, values)
            # An alias of a group's result has the origin of the whole group: TVM may keep either name.
            origins[binding.var] = origins.get(call, NOWHERE) | table.origin(values[binding.var])
            continue
        inside = {param: table.of(arg, values) for param, arg in zip(group.params, call.args, strict=True)}
        for inner in bindings_of(group):
            inside[inner.var] = table.of(inner.value, inside)
            # Equal groups that became one function have the union of their origins.
            origins[inner.var] = origins.get(inner.var, NOWHERE) | table.origin(inside[inner.var])
            origins[binding.var] = origins.get(binding.var, NOWHERE) | table.origin(inside[inner.var])
        values[binding.var] = table.of(group.body.body, inside)
    return origins


def _group_of(value: relax.Expr, mod: tvm.IRModule) -> relax.Function | None:
    function = mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) else None
    return function if isinstance(function, relax.Function) else None


def name_origins(mod: tvm.IRModule, operators: tvm.IRModule) -> tvm.IRModule:
    """Attach to each variable of `main` the ONNX nodes that its call computes. operators: `mod` before fusion."""
    main, origins = mod["main"], fused_origins(operators, mod)
    outside = {binding.var: origins.get(binding.var, NOWHERE) for binding in bindings_of(main)}
    return with_main(mod, with_origins(main, outside))


def part_groups(mod: tvm.IRModule, operators: tvm.IRModule, rungs: Rungs) -> tvm.IRModule:
    """Undo the fusion of groups that hold a node on the rung `APART` or below.

    y = fused_conv2d_add_relu(x, w, bias)   ->   y = relu(add(conv2d(x, w), bias)), in three calls

    operators: `mod` before fusion.
    """
    chosen = nodes_from(rungs, Rung.APART)
    if not chosen:
        return mod
    origins = fused_origins(operators, mod)

    class Parter(MainRewriter):
        def visit(self, binding: relax.VarBinding) -> None:
            group = _group_of(binding.value, mod)
            if group is None or not origins.get(binding.var, NOWHERE) & chosen:
                super().visit(binding)
                return
            self.plain.update(zip(group.params, map(self.plain_expr, binding.value.args), strict=True))
            for inner in bindings_of(group):
                self.plain[inner.var] = self.bb.emit(self.plain_expr(inner.value))
            self.plain[binding.var] = self.plain_expr(group.body.body)

    return rebuild_main(mod, Parter())


def mark_rungs(mod: tvm.IRModule, rungs: Rungs) -> tvm.IRModule:
    """Mark functions of nodes on the rung `RULES` or below with the attribute `RUNG`, so that no family takes them."""
    nodes = {name: rung for name, rung in rungs.items() if rung >= Rung.RULES}
    if not nodes:
        return mod
    marked = copy_of(mod)
    for name, origin in function_origins(mod).items():
        rung = max((nodes[node] for node in origin & nodes.keys()), default=Rung.FUSED)
        if rung:
            var = mod.get_global_var(name)
            marked[var] = mod[var].with_attr(RUNG, int(rung))
    return marked


def function_origins(mod: tvm.IRModule) -> dict[str, Origin]:
    """Return (name of a TIR function -> the ONNX nodes that its calls in `main` compute)."""
    nodes: dict[str, Origin] = {}
    origins = origins_of(mod["main"])
    for binding in bindings_of(mod["main"]):
        name = called_function(binding.value) if isinstance(binding.value, relax.Call) else None
        if name is not None and isinstance(mod[name], tirx.PrimFunc):
            nodes[name] = nodes.get(name, NOWHERE) | origins[binding.var]
    return nodes
