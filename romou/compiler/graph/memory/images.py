"""Weights in the form and the memory scope that their kernels read.

The Relax VM copies every constant to the device when it starts, into the scope that its type names. So weights are
packed once, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import BuildError
from romou.compiler.tir.calls import called_function

if TYPE_CHECKING:
    from romou.devices.targets import Target


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

    converted = _with_constants(mod, {name: [position] for name, (position, _) in stored.items()}, store)
    return with_types_of_functions(converted, stored)


def with_types_of_functions(mod: tvm.IRModule, names: Container[str]) -> tvm.IRModule:
    """Return `mod` with new types for the calls of the named functions, after their parameters have changed."""
    variables = {
        var: _with_type_of(var, func) if var.name_hint in names else var for var, func in mod.functions_items()
    }
    functions = {variables[var]: func for var, func in mod.functions_items()}
    main = mod["main"]
    body = structural_map(main.body, (tvm.ir.GlobalVar, lambda var: variables[var]))
    functions[mod.get_global_var("main")] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
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

    scopes: function name -> position of an argument -> memory scope.

    Raises
    ------
    BuildError
        The argument is not a constant.
    """
    wanted = sorted({scope for positions in scopes.values() for scope in positions.values()})
    if not wanted:
        return mod
    # The first device holds every tensor without a named device. The devices of activations are listed already.
    vdevices = list(mod.global_infos.get("vdevice", [])) or [relax.VDevice(target.tvm_target, 0, "global")]
    devices = {str(device.memory_scope): device for device in vdevices}
    for scope in wanted:
        devices.setdefault(scope, relax.VDevice(target.tvm_target, 0, scope))

    def place(name: str, position: int, weight: Any) -> Any:
        return tvm.ir.GenericConst(
            weight.value, relax.TensorType(weight.ty.shape, weight.ty.dtype, devices[scopes[name][position]])
        )

    placed = _with_constants(mod, scopes, place)
    placed.update_global_info("vdevice", list(devices.values()))
    return placed


def _with_constants(
    mod: tvm.IRModule, positions: Mapping[str, Collection[int]], change: Callable[[str, int, Any], Any]
) -> tvm.IRModule:
    """Replace each constant argument at `positions` by change(function name, position, constant)."""

    def changed(call: relax.Call) -> relax.Call:
        name = called_function(call)
        if name is None or name not in positions:
            return call
        arguments = list(call.args[1].fields)
        for position in positions[name]:
            if not isinstance(arguments[position], tvm.ir.GenericConst):
                raise BuildError(
                    f"{name}: argument {position} is computed at run time and cannot be packed at compile time"
                )
            arguments[position] = change(name, position, arguments[position])
        return relax.Call(
            call.op, [call.args[0], relax.Tuple(arguments), *call.args[2:]], call.attrs, call.ty_args, ret_ty=call.ty
        )

    main = mod["main"]
    body = structural_map(main.body, (relax.Call, changed))
    changed_module = tvm.IRModule(dict(mod.functions_items()), global_infos=dict(mod.global_infos))
    changed_module["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return changed_module
