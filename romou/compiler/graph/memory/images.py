"""Weights in the form and the memory scope that their kernels read.

The Relax VM copies every constant to the device when it starts, into the scope that its type names. So weights are
packed once, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import BuildError
from romou.compiler.graph.relax_rewriter import MainRewriter, outputs_of, rebuild_main, with_main
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES, set_image
from romou.compiler.tir.traversal import with_fields

if TYPE_CHECKING:
    from romou.devices.targets import Target


# Work-items of a group of a kernel that copies an image.
_COPIERS = 64


def store_weights(
    mod: tvm.IRModule, stored: Mapping[str, tuple[int, Callable[[np.ndarray], np.ndarray]]]
) -> tvm.IRModule:
    """Store weights converted, as kernels read them.

    call_tir(conv, (x, const))   ->   call_tir(conv, (x, function(const)))

    stored: function name -> position of an argument, and the conversion of its values.

    Raises
    ------
    BuildError
        The argument is not a constant.
    """

    if not stored:
        return mod

    def store(name: str, _position: int, weight: Any) -> Any:
        value = tvm.runtime.tensor(stored[name][1](weight.value.numpy()))
        return tvm.ir.GenericConst(value, relax.TensorType(value.shape, weight.ty.dtype, weight.ty.vdevice))

    converted = _with_constants(
        mod, {name: [position] for name, (position, _) in stored.items()}, store, is_strict=True
    )
    return with_types_of_functions(converted, stored)


def with_types_of_functions(mod: tvm.IRModule, names: Container[str]) -> tvm.IRModule:
    """Return `mod` with new types for the calls of the named functions, after their parameters have changed."""
    variables = {
        var: _with_type_of(var, func) if var.name_hint in names else var for var, func in mod.functions_items()
    }
    functions = {variables[var]: func for var, func in mod.functions_items()}
    main = mod["main"]
    body = structural_map(main.body, (tvm.ir.GlobalVar, lambda var: variables[var]))
    functions[mod.get_global_var("main")] = with_fields(main, body=body)
    return tvm.IRModule(functions, global_infos=dict(mod.global_infos))


def _with_type_of(var: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> tvm.ir.GlobalVar:
    """Return a new variable with the type of `func`. Changing `var` would change every module that it is in."""
    made = tvm.ir.GlobalVar(var.name_hint)
    parameters = [relax.TensorType([int(d) for d in p.shape], str(p.dtype)) for p in func.params]
    relax.expr._update_type(made, relax.FuncType(parameters, var.ty.ret, var.ty.purity))
    return made


def place_weights(mod: tvm.IRModule, scopes: Mapping[str, Mapping[int, str]], target: Target) -> tvm.IRModule:
    """Place weights into images.

    call_tir(conv, (x, const))   ->   call_tir(conv, (x, const in scope "global.texture-2d"))

    scopes: function name -> position of an argument -> memory scope. `copy_images` copies all but constants.
    """
    if not scopes:
        return mod
    devices = _devices(mod, scopes, target)

    def place(name: str, position: int, weight: Any) -> Any:
        return tvm.ir.GenericConst(
            weight.value, relax.TensorType(weight.ty.shape, weight.ty.dtype, devices[scopes[name][position]])
        )

    placed = _with_constants(mod, scopes, place, is_strict=False)
    placed.update_global_info("vdevice", list(devices.values()))
    return placed


def copy_images(mod: tvm.IRModule, scopes: Mapping[str, Mapping[int, str]], target: Target) -> tvm.IRModule:
    """Copy tensors that kernels compute into and out of images that only one kernel has asked for.

    y = call_tir(kernel, (x,))   ->   x' = call_tir(copy, (x,))             in scope "global.texture"
                                      y' = call_tir(kernel, (x',))          in scope "global.texture"
                                      y = call_tir(copy, (y',))

    scopes: function name -> position of an argument, or of the output behind them -> memory scope. Constants are placed
    by `place_weights`.
    """
    if not any(_needs_copies(binding.value, scopes) for binding in bindings_of(mod["main"])):
        return mod
    devices = _devices(mod, scopes, target)
    copied = rebuild_main(mod, _ImageCopies(scopes, devices, target))
    copied.update_global_info("vdevice", list(devices.values()))
    return copied


def _devices(mod: tvm.IRModule, scopes: Mapping[str, Mapping[int, str]], target: Target) -> dict[str, relax.VDevice]:
    """Return memory scope -> device, of the module's devices and of `scopes`."""
    # The first device holds every tensor without a named device. The devices of activations are listed already.
    known = list(mod.global_infos.get("vdevice", [])) or [relax.VDevice(target.tvm_target, 0, "global")]
    devices = {str(device.memory_scope): device for device in known}
    for scope in sorted({scope for positions in scopes.values() for scope in positions.values()}):
        devices.setdefault(scope, relax.VDevice(target.tvm_target, 0, scope))
    return devices


def _needs_copies(value: relax.Expr, scopes: Mapping[str, Mapping[int, str]]) -> bool:
    """Return whether a call reads an image of a tensor that is no constant, or writes one."""
    positions = scopes.get(called_function(value) or "", {})
    fields = list(value.args[1].fields) if positions else []
    return any(at == len(fields) or not isinstance(fields[at], tvm.ir.GenericConst) for at in positions)


class _ImageCopies(MainRewriter):
    """The rewriter of `copy_images`."""

    def __init__(
        self, scopes: Mapping[str, Mapping[int, str]], devices: Mapping[str, relax.VDevice], target: Target
    ) -> None:
        super().__init__()
        self._scopes, self._devices, self._target = scopes, devices, target

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, with copies around it if its kernel reads or writes images."""
        value = binding.value
        scopes = self._scopes.get(called_function(value) or "")
        if scopes is None:
            super().visit(binding)
            return
        arguments = [
            self._copied(self.plain_expr(field), None, scopes[position])
            if position in scopes and not isinstance(field, tvm.ir.GenericConst)
            else self.plain_expr(field)
            for position, field in enumerate(value.args[1].fields)
        ]
        scope = scopes.get(len(arguments))
        out = outputs_of(binding.var.ty)
        if scope is not None:
            out = relax.TensorType(binding.var.ty.shape, binding.var.ty.dtype, self._devices[scope])
        result = self.bb.emit(relax.call_tir(value.args[0], arguments, out_ty=out))
        self.plain[binding.var] = result if scope is None else self._copied(result, scope, None)

    def _copied(self, tensor: relax.Expr, source: str | None, goal: str | None) -> relax.Var:
        """Emit a copy of a tensor from one memory scope into another. None: a buffer."""
        shape, dtype = [int(extent) for extent in tensor.ty.shape.values], str(tensor.ty.dtype)
        key = (tuple(shape), dtype, source, goal)
        function = self.variant("copy_image", key, lambda: _copy_kernel(shape, dtype, source, goal, self._target))
        out = relax.TensorType(shape, dtype, self._devices[goal] if goal else None)
        return self.bb.emit(relax.call_tir(function, [tensor], out_ty=out))


def _copy_kernel(shape: list[int], dtype: str, source: str | None, goal: str | None, target: Target) -> tirx.PrimFunc:
    tensor = te.placeholder(shape, dtype, "source")
    sch = s_tir.Schedule(te.create_prim_func([tensor, te.compute(shape, lambda *i: tensor[i], name="copied")]))
    *rows, last = sch.get_loops(sch.get_sblock("copied"))
    texel, lanes = sch.split(last, [None, LANES])
    group, item = sch.split(sch.fuse(*rows, texel), [None, min(_COPIERS, target.limits.max_work_group_size)])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    sch.vectorize(lanes)
    func = sch.mod["main"].without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
    for name, scope in (("source", source), ("copied", goal)):
        func = func if scope is None else set_image(func, name, scope)
    return func


def _with_constants(
    mod: tvm.IRModule,
    positions: Mapping[str, Collection[int]],
    change: Callable[[str, int, Any], Any],
    *,
    is_strict: bool,
) -> tvm.IRModule:
    """Replace each constant argument at `positions` by change(function name, position, constant).

    is_strict: raise BuildError for an argument that is computed, instead of leaving it.
    """

    def changed(call: relax.Call) -> relax.Call:
        name = called_function(call)
        if name is None or name not in positions:
            return call
        arguments = list(call.args[1].fields)
        for position in positions[name]:
            if position == len(arguments) or not isinstance(arguments[position], tvm.ir.GenericConst):
                if not is_strict:
                    continue
                raise BuildError(
                    f"{name}: argument {position} is computed at run time and cannot be packed at compile time"
                )
            arguments[position] = change(name, position, arguments[position])
        return with_fields(call, args=[call.args[0], relax.Tuple(arguments), *call.args[2:]], ret_ty=call.ty)

    main = mod["main"]
    body = structural_map(main.body, (relax.Call, changed))
    return with_main(mod, with_fields(main, body=body))
