"""Which activations live in images: decided once for the whole graph, so that layers hand images on without a copy.

    x = conv(image);  y = conv(x);  z = conv(y, x)  -> out      ->      x, y in scope "global.texture", read and written as texels

A tensor goes into an image where the kernel that writes it and all that read it are ours and work in whole texels, and where it fits
the device's limits. Everything else stays in a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.layout.rewrite import Walker, outputs_of, rebuild_main
from romou.tasks.tunable import TunableTask
from romou.tir.calls import called_function
from romou.tir.primitives import image_extents, set_image

if TYPE_CHECKING:
    from romou.target import Target

SCOPE = "global.texture"


def place_images(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Put activations of a fused module into images, where the target prefers them (`Limits.prefers_images`).

    Functions that read or write an image become variants of their own; the signature of `main` stays as it is.
    """
    limits = target.limits
    if not limits.prefers_images or limits.max_image is None:
        return mod
    accepting = _texel_parameters(mod)
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    images = _choose(bindings, mod["main"].body.body, accepting, limits.max_image)
    if not images:
        return mod
    devices = [relax.VDevice(target.tvm_target, 0, scope) for scope in ("global", SCOPE)]
    placed = rebuild_main(mod, _Placer(mod, images, devices[1]))
    placed.update_global_info("vdevice", devices)
    return placed


def _texel_parameters(mod: tvm.IRModule) -> dict[str, set[int]]:
    """Function name -> positions of the parameters, the output last, that its templates can access as whole texels."""
    found = {}
    for var, func in mod.functions_items():
        task = TunableTask.of(func) if isinstance(func, tirx.PrimFunc) else None
        names = task.template.activations if task is not None else ()
        if names:
            found[var.name_hint] = {i for i, p in enumerate(func.params) if str(p.name) in names}
    return found


def _choose(bindings: list[relax.Binding], result: relax.Expr, accepting: Mapping[str, set[int]], most: tuple[int, int, int]) -> list[relax.Var]:
    chosen: list[relax.Var] = []
    for binding in bindings:
        callee = called_function(binding.value)
        if callee is None or callee not in accepting or len(binding.value.args[1].fields) not in accepting[callee]:
            continue
        shape = [int(d) for d in binding.var.ty.shape.values]
        if all(extent <= limit for extent, limit in zip(image_extents(shape, SCOPE), most, strict=True)):
            chosen.append(binding.var)

    def is_chosen(expr: relax.Expr) -> bool:
        return any(expr.same_as(var) for var in chosen)

    refused: list[relax.Var] = []
    for binding in bindings:
        callee = called_function(binding.value)
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


class _Placer(Walker):
    """Emits calls of variants of functions: those whose parameters at some positions are images."""

    def __init__(self, mod: tvm.IRModule, images: list[relax.Var], in_image: relax.VDevice) -> None:
        super().__init__()
        self._mod = mod
        self._images = images
        self._in_image = in_image

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding; `main` holds calls of TIR functions, and what stays as it is."""
        var, value = binding.var, binding.value
        callee = called_function(value)
        if isinstance(binding, relax.MatchCast) or callee is None:
            self.plain[var] = self.bb.emit(self.plain_expr(value))
            return
        fields = list(value.args[1].fields)
        positions = tuple(i for i, f in enumerate([*fields, var]) if self._is_image(f))
        out = outputs_of(var.ty)
        if self._is_image(var):
            out = relax.TensorType(var.ty.shape, var.ty.dtype, self._in_image)
        function = self.variant(callee, positions, lambda: self._with_images(callee, positions))
        self.plain[var] = self.bb.emit(relax.call_tir(function, [self.plain_expr(f) for f in fields], out_ty=out))

    def _is_image(self, expr: relax.Expr) -> bool:
        return any(expr.same_as(var) for var in self._images)

    def _with_images(self, name: str, positions: tuple[int, ...]) -> tirx.PrimFunc:
        func = self._mod[name]
        for position in positions:
            func = set_image(func, str(func.params[position].name), SCOPE)
        return func
