"""romou.bench: times and measures of a model by operator, kept as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm

from romou.base.errors import UsageError
from romou.base.space import Config
from romou.base.version import __version__
from romou.compiler.frontend import Precision
from romou.compiler.graph.extract import count_calls
from romou.devices.targets import Target
from romou.driver.assemble import layer_rows, model_of, unmeasured
from romou.driver.graph import import_model, lower
from romou.driver.place import Place, as_target, timing
from romou.driver.records import recorded_configs, valid_configs
from romou.runtime.module import scheduled_functions
from romou.tools.regression import Bench, operators_of, with_times
from tvm_patches.compat import check_versions

if TYPE_CHECKING:
    import numpy as np
    import onnx


def bench(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    repeats: int = 16,
    seed: int = 0,
    times: bool = True,
    label: str | None = None,
    rpc: str | None = None,
) -> Bench:
    """Compile a model and take the times and the measures that `compare` needs, by operator. Times are in milliseconds.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, as in `tune`.
    work_dir
        Folder of the records of `tune`: a task with a record of the attached device gets its best config. None: default
        schedules.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    constants
        Value by name, for inputs that become constants of the model, as in `tune`.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    repeats
        Rounds, at least 8. In each, every operator and the whole model are timed once more, in random order, three
        repeats by the device's events.
    seed
        Seed of the inputs and of the order of the measurements.
    times
        False: only what can be read off the kernels; needs no device for a target that names one.
    label
        How the model is named in the bench; by default its path, or the graph's name.
    rpc
        Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        Times are wanted and there is no device, or it does not compute a tiny kernel correctly.
    CompatError
        The TVM packages are not the pair that this version was made for.
    RecordError
        The records in `work_dir` are unreadable.
    """
    check_rounds(repeats)
    target = as_target(target)
    asked = Precision.checked(precision, io_precision, calibration)
    with timing(target, rpc) as place:
        how: dict[str, Any] = {"shapes": shapes, "constants": constants, "precision": asked, "repeats": repeats}
        how |= {"seed": seed, "label": label, "place": place if times else None}
        return bench_of(model, target, work_dir=work_dir, configs=None, **how)


def bench_of(
    model: onnx.ModelProto | str | Path,
    target: Target,
    *,
    work_dir: str | Path | None,
    configs: Mapping[str, Config] | None,
    shapes: Mapping[str, Sequence[int]] | None,
    constants: Mapping[str, object] | None,
    precision: Precision,
    repeats: int,
    seed: int,
    label: str | None,
    place: Callable[[], Place] | None,
) -> Bench:
    """See `bench`.

    configs: task key -> config, instead of records; one that the task's space does not hold gives way to the default.
    place: see `timing`; None: only what can be read off the kernels.
    """
    check_versions()
    imported = import_model(model, shapes, precision, constants)
    at = Place(named=target, target=target) if place is None else place()
    graph = lower(imported, at.target)
    if configs is None:
        seconds, chosen = recorded_configs(work_dir, graph, at.target, at.device)
        graph = graph.joined_where_faster(seconds)
    else:
        graph = graph.joined_where(configs.__contains__)
        chosen = valid_configs(graph.tasks, configs, at.target)
    made = Bench(
        model=label
        or (
            str(model)
            if isinstance(model, str | Path)
            else imported.onnx_model.graph.name
            if imported.onnx_model
            else "imported"
        ),
        target=target.to_json(),
        device=at.device.to_dict() if at.device is not None else None,
        romou=__version__,
        tvm=tvm.__version__,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        operators=operators_of(
            scheduled_functions(graph.fused, graph.task_of, chosen, at.target), count_calls(graph.fused), at.target
        ),
    )
    if place is None:
        return made
    compiled = model_of(graph, at, chosen, unmeasured(graph, at.named, rows=layer_rows(graph, {})))
    made = replace(made, compiled=compiled)
    return with_times(made, compiled, repeats, seed=seed) if repeats else made


def check_rounds(repeats: int) -> None:
    if not isinstance(repeats, int) or repeats < 8:
        raise UsageError(
            f"repeats={repeats!r}: must be a whole number, at least 8: fewer can prove no difference", value=repeats
        )
