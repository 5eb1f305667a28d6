"""A model's graph after all graph passes: fused functions, the tasks among them, and pairs that could be joined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm

from romou.base.errors import as_build_error
from romou.compiler.graph import Pair, find_pairs
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.origins import NO_RUNGS, Rungs
from romou.compiler.pipeline import GRAPH, run
from romou.compiler.stages import Context, part
from romou.compiler.task import TunableTask
from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class LoweredModel:
    """Fused functions, and the tasks among them.

    unshared: the fused functions before pairs are joined and tensors become slices of others.
    fused: the fused functions.
    task_of: function name -> task. Functions without a task have no knobs.
    """

    target: Target
    unshared: tvm.IRModule
    fused: tvm.IRModule
    tasks: list[TunableTask]
    task_of: dict[str, TunableTask]

    @classmethod
    def of(cls, unshared: tvm.IRModule, target: Target, pairs: Sequence[Pair] = ()) -> LoweredModel:
        """Run the last graph passes with `pairs` joined, and find the tasks."""
        fused = run(part(GRAPH, "join_pairs"), unshared, Context(target=target, pairs=pairs))
        tasks, key_of = extract_tasks(fused)
        by_key = {task.key: task for task in tasks}
        task_of = {name: by_key[key] for name, key in key_of.items()}
        return cls(target=target, unshared=unshared, fused=fused, tasks=tasks, task_of=task_of)

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Pairs of functions that could share a kernel.

        Only measurements say which should. A joined kernel has no variant.
        """
        if self.target.limits.variant is not None:
            return []
        return find_pairs(self.unshared, self.target.limits.max_buffers)

    @functools.cached_property
    def alternatives(self) -> dict[str, tuple[str, str]]:
        """Key of a joined task -> keys of the two tasks that it replaces."""
        return {pair.task.key: pair.keys for pair in self.pairs}

    def joined_where(self, is_chosen: Callable[[str], bool]) -> LoweredModel:
        """Return a copy with a joined kernel for every pair with a task key that satisfies `is_chosen`.

        Return the model itself if no pair is chosen.
        """
        chosen = [pair for pair in self.pairs if is_chosen(pair.task.key)]
        return LoweredModel.of(self.unshared, self.target, chosen) if chosen else self

    def joined_where_faster(self, seconds: Mapping[str, float]) -> LoweredModel:
        """Return a copy with a joined kernel for every pair that is faster as one kernel than as two.

        seconds: task key -> time of its fastest kernel. Tasks without a working kernel are missing.
        """

        def is_faster(key: str) -> bool:
            keys = (key, *self.alternatives[key])
            return all(k in seconds for k in keys) and seconds[keys[0]] < seconds[keys[1]] + seconds[keys[2]]

        return self.joined_where(is_faster)


def lower(relax_module: tvm.IRModule, target: Target, rungs: Rungs = NO_RUNGS) -> LoweredModel:
    """Run the graph passes on an imported model. Nodes in `rungs` are computed in a simpler way.

    Raises
    ------
    BrokenNodesError, BrokenFunctionsError
        A pass failed at some nodes, or for some functions. The error names them.
    BuildError
        A pass failed for no node in particular.
    """
    with as_build_error("the model's graph"):
        context = Context(target=target, rungs=rungs)
        return LoweredModel.of(run(part(GRAPH, last="place_images"), relax_module, context), target)
