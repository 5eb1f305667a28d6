"""Which activations live in images: decided once for the whole graph, so that layers hand images on without a copy.

    x = conv(image);  y = conv(x);  z = conv(y, x)  -> out      ->      x, y in scope "global.texture", read and written as texels

A tensor goes into an image where the kernel that writes it and all that read it are ours and work in whole texels, and where it fits
the device's limits. Everything else stays in a buffer. The rows of a matrix are cut into texels (scope "global.texture-rows"), where a product reads it:

    y = gelu(dense(x));  z = dense(y)      ->      y in scope "global.texture-rows"
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.backends.launch import ROWS_IMAGE
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
    devices = {scope: relax.VDevice(target.tvm_target, 0, scope) for scope in ("global", *dict.fromkeys(images.values()))}
    placed = rebuild_main(mod, _Placer(mod, images, devices))
    placed.update_global_info("vdevice", list(devices.values()))
    return placed


@dataclass(frozen=True, kw_only=True)
class _Access:
    """How a function accesses its parameters, the output last: position -> memory scope.   factors: positions of a product's factors."""

    scopes: Mapping[int, str]
    factors: Set[int]


def _texel_parameters(mod: tvm.IRModule) -> dict[str, _Access]:
    """Function name -> the parameters that its templates can access as whole texels."""
    found = {}
    for var, func in mod.functions_items():
        task = TunableTask.of(func) if isinstance(func, tirx.PrimFunc) else None
        if task is None:
            continue
        template = task.template
        scope_of = {**dict.fromkeys(template.matrices, ROWS_IMAGE), **dict.fromkeys(template.activations, SCOPE)}
        names = [str(p.name) for p in func.params]
        scopes = {i: scope_of[name] for i, name in enumerate(names) if name in scope_of}
        if scopes:
            found[var.name_hint] = _Access(scopes=scopes, factors={i for i, name in enumerate(names) if name in template.factors})
    return found


def _choose(bindings: list[relax.Binding], result: relax.Expr, accepting: Mapping[str, _Access], most: tuple[int, int, int]) -> dict[relax.Var, str]:
    """Variable -> the scope of its image."""
    chosen: dict[relax.Var, str] = {}
    for binding in bindings:
        callee = called_function(binding.value)
        if callee is None or callee not in accepting:
            continue
        scope = accepting[callee].scopes.get(len(binding.value.args[1].fields))
        if scope is None:
            continue
        shape = [int(d) for d in binding.var.ty.shape.values]
        if all(extent <= limit for extent, limit in zip(image_extents(shape, scope), most, strict=True)):
            chosen[binding.var] = scope

    refused = {use for use, _ in _uses(result, None)}
    factors = set()
    for binding in bindings:
        callee = called_function(binding.value)
        access = accepting.get(callee or "")
        for use, positions in _uses(binding.value, callee):
            if access is None or any(access.scopes.get(position) != chosen.get(use) for position in positions):
                refused.add(use)
            elif positions & access.factors:
                factors.add(use)
    return {var: scope for var, scope in chosen.items() if var not in refused and (scope != ROWS_IMAGE or var in factors)}


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

    def __init__(self, mod: tvm.IRModule, images: Mapping[relax.Var, str], devices: Mapping[str, relax.VDevice]) -> None:
        super().__init__()
        self._mod = mod
        self._images = images
        self._devices = devices

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding; `main` holds calls of TIR functions, and what stays as it is."""
        var, value = binding.var, binding.value
        callee = called_function(value)
        if isinstance(binding, relax.MatchCast) or callee is None:
            self.plain[var] = self.bb.emit(self.plain_expr(value))
            return
        fields = list(value.args[1].fields)
        scopes = tuple((i, self._images[f]) for i, f in enumerate([*fields, var]) if f in self._images)
        out = outputs_of(var.ty)
        if var in self._images:
            out = relax.TensorType(var.ty.shape, var.ty.dtype, self._devices[self._images[var]])
        function = self.variant(callee, scopes, lambda: self._with_images(callee, scopes))
        self.plain[var] = self.bb.emit(relax.call_tir(function, [self.plain_expr(f) for f in fields], out_ty=out))

    def _with_images(self, name: str, scopes: tuple[tuple[int, str], ...]) -> tirx.PrimFunc:
        func = self._mod[name]
        for position, scope in scopes:
            func = set_image(func, str(func.params[position].name), scope)
        return func
