"""The check of a model that was compiled without a device: it runs on the attached device, or on a CPU in its place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from romou.base.errors import DeviceError, NumericError
from romou.base.linking import is_here
from romou.compiler.compilation import Compilation, import_model
from romou.devices.hardware.quirks import rules_for
from romou.devices.targets import Target
from romou.driver.check.verify import verified
from romou.driver.site import TimingSite
from romou.runtime.module import TunedModel

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger("romou")

# A model with wrong outputs is compiled with other kernels this often, and not again after so many seconds.
_MOST_ATTEMPTS, _LADDER_S = 8, 180.0


class ModelMaker(Protocol):
    """Returns the model of a lowered compilation, to run on the device of a site."""

    def __call__(self, compilation: Compilation, site: TimingSite) -> TunedModel: ...


def checked(compilation: Compilation, site: TimingSite, device: int | None, make: ModelMaker) -> TunedModel:
    """Return the model of a compilation with its outputs compared with onnxruntime's.

    An operator with wrong outputs gets another kernel.

    The model runs on the attached device `device`, or on the target's device if it is attached. For any other device,
    a CPU runs the kernels if they keep within its limits, else kernels compiled in the same way for these limits.

    Raises
    ------
    NumericError
        The outputs are wrong, and no other kernel helps.
    """
    target, model = site.named, make(compilation, site)
    if is_attached(target, device):
        return _until_right(compilation, model, site, make, lambda candidate: candidate)
    index = stand_in(target, model)
    if index is None:
        return without_check(model, f"no device that runs kernels for {target} is attached to this machine")
    cpu = TimingSite(named=target, target=target.limited_to(target.backend.facts(index)), index=index)
    try:
        if runs_on_stand_in(model, target, cpu.target):
            return _until_right(compilation, model, site, make, lambda candidate: candidate.moved(index), on=cpu)
        is_strict = compilation.fallbacks.is_strict
        within_limits = Compilation.of(compilation.imported, cpu.target, is_strict=is_strict).with_default_kernels()
        _check(within_limits, model, make(within_limits, cpu), cpu, make)
    except DeviceError as error:
        # The CPU's driver may lack a feature of the phone's, so the model may be right.
        logger.warning("the outputs are not checked: %s", error.message)
        return without_check(model, error.message)
    return model


def without_check(model: TunedModel, reason: str) -> TunedModel:
    """Return a model whose summary has the reason why its outputs are not compared with onnxruntime's."""
    return model.with_summary(replace(model.summary(), unchecked=reason))


def is_attached(target: Target, device: int | None) -> bool:
    """Return whether a model for `target` runs on a device of this machine. device: its index, if one was chosen."""
    if not is_here(target.host):
        return False
    if device is not None or target.device_name is None:
        return True
    try:
        # "host" is the only name of one certain device.
        return target.device_name == "host" and target.backend.device_index("host") == 0
    except DeviceError:
        return False


def stand_in(target: Target, model: TunedModel) -> int | None:
    """Return the index of the CPU that runs a model's kernels for a device that is not attached. None if there is none.

    Of several, it is one that runs them as they are. Of these, it is one whose driver compiles several at once.
    """
    if not is_here(target.host):
        return None

    def drawbacks(index: int) -> tuple[bool, bool, int]:
        limited = target.limited_to(devices[index])
        return (
            not runs_on_stand_in(model, target, limited),
            rules_for(devices[index]).compiles_in_order,
            len(str(limited)),
        )

    devices = target.backend.list_devices()
    cpus = [index for index, facts in enumerate(devices) if facts["type"] == "cpu"]
    return min(cpus, key=drawbacks, default=None)


def runs_on_stand_in(model: TunedModel, target: Target, limited: Target) -> bool:
    """Return whether a model that was compiled for `target` runs on a device as it is.

    limited: the target within the device's limits.
    """
    same, texts = target, model.sources().values()
    uses_fp16 = target.limits.has_fp16_arithmetic and any(map(target.backend.needs_fp16, texts))
    if limited.options.get("half") == "storage" and not uses_fp16:
        same = same.with_options(half="storage")
    lost = {*limited.limits.without} - {*target.limits.without}
    if lost == {("functions", "native")} and not any("native_" in text for text in texts):
        same = same.with_options(without=limited.options["without"])
    return str(same) == str(limited)


def _until_right(
    compilation: Compilation,
    model: TunedModel,
    site: TimingSite,
    make: ModelMaker,
    running: Callable[[TunedModel], TunedModel],
    *,
    on: TimingSite | None = None,
) -> TunedModel:
    """Return the first model with right outputs: this one, or one with other kernels for wrong operators.

    running: returns a model on the device that runs it.
    on: the site of this device. None for `site`.

    Raises
    ------
    NumericError
        The first one of the check, if no other kernel helps.
    """
    first: NumericError | None = None
    stop_at = time.monotonic() + _LADDER_S
    for _ in range(_MOST_ATTEMPTS):
        try:
            _check(compilation, model, running(model), on or site, make)
        except NumericError as error:
            first = first or error
            other = compilation.after_wrong_outputs(error) if time.monotonic() < stop_at else None
            if other is None:
                raise first from None
            model.release()
            compilation = other.with_default_kernels()
            model = make(compilation, site)
        else:
            return model
    assert first is not None
    raise first


def _check(
    compilation: Compilation, model: TunedModel, running: TunedModel, site: TimingSite, make: ModelMaker
) -> None:
    """Write the error of `running` into the summary of `model`. NumericError if its outputs are wrong."""
    imported, target = compilation.imported, site.named

    def compile_part(part: onnx.ModelProto) -> TunedModel:
        part_imported = import_model(part, None, imported.precision.of_parts())
        return make(compilation.of_part(part_imported, site.target).with_default_kernels(), site)

    error, limit, unchecked = verified(running, imported, site.target, compile_part)
    # A backend may run kernels although it lists no device.
    names = [str(facts["name"]) for facts in target.backend.list_devices()] if error is not None else []
    unnamed = "" if error is None else f"{target.kind}:{site.index}"
    name = names[site.index] if site.index < len(names) else unnamed
    summary = replace(model.summary(), relative_l2_error=error, tolerance=limit, checked_on=name, unchecked=unchecked)
    model.with_summary(summary)
    # Frees its memory, and `capture` may still be chosen.
    running.release()
