"""Compiled models as functions of one library, with weights on the device once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from romou.base.model_bytes import MemoryUse
from romou.compiler.assembly.link import link_models
from romou.runtime.module import TunedModel


@dataclass(frozen=True, kw_only=True)
class LinkedModels:
    """Models of one library. The first one loads it.

    memory: of all of them together.
    """

    models: tuple[TunedModel, ...]
    memory: MemoryUse


def linked(models: Sequence[TunedModel], *, capture: bool | None = None) -> LinkedModels:
    """Link models that `tuned_model` made for one device. The given ones are released.

    capture: see `TunedModel`. Captured runs keep their memory, others share it.
    """
    programs = []
    for model in models:
        assert model.built.program is not None, "what the model was built from is kept until it is linked"
        programs.append(model.built.program)
        model.release()
    program = link_models(programs)
    made: list[TunedModel] = []
    for model, names in zip(models, program.names, strict=True):
        summary = model.summary()
        calls = tuple(replace(call, function=names.get(call.function, call.function)) for call in summary.calls)
        made.append(
            model.changed(
                built=replace(
                    model.built,
                    executable=program.executable,
                    host_code=program.host,
                    entry=names["main"],
                    program=None,
                ),
                summary=replace(summary, calls=calls),
                beside=made[0] if made else None,
                remote=models[0].remote,
                capture=capture,
            )
        )
    return LinkedModels(models=tuple(made), memory=program.memory)
