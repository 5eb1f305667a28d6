"""romou.pruned_spaces: the knob space of every task of a model, with and without pruning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.arguments import instance_of
from romou.base.checked_options import takes_options
from romou.base.space import Space
from romou.driver.lowering import lowered_model
from romou.driver.options import ModelOptions, SpaceOptions
from romou.driver.summary import nodes_of_tasks
from romou.tuner.pruning import PrunedSpace, Rules
from romou.tuner.pruning.tasks import pruned_space

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask


@takes_options(ModelOptions)
def knob_spaces(model: onnx.ModelProto | str | Path, options: ModelOptions) -> list[tuple[TunableTask, Space]]:
    """Return each task of a model with its whole knob space on the target. Errors are as in `pruned_spaces`.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.
    """
    compilation = lowered_model(model, options)
    return [(task, task.space(compilation.target)) for task in compilation.tasks]


@takes_options(SpaceOptions)
def pruned_spaces(model: onnx.ModelProto | str | Path, options: SpaceOptions) -> list[tuple[TunableTask, PrunedSpace]]:
    """Return each task of a model with its knob space after pruning. `PrunedSpace.report` counts the removed configs.

    `TunableTask.nodes` names the ONNX nodes of a task.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

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
    if options.rules is not None:
        instance_of("rules", options.rules, Rules)
    compilation = lowered_model(model, options)
    nodes = nodes_of_tasks(compilation)
    tasks = [replace(task, nodes=nodes.get(task.key, ())) for task in compilation.tasks]
    return [(task, pruned_space(task, compilation.target, options.rules)) for task in tasks]
