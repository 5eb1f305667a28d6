"""A model for several shapes: each is made like a model of one shape, then all are linked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from romou.base.errors import NumericError, UsageError
from romou.compiler.assembly.run_time_rows import check_rows, with_run_time_rows
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend import ImportedModel, Shapes
from romou.compiler.frontend.padding import Padding, padding_of
from romou.driver.link import linked
from romou.driver.model import output_types
from romou.driver.options import AnyModel, CompileOptions, ImportOptions, TuneOptions
from romou.driver.verify import check_outputs
from romou.runtime.module import MultiShapeModel, RunTimeRows, RunTimeRowsModel, TunedModel

if TYPE_CHECKING:
    import numpy as np

_Options = TypeVar("_Options", CompileOptions, TuneOptions)


# Makes a model of one shape. It gets a function that imports the model.
Maker: TypeAlias = "Callable[[Callable[[], ImportedModel], Any], TunedModel]"


def for_each_shape(model: AnyModel, options: _Options, make: Maker) -> TunedModel:
    """Return the model that `make` makes of the imported one, or a model of several shapes if several are given."""
    free = options.run_time_dim
    if free is not None:
        return _with_run_time_rows(model, options, make, *free)
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


def _with_run_time_rows(model: AnyModel, options: _Options, make: Maker, name: str, most: int) -> TunedModel:
    """Return a model for up to `most` rows, made like a model of exactly `most` rows."""

    def at(rows: int) -> _Options:
        dims: Any = {"dims": {**(options.dims or {}), name: rows}}
        return replace(options, **dims)

    if options.pad is not None:
        raise UsageError("pad is given with a size at run time, which needs none", hint="Leave pad out.")
    imports = {rows: at(rows).imported(model) for rows in (most, most - 1)}
    made = make(lambda: imports[most], at(most))
    program = made.program
    assert program is not None
    made.release()
    lowered = Compilation.of(imports[most - 1], program.target).lowered()
    check_rows(program.fused, lowered.functions.fused, most, most - 1)
    executable, host, whole = with_run_time_rows(program, most)
    ends = f" All groups are launched for any size by {', '.join(whole)}." if whole else ""
    summary = replace(made.summary(), run_time=f"{name} is 1 to {most} at run time, in every kernel.{ends}")
    signatures = [{n: shape for n, (shape, _) in each.inputs.items()} for each in imports.values()]
    results = [{n: shape for n, (shape, _) in output_types(each).items()} for each in imports.values()]
    rows = RunTimeRows(name=name, most=most, inputs=_differing(*signatures), outputs=_differing(*results))
    arguments = {**made.arguments(), "executable": executable, "host_code": host, "summary": summary}
    free = RunTimeRowsModel(rows=rows, **arguments)
    if summary.checked_on and made.remote is None:
        _check_fewer_rows(free, imports[most - 1])
    return free


def _differing(one: Mapping[str, tuple[int, ...]], two: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the axis that differs, of each shape that does."""
    return {
        name: next(axis for axis, (a, b) in enumerate(zip(shape, two[name], strict=True)) if a != b)
        for name, shape in one.items()
        if shape != two[name]
    }


def _check_fewer_rows(model: RunTimeRowsModel, imported: ImportedModel) -> None:
    """Raise NumericError unless a run with fewer rows has onnxruntime's outputs."""
    check = check_outputs(model, imported, model.target)
    if check.is_wrong:
        raise NumericError(
            f"with {model.rows.most - 1} rows the outputs differ from onnxruntime's by {check.error:.2e} (relative L2)",
            hint="Give sizes instead of a range: each gets kernels of its own.",
        )


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
