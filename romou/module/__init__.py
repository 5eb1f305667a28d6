"""The tuned model: assembled, run, saved, loaded."""

from romou.core.inputs import random_inputs
from romou.module.assemble import CompiledModel, ScheduledFunction, compile_model, schedule_model, scheduled_functions
from romou.module.build import Failures, Kept
from romou.module.memory import MemoryPlan, MemoryUse, PlannedTensor, plan_memory
from romou.module.outputs import Outputs
from romou.module.saved import load
from romou.module.summary import HostRow, LayerRow, MovedRow, Summary
from romou.module.tuned_model import Argument, TunedModel

__all__ = [
    "Argument",
    "CompiledModel",
    "Failures",
    "HostRow",
    "Kept",
    "LayerRow",
    "MemoryPlan",
    "MemoryUse",
    "MovedRow",
    "Outputs",
    "PlannedTensor",
    "ScheduledFunction",
    "Summary",
    "TunedModel",
    "compile_model",
    "load",
    "plan_memory",
    "random_inputs",
    "schedule_model",
    "scheduled_functions",
]
