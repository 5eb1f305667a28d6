"""The tuned model: assembled, run, saved, loaded."""

from romou.base.inputs import random_inputs
from romou.compiler.assembly.assemble import (
    CompiledModel,
    ScheduledFunction,
    compile_model,
    schedule_model,
    scheduled_functions,
)
from romou.compiler.assembly.build import Kept
from romou.compiler.graph.memory.memory import MemoryPlan, MemoryUse, PlannedTensor, plan_memory
from romou.runtime.module.binding import BoundModel
from romou.runtime.module.built import BuiltModel
from romou.runtime.module.decoder_model import DecoderForm, DecoderModel
from romou.runtime.module.multi_shape import MultiShapeModel
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.profile import Profile
from romou.runtime.module.run_time_rows import FreeAxis, RunTimeRowsModel, RunTimeSizes
from romou.runtime.module.saved import load
from romou.runtime.module.summary import CallRow, HostRow, LayerRow, MovedRow, ShapeRow, Summary
from romou.runtime.module.timed import Timed
from romou.runtime.module.tuned_model import Argument, TunedModel

__all__ = [
    "Argument",
    "BoundModel",
    "BuiltModel",
    "CallRow",
    "CompiledModel",
    "DecoderForm",
    "DecoderModel",
    "FreeAxis",
    "HostRow",
    "Kept",
    "LayerRow",
    "MemoryPlan",
    "MemoryUse",
    "MovedRow",
    "MultiShapeModel",
    "Outputs",
    "PlannedTensor",
    "Profile",
    "RunTimeRowsModel",
    "RunTimeSizes",
    "ScheduledFunction",
    "ShapeRow",
    "Summary",
    "Timed",
    "TunedModel",
    "compile_model",
    "load",
    "plan_memory",
    "random_inputs",
    "schedule_model",
    "scheduled_functions",
]
