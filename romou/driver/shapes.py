"""A model for several shapes or classes of sizes: each is made like a model of one shape, then all are linked."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from romou.base.errors import UsageError
from romou.compiler.compilation import import_model
from romou.compiler.frontend import ImportedModel, Shapes
from romou.compiler.frontend.padding import Padding, padding_of
from romou.driver.link import linked
from romou.driver.options import AnyModel, CompileOptions, ImportOptions, TuneOptions
from romou.driver.run_time_sizes import with_run_time_sizes
from romou.runtime.module import MultiShapeModel, RunTimeRowsModel, TunedModel

if TYPE_CHECKING:
    import numpy as np

_Options = TypeVar("_Options", CompileOptions, TuneOptions)


# Makes a model of one shape. It gets a function that imports the model.
Maker: TypeAlias = "Callable[[Callable[[], ImportedModel], Any], TunedModel]"


def for_each_shape(model: AnyModel, options: _Options, make: Maker) -> TunedModel:
    """Return the model that `make` makes of the imported one, or a model of several shapes if several are given."""
    if options.run_time_dims:
        return _for_each_class(model, options, make, options.run_time_dims)
    model, sets = options.shape_sets(model)
    if len(sets) == 1 and options.pad is not None:
        raise UsageError(
            "pad is given with one shape; it pads inputs between several", hint="Give several shapes, or leave pad out."
        )
    models, imports = made_of([(model, shapes) for shapes in sets], options, make)
    if len(models) == 1:
        models[0].program = None
        return models[0]
    padding = _padding(imports, options.pad) if options.pad is not None else None
    program = linked(models, capture=False)
    return MultiShapeModel(program.models, memory=program.memory, padding=padding)


def _for_each_class(
    model: AnyModel, options: _Options, make: Maker, classes: Mapping[str, Sequence[range]]
) -> TunedModel:
    """Return a model with sizes at run time, or of several such: for each class of sizes, and each other dimension."""
    if options.pad is not None:
        raise UsageError("pad is given with a size at run time, which needs none", hint="Leave pad out.")
    models: list[RunTimeRowsModel] = []
    others = {name: sizes for name, sizes in options.listed_dims.items() if name not in classes}
    for fixed, ranges in itertools.product(itertools.product(*others.values()), itertools.product(*classes.values())):
        suffix = f"_{len(models) + 1}" if models else ""
        changed: Any = {"dims": dict(zip(others, fixed, strict=True))}
        free = dict(zip(classes, ranges, strict=True))
        models.append(with_run_time_sizes(model, replace(options, **changed), make, free, suffix=suffix))
        models[-1].release()
        options = _with_records_of(models[-1], options)
    if len(models) == 1:
        models[0].program = None
        return models[0]
    program = linked(models, capture=False)
    return MultiShapeModel(program.models, memory=program.memory)


def made_of(
    variants: Sequence[tuple[AnyModel, Shapes]], options: _Options, make: Maker
) -> tuple[list[TunedModel], list[ImportedModel]]:
    """Make models that can be linked, each of a model and shapes. Also return the imported models."""
    models: list[TunedModel] = []
    imports: list[ImportedModel] = []
    has_others = len(variants) > 1
    for model, shapes in variants:
        models.append(make(functools.partial(_imported, model, shapes, options, has_others, imports), options))
        if has_others:
            # The next shape needs the device, and its search the records.
            models[-1].release()
            options = _with_records_of(models[-1], options)
    return models, imports


def _imported(
    model: AnyModel, shapes: Shapes, options: ImportOptions, has_others: bool, imports: list[ImportedModel]
) -> ImportedModel:
    """Import a model for one shape, and append it to `imports`."""
    precision = options.parsed_precision()
    if has_others:
        precision = replace(precision, calibration=_fitting(precision.calibration, shapes))
    imported = import_model(model, shapes, precision)
    # Different names, so that the kernels of all shapes are lowered and compiled by drivers once.
    imports.append(replace(imported, suffix=f"_{len(imports) + 1}" if imports else ""))
    return imports[-1]


def _fitting(calibration: Sequence[Mapping[str, np.ndarray]], shapes: Shapes) -> tuple[Mapping[str, np.ndarray], ...]:
    """Return the calibration inputs of a shape."""
    return tuple(
        inputs
        for inputs in calibration
        if all(tuple(inputs[name].shape) == tuple(sizes) for name, sizes in shapes.items() if name in inputs)
    )


def _with_records_of(model: TunedModel, options: _Options) -> _Options:
    """Return options that keep the records of further shapes in the folder of the first one's."""
    folder = model.summary().records
    if folder is None or getattr(options, "work_dir", False) is not None:
        return options
    with_folder: Any = {"work_dir": folder}
    return replace(options, **with_folder)


def _padding(imports: Sequence[ImportedModel], pad: Mapping[str, float]) -> Padding:
    fixed = [imported.onnx_model for imported in imports]
    first = fixed[0]
    assert first is not None
    sets = [{name: shape for name, (shape, _) in imported.inputs.items()} for imported in imports]
    return padding_of([model for model in fixed if model is not None], sets, imports[0].outputs, pad)
