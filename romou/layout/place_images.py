"""Which activations live in images: decided once for the whole graph, so that layers hand images on without a copy.

    x = conv(image);  y = conv(x);  z = conv(y, x)  -> out      ->      x, y in scope "global.texture", read and written as texels

A tensor goes into an image where the kernel that writes it and all that read it are ours and work in whole texels, and where it fits
the device's limits. Everything else stays in a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from romou.calls import op_name
from romou.primitives import image_extents, set_image
from romou.task import Task, limits_of

if TYPE_CHECKING:
    from romou.target import Target

SCOPE = "global.texture"


def place_images(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Put activations of a fused module into images, where the target prefers them (`Limits.prefers_images`).

    Functions that read or write an image become variants of their own; the signature of `main` stays as it is.
    """
    limits = limits_of(target)
    if not limits.prefers_images or limits.max_image is None:
        return mod
    accepting = _texel_parameters(mod)
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    images = _choose(bindings, mod["main"].body.body, accepting, limits.max_image)
    return _rewrite(mod, bindings, images, target) if images else mod


def _texel_parameters(mod: tvm.IRModule) -> dict[str, set[int]]:
    """Function name -> positions of the parameters, the output last, that its templates can access as whole texels."""
    found = {}
    for var, func in mod.functions_items():
        task = Task.of(func) if isinstance(func, tvm.tirx.PrimFunc) else None
        if task is not None and task.template.works_in_texels:
            names = task.template.activations
            found[var.name_hint] = {i for i, p in enumerate(func.params) if str(p.name) in names}
    return found


def _callee(value: relax.Expr) -> str | None:
    return str(value.args[0].name_hint) if op_name(value) == "relax.call_tir" else None


def _choose(bindings: list[relax.Binding], result: relax.Expr, accepting: Mapping[str, set[int]], most: tuple[int, int, int]) -> list[relax.Var]:
    chosen: list[relax.Var] = []
    for binding in bindings:
        callee = _callee(binding.value)
        if callee is None or callee not in accepting or len(binding.value.args[1].fields) not in accepting[callee]:
            continue
        shape = [int(d) for d in binding.var.ty.shape.values]
        if all(extent <= limit for extent, limit in zip(image_extents(shape, SCOPE), most, strict=True)):
            chosen.append(binding.var)

    def is_chosen(expr: relax.Expr) -> bool:
        return any(expr.same_as(var) for var in chosen)

    refused: list[relax.Var] = []
    for binding in bindings:
        callee = _callee(binding.value)
        for use, positions in _uses(binding.value, callee):
            if is_chosen(use) and not positions <= accepting.get(callee or "", set()):
                refused.append(use)
    refused += [use for use, _ in _uses(result, None)]
    return [var for var in chosen if not any(var.same_as(other) for other in refused)]


def _uses(value: relax.Expr, callee: str | None) -> list[tuple[relax.Var, set[int]]]:
    """Variables that `value` reads and, for a call of a TIR function, at which positions."""
    if callee is not None:
        fields = list(value.args[1].fields)
        return [(f, {i for i, g in enumerate(fields) if g.same_as(f)}) for f in fields if isinstance(f, relax.Var)]
    found: list[tuple[relax.Var, set[int]]] = []
    relax.analysis.post_order_visit(value, lambda e: found.append((e, {-1})) if isinstance(e, relax.Var) else None)
    return found


def _rewrite(mod: tvm.IRModule, bindings: list[relax.Binding], images: list[relax.Var], target: Target) -> tvm.IRModule:
    main = mod["main"]
    devices = [relax.VDevice(target.tvm_target, 0, scope) for scope in ("global", SCOPE)]
    builder = relax.BlockBuilder()
    renamed: dict[relax.Var, relax.Expr] = {}
    variants: dict[tuple[str, tuple[int, ...]], tvm.ir.GlobalVar] = {}

    def variant(name: str, positions: tuple[int, ...]) -> tvm.ir.GlobalVar:
        if (name, positions) not in variants:
            func = mod[name]
            for position in positions:
                func = set_image(func, str(func.params[position].name), SCOPE)
            variants[name, positions] = builder.add_func(func, name)
        return variants[name, positions]

    def is_image(expr: relax.Expr) -> bool:
        return any(expr.same_as(var) for var in images)

    def replaced(expr: relax.Expr) -> relax.Expr:
        return _replace_variables(expr, renamed)

    with builder.function("main", list(main.params)):
        with builder.dataflow():
            for binding in bindings:
                callee, value = _callee(binding.value), binding.value
                if isinstance(binding, relax.MatchCast) or callee is None:
                    renamed[binding.var] = builder.emit(replaced(value))
                    continue
                fields = list(value.args[1].fields)
                positions = tuple(i for i, f in enumerate([*fields, binding.var]) if is_image(f))
                out = binding.var.ty
                if is_image(binding.var):
                    out = relax.TensorType(out.shape, out.dtype, devices[1])
                elif isinstance(out, relax.TupleType):
                    out = list(out.fields)
                renamed[binding.var] = builder.emit(relax.call_tir(variant(callee, positions), [replaced(f) for f in fields], out_ty=out))
            result = builder.emit_output(replaced(main.body.body))
        builder.emit_func_output(result)
    placed = builder.finalize()
    if main.attrs:
        placed["main"] = placed["main"].with_attrs(dict(main.attrs))
    placed.update_global_info("vdevice", devices)
    return placed


def _replace_variables(expr: relax.Expr, renamed: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """`expr` with its variables replaced."""
    if isinstance(expr, relax.Var):
        return renamed.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_replace_variables(f, renamed) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_replace_variables(expr.tuple_value, renamed), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [_replace_variables(a, renamed) for a in expr.args], expr.attrs, expr.ty_args)
    return expr
