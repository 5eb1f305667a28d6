"""romou.pruned_spaces: the knob space of every task of a model, with and without pruning."""

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
    """Return each task of a model with its whole knob space on the target. Arguments and errors are as in `tune`."""
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
    """Return each task of a model with its knob space after pruning. `PrunedSpace.report` counts the removed configs.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.
    target
        The target, as in `tune`. A target that names a device needs none attached.
    shapes, constants, precision, io_precision, calibration
        The model's import, as in `tune`.
    rules
        Choices that the criteria leave open, e.g. `Rules(count_per_work_item=True)` to count bytes as the paper does.

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
