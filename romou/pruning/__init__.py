"""Hardware-aware pruning: what a kernel uses, what a device allows, and a space without the configs that overuse it (Romou paper, section 4.2)."""

from romou.analysis.usage import KernelUsage
from romou.pruning.criteria import BOUNDED, CRITERIA, Choices, Rules, Verdict, judge
from romou.pruning.prune import PrunedSpace, PruningReport, prune, prune_each

__all__ = ["BOUNDED", "CRITERIA", "Choices", "KernelUsage", "PrunedSpace", "PruningReport", "Rules", "Verdict", "judge", "prune", "prune_each"]
