"""Place activations into images for the whole graph at once, so that kernels pass images on without a copy.

    x = conv(image)
    y = conv(x)
    z = conv(y, x)
        ->  x, y in scope "global.texture", read and written as texels. `activation_scope` has another one for one layer

A tensor is placed into an image if Romou's templates access it as whole texels in the kernel that writes it and in all
kernels that read it, and if it fits the device's limits. All other tensors stay in buffers. If a product reads a
matrix, its rows are cut into texels (scope "global.texture-rows"). A reshape between the two keeps the image if the
rows of both sides are the last axis, or the last two axes as one ("global.texture-rows-joined"):

    y = gelu(dense(x))
    z = dense(y)
        ->  y in scope "global.texture-rows"

    y = dense(x)
    h = reshape(y, (m, heads, n))
    z = h @ h'
        ->  y in scope "global.texture-rows", which z reads as "global.texture-rows-joined"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.compiler.graph.relax_rewriter import MainRewriter, outputs_of, rebuild_main
from romou.compiler.graph.share_buffers import copied_ranges
from romou.compiler.scheduling.blocks import is_view
from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import activation_scope, image_extents, set_image
from romou.devices.backends.launch import ROW_AXES, ROWS_IMAGE

if TYPE_CHECKING:
    from romou.devices.targets import Target

SCOPE = "global.texture"


def place_images(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Put activations of a fused module into images if the target does (`Target.places_activations`).

    Functions that read or write an image get variants. The signature of `main` stays as it is.
    """
    most = target.limits.max_image
    if not target.places_activations or most is None:
        return mod
    bindings = bindings_of(mod["main"])
    images = _choose(mod, bindings, most)
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
    """The texel accesses of a function.

    scopes: position of a parameter -> memory scope, the output last.
    factors: positions of a product's factors.
    """

    scopes: Mapping[int, str]
    factors: Set[int]


def _texel_parameters(mod: tvm.IRModule) -> dict[str, _Access]:
    """Return (function name -> the parameters that its templates can access as whole texels)."""
    accesses = {}
    for var, func in mod.functions_items():
        task = TunableTask.of(func) if isinstance(func, tirx.PrimFunc) else None
        if task is None:
            continue
        template = task.template
        scope_of = {**dict.fromkeys(template.matrices, ROWS_IMAGE), **dict.fromkeys(template.activations, SCOPE)}
        names = [str(p.name) for p in func.params]
        scopes = {i: scope_of[name] for i, name in enumerate(names) if name in scope_of}
        if scopes:
            accesses[var.name_hint] = _Access(
                scopes=scopes, factors={i for i, name in enumerate(names) if name in template.factors}
            )
    return accesses


@dataclass(frozen=True, kw_only=True)
class _Use:
    """A read of a variable.

    scope: the memory scope that the reader accepts, or None if it needs a buffer.
    is_factor: whether the reader is a product and this one of its factors.
    """

    var: relax.Var
    scope: str | None
    is_factor: bool


def _choose(mod: tvm.IRModule, bindings: list[relax.Binding], most: tuple[int, int, int]) -> dict[relax.Var, str]:
    """Return (variable -> scope of its image). A view has the scope that its readers use to address the image."""
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
        choices = [scope] if scope == SCOPE else [rows for rows in ROW_AXES if len(_shape(var)) > ROW_AXES[rows]]
        fitting = (
            choice
            for choice in choices
            if all(extent <= limit for extent, limit in zip(image_extents(_shape(var), choice), most, strict=True))
        )
        assignments = (_scopes_of_uses(var, choice, uses.get(var, [])) for choice in fitting)
        chosen |= next((scopes for scopes in assignments if scopes is not None), {})
    # A concatenation or a slice of channels is free if the whole and its pieces have one scope (`share_buffers`).
    slices = {var for var, scope in chosen.items() if scope == SCOPE != activation_scope(_shape(var))}
    for binding in bindings:
        callee = called_function(binding.value) if slices else None
        near = {binding.var, *binding.value.args[1].fields} & slices if callee is not None else set()
        if near and copied_ranges(mod[callee]):
            slices -= near
    return chosen | {var: activation_scope(_shape(var)) for var in slices}


def _scopes_of_uses(image: relax.Var, scope: str, uses: list[_Use]) -> dict[relax.Var, str] | None:
    """Return the scopes of an image and of the views in `uses`. None if a reader cannot read this image."""
    if scope == SCOPE:
        return {image: SCOPE} if all(use.scope == SCOPE and use.var.same_as(image) for use in uses) else None
    scopes = {image: scope}
    for use in uses:
        addressed = next((rows for rows in ROW_AXES if _row(_shape(use.var), rows) == _row(_shape(image), scope)), None)
        if use.scope != ROWS_IMAGE or addressed is None:
            return None
        scopes[use.var] = addressed
    return scopes if any(use.is_factor for use in uses) else None


def _shape(var: relax.Var) -> list[int]:
    return [int(extent) for extent in var.ty.shape.values]


def _row(shape: list[int], scope: str) -> int:
    """Return the elements in a row of a tensor's image. 0 if the tensor has too few axes."""
    return math.prod(shape[-ROW_AXES[scope] :]) if len(shape) > ROW_AXES[scope] else 0


def _source_of_view(value: relax.Expr, mod: tvm.IRModule) -> relax.Var | None:
    """Return the operand of a call that reshapes. None for any other expression."""
    callee = called_function(value)
    if callee is None or not is_view(mod[callee]):
        return None
    (source,) = value.args[1].fields
    return source if isinstance(source, relax.Var) else None


def _uses(value: relax.Expr, callee: str | None) -> list[tuple[relax.Var, set[int]]]:
    """Return the variables that `value` reads and, for a call of a TIR function, their positions."""
    if callee is not None:
        fields = list(value.args[1].fields)
        return [(f, {i for i, g in enumerate(fields) if g.same_as(f)}) for f in fields if isinstance(f, relax.Var)]
    return [(var, {-1}) for var in relax.analysis.free_vars(value)]


class _Placer(MainRewriter):
    """Rewriter that calls variants of functions with images as parameters."""

    def __init__(
        self, mod: tvm.IRModule, images: Mapping[relax.Var, str], devices: Mapping[str, relax.VDevice]
    ) -> None:
        super().__init__()
        self._mod = mod
        self._images = images
        self._devices = devices
        # Views of images, and the views between them and their image.
        self._views: set[relax.Var] = set()

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, as a call of its function's variant if it uses images."""
        var, value = binding.var, binding.value
        callee = called_function(value)
        if callee is None:
            super().visit(binding)
            return
        fields = list(value.args[1].fields)
        source = _source_of_view(value, self._mod)
        if source is not None and (source in self._images or source in self._views):
            # A view that only other views read is not emitted: those become views of the image.
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
