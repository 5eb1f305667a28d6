"""romou.compile: a model with default schedules, without a device."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.arguments import whole_of
from romou.base.errors import DeviceError
from romou.compiler.frontend import Precision
from romou.devices.targets import Target
from romou.driver.assemble import layer_rows, model_of, unmeasured, warn_of_host
from romou.driver.fit import fitting
from romou.driver.graph import import_model, settled
from romou.driver.ladder import Ladder, until_right
from romou.driver.place import Place, as_target
from romou.driver.verify import is_attached, runs_on_stand_in, stand_in, verified
from romou.runtime.module import TunedModel
from tvm_patches.compat import check_versions

logger = logging.getLogger("romou")

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from romou.compiler.frontend import ImportedModel


def compile(
    model: onnx.ModelProto | str | Path | ImportedModel,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    device: int | None = None,
    verify: bool = True,
    strict: bool = False,
    max_memory: int | None = None,
) -> TunedModel:
    """Compile a model with default schedules; nothing is measured. Its outputs are checked against onnxruntime's.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or what `romou.training.gradients` and `romou.operators` make.
    target
        What to compile for, as in `tune`; no device is needed for a target that names one.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    constants
        Value by name, for inputs that become constants of the model: it has no such input, and a condition or a count
        that depends on one is folded.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    device
        Index of the attached device that the model is to run on, as `romou devices` lists them: its limits are kept to
        as well. None: compile for the target alone, whether or not such a device is there; if the model is run, it is
        on the first one.
    verify
        Run the model once, on the first calibration inputs or on random ones, and compare its outputs with
        onnxruntime's; `summary()` has the error and the device. It runs on the attached device where `device` is given,
        or the target names none, or this machine's CPU ("host"). For any other device, the same kernels run on the
        CPU's OpenCL or Vulkan, if there is one and the target's host is this machine. False leaves it out.
    strict
        Raise where a node has no kernel, instead of running it on the host, by onnxruntime, between kernels.
    max_memory
        Bytes of the device's memory that the model may take: weights, and all between its kernels; algorithms with
        workspaces give way. None: no limit.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing or broken, or a node has no kernel, and onnxruntime cannot run it either or `strict`
        forbids it; or it takes more than `max_memory`.
    NumericError
        The outputs are wrong; names the first ONNX operator whose output is.
    DeviceError
        The target names no device and none is attached, there is no device of that index, or the model does not run on
        it.
    CompatError
        The TVM packages are not the pair that this version was made for.
    """
    started = time.monotonic()
    check_versions()
    target = as_target(target)
    max_memory = None if max_memory is None else whole_of("max_memory", max_memory, lowest=1)
    here = target
    if device is not None:
        here = target.limited_to(target.backend.facts(device))
    place = Place(named=target, target=here, index=device or 0)

    def compiled(ladder: Ladder, place: Place = place) -> TunedModel:
        graph = settled(ladder, place.target)
        configs = fitting(graph, {}, place.target, max_memory)
        return model_of(
            graph,
            place,
            configs,
            unmeasured(graph, target, rows=layer_rows(graph, {}), seconds=time.monotonic() - started),
        )

    def check(model: TunedModel, running: TunedModel, place: Place, ladder: Ladder) -> None:
        def part_of(part: onnx.ModelProto) -> TunedModel:
            return compiled(
                ladder.of_part(import_model(part, None, imported.precision.of_parts()), place.target), place
            )

        error, limit = verified(running, imported, place.target, part_of)
        # A backend may run kernels where it lists no device.
        names = [str(facts["name"]) for facts in target.backend.list_devices()] if error is not None else []
        on = "" if error is None else names[place.index] if place.index < len(names) else f"{target.kind}:{place.index}"
        model.with_summary(replace(model.summary(), relative_l2_error=error, tolerance=limit, checked_on=on))
        # As if it had not run: its memory is free, and `capture` may still be chosen.
        running.release()

    imported = import_model(model, shapes, Precision.checked(precision, io_precision, calibration), constants)
    ladder = Ladder(imported, here, strict=strict)
    made = compiled(ladder)
    if verify and is_attached(target, device):
        made = until_right(ladder, made, lambda: compiled(ladder), lambda model: check(model, model, place, ladder))
    elif verify and (index := stand_in(target)) is not None:
        limited = target.limited_to(target.backend.facts(index))
        there = Place(named=target, target=limited, index=index)
        try:
            if runs_on_stand_in(made, target, limited):
                made = until_right(
                    ladder,
                    made,
                    lambda: compiled(ladder),
                    lambda model: check(model, model.moved(index), there, ladder),
                )
            else:
                other = Ladder(imported, limited, strict=strict)
                check(made, compiled(other, there), there, other)
        except DeviceError as error:
            # The CPU's driver may lack what the phone has: that says nothing of the model.
            logger.warning("the outputs are not checked: %s", error.message)
    warn_of_host(made.summary())
    return made
