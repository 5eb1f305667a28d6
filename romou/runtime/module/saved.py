"""Load a saved model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from romou.base.arguments import path_of, whole_of
from romou.base.errors import ModelError, UsageError
from romou.base.folders import check_replaceable
from romou.base.linking import check_linker, is_here
from romou.compiler.frontend.declared import Settled
from romou.devices.targets import Target, attached_index
from romou.runtime.module.manifest import META, read_manifest
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.module.summary import Summary
from romou.runtime.module.tuned_model import TunedModel
from romou.runtime.rpc import Address


def check_output(path: Path, host: str | None = None) -> None:
    """Raise UsageError if a model cannot be saved in the folder `path`, because it is something else or read-only.

    Raise BuildError if no library can be linked for `host`, an LLVM triple or None for this machine.
    """
    check_linker(host)
    check_replaceable(path, marker=META, what="a saved model")


def load(path: str | Path, *, device: int | str = 0, rpc: str | None = None, capture: bool | None = None) -> TunedModel:
    """Load a model that `TunedModel.save` wrote. The library is code that runs with your rights: trust its source.

    Sizes and hashes of all files are checked before the library is opened. This refuses damaged models, not forged
    ones.

    Parameters
    ----------
    path
        The folder of the model.
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
    try:
        about = read_manifest(path)
        target = Target.from_json(about["target"])
        library = path / about["library"]
        inputs = {str(n): (tuple(int(d) for d in s), np.dtype(d).name) for n, (s, d) in about["inputs"].items()}
        outputs = tuple(about["outputs"])
        short_outputs = {str(name): np.dtype(dtype).name for name, dtype in about.get("short_outputs", {}).items()}
        output_types = {str(n): (tuple(s), str(d)) for n, (s, d) in about["output_types"].items()}
        summary = Summary.from_dict(about["summary"])
        settled = [Settled.from_dict(entry) for entry in about["settled"]]
        if library.name not in about["files"] or not all(isinstance(name, str) for name in outputs):
            raise ModelError(
                f"{path}: {META} cannot be used: library {library.name!r}, outputs {outputs!r}; save the model again"
            )
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise ModelError(
            f"{path}: {META} cannot be used: {type(error).__name__}: {error}; save the model again"
        ) from error
    model = TunedModel(
        library,
        target=target,
        inputs=inputs,
        outputs=outputs,
        short_outputs=short_outputs,
        output_types=output_types,
        summary=summary,
        device_index=(attached_index(target, device) or 0) if index is None else index,
        remote=None if rpc is None else RemoteDevice(Address.parse(rpc), target.device_name, kind=target.kind),
        capture=capture,
        settled=settled,
    )
    if rpc is None and is_here(target.host):
        # Fail now if the library does not fit this machine. A model for another one can be exported.
        _ = model._executable
    return model
