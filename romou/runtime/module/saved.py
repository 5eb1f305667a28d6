"""Load a saved model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from romou.base.arguments import path_of, whole_of
from romou.base.errors import DeviceError, ModelError, RomouError, UsageError
from romou.base.folders import check_replaceable
from romou.base.foreign import refused
from romou.base.linking import check_linker, is_here
from romou.base.schema import FileName, made_of
from romou.compiler.frontend.decoder_form import DecoderForm
from romou.compiler.frontend.padding import Padding
from romou.devices.targets import Target, attached_index, misfit
from romou.runtime.module.built import BuiltModel
from romou.runtime.module.decoder_model import ENTRY, TOKENIZER, DecoderModel
from romou.runtime.module.manifest import AGAIN, META, read_manifest
from romou.runtime.module.multi_shape import MultiShapeModel
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.module.run_time_sizes import RunTimeSizes, RunTimeSizesModel
from romou.runtime.module.summary import Summary
from romou.runtime.module.tuned_model import TunedModel
from romou.runtime.rpc import Address

logger = logging.getLogger("romou")


def check_output(path: Path, host: str | None = None) -> None:
    """Raise UsageError if a model cannot be saved in the folder `path`, because it is something else or read-only.

    Raise BuildError if no library can be linked for `host`, an LLVM triple or None for this machine.
    """
    check_linker(host)
    check_replaceable(path, marker=META, what="a saved model")


def _most_suitable(models: Sequence[Path], device: int | str) -> tuple[Path, int]:
    """Return the saved model that suits a device best, and the device's number. device: as in `load`; 0 is any."""
    candidates = []
    for model in models:
        try:
            target = Target.from_json(read_manifest(model)["target"])
            devices = dict(enumerate(target.backend.list_devices()))
            if device != 0:
                index = attached_index(target, device) if isinstance(device, str) else device
                devices = {index: devices[index]} if index in devices else {}
        except (RomouError, KeyError) as error:
            logger.info("%s is left out: %s", model, error)
            continue
        candidates += [(misfit(target, facts), model, index) for index, facts in devices.items()]
    if not candidates:
        raise DeviceError(
            f"no model in {models[0].parent} runs here: {', '.join(model.name for model in models)}",
            hint="-v says why. One for --target null runs everywhere.",
        )
    _, model, index = min(candidates)
    return model, index


def load(path: str | Path, *, device: int | str = 0, rpc: str | None = None, capture: bool | None = None) -> TunedModel:
    """Load a model that `save` wrote. The library is code that runs with your rights: trust its source.

    Sizes and hashes of all files are checked before the library is opened. This refuses damaged models, not forged
    ones.

    Parameters
    ----------
    path
        The folder of the model. Or a folder of several, which were tuned for different devices: the one that suits an
        attached device best is taken, by the name that the driver gives the device.
    device
        The device of this machine that runs the model: its number among those of its target's kind, or a part of its
        name, as `romou devices` lists them.
    rpc
        Address of a device elsewhere, as in `tune`.
    capture
        Whether to capture runs, see `TunedModel`.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        If `path` is no saved model, is damaged, was written in another format, or its library does not load here. A
        model for another host fails when it is run.
    DeviceError
        The model is for CUDA, and TVM's CUDA runtime does not start on this machine.
    """
    path = path_of("path", path)
    index = None if isinstance(device, str) else whole_of("device", device)
    if not (path / META).exists() and (models := sorted(each.parent for each in path.glob(f"*/{META}"))):
        if rpc is not None:
            names = ", ".join(model.name for model in models)
            raise UsageError(f"{path} holds several models: {names}", hint="Name the one for the device at --rpc.")
        path, index = _most_suitable(models, device)
    about = read_manifest(path)
    text = f"{path}: {META} cannot be used"
    try:
        with refused(ModelError, text, hint=AGAIN):
            library = path / made_of(FileName, about["library"])
            if library.name not in about["files"]:
                raise ModelError(f"{text}: library {library.name!r} is none of its files", hint=AGAIN)
            model = _whole_of(about, _models_of(about, library, capture=capture), path)
    except UsageError as error:  # of an unknown target
        raise ModelError(f"{text}: {error.message}", hint=AGAIN) from error
    target = model.target
    index = (attached_index(target, device) or 0) if index is None else index
    remote = None if rpc is None else RemoteDevice(Address.parse(rpc), target.device_name, kind=target.kind)
    model = model.moved(index, remote)
    if rpc is None and is_here(target.host):
        # Fail now if the library does not fit this machine. A model for another one can be exported.
        _ = model._executable
    return model


def _whole_of(about: Mapping[str, Any], models: Sequence[TunedModel], folder: Path) -> TunedModel:
    """Return the model that the models of a folder's library are. Raise many types for a wrong manifest."""
    if "shapes" not in about:
        return models[0]
    memory = Summary.from_dict(about["summary"]).memory
    if memory is None:
        raise ValueError("its memory is missing")
    if ENTRY in about:
        tokenizer = (folder / TOKENIZER).read_bytes() if TOKENIZER in about["files"] else None
        return DecoderModel(models, memory=memory, form=made_of(DecoderForm, about[ENTRY]), tokenizer=tokenizer)
    padding = None if about.get("padding") is None else Padding.from_dict(about["padding"])
    return MultiShapeModel(models, memory=memory, padding=padding)


def _models_of(about: Mapping[str, Any], library: Path, *, capture: bool | None) -> list[TunedModel]:
    """Return the models of a library, for device 0 of this machine. Raise many types for a wrong manifest."""
    models: list[TunedModel] = []
    several = "shapes" in about
    for each in about["shapes"] if several else [about]:
        kind = partial(RunTimeSizesModel, sizes=made_of(RunTimeSizes, each["sizes"])) if "sizes" in each else TunedModel
        model = kind(
            BuiltModel.from_dict(each, library),
            Summary.from_dict(each["summary"]),
            # Shapes share their memory unless captured runs are required. A decoder's runs are captured.
            capture=bool(capture) if several and ENTRY not in about else capture,
            beside=models[0] if models else None,
        )
        models.append(model)
    return models
