"""A model whose kernels take sizes of dimensions as arguments: one set of kernels for all sizes up to bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from romou.base.arguments import whole_of
from romou.base.errors import UsageError, unknown_name
from romou.base.inputs import checked_inputs
from romou.runtime.deploy import ShapeEntry, Variant
from romou.runtime.module.binding import BoundModel
from romou.runtime.module.built import BuiltModel
from romou.runtime.module.summary import Summary
from romou.runtime.module.tuned_model import TunedModel
from tvm_patches.short_types import stored

# Axis of a tensor, place of a dimension, factor, offset and divisor
FreeAxis: TypeAlias = "tuple[int, int, int, int, int]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTimeSizes:
    """Dimensions with sizes at run time.

    dims: name in the model -> the least size and the most.
    inputs, outputs: name -> rules of its axes that change. An axis' extent is the product of the numbers
        floor((factor * size + offset) / divisor) of its rules.
    """

    dims: Mapping[str, Sequence[int]]
    inputs: Mapping[str, Sequence[Sequence[int]]]
    outputs: Mapping[str, Sequence[Sequence[int]]]

    @property
    def text(self) -> str:
        """The sizes as text, "batch 1 to 4, tokens 33 to 128"."""
        return ", ".join(f"{name} {least} to {most}" for name, (least, most) in self.dims.items())

    def shape(self, name: str, shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an input or output at sizes. shape: at any sizes."""
        rules = (*self.inputs.get(name, ()), *self.outputs.get(name, ()))
        changing = {axis for axis, *_ in rules}
        extents = [1 if axis in changing else extent for axis, extent in enumerate(shape)]
        for axis, place, factor, offset, divisor in rules:
            extents[axis] *= (factor * sizes[place] + offset) // divisor
        return tuple(extents)


class RunTimeSizesModel(TunedModel):
    """A model with dimensions of any size up to a bound. Memory is planned for the bounds, `inputs` has their shapes.

    `romou.tune` and `romou.compile` create it if `dims` has a range: {"tokens": range(1, 513)}. Runs are launched
    kernel by kernel.

    Parameters
    ----------
    sizes
        The dimensions.
    built, summary, run
        As in `TunedModel`. `run` are its keywords.
    """

    def __init__(self, built: BuiltModel, summary: Summary, *, sizes: RunTimeSizes, **run: Any) -> None:
        super().__init__(built, summary, **{**run, "capture": False})
        self.sizes = sizes

    def changed(self, **changes: Any) -> TunedModel:
        """See `TunedModel.changed`.

        Parameters
        ----------
        changes
            The arguments that change, by name.
        """
        return RunTimeSizesModel(sizes=self.sizes, **{**self.arguments(), **changes})

    def bind(self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None) -> BoundModel:
        """Raise UsageError: arrays of any size cannot be bound once.

        Parameters
        ----------
        inputs, outputs
            As in `TunedModel.bind`.
        """
        raise UsageError(
            f"{' and '.join(self.sizes.dims)} {'have sizes' if len(self.sizes.dims) > 1 else 'has a size'} at run time,"
            " and bound arrays have one size",
            hint="Compile the model for the shapes that you bind (shapes, --shape).",
        )

    def sizes_in(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each dimension in shapes of inputs, or its bound if none of them has it.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.

        Raises
        ------
        UsageError
            Sizes of one dimension differ, or are not from its least to its bound.
        """
        found: dict[str, set[int]] = {name: set() for name in self.sizes.dims}
        names = list(self.sizes.dims)
        for name in self.inputs.keys() & shapes.keys():
            for axis, place, _, offset, _ in self.sizes.inputs.get(name, ()):
                found[names[place]].add((*shapes[name], *([0] * axis), 0)[axis] - offset)
        for name, (least, most) in self.sizes.dims.items():
            size, *others = sorted(found[name] or {most})
            if others or not least <= size <= most:
                text = ", ".join(map(str, (size, *others)))
                raise UsageError(f"{name} is {text} in the inputs; expected one size from {least} to {most}")
            found[name] = {size}
        return {name: size for name, (size,) in found.items()}

    def signature_for(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of all inputs, if some have these shapes.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.

        Raises
        ------
        UsageError
            As in `sizes_in`.
        """
        sizes = tuple(self.sizes_in(shapes).values())
        return {name: (self.sizes.shape(name, shape, sizes), dtype) for name, (shape, dtype) in self.inputs.items()}

    def times(
        self,
        repeat: int = 10,
        seed: int = 0,
        *,
        clock: Literal["device", "wall"] = "device",
        capture: bool = True,
        sizes: Mapping[str, int] | None = None,
    ) -> list[float]:
        """Return the times of `repeat` runs in milliseconds, as `TunedModel.times`.

        Parameters
        ----------
        repeat, seed, clock, capture
            As in `TunedModel.times`.
        sizes
            Size of each dimension, by name. None: the bounds.

        Raises
        ------
        UsageError
            A wrong argument.
        DeviceError
            The device failed.
        """
        del capture
        most = {name: most for name, (_, most) in self.sizes.dims.items()}
        return self._times(repeat, seed, clock, False, self._checked({**most, **(sizes or {})}))

    def _stored(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Return arrays of the bounds that hold the inputs, and the sizes of the dimensions."""
        shapes = {name: np.shape(array) for name, array in inputs.items()} if isinstance(inputs, Mapping) else {}
        sizes, signature = tuple(self.sizes_in(shapes).values()), self.signature_for(shapes)
        arrays = [stored(array) for array in checked_inputs(inputs, signature)]
        return [_resized(a, shape) for a, (shape, _) in zip(arrays, self.inputs.values(), strict=True)], sizes

    def _cut(self, name: str, array: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        return _resized(array, self.sizes.shape(name, array.shape, sizes))

    def _checked(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return sizes in the order of the dimensions. UsageError if one is wrong."""
        for name in sizes:
            if name not in self.sizes.dims:
                raise unknown_name("dimension with a size at run time", name, list(self.sizes.dims))
        for name, (_, most) in self.sizes.dims.items():
            if whole_of(f"sizes[{name!r}]", sizes[name], lowest=1) > most:
                raise UsageError(f"sizes={dict(sizes)}: {name} is at most {most}")
        return tuple(int(sizes[name]) for name in self.sizes.dims)

    def _shape_entry(self) -> ShapeEntry:
        def axes(tensors: Iterable[str], rules: Mapping[str, Sequence[Sequence[int]]]) -> list[list[int]]:
            return [[place, *rule] for place, name in enumerate(tensors) for rule in rules.get(name, ())]

        inputs, outputs = axes(self.inputs, self.sizes.inputs), axes(self.outputs, self.sizes.outputs)
        sizes = {"bounds": [list(each) for each in self.sizes.dims.values()], "inputs": inputs, "outputs": outputs}
        return dataclasses.replace(super()._shape_entry(), sizes=sizes)

    def _variant(self, host: str) -> Variant:
        return dataclasses.replace(super()._variant(host), shapes=(self._shape_entry(),))

    def _meta(self) -> dict[str, Any]:
        return {**super()._meta(), "sizes": dataclasses.asdict(self.sizes)}


# Its name before 0.3.0
RunTimeRowsModel = RunTimeSizesModel


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of another shape with the same first elements in memory, and zeros behind them."""
    if array.shape == shape:
        return array
    elements = np.zeros(shape, array.dtype)
    count = min(array.size, elements.size)
    elements.reshape(-1)[:count] = array.reshape(-1)[:count]
    return elements
