"""A model whose number of rows is an argument of its kernels: one set of kernels for all sizes up to a bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from romou.base.arguments import whole_of
from romou.base.errors import UsageError
from romou.base.inputs import checked_inputs, random_inputs
from romou.runtime.deploy import ShapeEntry, Variant
from romou.runtime.module.binding import BoundModel
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.profile import Profile
from romou.runtime.module.tuned_model import TunedModel
from tvm_patches.short_types import restored, stored


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTimeRows:
    """A dimension with a size at run time.

    name: its name in the model.
    most: the most that it may be.
    least: the first size that no smaller class has. Smaller ones run, too.
    inputs, outputs: name -> (axis, factor, offset, divisor) of each axis that changes: its extent is
        floor((factor * size + offset) / divisor).
    """

    name: str
    most: int
    inputs: Mapping[str, Sequence[Sequence[int]]]
    outputs: Mapping[str, Sequence[Sequence[int]]]
    least: int = 1

    @property
    def text(self) -> str:
        """The sizes as text, "tokens 33 to 128"."""
        return f"{self.name} {self.least} to {self.most}"

    def shape(self, name: str, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        """Return the shape of an input or output at a size. shape: at any size."""
        extents = list(shape)
        for axis, factor, offset, divisor in (*self.inputs.get(name, ()), *self.outputs.get(name, ())):
            extents[axis] = (factor * size + offset) // divisor
        return tuple(extents)


class RunTimeRowsModel(TunedModel):
    """A model with a dimension of any size up to a bound. Memory is planned for the bound, `inputs` has its shapes.

    `romou.tune` and `romou.compile` create it if `dims` has a range: {"tokens": range(1, 513)}. Runs are launched
    kernel by kernel.

    Parameters
    ----------
    rows
        The dimension.
    arguments
        As in `TunedModel`.
    """

    def __init__(self, *, rows: RunTimeRows, **arguments: Any) -> None:
        super().__init__(**{**arguments, "capture": False})
        self.rows = rows

    def changed(self, **changes: Any) -> TunedModel:
        """See `TunedModel.changed`.

        Parameters
        ----------
        changes
            The arguments that change, by name.
        """
        return RunTimeRowsModel(rows=self.rows, **{**self.arguments(), **changes})

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Run once with the number of rows that the inputs have, and return the outputs as a list and by name.

        Parameters
        ----------
        inputs
            As in `TunedModel.run`, with one size of the dimension, from 1 to its bound.

        Raises
        ------
        UsageError
            As in `TunedModel.run`, or the sizes differ or are above the bound, or the model runs behind a connection.
        DeviceError
            The device failed.
        """
        whole, rows = self._stored(inputs)
        outputs = self._machine().run(whole, rows)
        results = [
            restored(_resized(array, self.rows.shape(name, array.shape, rows)), self._short_outputs.get(name, ""))
            for name, array in zip(self.outputs, outputs, strict=True)
        ]
        return Outputs(self.outputs, results)

    def bind(self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None) -> BoundModel:
        """Raise UsageError: arrays of any size cannot be bound once.

        Parameters
        ----------
        inputs, outputs
            As in `TunedModel.bind`.
        """
        raise UsageError(
            f"{self.rows.name} has a size at run time, and bound arrays have one size",
            hint="Compile the model for the shapes that you bind (shapes, --shape).",
        )

    def rows_in(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the size of the dimension in shapes of inputs, or its bound if none of them has it.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.

        Raises
        ------
        UsageError
            The sizes differ, or are not from 1 to the bound.
        """
        axes = [(name, axis) for name, rules in self.rows.inputs.items() for axis, *_ in rules]
        sizes = {(*shapes[name], *([0] * axis), 0)[axis] for name, axis in axes if name in shapes}
        rows, *others = sizes or {self.rows.most}
        if others or not 0 < rows <= self.rows.most:
            found = ", ".join(map(str, sorted(sizes)))
            raise UsageError(f"{self.rows.name} is {found} in the inputs; expected one size from 1 to {self.rows.most}")
        return rows

    def signature_for(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of all inputs, if some have these shapes.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.

        Raises
        ------
        UsageError
            As in `rows_in`.
        """
        rows = self.rows_in(shapes)
        return {name: (self.rows.shape(name, shape, rows), dtype) for name, (shape, dtype) in self.inputs.items()}

    def times(
        self,
        repeat: int = 10,
        seed: int = 0,
        *,
        clock: Literal["device", "wall"] = "device",
        capture: bool = True,
        rows: int | None = None,
    ) -> list[float]:
        """Return the times of `repeat` runs in milliseconds, as `TunedModel.times`.

        Parameters
        ----------
        repeat, seed, clock, capture
            As in `TunedModel.times`.
        rows
            Size of the dimension. None: its bound.

        Raises
        ------
        UsageError
            A wrong argument.
        DeviceError
            The device failed.
        """
        repeat, rows = whole_of("repeat", repeat, lowest=1), self._checked(rows)
        arrays = [stored(array) for array in random_inputs(self.inputs, whole_of("seed", seed)).values()]
        return self._machine().times(arrays, repeat, is_wall=clock == "wall", is_captured=False, rows=rows)

    def profile(self, inputs: Mapping[str, np.ndarray] | None = None, *, repeat: int = 10, seed: int = 0) -> Profile:
        """Return the time of each call of a run with the size that the inputs have, as `TunedModel.profile`.

        Parameters
        ----------
        inputs
            As in `run`. None: random ones of the bound.
        repeat, seed
            As in `TunedModel.profile`.

        Raises
        ------
        UsageError
            As in `run`.
        DeviceError
            The device failed.
        """
        given = random_inputs(self.inputs, whole_of("seed", seed)) | self.settled if inputs is None else inputs
        arrays, rows = self._stored(given)
        return self._profiled(arrays, whole_of("repeat", repeat, lowest=1), rows)

    def _stored(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], int]:
        """Return arrays of the bound that hold the inputs, and the size of the dimension."""
        if self.remote is not None:
            raise UsageError("a model with a size at run time does not run behind a connection")
        shapes = {name: np.shape(array) for name, array in inputs.items()} if isinstance(inputs, Mapping) else {}
        rows, signature = self.rows_in(shapes), self.signature_for(shapes)
        arrays = [stored(array) for array in checked_inputs(inputs, signature)]
        return [_resized(a, shape) for a, (shape, _) in zip(arrays, self.inputs.values(), strict=True)], rows

    def _checked(self, rows: int | None) -> int:
        number = self.rows.most if rows is None else whole_of("rows", rows, lowest=1)
        if number > self.rows.most:
            raise UsageError(f"rows={rows}: {self.rows.name} is at most {self.rows.most}")
        return number

    def _shape_entry(self) -> ShapeEntry:
        def axes(tensors: Iterable[str], rules: Mapping[str, Sequence[Sequence[int]]]) -> list[list[int]]:
            return [[place, *rule] for place, name in enumerate(tensors) for rule in rules.get(name, ())]

        inputs, outputs = axes(self.inputs, self.rows.inputs), axes(self.outputs, self.rows.outputs)
        rows = {"most": self.rows.most, "inputs": inputs, "outputs": outputs}
        return dataclasses.replace(super()._shape_entry(), rows=rows)

    def _variant(self, host: str) -> Variant:
        return dataclasses.replace(super()._variant(host), shapes=(self._shape_entry(),))

    def _meta(self) -> dict[str, Any]:
        return {**super()._meta(), "rows": dataclasses.asdict(self.rows)}


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of another shape with the same first elements in memory, and zeros behind them."""
    if array.shape == shape:
        return array
    elements = np.zeros(shape, array.dtype)
    count = min(array.size, elements.size)
    elements.reshape(-1)[:count] = array.reshape(-1)[:count]
    return elements
