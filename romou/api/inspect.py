"""romou.inspect: a model's kernels taken apart, without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.api.graph import import_model, lower
from romou.api.place import as_target
from romou.api.records import recorded_configs
from romou.core.arguments import instance_of, path_of
from romou.core.errors import unknown_name
from romou.frontend import Precision
from romou.inspection.kernels import InspectedKernel, inspect_function
from romou.module import scheduled_functions
from romou.target import Target
from romou.tvm_patches.compat import check_versions

if TYPE_CHECKING:
    import numpy as np
    import onnx


def inspect(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    work_dir: str | Path | None = None,
    kernel: str | None = None,
    passes: bool = False,
) -> list[InspectedKernel]:
    """Take the kernels of a model apart: source, estimates, IR. Nothing runs.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, as in `tune`; no device is needed for a target that names one.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    work_dir
        Folder of the records of `tune`: a task with a measured candidate gets the config of the fastest one, whatever device it was
        measured on. None: default schedules.
    kernel
        Name of one kernel, of the function that it belongs to, or of a task; all others are left out.
    passes
        Keep the IR before and after each pass.

    Raises
    ------
    UsageError
        A wrong argument, or no kernel of that name; says the nearest one.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        The target names no device and none is attached.
    CompatError
        The TVM packages are not the pair that this version was made for.
    RecordError
        The records in `work_dir` are unreadable, or another process tunes with them.
    """
    check_versions()
    if kernel is not None:
        instance_of("kernel", kernel, str)
    if work_dir is not None:
        path_of("work_dir", work_dir)
    target = as_target(target)
    graph = lower(import_model(model, shapes, Precision.checked(precision, io_precision, calibration)), target)
    seconds, configs = recorded_configs(work_dir, graph, target)
    graph = graph.joined_where_faster(seconds)
    functions = scheduled_functions(graph.fused, graph.task_of, configs, target)
    found: list[InspectedKernel] = []
    known = {one.name for one in functions}
    for one in functions:
        task = one.task.name if one.task is not None else ""
        known |= {task} - {""}
        if kernel is not None and not kernel.startswith(one.name) and kernel != task:
            continue
        kernels = inspect_function(one.func, target, name=one.name, task=task, config=one.config, with_passes=passes)
        known |= {k.name for k in kernels}
        found += [k for k in kernels if kernel is None or kernel in (k.name, one.name, k.task)]
    if kernel is not None and not found:
        raise unknown_name("kernel", kernel, known)
    return found
