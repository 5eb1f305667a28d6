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
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend import ImportedModel, Precision
from romou.compiler.graph.extract import count_calls
from romou.devices.targets import Target
from romou.driver.model import tuned_model
from romou.driver.records import recorded_configs, valid_configs
from romou.driver.site import TimingSite, as_target, timing
from romou.driver.summary import layer_rows, unmeasured
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
    with timing(target, rpc) as find_site:
        how: dict[str, Any] = {"shapes": shapes, "constants": constants, "precision": asked, "repeats": repeats}
        how |= {"seed": seed, "label": label, "find_site": find_site if times else None}
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
    find_site: Callable[[], TimingSite] | None,
) -> Bench:
    """See `bench`.

    configs: task key -> config, instead of records; one that the task's space does not hold gives way to the default.
    find_site: see `timing`. None: only what can be read off the kernels.
    """
    check_versions()
    imported = import_model(model, shapes, precision, constants)
    site = TimingSite(named=target, target=target) if find_site is None else find_site()
    compilation = Compilation.of(imported, site.target).with_default_kernels()
    if configs is None:
        seconds, chosen = recorded_configs(work_dir, compilation, site.target, site.device)
        compilation = compilation.joined_where_faster(seconds)
    else:
        compilation = compilation.joined_where(configs.__contains__)
        chosen = valid_configs(compilation.tasks, configs, site.target)
    compilation = compilation.with_configs(chosen)
    made = Bench(
        model=label or _label_of(model, imported),
        target=target.to_json(),
        device=site.device.to_dict() if site.device is not None else None,
        romou=__version__,
        tvm=tvm.__version__,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        operators=operators_of(
            compilation.scheduled_functions(), count_calls(compilation.functions.fused), site.target
        ),
    )
    if find_site is None:
        return made
    summary = unmeasured(compilation, site.named, rows=layer_rows(compilation, {}))
    made = replace(made, compiled=tuned_model(compilation, site, summary))
    return with_times(made, made.compiled, repeats, seed=seed) if repeats and made.compiled is not None else made


def _label_of(model: object, imported: ImportedModel) -> str:
    if isinstance(model, str | Path):
        return str(model)
    return imported.onnx_model.graph.name if imported.onnx_model else "imported"


def check_rounds(repeats: int) -> None:
    if not isinstance(repeats, int) or repeats < 8:
        raise UsageError(
            f"repeats={repeats!r}: must be a whole number, at least 8: fewer can prove no difference", value=repeats
        )
