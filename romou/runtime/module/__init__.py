"""The tuned model: assembled, run, saved, loaded."""

from romou.runtime.module.binding import BoundModel
from romou.runtime.module.built import BuiltModel
from romou.runtime.module.decoder_model import DecoderModel
from romou.runtime.module.multi_shape import MultiShapeModel
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.profile import Profile
from romou.runtime.module.run_time_sizes import FreeAxis, RunTimeSizes, RunTimeSizesModel
from romou.runtime.module.saved import load
from romou.runtime.module.summary import CallRow, HostRow, LayerRow, MovedRow, ShapeRow, Summary
from romou.runtime.module.timed import Timed
from romou.runtime.module.tuned_model import Argument, TunedModel

__all__ = [
    "Argument",
    "BoundModel",
    "BuiltModel",
    "CallRow",
    "DecoderModel",
    "FreeAxis",
    "HostRow",
    "LayerRow",
    "MovedRow",
    "MultiShapeModel",
    "Outputs",
    "Profile",
    "RunTimeSizes",
    "RunTimeSizesModel",
    "ShapeRow",
    "Summary",
    "Timed",
    "TunedModel",
    "load",
]
