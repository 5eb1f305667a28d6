"""A model that is compiled for several shapes or classes of sizes: one library, and the weights on the device once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from romou.base.errors import UsageError
from romou.base.inputs import checked_inputs, converted
from romou.base.model_bytes import MemoryUse
from romou.compiler.frontend.padding import Padding
from romou.runtime.deploy import Variant
from romou.runtime.module.binding import BoundModel
from romou.runtime.module.machine import Machine
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.profile import Profile
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.module.run_time_sizes import RunTimeSizesModel
from romou.runtime.module.summary import ShapeRow, shapes_text
from romou.runtime.module.timed import Timed
from romou.runtime.module.tuned_model import TunedModel

_WITHOUT_PADDING = "Compile it for this shape, too (shapes, --shape), or with a value for padding (pad, --pad)."
_WITH_PADDING = "Compile it for a larger shape, too (shapes, --shape). Axes that change together need one size."
_WITH_CLASSES = "Compile it with a larger bound (dims, --dim)."
_Shapes = Mapping[str, tuple[int, ...]]


class MultiShapeModel(TunedModel):
    """A model compiled for several shapes, with its weights on the device once.

    `romou.tune`, `romou.compile` and `romou.load` create instances. `run` takes inputs of each shape. Everything else,
    such as `inputs`, `time` and the layers of `summary()`, is of the largest shape. `models` has the others. Classes of
    a size at run time (`dims={"tokens": [range(1, 33), range(33, 129)]}`) are such shapes, each with its bound.

    Runs are launched kernel by kernel, so that all shapes use the same memory between kernels. `capture` of a model in
    `models` changes that; a captured run keeps its memory.

    Parameters
    ----------
    models
        The model of each shape, all of one library. The first one loads it.
    memory
        Memory on the device of all together.
    padding
        How inputs of other shapes are run. None: they are refused.
    """

    def __init__(self, models: Sequence[TunedModel], *, memory: MemoryUse, padding: Padding | None = None) -> None:
        self.models = tuple(models)
        self._padding = padding
        self._largest = max(models, key=_elements)
        own = self._largest.summary()
        rows = tuple(_row_of(model) for model in models)
        text = "" if padding is None else padding.text
        sizes = " ".join(dict.fromkeys(filter(None, (model.summary().run_time for model in models))))
        unchecked = next(filter(None, (model.summary().unchecked for model in models)), "")
        summary = dataclasses.replace(
            own, shapes=rows, padding=text, memory=memory, run_time=sizes, unchecked=unchecked
        )
        super().__init__(**{**self._largest.arguments(), "summary": summary, "beside": self.models[0]})

    def __repr__(self) -> str:
        shapes = "; ".join(row.text for row in self._summary.shapes)
        outputs, headline = ", ".join(self.outputs), self._summary.headline
        return f"MultiShapeModel({self.target}; {shapes} -> {outputs}; {headline})"

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Shape of each input by name, for each shape of the set."""
        return tuple(map(_shapes_of, self.models))

    def _machine(self) -> Machine:
        return self._largest._machine()

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Run the model of the inputs' shape once, and return the outputs as a list and by name.

        Inputs between the shapes are padded to the next larger one, and outputs are cut, if the model was made with
        `pad`. Nothing is compiled.

        Parameters
        ----------
        inputs
            An array or a list for every input.

        Raises
        ------
        UsageError
            As in `TunedModel.run`, or no shape takes the inputs. The message lists the shapes.
        DeviceError
            The device failed, or cannot be reached.
        """
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.inputs):
            checked_inputs(inputs, self.inputs)
        arrays = {name: converted(f"input {name!r}", inputs[name], dtype) for name, (_, dtype) in self.inputs.items()}
        given = {name: array.shape for name, array in arrays.items()}
        model = self.model_for(given)
        if _takes(model, given):
            return model.run(arrays)
        assert self._padding is not None
        padded = {
            name: _padded(array, model.inputs[name][0], self._padding.values.get(name, 0))
            for name, array in arrays.items()
        }
        outputs = model.run(padded)
        for cut in self._padding.cuts:
            extent = cut.extent(given[cut.input][cut.input_axis])
            outputs[cut.output] = outputs[cut.output].take(range(extent), axis=cut.axis)
        return outputs

    def bind(self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None) -> BoundModel:
        """Return the model of one shape with its inputs and outputs in fixed arrays, see `TunedModel.bind`.

        Parameters
        ----------
        inputs, outputs
            As in `TunedModel.bind`. Inputs choose the shape. Nothing is padded.

        Raises
        ------
        UsageError
            As in `TunedModel.bind`, or there is no such shape.
        DeviceError
            The device failed.
        """
        shapes = {name: tuple(array.shape) for name, array in (inputs or {}).items() if hasattr(array, "shape")}
        fitting = (model for model in self.models if shapes.items() <= _shapes_of(model).items())
        model = max(fitting, key=_elements, default=None) or self.model_for(shapes)
        return model.bind(inputs, outputs)

    def model_for(self, shapes: Mapping[str, Sequence[int]]) -> TunedModel:
        """Return the model that runs inputs of these shapes: theirs, the smallest class, or with padding the next one.

        Parameters
        ----------
        shapes
            Shape of every input by name.

        Raises
        ------
        UsageError
            There is none. The message lists the shapes.
        """
        given = {name: tuple(shapes[name]) for name in self.inputs if name in shapes}
        exact = [model for model in self.models if given.keys() == model.inputs.keys() and _takes(model, given)]
        model = min(exact, key=_elements, default=None) or self._next_larger(given)
        if model is None:
            without = _WITH_CLASSES if self._summary.run_time else _WITHOUT_PADDING
            raise UsageError(
                f"no shape of the model takes {shapes_text(given)}; it was compiled for"
                f" {'; '.join(row.text for row in self._summary.shapes)}",
                hint=without if self._padding is None else _WITH_PADDING,
            )
        return model

    def times(
        self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device", capture: bool = True
    ) -> list[float]:
        """Return the times of `repeat` runs of the largest shape in milliseconds, as `TunedModel.times`.

        Parameters
        ----------
        repeat, seed, clock, capture
            As in `TunedModel.times`.

        Raises
        ------
        UsageError
            A wrong argument.
        DeviceError
            The device failed.
        """
        return self._largest.times(repeat, seed, clock=clock, capture=capture)

    def profile(self, inputs: Mapping[str, np.ndarray] | None = None, *, repeat: int = 10, seed: int = 0) -> Profile:
        """Return the time of each call of a run with the shape that the inputs have, as `TunedModel.profile`.

        Parameters
        ----------
        inputs
            As in `run`. None: random ones of the largest shape.
        repeat, seed
            As in `TunedModel.profile`.

        Raises
        ------
        UsageError
            As in `run`.
        DeviceError
            The device failed.
        """
        if inputs is None:
            return self._largest.profile(repeat=repeat, seed=seed)
        model = self.model_for({name: np.shape(array) for name, array in inputs.items()})
        return model.profile(inputs, repeat=repeat)

    def signature_for(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of all inputs, if some have these shapes: of the largest model that fits, if any.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.
        """
        given = {name: tuple(sizes) for name, sizes in shapes.items()}
        for model in sorted(self.models, key=_elements, reverse=True):
            if _takes(model, given):
                return model.signature_for(given)
        groups = () if self._padding is None else self._padding.groups
        shape_of = {name: list(shape) for name, (shape, _) in self.inputs.items()}
        for group in groups:
            sizes = [given[name][axis] for name, axis in group if name in given and axis < len(given[name])]
            for name, axis in group if sizes else ():
                shape_of[name][axis] = sizes[0]
        return {name: (given.get(name, tuple(shape_of[name])), dtype) for name, (_, dtype) in self.inputs.items()}

    def _next_larger(self, given: _Shapes) -> TunedModel | None:
        """Return the model of the smallest shape that holds the inputs, or None."""
        if self._padding is None or given.keys() != self.inputs.keys():
            return None
        values = self._padding.values

        def holds(shapes: _Shapes) -> bool:
            return all(
                len(given[name]) == len(shape)
                and all(0 < g <= s if name in values else g == s for g, s in zip(given[name], shape, strict=True))
                for name, shape in shapes.items()
            )

        # Before the sizes of groups, because another number of axes has none.
        fitting = [model for model in self.models if holds(_shapes_of(model))]
        if any(len({given[name][axis] for name, axis in group}) > 1 for group in self._padding.groups if fitting):
            return None
        return min(fitting, key=_elements, default=None)

    def moved(self, device_index: int = 0, remote: RemoteDevice | None = None) -> MultiShapeModel:
        """Return the model for device number `device_index` of this machine, or for `remote`."""
        made: list[TunedModel] = []
        for model in self.models:
            where = {"device_index": device_index, "remote": remote, "beside": made[0] if made else None}
            made.append(model.changed(**where))
        memory = self._summary.memory
        assert memory is not None
        return self._of(made, memory)

    def _of(self, models: Sequence[TunedModel], memory: MemoryUse) -> MultiShapeModel:
        """Return the model of several, linked to each other in another way."""
        return MultiShapeModel(models, memory=memory, padding=self._padding)

    def _check_exportable(self) -> None:
        for model in self.models:
            model._refuse_host_nodes("the model cannot be exported")

    def _variant(self, host: str) -> Variant:
        entries = tuple(model._shape_entry() for model in self.models)
        return dataclasses.replace(super()._variant(host), shapes=entries, padding=self._padding)

    def _meta(self) -> dict[str, Any]:
        return {
            "target": self.target.to_json(),
            "summary": self._summary.to_dict(),
            "shapes": [model._meta() for model in self.models],
            "padding": None if self._padding is None else self._padding.to_dict(),
        }


def _shapes_of(model: TunedModel) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in model.inputs.items()}


def _takes(model: TunedModel, shapes: _Shapes) -> bool:
    """Return whether a model runs inputs with these shapes. Inputs without an entry may have any shape."""
    try:
        signature = model.signature_for(shapes)
    except UsageError:
        return False
    return all(name in signature and signature[name][0] == shape for name, shape in shapes.items())


def _elements(model: TunedModel) -> int:
    return sum(math.prod(shape) for shape, _ in model.inputs.values())


def _row_of(model: TunedModel) -> ShapeRow:
    summary = model.summary()
    times = {field.name: getattr(summary, field.name) for field in dataclasses.fields(Timed)}
    return ShapeRow(
        shapes=_shapes_of(model),
        **times,
        relative_l2_error=summary.relative_l2_error,
        memory=summary.memory,
        sizes=model.sizes.text if isinstance(model, RunTimeSizesModel) else "",
    )


def _padded(array: np.ndarray, shape: Sequence[int], value: float) -> np.ndarray:
    widths = [(0, wanted - size) for size, wanted in zip(array.shape, shape, strict=True)]
    return np.pad(array, widths, constant_values=value) if any(more for _, more in widths) else array
