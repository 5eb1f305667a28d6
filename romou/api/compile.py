"""romou.compile: a model with default schedules, without a device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.api.assemble import host_rows, layer_rows, model_of
from romou.api.graph import import_model, lower
from romou.api.place import Place, as_target
from romou.module import Summary, TunedModel
from romou.target import Target
from romou.tvm_patches.compat import check_versions

if TYPE_CHECKING:
    import onnx


def compile(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    device: int | None = None,
    strict: bool = False,
) -> TunedModel:
    """Compile a model with default schedules; nothing is measured.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, as in `tune`; no device is needed for a target that names one.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    device
        Index of the attached device that the model is to run on, as `romou devices` lists them: its limits are kept to as well. None:
        compile for the target alone, whether or not such a device is there; if the model is run, it is on the first one.
    strict
        Raise where a node has no kernel, instead of running it on the host, by onnxruntime, between kernels.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing or broken, or a node has no kernel, and onnxruntime cannot run it either or `strict` forbids it.
    DeviceError
        The target names no device and none is attached, or there is no device of that index.
    CompatError
        The TVM packages are not the pair that this version was made for.
    """
    started = time.monotonic()
    check_versions()
    target = as_target(target)
    here = target
    if device is not None:
        here = target.limited_to(target.backend.facts(device))
    graph = lower(import_model(model, shapes), here, is_compiled=True, strict=strict)
    place = Place(named=target, target=here, index=device or 0)
    summary = Summary.unmeasured(target=str(target), rows=layer_rows(graph, {}), seconds=time.monotonic() - started, host=host_rows(graph))
    return model_of(graph, place, {}, summary)
