"""The tuned model: assembled, run, saved, loaded."""

from romou.module.assemble import compile_model, schedule_model
from romou.module.summary import LayerRow, Summary
from romou.module.tuned_model import TunedModel, load, random_inputs

__all__ = ["LayerRow", "Summary", "TunedModel", "compile_model", "load", "random_inputs", "schedule_model"]
