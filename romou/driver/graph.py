"""A model before any config is chosen: imported, and lowered as far as it goes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import UsageError
from romou.compiler.frontend import ImportedModel, Precision, import_onnx, with_constants
from romou.devices.targets import Target
from romou.driver.ladder import Ladder
from romou.driver.lowered import Graph
from tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    import onnx

__all__ = ["Graph", "import_model", "lower", "settled"]

logger = logging.getLogger("romou")


def import_model(
    model: onnx.ModelProto | str | Path | ImportedModel,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: Precision | None = None,
    constants: Mapping[str, object] | None = None,
) -> ImportedModel:
    """Import a model; one that is imported already, as `romou.training.gradients` and `romou.operators` make it, stays
    as it is.
    """
    if isinstance(model, ImportedModel):
        if shapes or constants or (precision is not None and precision != Precision()):
            raise UsageError(
                "shapes, constants and precision of an imported model are fixed", hint="Give them where it is made."
            )
        return model
    with quiet_stderr():
        return import_onnx(with_constants(model, constants), shapes, precision)


def lower(imported: ImportedModel, target: Target, *, strict: bool = False, executor: Executor | None = None) -> Graph:
    """The model as far as it goes without a config; nodes without a kernel go down `romou.driver.ladder`, at last to
    the host. strict: see `compile`.

    executor: compiles with default configs while the caller goes on. Where that fails, only a call without an executor
    moves nodes.
    """
    return settled(Ladder(imported, target, strict=strict), target, executor)


def settled(ladder: Ladder, target: Target, executor: Executor | None = None) -> Graph:
    """The graph of a model on its ladder, with all that a person should know of it told."""
    graph = (
        ladder.compiled() if executor is None else ladder.lowered().with_default_kernels(target, ladder.kept, executor)
    )
    ladder.check_strict()
    ladder.tell()
    limits = target.limits
    if target.lacks_image_sizes:
        hint = "-texture_spatial_limit=N says what it allows, -images=never that this is meant"
        logger.warning(
            "%s: the sizes of its images are not known, so every tensor stays in a buffer; %s", target.spec.title, hint
        )
    for task in graph.tasks if limits.prefers_images else ():
        for name, reason in task.template.kept_in_buffers(limits).items():
            logger.warning("%s: its %s stays in a buffer, an image cannot hold it: %s", task.name, name, reason)
    return graph
