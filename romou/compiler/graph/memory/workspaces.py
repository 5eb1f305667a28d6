"""Workspaces between the kernels of one function, as tensors of the graph.

A function of several kernels would allocate its workspaces from a pool of the runtime, which may free a page when
another function requests a larger one. As outputs of the call they are planned with all other tensors: they share
storage if their live ranges allow it, and a captured graph keeps them.
"""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from romou.compiler.graph.memory.images import with_types_of_functions
from romou.compiler.scheduling.blocks import is_scheduled
from romou.compiler.tir.calls import called_function, op_name
from romou.compiler.tir.traversal import copy_of, with_fields


def plan_workspaces(mod: tvm.IRModule) -> tvm.IRModule:
    """Turn the global buffers of scheduled functions into additional results of their calls.

    call_tir(conv, (x, w), out)      ->      call_tir(conv, (x, w), (out, workspace, ...))[0]
    """
    planned = copy_of(mod)
    workspaces: dict[str, list[tirx.Buffer]] = {}
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and is_scheduled(func):
            planned[var], buffers = with_parameters(func)
            if buffers:
                workspaces[var.name_hint] = buffers
    if workspaces:
        planned = with_types_of_functions(planned, workspaces)
        planned["main"] = _Caller(planned, workspaces).visit_expr(planned["main"])
    return planned


def with_parameters(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[tirx.Buffer]]:
    """Return the function with its workspaces as last parameters, and the workspaces."""
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return func, []
    root = realize.block
    workspaces = [buffer for buffer in root.alloc_buffers if str(buffer.scope()) == "global"]
    if not workspaces:
        return func, []
    kept = [buffer for buffer in root.alloc_buffers if not any(buffer.same_as(workspace) for workspace in workspaces)]
    body = with_fields(realize, block=with_fields(root, alloc_buffers=kept))
    return with_fields(func, params=[*func.params, *workspaces], body=body), workspaces


@mutator
class _Caller(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, workspaces: dict[str, list[tirx.Buffer]]) -> None:
        super().__init__(mod)
        self._workspaces = workspaces
        # Tensors without a named device are in the memory of the first one.
        self._device = next(
            (device for device in mod.global_infos.get("vdevice", []) if str(device.memory_scope) == "global"), None
        )

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Add workspaces to the results of a call of a function that needs them."""
        call = super().visit_call_(call)
        name = called_function(call)
        if name is None or name not in self._workspaces:
            return call
        types = [relax.TensorType(tuple(map(int, b.shape)), str(b.dtype), self._device) for b in self._workspaces[name]]
        if op_name(call) == "relax.call_tir":
            both = relax.Call(call.op, call.args, call.attrs, [relax.TupleType([call.ty, *types])])
        else:
            # -1: a separate tensor, behind the arguments.
            inplace_indices = [*map(int, call.attrs.inplace_indices), *[-1] * len(types)]
            both = relax.op.call_tir_inplace(*call.args, inplace_indices, [call.ty, *types])
        return relax.TupleGetItem(self.builder_.emit(both), 0)
