"""The tuned model: assembled, run, saved, loaded."""

from romou.module.summary import LayerRow, Summary
from romou.module.tuned_model import TunedModel, load

__all__ = ["LayerRow", "Summary", "TunedModel", "load"]
