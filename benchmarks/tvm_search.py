"""TVM's own search, MetaSchedule, of the functions of a graph."""

from __future__ import annotations

import os
import tempfile
from typing import Any
from unittest.mock import patch

import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.builder.local_builder import default_build, default_export

from romou.base.interpreter import child_environment
from romou.devices.backends.cuda import nvrtc
from romou.devices.targets import Target

# Trials of a task in one round of MetaSchedule's scheduler.
LEAST_TRIALS = 4
# In the first round, the only one of most tasks, the cost model is untrained: ranking the usual 512 candidates takes
# minutes without any benefit.
_SEARCH = meta_schedule.search_strategy.EvolutionarySearch(
    population_size=128, init_min_unmeasured=8, genetic_num_iters=2
)


@derived_object
class BuilderHere(meta_schedule.builder.PyBuilder):
    """Builds MetaSchedule's candidates in this process.

    MetaSchedule's builder starts new processes for each batch, which takes half a minute each.
    """

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """Return a file for each candidate, or its error."""
        results = []
        for wanted in build_inputs:
            try:
                path, error = default_export(default_build(wanted.mod, wanted.target, None)), None
            except RuntimeError as failure:
                path, error = None, str(failure)
            results.append(meta_schedule.builder.BuilderResult(path, error))
        return results


def searched(mod: tvm.IRModule, target: Target, trials: int) -> tvm.IRModule:
    """Return the graph with the schedules that MetaSchedule found. A function without a result has none.

    trials: over all functions.
    """
    kind = target.anonymous_tvm_target
    if target.kind == "cuda":
        nvrtc.install()
    graph = relax.get_pipeline("zero")(mod)
    tasks = len(meta_schedule.relax_integration.extract_tasks(graph, kind))
    # The default of 64 trials a round would leave most tasks of a model without any.
    per_round = min(64, max(LEAST_TRIALS, trials // tasks))
    with (
        patch.dict(os.environ, child_environment()),
        tempfile.TemporaryDirectory(prefix="romou-metaschedule-") as folder,
    ):
        database = meta_schedule.relax_integration.tune_relax(
            graph,
            {},
            kind,
            folder,
            max_trials_global=trials,
            num_trials_per_iter=per_round,
            builder=BuilderHere(),
            strategy=_SEARCH,
            seed=1,
        )
        with kind, database:
            return relax.transform.MetaScheduleApplyDatabase()(graph)
