"""From fused functions back to ONNX nodes, and the functions whose nodes are to be computed in a simpler way.

Fusion makes new variables, and one function of equal groups. Both graphs are read as values, and a value has the origin
that it had before fusion.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

import tvm
from tvm import relax, tirx

from romou.base.rung import Rung
from romou.compiler.graph.rewrite import Walker, rebuild_main, with_main
from romou.compiler.operators.families import RUNG
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import NOWHERE, Origin, bindings_of, origins_of, with_origins

# First output of a node -> how it is computed; nodes that are not named stand on the first rung.
Rungs: TypeAlias = "Mapping[str, Rung]"
NO_RUNGS: Rungs = {}


def nodes_from(rungs: Rungs, lowest: Rung) -> Origin:
    """The nodes that stand on a rung, or below it."""
    return frozenset(name for name, rung in rungs.items() if rung >= lowest)


class _Values:
    """Numbers for values: two that are computed in the same way from the same values have one number."""

    def __init__(self, before: tvm.IRModule) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._origins: dict[int, Origin] = {}
        main = before["main"]
        self.params = {var: self._number(("param", i)) for i, var in enumerate(main.params)}
        found, values = origins_of(main), dict(self.params)
        for binding in bindings_of(main):
            number = values[binding.var] = self.of(binding.value, values)
            self._origins[number] = self._origins.get(number, NOWHERE) | found[binding.var]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def of(self, value: relax.Expr, values: Mapping[relax.Var, int]) -> int:
        """The number of an expression, given those of the variables that it reads."""
        if isinstance(value, relax.Var):
            return values.get(value, -1)
        if isinstance(value, relax.Tuple):
            return self._number(("tuple", *(self.of(one, values) for one in value.fields)))
        if isinstance(value, relax.TupleGetItem):
            return self._number(("item", self.of(value.tuple_value, values), int(value.index)))
        if isinstance(value, relax.Call):
            callee = (
                value.op.name_hint if isinstance(value.op, tvm.ir.GlobalVar) else str(getattr(value.op, "name", ""))
            )
            return self._number((callee, *(self.of(one, values) for one in value.args)))
        if isinstance(value, tvm.ir.GlobalVar):
            return self._number(("function", value.name_hint))
        # Of constants the type tells enough: values that differ in them alone share an origin, and both of it are
        # tried.
        return self._number(("other", str(value.ty)))

    def origin(self, number: int) -> Origin:
        return self._origins.get(number, NOWHERE)


def fused_origins(before: tvm.IRModule, after: tvm.IRModule) -> dict[relax.Var, Origin]:
    """The origins of the variables that `main` of a module binds, and of those in the groups that it calls, by those of
    the module before fusion.

    before: calls of single operators.   after: the same, where some are groups (Relax functions).
    """
    table, main = _Values(before), after["main"]
    values = dict(zip(main.params, table.params.values(), strict=True))
    found: dict[relax.Var, Origin] = {}
    for binding in bindings_of(main):
        call, group = binding.value, _group_of(binding.value, after)
        if group is None:
            values[binding.var] = table.of(call, values)
            # A second name of a group's result comes from all of the group: TVM may keep either name.
            found[binding.var] = found.get(call, NOWHERE) | table.origin(values[binding.var])
            continue
        inside = {param: table.of(arg, values) for param, arg in zip(group.params, call.args, strict=True)}
        for inner in bindings_of(group):
            inside[inner.var] = table.of(inner.value, inside)
            # Groups that are one function have the origins of all.
            found[inner.var] = found.get(inner.var, NOWHERE) | table.origin(inside[inner.var])
            found[binding.var] = found.get(binding.var, NOWHERE) | table.origin(inside[inner.var])
        values[binding.var] = table.of(group.body.body, inside)
    return found


def _group_of(value: relax.Expr, mod: tvm.IRModule) -> relax.Function | None:
    function = mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) else None
    return function if isinstance(function, relax.Function) else None


def name_origins(mod: tvm.IRModule, operators: tvm.IRModule) -> tvm.IRModule:
    """Name in each variable of `main` the ONNX nodes that its call computes. operators: `mod` before fusion."""
    main, origins = mod["main"], fused_origins(operators, mod)
    outside = {binding.var: origins.get(binding.var, NOWHERE) for binding in bindings_of(main)}
    return with_main(mod, with_origins(main, outside))


def part_groups(mod: tvm.IRModule, operators: tvm.IRModule, rungs: Rungs) -> tvm.IRModule:
    """y = fused_conv2d_add_relu(x, w, bias)   ->   c = conv2d(x, w);  a = add(c, bias);  y = relu(a)

    Only groups are parted that hold a node on the rung `APART` or below: no kernel computes them together. operators:
    `mod` before fusion.
    """
    chosen = nodes_from(rungs, Rung.APART)
    if not chosen:
        return mod
    origins = fused_origins(operators, mod)

    class Parter(Walker):
        def visit(self, binding: relax.Binding) -> None:
            if isinstance(binding, relax.MatchCast):
                return self.match_cast(binding)
            group = _group_of(binding.value, mod)
            if group is None or not origins.get(binding.var, NOWHERE) & chosen:
                self.plain[binding.var] = self.bb.emit(self.plain_expr(binding.value))
                return None
            self.plain.update(zip(group.params, map(self.plain_expr, binding.value.args), strict=True))
            for inner in bindings_of(group):
                self.plain[inner.var] = self.bb.emit(self.plain_expr(inner.value))
            self.plain[binding.var] = self.plain_expr(group.body.body)
            return None

    return rebuild_main(mod, Parter())


def mark_rungs(mod: tvm.IRModule, rungs: Rungs) -> tvm.IRModule:
    """The module whose functions of nodes that no family is to schedule say so: no template takes them."""
    nodes = {name: rung for name, rung in rungs.items() if rung >= Rung.RULES}
    if not nodes:
        return mod
    marked = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for name, origin in function_origins(mod).items():
        rung = max((nodes[node] for node in origin & nodes.keys()), default=Rung.FUSED)
        if rung:
            var = mod.get_global_var(name)
            marked[var] = mod[var].with_attr(RUNG, int(rung))
    return marked


def function_origins(mod: tvm.IRModule) -> dict[str, Origin]:
    """Name of a TIR function -> the nodes that the calls of it in `main` compute."""
    found: dict[str, Origin] = {}
    origins = origins_of(mod["main"])
    for binding in bindings_of(mod["main"]):
        name = called_function(binding.value) if isinstance(binding.value, relax.Call) else None
        if name is not None and isinstance(mod[name], tirx.PrimFunc):
            found[name] = found.get(name, NOWHERE) | origins[binding.var]
    return found
