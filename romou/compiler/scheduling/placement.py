"""Which of an operator's tensors may lie in images, and under which texture scope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tvm import tirx

from romou.base.limits import Limits
from romou.compiler.tir.primitives import FREE_IMAGES, LANES, Place, image_extents, is_image
from romou.devices.backends.launch import IMAGE, PLAIN_IMAGE, ROWS_IMAGE

WEIGHT = "weight"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the "data", "weight" and "output" of a fused function may lie.

    buffers: role -> parameter.   texels: the roles whose innermost axis the schedule accesses as whole texels.
    matrices: the roles whose innermost axis is one of a matrix, of which the schedule takes whole texels.
    has_constant_weight: whether the weight is known when the model is compiled, so that it lies where the kernel wants
    it.
    """

    func: tirx.PrimFunc
    buffers: Mapping[str, tirx.Buffer]
    texels: Set[str]
    matrices: Set[str] = frozenset()
    has_constant_weight: bool = True

    def choices(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> list[str]:
        """Choices of the knob `role`: an activation lies where the graph put it, unless the function leaves that free;
        `shape`: as for `scope`.
        """
        if is_image(self.buffers[role]):
            return [Place.IMAGE.value]
        is_free = (role == WEIGHT and self.has_constant_weight) or (
            self.func.attrs is not None and FREE_IMAGES in self.func.attrs
        )
        return (
            [place.value for place in Place]
            if is_free and self.scope(role, limits, shape) is not None
            else [Place.BUFFER.value]
        )

    def scope(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> str | None:
        """The texture scope under which a tensor fits into an image; None where none does, or the schedule wants no
        image.

        shape: of the tensor, where it differs from its parameter's.
        """
        return next((scope for scope, reason in self._scopes(role, limits, shape) if reason is None), None)

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Role of a tensor that the schedule could read from an image but that fits into none -> why."""
        reasons = {role: [reason for _, reason in self._scopes(role, limits, None)] for role in self.buffers}
        return {role: str(found[-1]) for role, found in reasons.items() if found and all(found)}

    def _scopes(self, role: str, limits: Limits, shape: Sequence[int] | None) -> Iterator[tuple[str, str | None]]:
        """Texture scopes that hold the lanes of a tensor as texels, each with what is too large for it."""
        shape = [int(d) for d in self.buffers[role].shape] if shape is None else shape
        most = limits.max_image
        if most is None:
            return
        scopes: Sequence[str] = ()
        if role in self.matrices and shape[-1] % LANES == 0:
            scopes = (ROWS_IMAGE,)
        elif role in self.texels and shape[-1] == LANES:
            scopes = (PLAIN_IMAGE, IMAGE) if role == WEIGHT else (IMAGE,)
        for scope in scopes:
            sides = zip(("width", "height", "layers"), image_extents(shape, scope), most, strict=True)
            yield (
                scope,
                next(
                    (
                        f"its {side} would be {extent} texels, the device allows {limit}"
                        for side, extent, limit in sides
                        if extent > limit
                    ),
                    None,
                ),
            )
