"""Which activations live in images: decided once for the whole graph, so that layers hand images on without a copy.

    x = conv(image);  y = conv(x);  z = conv(y, x)
        ->  out      ->      x, y in scope "global.texture", read and written as texels

A tensor goes into an image where the kernel that writes it and all that read it are ours and work in whole texels, and
where it fits the device's limits. Everything else stays in a buffer. The rows of a matrix are cut into texels (scope
"global.texture-rows"), where a product reads it. A reshape between the two keeps the image, if each side's last axis,
or the last two as one ("global.texture-rows-joined"), are its rows:

    y = gelu(dense(x));  z = dense(y)                          ->      y in scope "global.texture-rows"
    y = dense(x);  h = reshape(y, (m, heads, n));  z = h @ h'
        ->  y in scope "global.texture-rows", which z reads as "global.texture-rows-joined"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.compiler.graph.rewrite import Walker, outputs_of, rebuild_main
from romou.compiler.scheduling.blocks import is_view
from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.primitives import image_extents, set_image
from romou.devices.backends.launch import ROW_AXES, ROWS_IMAGE

if TYPE_CHECKING:
    from romou.devices.targets import Target

SCOPE = "global.texture"


def place_images(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Put activations of a fused module into images, where the target prefers them (`Limits.prefers_images`).

    Functions that read or write an image become variants of their own; the signature of `main` stays as it is.
    """
    limits = target.limits
    if not limits.prefers_images or limits.max_image is None:
        return mod
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    images = _choose(mod, bindings, limits.max_image)
    if not images:
        return mod
    devices = {
        scope: relax.VDevice(target.tvm_target, 0, scope) for scope in ("global", *dict.fromkeys(images.values()))
    }
    placed = rebuild_main(mod, _Placer(mod, images, devices))
    placed.update_global_info("vdevice", list(devices.values()))
    return placed


@dataclass(frozen=True, kw_only=True)
class _Access:
    """How a function accesses its parameters, the output last: position -> memory scope.
    factors: positions of a product's factors.
    """

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
            found[var.name_hint] = _Access(
                scopes=scopes, factors={i for i, name in enumerate(names) if name in template.factors}
            )
    return found


@dataclass(frozen=True, kw_only=True)
class _Use:
    """A variable that is read.
    scope: that its reader accepts; None where that wants a buffer.
    is_factor: whether a product reads it.
    """

    var: relax.Var
    scope: str | None
    is_factor: bool


def _choose(mod: tvm.IRModule, bindings: list[relax.Binding], most: tuple[int, int, int]) -> dict[relax.Var, str]:
    """Variable -> the scope of its image; a view of an image has the scope by which its readers address it."""
    accepting = _texel_parameters(mod)
    written: dict[relax.Var, str] = {}
    views: dict[relax.Var, relax.Var] = {}
    uses: dict[relax.Var, list[_Use]] = {}
    for binding in bindings:
        var, callee = binding.var, called_function(binding.value)
        source = _source_of_view(binding.value, mod)
        if source is not None:
            views[var] = views.get(source, source)
            continue
        access = accepting.get(callee or "")
        scope = None if access is None else access.scopes.get(len(binding.value.args[1].fields))
        if scope is not None:
            written[var] = scope
        for use, positions in _uses(binding.value, callee):
            scopes = {access.scopes.get(position) if access is not None else None for position in positions}
            is_factor = access is not None and bool(positions & access.factors)
            uses.setdefault(views.get(use, use), []).append(
                _Use(var=use, scope=scopes.pop() if len(scopes) == 1 else None, is_factor=is_factor)
            )
    for use, _ in _uses(mod["main"].body.body, None):
        uses.setdefault(views.get(use, use), []).append(_Use(var=use, scope=None, is_factor=False))

    chosen: dict[relax.Var, str] = {}
    for var, scope in written.items():
        choices = [scope] if scope == SCOPE else [one for one in ROW_AXES if len(_shape(var)) > ROW_AXES[one]]
        fitting = (
            one
            for one in choices
            if all(extent <= limit for extent, limit in zip(image_extents(_shape(var), one), most, strict=True))
        )
        found = (_scopes_of_uses(var, one, uses.get(var, [])) for one in fitting)
        chosen |= next((one for one in found if one is not None), {})
    return chosen


def _scopes_of_uses(image: relax.Var, scope: str, uses: list[_Use]) -> dict[relax.Var, str] | None:
    """The scope of an image and of its views that are read, where all readers take their texels from such an image;
    None elsewhere.
    """
    if scope == SCOPE:
        return {image: SCOPE} if all(use.scope == SCOPE and use.var.same_as(image) for use in uses) else None
    found = {image: scope}
    for use in uses:
        addressed = next((one for one in ROW_AXES if _row(_shape(use.var), one) == _row(_shape(image), scope)), None)
        if use.scope != ROWS_IMAGE or addressed is None:
            return None
        found[use.var] = addressed
    return found if any(use.is_factor for use in uses) else None


def _shape(var: relax.Var) -> list[int]:
    return [int(extent) for extent in var.ty.shape.values]


def _row(shape: list[int], scope: str) -> int:
    """Numbers of a row of the image of a tensor; 0 where it has too few axes."""
    return math.prod(shape[-ROW_AXES[scope] :]) if len(shape) > ROW_AXES[scope] else 0


def _source_of_view(value: relax.Expr, mod: tvm.IRModule) -> relax.Var | None:
    """What a call of a reshape reads; None for all else."""
    callee = called_function(value)
    if callee is None or not is_view(mod[callee]):
        return None
    (source,) = value.args[1].fields
    return source if isinstance(source, relax.Var) else None


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

    def __init__(
        self, mod: tvm.IRModule, images: Mapping[relax.Var, str], devices: Mapping[str, relax.VDevice]
    ) -> None:
        super().__init__()
        self._mod = mod
        self._images = images
        self._devices = devices
        # Views of images, and what stands between these views and their images.
        self._views: set[relax.Var] = set()

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding; `main` holds calls of TIR functions, and what stays as it is."""
        var, value = binding.var, binding.value
        callee = called_function(value)
        if isinstance(binding, relax.MatchCast) or callee is None:
            self.plain[var] = self.bb.emit(self.plain_expr(value))
            return
        fields = list(value.args[1].fields)
        source = _source_of_view(value, self._mod)
        if source is not None and (source in self._images or source in self._views):
            # A view that only other views read is none: they are views of the image itself.
            self._views.add(var)
            image = self.plain_expr(source)
            self.plain[var] = self.bb.emit(relax.op.reshape(image, _shape(var))) if var in self._images else image
            return
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
