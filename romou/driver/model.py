"""A compilation as a model that runs."""

from __future__ import annotations

import time
from dataclasses import replace

from tvm import relax

from romou.compiler.budget import check_sizes
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.imported import ImportedModel
from romou.driver.site import TimingSite
from romou.driver.summary import unmeasured
from romou.runtime.module import BuiltModel, TunedModel


def tuned_model(compilation: Compilation, site: TimingSite) -> TunedModel:
    """Assemble a lowered model with its configs, to run on the device of `site`. Its summary has no times.

    Raises
    ------
    ModelError
        A tensor is larger than the device allows.
    """
    assembled = compilation.assembled()
    assert assembled.program is not None
    check_sizes(assembled.program.memory, assembled.target)
    imported = assembled.imported
    summary = unmeasured(compilation, site.named)
    built = BuiltModel(
        executable=assembled.program.executable,
        target=site.named,
        inputs=imported.inputs,
        outputs=imported.outputs,
        output_types=output_types(imported),
        short_outputs=imported.short_outputs,
        host_code=assembled.program.host,
        settled=tuple(imported.settled),
        program=assembled.program,
    )
    summary = replace(summary, memory=assembled.program.memory.use)
    return TunedModel(built, summary, device_index=site.index, remote=site.remote)


def default_model(compilation: Compilation, site: TimingSite, *, max_memory: int | None, started: float) -> TunedModel:
    """Return a lowered model with default configs, or direct algorithms if it takes more than `max_memory` bytes.

    started: the summary counts seconds from this `time.monotonic()`.
    """
    fitting = compilation.within(max_memory)
    model = tuned_model(fitting, site)
    return model.with_summary(replace(model.summary(), seconds=time.monotonic() - started))


def output_types(imported: ImportedModel) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the type on the device of each output, by name, without those that the host shapes."""
    result = imported.mod["main"].ret_ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    return {
        name: (tuple(int(extent) for extent in field.shape), str(field.dtype))
        for name, field in zip(imported.outputs, fields, strict=True)
        if field.shape is not None
    }
