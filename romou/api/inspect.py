"""romou.inspect and romou.memory_plan: a model's kernels and its memory, taken apart without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.arguments import instance_of, path_of
from romou.base.compat import check_versions
from romou.base.errors import unknown_name
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.dumps import ALL, Dumps, dumping
from romou.compiler.frontend import Precision, with_constants
from romou.compiler.pipeline import STAGE_NAMES
from romou.devices.targets import Target
from romou.driver.records import recorded_configs
from romou.driver.site import as_target
from romou.runtime.module import MemoryPlan
from romou.tools.inspection.kernels import InspectedKernel, inspect_function

if TYPE_CHECKING:
    import numpy as np
    import onnx


def inspect(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
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
    constants
        Value by name, for inputs that become constants of the model, as in `tune`.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    work_dir
        Folder of the records of `tune`: a task with a measured candidate gets the config of the fastest one, whatever
        device it was measured on. None: default schedules.
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
        The records in `work_dir` are unreadable.
    """
    if kernel is not None:
        instance_of("kernel", kernel, str)
    target = as_target(target)
    compilation = _compilation_of(
        with_constants(model, constants),
        target,
        shapes,
        Precision.checked(precision, io_precision, calibration),
        work_dir,
    )
    functions = compilation.scheduled_functions()
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


def memory_plan(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    work_dir: str | Path | None = None,
) -> MemoryPlan:
    """Return what a model takes of the device's memory: weights, and each tensor between its kernels with the calls
    that need it. Nothing runs.

    Bytes of images are those of their texels; how a driver pads their rows is not known.

    Parameters
    ----------
    model, target, shapes, constants, precision, io_precision, calibration, work_dir
        As in `inspect`.

    Raises
    ------
    UsageError, ModelError, DeviceError, CompatError, RecordError
        As in `inspect`.
    """
    target = as_target(target)
    compilation = _compilation_of(
        with_constants(model, constants),
        target,
        shapes,
        Precision.checked(precision, io_precision, calibration),
        work_dir,
    )
    return compilation.memory_plan()


def dump_stages(
    model: onnx.ModelProto | str | Path,
    folder: str | Path,
    stages: str = ALL,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    work_dir: str | Path | None = None,
) -> list[Path]:
    """Compile a model and write the module after each stage of the compiler to a text file. Nothing runs.

    Parameters
    ----------
    folder
        Folder of the files; it is made if it does not exist.
    stages
        Names of stages, separated by commas, or "all".
    model, target, shapes, constants, precision, io_precision, calibration, work_dir
        As in `inspect`.

    Raises
    ------
    UsageError
        A wrong argument, no stage of that name, or files that cannot be written.
    ModelError, DeviceError, CompatError, RecordError
        As in `inspect`.
    """
    target = as_target(target)
    with dumping(Dumps.of(stages, Path(folder), STAGE_NAMES)) as dumps:
        _compilation_of(
            with_constants(model, constants),
            target,
            shapes,
            Precision.checked(precision, io_precision, calibration),
            work_dir,
        ).assembled()
    return sorted(dumps.files)


def _compilation_of(
    model: onnx.ModelProto | str | Path,
    target: Target,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: Precision,
    work_dir: str | Path | None,
) -> Compilation:
    """Return the lowered model with recorded configs, and with pairs joined that were faster as one kernel."""
    check_versions()
    if work_dir is not None:
        path_of("work_dir", work_dir)
    compilation = Compilation.of(import_model(model, shapes, precision), target).with_default_kernels()
    seconds, configs = recorded_configs(work_dir, compilation, target)
    return compilation.joined_where_faster(seconds).with_configs(configs)
