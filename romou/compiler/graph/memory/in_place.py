"""Updates of an input in place: a step writes a few rows of a cache of keys and values.

    out[i] = c ? new : past[i]        ->        if (c) past[i] = new            call_tir        ->      call_tir_inplace

The update is the only reader of the input, so nobody misses its old contents. The output of the model is then the
tensor of the input, and a loop around the model hands it back without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.ir import TensorLoad
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.tir.calls import called_function, is_conditional
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import nodes_in, with_fields


def update_in_place(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with updates of inputs of `main` in place, if that is possible in all calls of a kernel."""
    main = mod["main"]
    uses: dict[relax.Var, int] = {}
    relax.analysis.post_order_visit(
        main.body, lambda e: uses.__setitem__(e, uses.get(e, 0) + 1) if isinstance(e, relax.Var) else None
    )
    calls: dict[str, list[relax.Call]] = {}
    for binding in bindings_of(main):
        function = called_function(binding.value)
        if function is not None:
            calls.setdefault(function, []).append(binding.value)
    functions = {var.name_hint: (var, function) for var, function in mod.functions_items()}
    updates: dict[str, tuple[int, tirx.PrimFunc]] = {}
    for name, several in calls.items():
        updated = _updated(functions[name][1])
        if updated is None:
            continue
        pasts = [call.args[1].fields[updated[0]] for call in several]
        if all(past in main.params and uses[past] == 1 for past in pasts):
            updates[name] = updated
    if not updates:
        return mod
    kept = {var: function for name, (var, function) in functions.items() if name not in updates}
    builder = relax.BlockBuilder(tvm.IRModule(kept, global_infos=dict(mod.global_infos)))
    places = {name: (builder.add_func(kernel, name), position) for name, (position, kernel) in updates.items()}
    changed = builder.get()
    changed["main"] = _InPlace(changed, places).visit_expr(main)
    return changed


def _updated(func: tvm.ir.BaseFunc) -> tuple[int, tirx.PrimFunc] | None:
    """Return the position of the parameter that a kernel updates, and the kernel in place. None for other kernels."""
    if not isinstance(func, tirx.PrimFunc) or not func.params:
        return None
    *inputs, output = func.params
    stores = [store for store in nodes_in(func.body, tirx.BufferStore) if store.buffer.same_as(output)]
    olds = [old for store in stores if (old := _old(store)) is not None]
    if not stores or len(olds) < len(stores) or not all(old.source.same_as(olds[0].source) for old in olds):
        return None
    past = olds[0].source
    loads = [
        load for load in nodes_in(func.body, TensorLoad) if load.source.same_as(past) or load.source.same_as(output)
    ]
    is_same_kind = structural_equal(past.shape, output.shape) and past.dtype == output.dtype
    if len(loads) != len(olds) or not is_same_kind or past.scope() != output.scope() != "":
        return None

    def guarded(store: tirx.BufferStore) -> tirx.Stmt:
        if not store.buffer.same_as(output):
            return store
        condition, new, _ = store.value.args
        return tirx.IfThenElse(condition, tirx.BufferStore(past, new, store.indices), None)

    position = next(i for i, param in enumerate(inputs) if param.same_as(past))
    body = structural_map(func.body, (tirx.BufferStore, guarded))
    return position, with_fields(func, params=inputs, body=body)


def _old(store: tirx.BufferStore) -> TensorLoad | None:
    """Return the element that a store keeps: the load of past[i] in out[i] = c ? new : past[i]."""
    if not is_conditional(store.value):
        return None
    old = store.value.args[2]
    return old if isinstance(old, TensorLoad) and structural_equal(old.indices, store.indices) else None


@mutator
class _InPlace(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, places: Mapping[str, tuple[tvm.ir.GlobalVar, int]]) -> None:
        super().__init__(mod)
        self._places = places

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace the call of an update."""
        function = called_function(call)
        call = super().visit_call_(call)
        if function is None or function not in self._places:
            return call
        kernel, position = self._places[function]
        return relax.op.call_tir_inplace(kernel, call.args[1], position, call.ty_args[0])
