"""Which of an operator's tensors may lie in images, and under which texture scope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tvm import tirx

from romou.backends.launch import PLAIN_IMAGE
from romou.core.limits import Limits
from romou.tir.primitives import FREE_IMAGES, LANES, Place, image_extents, is_image

WEIGHT = "weight"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the "data", "weight" and "output" of a fused function may lie.

    buffers: role -> parameter.   texels: the roles whose innermost axis the schedule accesses as whole texels.
    """

    func: tirx.PrimFunc
    buffers: Mapping[str, tirx.Buffer]
    texels: Set[str]

    def choices(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> list[str]:
        """Choices of the knob `role`: an activation lies where the graph put it, unless the function leaves that free; `shape`: as for `scope`."""
        if is_image(self.buffers[role]):
            return [Place.IMAGE.value]
        is_free = role == WEIGHT or (self.func.attrs is not None and FREE_IMAGES in self.func.attrs)
        return [place.value for place in Place] if is_free and self.scope(role, limits, shape) is not None else [Place.BUFFER.value]

    def scope(self, role: str, limits: Limits, shape: Sequence[int] | None = None) -> str | None:
        """The texture scope under which a tensor fits into an image; None where none does, or the schedule wants no image.

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
        if most is None or shape[-1] != LANES or role not in self.texels:
            return
        for scope in (PLAIN_IMAGE, "global.texture") if role == WEIGHT else ("global.texture",):
            sides = zip(("width", "height", "layers"), image_extents(shape, scope), most, strict=True)
            yield scope, next((f"its {side} would be {extent} texels, the device allows {limit}" for side, extent, limit in sides if extent > limit), None)
