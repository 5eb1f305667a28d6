"""The knob space of every task of a model: as it is declared, and less what the criteria exclude (romou.pruned_spaces)."""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.arguments import instance_of
from romou.base.compat import check_versions
from romou.base.space import Space
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend import Precision, with_constants
from romou.devices.targets import Target
from romou.driver.site import as_target
from romou.tuner.pruning import PrunedSpace, Rules
from romou.tuner.pruning.tasks import pruned_space

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from romou.compiler.task import TunableTask


def knob_spaces(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
) -> list[tuple[TunableTask, Space]]:
    """Return the knob space of every task of a model on the target's device, with all its configs. Arguments and errors
    are those of `tune`.
    """
    target, tasks = _tasks(with_constants(model, constants), target, shapes, Precision.checked(precision, None, None))
    return [(task, task.space(target)) for task in tasks]


def pruned_spaces(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    rules: Rules | None = None,
) -> list[tuple[TunableTask, PrunedSpace]]:
    """Return each task of a model with its knob space, less what the criteria exclude; `PrunedSpace.report` counts what
    went.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, as in `tune`; no device is needed for a target that names one.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    constants
        Value by name, for inputs that become constants of the model, as in `tune`.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    rules
        What the criteria leave to choose, e.g. `Rules(count_per_work_item=True)` for the paper's way to count bytes.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        The target names no device and none is attached.
    CompatError
        The TVM packages are not the pair that this version was made for.
    """
    if rules is not None:
        instance_of("rules", rules, Rules)
    target, tasks = _tasks(
        with_constants(model, constants), target, shapes, Precision.checked(precision, io_precision, calibration)
    )
    return [(task, pruned_space(task, target, rules)) for task in tasks]


def _tasks(
    model: onnx.ModelProto | str | Path,
    target: Target | str | Mapping[str, object],
    shapes: Mapping[str, Sequence[int]] | None,
    precision: Precision,
) -> tuple[Target, list[TunableTask]]:
    check_versions()
    target = as_target(target)
    return target, Compilation.of(import_model(model, shapes, precision), target).with_default_kernels().tasks
