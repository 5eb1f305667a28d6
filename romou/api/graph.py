"""A model before any config is chosen: imported, packed, fused, its tasks found."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from romou.core.errors import BrokenModelError, CompatError, DeviceError, ModelError, UsageError, as_build_error
from romou.frontend import ImportedModel, Precision, import_alone, import_onnx, with_constants, with_more_on_host
from romou.layout import Pair, bound_indices, drop_empty, find_pairs, fuse_operators, join_pairs, pack_channels, place_images, share_buffers, split_weights
from romou.module import CompiledModel, compile_model
from romou.target import Target
from romou.tasks.extract import extract_tasks
from romou.tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    import onnx

    from romou.tasks.tunable import TunableTask

logger = logging.getLogger("romou")

# Names in a warning.
_SHOWN = 8
# Characters of why a kernel could not be made.
_REASON = 300


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model as far as it goes without a config: fused functions and the tasks among them (function name -> task).

    placed: fused functions before tensors became slices of others.   compiling: gives the model with default configs, for `compiled_for`; None where
    nobody asked.
    """

    imported: ImportedModel
    placed: tvm.IRModule
    fused: tvm.IRModule
    tasks: list[TunableTask]
    task_of: dict[str, TunableTask]
    compiling: Future[CompiledModel] | None = None
    compiled_for: Target | None = None

    @property
    def compiled(self) -> CompiledModel | None:
        """The model with default configs, once it is there; None where nobody asked."""
        return None if self.compiling is None else self.compiling.result()

    @classmethod
    def of(cls, imported: ImportedModel, placed: tvm.IRModule) -> Graph:
        fused = share_buffers(placed)
        tasks, key_of = extract_tasks(fused)
        by_key = {task.key: task for task in tasks}
        task_of = {name: by_key[key] for name, key in key_of.items()}
        return cls(imported=imported, placed=placed, fused=fused, tasks=tasks, task_of=task_of)

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Functions of `placed` that could share a kernel; which do is measured. Of a graph in which some are joined nobody asks."""
        return find_pairs(self.placed, None if self.compiled_for is None else self.compiled_for.limits.max_buffers)

    @functools.cached_property
    def alternatives(self) -> dict[str, tuple[str, str]]:
        """Key of a joined task -> keys of the two tasks that it stands for."""
        return {pair.task.key: pair.keys for pair in self.pairs}

    def joined_where(self, is_chosen: Callable[[str], bool]) -> Graph:
        """The graph with the pairs joined of whose tasks, by key, that is true; itself where that is none."""
        chosen = [pair for pair in self.pairs if is_chosen(pair.task.key)]
        return Graph.of(self.imported, join_pairs(self.placed, chosen)) if chosen else self

    def joined_where_faster(self, seconds: Mapping[str, float]) -> Graph:
        """The graph with the pairs joined that take less time as one kernel than as two; seconds: by task key, of those with a kernel that works."""

        def is_faster(key: str) -> bool:
            keys = (key, *self.alternatives[key])
            return all(k in seconds for k in keys) and seconds[keys[0]] < seconds[keys[1]] + seconds[keys[2]]

        return self.joined_where(is_faster)


def import_model(
    model: onnx.ModelProto | str | Path | ImportedModel,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: Precision | None = None,
    constants: Mapping[str, object] | None = None,
) -> ImportedModel:
    """Import a model; one that is imported already, as `romou.training.gradients` and `romou.operators` make it, stays as it is."""
    if isinstance(model, ImportedModel):
        if shapes or constants or (precision is not None and precision != Precision()):
            raise UsageError("shapes, constants and precision of an imported model are fixed", hint="Give them where it is made.")
        return model
    with quiet_stderr():
        return import_onnx(with_constants(model, constants), shapes, precision)


def lower(imported: ImportedModel, target: Target, *, strict: bool = False, executor: Executor | None = None) -> Graph:
    """The model as far as it goes without a config; nodes that cannot be lowered, or compiled with default configs, run on the host. strict: see `compile`.

    executor: compiles with default configs while the caller goes on. Where that fails, only a call without an executor finds the nodes for the host.
    """
    reason = ""
    try:
        graph = _compiled(imported, target, executor)
    except (BrokenModelError, UsageError, DeviceError, CompatError):
        raise
    except Exception as error:  # TVM's passes raise by many types
        reason = f" ({' '.join(str(error).split())[:_REASON]})"
        found = _with_host_nodes(imported, target)
        if found is None:
            with as_build_error("the model"):
                raise
        graph = found
    nodes = [name for group in graph.imported.host_groups for name in group]
    if nodes and strict:
        raise ModelError(f"no kernels for {', '.join(nodes)}; strict=True lets nothing run on the host", nodes=nodes)
    if nodes:
        more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
        logger.warning("no kernels for %s%s: they run on the host, by onnxruntime, between kernels%s", ", ".join(nodes[:_SHOWN]), more, reason)
    limits = target.limits
    if target.lacks_image_sizes:
        hint = "-texture_spatial_limit=N says what it allows, -images=never that this is meant"
        logger.warning("%s: the sizes of its images are not known, so every tensor stays in a buffer; %s", target.spec.title, hint)
    for task in graph.tasks if limits.prefers_images else ():
        for name, reason in task.template.kept_in_buffers(limits).items():
            logger.warning("%s: its %s stays in a buffer, an image cannot hold it: %s", task.name, name, reason)
    return graph


def _compiled(imported: ImportedModel, target: Target, executor: Executor | None = None) -> Graph:
    with as_build_error("the model's graph"):
        plain = split_weights(bound_indices(drop_empty(imported.mod)), target)
        graph = Graph.of(imported, place_images(fuse_operators(pack_channels(plain), target), target))
    # A thread has a context of its own, and the caller may have left passes out.
    context = tvm.transform.PassContext.current()

    def compiled() -> CompiledModel:
        with context:
            return compile_model(graph.fused, graph.task_of, {}, target)

    compiling: Future[CompiledModel] = Future()
    if executor is not None:
        compiling = executor.submit(compiled)
    else:
        compiling.set_result(compile_model(graph.fused, graph.task_of, {}, target))
    return replace(graph, compiling=compiling, compiled_for=target)


def _with_host_nodes(imported: ImportedModel, target: Target) -> Graph | None:
    """The model with the fewest nodes on the host with which it can be lowered; None where there is no such, or no ONNX model."""
    if imported.onnx_model is None:
        return None
    with quiet_stderr():
        for other in with_more_on_host(imported, lambda model: _compiled(import_alone(model), target)):
            with contextlib.suppress(Exception):
                return _compiled(other, target)
    return None
