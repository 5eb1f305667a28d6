"""A model's graph after all graph passes: fused functions, the tasks among them, and chains that could be joined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx

from romou.base.errors import as_build_error
from romou.compiler.graph import Chain, ChainGroup, find_chains, tasks_of
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.origins import NO_RUNGS, Rungs
from romou.compiler.graph.relax_rewriter import with_names
from romou.compiler.pipeline import GRAPH, run
from romou.compiler.stages import Context, part
from romou.compiler.task import TunableTask
from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class LoweredModel:
    """Fused functions, and the tasks among them.

    unshared: the fused functions before chains are joined and tensors become slices of others.
    joined: the chains that share a kernel.
    fused: the fused functions.
    task_of: function name -> task. Functions without a task have no knobs.
    """

    target: Target
    unshared: tvm.IRModule
    joined: Sequence[Chain]
    fused: tvm.IRModule
    tasks: list[TunableTask]
    task_of: dict[str, TunableTask]

    @classmethod
    def of(cls, unshared: tvm.IRModule, target: Target, chains: Sequence[Chain] = ()) -> LoweredModel:
        """Run the last graph passes with `chains` joined, and find the tasks."""
        fused = run(part(GRAPH, "join_chains"), unshared, Context(target=target, chains=chains))
        tasks, key_of = extract_tasks(fused)
        by_key = {task.key: task for task in tasks}
        task_of = {name: by_key[key] for name, key in key_of.items()}
        return cls(target=target, unshared=unshared, joined=chains, fused=fused, tasks=tasks, task_of=task_of)

    @functools.cached_property
    def chains(self) -> list[Chain]:
        """Chains of functions that could share a kernel.

        Only measurements say which should. A joined kernel has no variant.
        """
        if self.target.limits.variant is not None:
            return []
        return find_chains(self.unshared, self.target.limits.max_buffers)

    @property
    def joined_places(self) -> tuple[int, ...]:
        """Positions of the joined chains among all chains."""
        keys = {chain.task.key for chain in self.joined}
        return tuple(place for place, chain in enumerate(self.chains) if chain.task.key in keys) if keys else ()

    @functools.cached_property
    def alternatives(self) -> dict[str, tuple[str, ...]]:
        """Key of a joined task -> keys of the tasks that it replaces."""
        return {chain.task.key: chain.keys for chain in self.chains}

    @functools.cached_property
    def candidates(self) -> list[TunableTask]:
        """The tasks of all forms of the model: of separate functions, then of joined ones."""
        apart = self.joined_where(lambda key: False)
        return [*apart.tasks, *tasks_of(self.chains)]

    def joined_where(self, is_chosen: Callable[[str], bool]) -> LoweredModel:
        """Return a copy in which every chain with a task key that satisfies `is_chosen` is joined into one kernel.

        Return the model itself if these are joined already.
        """
        chosen = [chain for chain in self.chains if is_chosen(chain.task.key)]
        if [chain.task.key for chain in chosen] == [chain.task.key for chain in self.joined]:
            return self
        other = LoweredModel.of(self.unshared, self.target, chosen)
        # Kept, so that they are not found again.
        vars(other)["chains"] = self.chains
        return other

    def joined_by_default(self) -> LoweredModel:
        """Return a copy in which every chain is joined that is taken to be faster as one kernel."""
        faster = {chain.task.key for chain in self.chains if self._is_taken_to_be_faster(chain)}
        chosen = {key for chain in self.chains if faster.issuperset(chain.group.joined) for key in chain.group.joined}
        return self.joined_where(chosen.__contains__)

    def _is_taken_to_be_faster(self, chain: Chain) -> bool:
        """Return whether a chain's template, or the estimate of its calls, takes one kernel to be faster."""
        is_faster = chain.task.template.is_faster(self.target.limits, len(chain.group.joined))
        if is_faster is not None:
            return is_faster
        parts = {task.key: task for task in self.tasks}
        apart = [parts[key].estimated_seconds(self.target) if key in parts else None for key in chain.keys]
        together = chain.task.estimated_seconds(self.target)
        return together is not None and None not in apart and together < sum(time or 0.0 for time in apart)

    def joined_where_faster(self, seconds: Mapping[str, float]) -> LoweredModel:
        """Return a copy with a joined kernel for every chain that is faster as one kernel than as several.

        A chain with a part that has no time stays as it is.

        seconds: task key -> time of its fastest kernel. Tasks without a working kernel are missing.
        """
        joined = {chain.task.key for chain in self.joined}

        def is_faster(group: ChainGroup) -> bool:
            apart, together = ([seconds.get(key) for key in keys] for keys in (group.separate, group.joined))
            if None in apart:
                return joined.issuperset(group.joined)
            sums = [sum(time for time in times if time is not None) for times in (together, apart)]
            return None not in together and sums[0] < sums[1]

        slower = {key for chain in self.chains if not is_faster(chain.group) for key in chain.group.joined}
        return self.joined_where(lambda key: key not in slower)


def lower(
    relax_module: tvm.IRModule,
    target: Target,
    rungs: Rungs = NO_RUNGS,
    suffix: str = "",
    *,
    has_sizes: bool = False,
) -> LoweredModel:
    """Run the graph passes on an imported model. Nodes in `rungs` are computed in a simpler way.

    suffix: end of the functions' names.
    has_sizes: whether extents are sizes at run time.

    Raises
    ------
    BrokenNodesError, BrokenFunctionsError
        A pass failed at some nodes, or for some functions. The error names them.
    BuildError
        A pass failed for no node in particular.
    """
    with as_build_error("the model's graph"):
        context = Context(target=target, has_sizes=has_sizes, rungs=rungs)
        unshared = run(part(GRAPH, last="place_images"), relax_module, context)
        names = [var.name_hint for var, func in unshared.functions_items() if isinstance(func, tirx.PrimFunc)]
        unshared = with_names(unshared, {name: f"{name}{suffix}" for name in names})
        return LoweredModel.of(unshared, target).joined_by_default()
