"""A compilation as a model that runs."""

from __future__ import annotations

import time
from dataclasses import replace

from romou.compiler.assembly.build import Kept
from romou.compiler.budget import check_sizes
from romou.compiler.compilation import Compilation
from romou.devices.targets import Target
from romou.driver.site import TimingSite
from romou.driver.summary import layer_rows, unmeasured
from romou.runtime.module import Summary, TunedModel


def tuned_model(compilation: Compilation, site: TimingSite, summary: Summary) -> TunedModel:
    """Assemble a lowered model with its configs, to run on the device of `site`.

    Raises
    ------
    ModelError
        A tensor is larger than the device allows.
    """
    assembled = compilation.assembled()
    assert assembled.program is not None
    check_sizes(assembled.program.memory, assembled.target)
    imported = assembled.imported
    # The model outlives the cache of kernels.
    lean = replace(assembled, kernels=Kept())
    return TunedModel(
        assembled.program.executable,
        target=site.named,
        inputs=imported.inputs,
        outputs=imported.outputs,
        short_outputs=imported.short_outputs,
        summary=replace(summary, memory=assembled.program.memory.use),
        device_index=site.index,
        remote=site.remote,
        settled=imported.settled,
        rebuild=lambda host: _executable_for(lean, host),
    )


def default_model(compilation: Compilation, site: TimingSite, *, max_memory: int | None, started: float) -> TunedModel:
    """Return a lowered model with default configs, or direct algorithms if it takes more than `max_memory` bytes.

    started: the summary counts seconds from this `time.monotonic()`.
    """
    fitting = compilation.within(max_memory)
    rows = layer_rows(fitting, {})
    summary = unmeasured(fitting, site.named, rows=rows, seconds=time.monotonic() - started)
    return tuned_model(fitting, site, summary)


def _executable_for(compilation: Compilation, host: str | None) -> object:
    program = compilation.for_target(Target(compilation.target, host=host)).assembled().program
    assert program is not None
    return program.executable
