"""Hardware-aware pruning (Romou paper, section 4.2).

It compares the resources that a kernel uses with the limits of a device, and removes the configs that exceed them.
"""

from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.criteria import BOUNDED, CRITERIA, Choices, Rules, Verdict, judge
from romou.tuner.pruning.prune import PrunedSpace, PruningReport, prune, prune_each
from romou.tuner.pruning.tasks import PrunedTask, load_task, pruned_space, pruned_task

__all__ = [
    "BOUNDED",
    "CRITERIA",
    "Choices",
    "KernelUsage",
    "PrunedSpace",
    "PrunedTask",
    "PruningReport",
    "Rules",
    "Verdict",
    "judge",
    "load_task",
    "prune",
    "prune_each",
    "pruned_space",
    "pruned_task",
]
