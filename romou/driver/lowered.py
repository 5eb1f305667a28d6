"""A model before any config is chosen: packed, fused, its tasks found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

import tvm

from romou.base.errors import as_build_error
from romou.base.rung import Rung
from romou.compiler.frontend import ImportedModel
from romou.compiler.graph import Pair, find_pairs
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.origins import NO_RUNGS, Rungs
from romou.compiler.pipeline import GRAPH, run
from romou.compiler.stages import Context, part
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.runtime.module import CompiledModel, Kept, compile_model


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Nodes that have no kernel as they should.
    nodes: first outputs.
    rung: how they are computed instead.
    reason: why.
    """

    nodes: frozenset[str]
    rung: Rung
    reason: str


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model as far as it goes without a config: fused functions and the tasks among them (function name -> task).

    placed: fused functions before tensors became slices of others.   moved: see `Moved`.
    compiling: gives the model with default configs, for `compiled_for`; None where nobody asked.
    """

    imported: ImportedModel
    placed: tvm.IRModule
    target: Target
    fused: tvm.IRModule
    tasks: list[TunableTask]
    task_of: dict[str, TunableTask]
    moved: tuple[Moved, ...] = ()
    compiling: Future[CompiledModel] | None = None
    compiled_for: Target | None = None

    @property
    def compiled(self) -> CompiledModel | None:
        """The model with default configs, once it is there; None where nobody asked."""
        return None if self.compiling is None else self.compiling.result()

    @classmethod
    def of(
        cls,
        imported: ImportedModel,
        placed: tvm.IRModule,
        target: Target,
        moved: tuple[Moved, ...] = (),
        pairs: Sequence[Pair] = (),
    ) -> Graph:
        fused = run(part(GRAPH, "join_pairs"), placed, Context(target=target, pairs=pairs))
        tasks, key_of = extract_tasks(fused)
        by_key = {task.key: task for task in tasks}
        task_of = {name: by_key[key] for name, key in key_of.items()}
        return cls(
            imported=imported, placed=placed, target=target, fused=fused, tasks=tasks, task_of=task_of, moved=moved
        )

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Functions of `placed` that could share a kernel; which do is measured. Of a graph in which some are joined
        nobody asks.
        """
        return find_pairs(self.placed, None if self.compiled_for is None else self.compiled_for.limits.max_buffers)

    @functools.cached_property
    def alternatives(self) -> dict[str, tuple[str, str]]:
        """Key of a joined task -> keys of the two tasks that it stands for."""
        return {pair.task.key: pair.keys for pair in self.pairs}

    def joined_where(self, is_chosen: Callable[[str], bool]) -> Graph:
        """Return a copy in which every pair whose task key satisfies `is_chosen` is joined into one kernel; the graph
        itself if no pair is.
        """
        chosen = [pair for pair in self.pairs if is_chosen(pair.task.key)]
        return Graph.of(self.imported, self.placed, self.target, self.moved, chosen) if chosen else self

    def joined_where_faster(self, seconds: Mapping[str, float]) -> Graph:
        """Return a copy in which the pairs are joined that are faster as one kernel than as two. seconds: by task key,
        of those with a kernel that works.
        """

        def is_faster(key: str) -> bool:
            keys = (key, *self.alternatives[key])
            return all(k in seconds for k in keys) and seconds[keys[0]] < seconds[keys[1]] + seconds[keys[2]]

        return self.joined_where(is_faster)

    def with_default_kernels(self, target: Target, kept: Kept, executor: Executor | None = None) -> Graph:
        """The graph, compiled with default configs; by an executor, while the caller goes on."""
        # A thread has a context of its own, and the caller may have left passes out.
        context = tvm.transform.PassContext.current()

        def compiled() -> CompiledModel:
            with context:
                return compile_model(self.fused, self.task_of, {}, target, kept)

        compiling: Future[CompiledModel] = Future()
        if executor is not None:
            compiling = executor.submit(compiled)
        else:
            compiling.set_result(compiled())
        return replace(self, compiling=compiling, compiled_for=target)


def lowered(imported: ImportedModel, target: Target, rungs: Rungs = NO_RUNGS, moved: tuple[Moved, ...] = ()) -> Graph:
    """The graph of a model whose nodes stand on these rungs; those on the host are there in `imported` already.

    Raises
    ------
    BrokenNodesError, BrokenFunctionsError
        A step failed; says at which nodes, or for which functions.
    BuildError
        A step failed as a whole.
    """
    with as_build_error("the model's graph"):
        context = Context(target=target, rungs=rungs)
        return Graph.of(imported, run(part(GRAPH, last="place_images"), imported.mod, context), target, moved)
