"""The texture scopes that each tensor of an operator may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tvm import tirx

from romou.base.limits import Limits
from romou.compiler.tir.expressions import FLOATS
from romou.compiler.tir.primitives import FREE_IMAGES, LANES, MemoryKind, activation_scope, image_extents, is_image
from romou.devices.backends.launch import IMAGE, PLAIN_IMAGE, ROWS_IMAGE

WEIGHT = "weight"


def excess_of_image(shape: Sequence[int], scope: str, most: tuple[int, int, int]) -> str | None:
    """Return why a tensor does not fit into an image of at most `most` texels, or None if it does."""
    sides = zip(("width", "height", "layers"), image_extents(shape, scope), most, strict=True)
    reasons = (
        f"its {side} would be {extent} texels, the device allows {limit}"
        for side, extent, limit in sides
        if extent > limit
    )
    return next(reasons, None)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Possible memory scopes of a fused function's "data", "weight" and "output".

    buffers: role -> parameter.
    texels: roles whose innermost axis the schedule accesses in whole texels.
    matrices: roles whose innermost axis is a matrix axis that the schedule accesses in whole texels.
    has_constant_weight: whether the weight is known at compile time, so that each kernel may choose its memory.
    """

    func: tirx.PrimFunc
    buffers: Mapping[str, tirx.Buffer]
    texels: Set[str]
    matrices: Set[str] = frozenset()
    has_constant_weight: bool = True

    def choices(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> list[str]:
        """Return the choices of the knob `role`.

        The graph decides for activations, unless the function leaves them free. shape: as for `scope`.
        """
        if is_image(self.buffers[role]):
            return [MemoryKind.IMAGE.value]
        is_free = (role == WEIGHT and self.has_constant_weight) or (
            self.func.attrs is not None and FREE_IMAGES in self.func.attrs
        )
        return (
            [kind.value for kind in MemoryKind]
            if is_free and self.scope(role, limits, shape) is not None
            else [MemoryKind.BUFFER.value]
        )

    def scope(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> str | None:
        """Return a texture scope that holds the tensor, or None if it fits no image or must be a buffer.

        shape: of the tensor, if it differs from its parameter's.
        """
        return next((scope for scope, reason in self._scopes(role, limits, shape) if reason is None), None)

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Return role -> reason, for each tensor that fits no image although the schedule could read it from one."""
        reasons = {role: [reason for _, reason in self._scopes(role, limits, None)] for role in self.buffers}
        return {
            role: str(scope_reasons[-1])
            for role, scope_reasons in reasons.items()
            if scope_reasons and all(scope_reasons)
        }

    def _scopes(self, role: str, limits: Limits, shape: Sequence[int] | None) -> Iterator[tuple[str, str | None]]:
        """Yield texture scopes that hold the tensor's lanes as texels.

        Each comes with the reason why it does not fit, or None.
        """
        shape = [int(d) for d in self.buffers[role].shape] if shape is None else shape
        most = limits.max_image
        if most is None or str(self.buffers[role].dtype) not in FLOATS:
            return
        scopes: Sequence[str] = ()
        if role in self.matrices and shape[-1] % LANES == 0:
            scopes = (ROWS_IMAGE,)
        elif role in self.texels and shape[-1] == LANES:
            scopes = (PLAIN_IMAGE, IMAGE) if role == WEIGHT else (activation_scope(shape),)
        for scope in scopes:
            yield scope, excess_of_image(shape, scope, most)
