"""A saved model, read."""

from __future__ import annotations

import json
from pathlib import Path

from romou.core.errors import ModelError
from romou.module.remote import RemoteDevice
from romou.module.summary import Summary
from romou.module.tuned_model import FORMAT, META, TunedModel
from romou.rpc import Address
from romou.target import Target


def load(path: str | Path, *, device: int = 0, rpc: str | None = None, capture: bool | None = None) -> TunedModel:
    """Load a model that `TunedModel.save` wrote.

    Parameters
    ----------
    path
        The folder of the model.
    device
        Number of the device of this machine that it runs on, among those of its target's kind.
    rpc
        Where it runs, if not on this machine: an address as in `tune`.
    capture
        Whether its runs are captured, see `TunedModel`.

    Raises
    ------
    ModelError
        If `path` is no saved model, or was written in another format.
    DeviceError
        The model is for CUDA, and TVM's CUDA runtime does not start on this machine.
    """
    path = Path(path)
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no saved model (it lacks {META}); `romou tune` or TunedModel.save writes one") from error
    except (ValueError, NotADirectoryError) as error:
        raise ModelError(f"{path}: not a saved model: {error}; save it again") from error
    if meta.get("format") != FORMAT:
        raise ModelError(f"{path}: saved in format {meta.get('format')!r}, this Romou reads {FORMAT}; tune the model again (records are kept)")
    library = path / Path(meta["library"]).name
    if not library.is_file():
        raise ModelError(f"{path}: {library.name} is missing; save the model again")
    target = Target.from_json(meta["target"])
    model = TunedModel(
        library,
        target=target,
        inputs={n: (tuple(s), d) for n, (s, d) in meta["inputs"].items()},
        outputs=tuple(meta["outputs"]),
        summary=Summary.from_dict(meta["summary"]),
        device_index=device,
        remote=None if rpc is None else RemoteDevice(Address.parse(rpc), target.device_name, kind=target.kind),
        capture=capture,
    )
    if rpc is None:
        # A library that does not fit this machine says so now.
        _ = model._executable
    return model
