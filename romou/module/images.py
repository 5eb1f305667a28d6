"""Weights that lie in images: the constants of a Relax module get the memory scope that their kernel expects.

The Relax VM copies every constant to the device when it starts, into the scope that its type names: packed once, at load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm_ffi.structural import structural_map

from romou.calls import op_name
from romou.errors import BuildError

if TYPE_CHECKING:
    from romou.target import Target


def place_weights(mod: tvm.IRModule, scopes: Mapping[str, Mapping[int, str]], target: Target) -> tvm.IRModule:
    """call_tir(conv, (x, const))   ->   call_tir(conv, (x, const in scope "global.texture-weight"))

    Parameters
    ----------
    scopes
        Name of a TIR function -> position of an argument -> memory scope.

    Raises
    ------
    BuildError
        An argument that should lie in an image is no constant.
    """
    wanted = sorted({scope for positions in scopes.values() for scope in positions.values()})
    if not wanted:
        return mod
    # The first one is where everything lies that names no device; those of activations are there already.
    known = list(mod.global_infos.get("vdevice", [])) or [relax.VDevice(target.tvm_target, 0, "global")]
    devices = {str(device.memory_scope): device for device in known}
    for scope in wanted:
        devices.setdefault(scope, relax.VDevice(target.tvm_target, 0, scope))

    def place(call: relax.Call) -> relax.Call:
        if op_name(call) != "relax.call_tir" or call.args[0].name_hint not in scopes:
            return call
        arguments = list(call.args[1].fields)
        for position, scope in scopes[call.args[0].name_hint].items():
            weight = arguments[position]
            if not isinstance(weight, tvm.ir.GenericConst):
                raise BuildError(f"{call.args[0].name_hint}: argument {position} is computed at run time and cannot be packed into an image at compile time")
            arguments[position] = tvm.ir.GenericConst(weight.value, relax.TensorType(weight.ty.shape, weight.ty.dtype, devices[scope]))
        return relax.Call(call.op, [call.args[0], relax.Tuple(arguments), *call.args[2:]], call.attrs, call.ty_args, ret_ty=call.ty)

    main = mod["main"]
    body = structural_map(main.body, (relax.Call, place))
    placed = tvm.IRModule(dict(mod.functions_items()), global_infos=dict(mod.global_infos))
    placed["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    placed.update_global_info("vdevice", list(devices.values()))
    return placed
