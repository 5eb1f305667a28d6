"""The typical cases of operator families as fused functions and tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm

from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.join_chains import find_chains
from romou.compiler.operators.families import families
from romou.compiler.operators.family import Case
from romou.compiler.pipeline import GRAPH, run
from romou.compiler.stages import Context, part
from romou.compiler.task import TunableTask
from romou.devices.targets import Target


def typical_tasks(target: Target, dtype: str = "float32") -> list[TunableTask]:
    """Return the typical cases of all operator families as tasks, family by family."""
    made = [(family, graph_of(case, target, dtype)[0]) for family in families() for case in family.cases]
    return [task for family, mod in made for task in extract_tasks(mod)[0] if task.family == family.name]


def graph_of(case: Case, target: Target, dtype: str = "float32") -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Return a typical case as fused functions and its drawn weights. Chains are joined if they fit."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(dtype) for shape in case.weights]
    context = Context(target=target)
    mod = run(part(GRAPH, "pack_channels", "mark_rungs"), case.module(weights, dtype), context)
    chains = find_chains(mod, context.max_buffers)
    return run(part(GRAPH, "join_chains", "join_chains"), mod, replace(context, chains=chains)), weights
