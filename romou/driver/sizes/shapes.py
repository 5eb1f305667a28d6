"""A model for several shapes or classes of sizes: each is made like a model of one shape, then all are linked."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from romou.base.errors import UsageError
from romou.base.model_bytes import MemoryUse
from romou.compiler.assembly.link import link_models
from romou.compiler.compilation import import_model
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.padding import Padding, padding_of
from romou.compiler.frontend.shape_sets import Shapes
from romou.compiler.operators.kernels.quantized.row_classes import last_sizes
from romou.devices.targets import Target
from romou.driver.options import AnyModel, CompileOptions, ImportOptions, TuneOptions
from romou.driver.sizes.run_time_sizes import with_run_time_sizes
from romou.runtime.module import MultiShapeModel, TunedModel

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger("romou")
_Options = TypeVar("_Options", CompileOptions, TuneOptions)


# Makes a model of one shape. It gets a function that imports the model.
Maker: TypeAlias = "Callable[[Callable[[], ImportedModel], Any], TunedModel]"


def for_each_shape(model: AnyModel, options: _Options, make: Maker) -> TunedModel:
    """Return the model that `make` makes of the imported one, or a model of several shapes if several are given."""
    padding = None
    if options.run_time_dims:
        if options.pad is not None:
            raise UsageError("pad is given with a size at run time, which needs none", hint="Leave pad out.")
        models = _of_classes(model, options, make, options.run_time_dims)
    else:
        model, sets = options.shape_sets(model)
        if len(sets) == 1 and options.pad is not None:
            raise UsageError(
                "pad is given with one shape; it pads inputs between several",
                hint="Give several shapes, or leave pad out.",
            )
        models, imports = made_of([(model, shapes) for shapes in sets], options, make)
        padding = _padding(imports, options.pad) if options.pad is not None else None
    if len(models) == 1:
        return models[0].forget_program()
    several, memory = linked(models, capture=False)
    return MultiShapeModel(several, memory=memory, padding=padding)


def _of_classes(
    model: AnyModel, options: _Options, make: Maker, classes: Mapping[str, Sequence[range]]
) -> list[TunedModel]:
    """Return models with sizes at run time: one for each class of sizes, and each size of other dimensions."""
    models: list[TunedModel] = []
    others = {name: sizes for name, sizes in options.listed_dims.items() if name not in classes}
    for fixed in itertools.product(*others.values()):
        changed: Any = {"dims": dict(zip(others, fixed, strict=True))}
        at_fixed = replace(options, **changed)
        divided, largest = _divided(model, at_fixed, classes, options.dims or {})
        for ranges in itertools.product(*divided.values()):
            suffix = f"_{len(models) + 1}" if models else ""
            is_last = all(sizes is several[-1] for sizes, several in zip(ranges, divided.values(), strict=True))
            sizes = dict(zip(divided, ranges, strict=True))
            models.append(_of_class(model, at_fixed, make, sizes, suffix, largest if is_last else None))
            models[-1].release()
            at_fixed, options = (_with_records_of(models[-1], each) for each in (at_fixed, options))
    return models


def _divided(
    model: AnyModel, options: ImportOptions, classes: Mapping[str, Sequence[range]], given: Mapping[str, object]
) -> tuple[Mapping[str, Sequence[range]], ImportedModel | None]:
    """Return the classes of each dimension, and the model at the largest size if it was imported to find them.

    The only dimension with sizes at run time, if it is given as one range, is divided where products with packed
    weights change their kernel.

    options: have the sizes of all other dimensions.
    """
    (name, ranges), *others = classes.items()
    if others or not isinstance(given[name], range):
        return classes, None
    sizes, fixed = ranges[0], options.dims or {}
    largest: Any = {"dims": {**fixed, name: sizes[-1]}}
    imported = replace(options, **largest).imported(model)
    ends = [last + 1 for last in last_sizes(imported.mod, sizes[-1]) if last >= sizes[0]]
    divided = [range(*each) for each in itertools.pairwise([sizes[0], *ends, sizes.stop])]
    if ends:
        text = ", ".join(f"{each[0]}..{each[-1]}" if len(each) > 1 else str(each[0]) for each in divided)
        logger.info("%s has the classes %s, because products with packed weights have a kernel for each", name, text)
    return {name: divided}, imported


def _with_activations_in_buffers(options: _Options) -> _Options:
    """Return options with activations in buffers: an image has a fixed width and height."""
    if not options.parsed_target().places_activations:
        return options
    target = options.target if isinstance(options.target, Target) else Target(options.target)
    changed: Any = {"target": target.with_options(images="weights")}
    return replace(options, **changed)


def _of_class(
    model: AnyModel,
    options: _Options,
    make: Maker,
    classes: Mapping[str, range],
    suffix: str,
    largest: ImportedModel | None,
) -> TunedModel:
    """Return the model of a class of each dimension. A class of one size is a shape.

    suffix: of the kernels' names.
    largest: the model at the last sizes, if it is imported already.
    """
    changed: Any = {
        "dims": {**(options.dims or {}), **{name: sizes[0] for name, sizes in classes.items() if len(sizes) == 1}}
    }
    options = replace(options, **changed)
    free = {name: sizes for name, sizes in classes.items() if len(sizes) > 1}
    if free:
        options = _with_activations_in_buffers(options)
        return with_run_time_sizes(model, options, make, free, suffix=suffix, largest=largest)
    return make(lambda: replace(largest or options.imported(model), suffix=suffix), options)


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


def linked(models: Sequence[TunedModel], *, capture: bool | None = None) -> tuple[list[TunedModel], MemoryUse]:
    """Return models of one library, which the first one loads, and the memory of them all together.

    models: made for one device. They are released.
    capture: see `TunedModel`. Captured runs keep their memory, others share it.
    """
    programs = []
    for model in models:
        assert model.built.program is not None, "what the model was built from is kept until it is linked"
        programs.append(model.built.program)
        model.release()
    program = link_models(programs)
    made: list[TunedModel] = []
    for model, names in zip(models, program.names, strict=True):
        summary = model.summary()
        calls = tuple(replace(call, function=names.get(call.function, call.function)) for call in summary.calls)
        made.append(
            model.changed(
                built=replace(
                    model.built,
                    executable=program.executable,
                    host_code=program.host,
                    entry=names["main"],
                    program=None,
                ),
                summary=replace(summary, calls=calls),
                beside=made[0] if made else None,
                remote=models[0].remote,
                capture=capture,
            )
        )
    return made, program.memory
