"""Romou: fast DNN kernels for every GPU, mobile ones first, on the official apache-tvm wheel.

    import romou
    tuned = romou.tune("model.onnx", target="opencl -device=adreno640", trials=200)
    outputs = tuned.run({"input": x})

Names are imported when first used, so `import romou` takes no time and changes nothing in the process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from romou.base.version import __version__ as __version__

if TYPE_CHECKING:
    from romou.api import operators as operators
    from romou.api import training as training
    from romou.api.bench import bench as bench
    from romou.api.check import check as check
    from romou.api.compare import compare as compare
    from romou.api.compile import compile as compile
    from romou.api.decoder import Decoder as Decoder
    from romou.api.decoder import Generated as Generated
    from romou.api.doctor import Diagnosis as Diagnosis
    from romou.api.doctor import doctor as doctor
    from romou.api.inspect import inspect as inspect
    from romou.api.inspect import memory_plan as memory_plan
    from romou.api.inspect import simulate as simulate
    from romou.api.operators import OperatorModel as OperatorModel
    from romou.api.operators import tune_operator as tune_operator
    from romou.api.quantize import Quantized as Quantized
    from romou.api.quantize import quantize as quantize
    from romou.api.report import charts as charts
    from romou.api.report import write_report as write_report
    from romou.api.session import NodeArg as NodeArg
    from romou.api.session import Session as Session
    from romou.api.spaces import pruned_spaces as pruned_spaces
    from romou.api.tune import tune as tune
    from romou.base.errors import BrokenFunctionsError as BrokenFunctionsError
    from romou.base.errors import BrokenModelError as BrokenModelError
    from romou.base.errors import BrokenNodesError as BrokenNodesError
    from romou.base.errors import BuildError as BuildError
    from romou.base.errors import CompatError as CompatError
    from romou.base.errors import ConnectionLostError as ConnectionLostError
    from romou.base.errors import DeviceError as DeviceError
    from romou.base.errors import InvalidConfigError as InvalidConfigError
    from romou.base.errors import ModelError as ModelError
    from romou.base.errors import NumericError as NumericError
    from romou.base.errors import RecordError as RecordError
    from romou.base.errors import RomouError as RomouError
    from romou.base.errors import SpaceEmptyError as SpaceEmptyError
    from romou.base.errors import UsageError as UsageError
    from romou.base.finding import Finding as Finding
    from romou.base.outcome import Outcome as Outcome
    from romou.compiler.graph.memory.memory import MemoryPlan as MemoryPlan
    from romou.devices import attached_devices
    from romou.devices.targets import Target as Target
    from romou.runtime.module.binding import BoundModel as BoundModel
    from romou.runtime.module.multi_shape import MultiShapeModel as MultiShapeModel
    from romou.runtime.module.outputs import Outputs as Outputs
    from romou.runtime.module.profile import Profile as Profile
    from romou.runtime.module.run_time_sizes import RunTimeRowsModel as RunTimeRowsModel
    from romou.runtime.module.run_time_sizes import RunTimeSizesModel as RunTimeSizesModel
    from romou.runtime.module.saved import load as load
    from romou.runtime.module.summary import LayerRow as LayerRow
    from romou.runtime.module.summary import Summary as Summary
    from romou.runtime.module.tuned_model import TunedModel as TunedModel
    from romou.tools.inspection.check_report import CheckReport as CheckReport
    from romou.tools.inspection.execute import ExecutedFunction as ExecutedFunction
    from romou.tools.inspection.kernels import InspectedKernel as InspectedKernel
    from romou.tools.regression.bench_data import Bench as Bench
    from romou.tools.regression.comparison import Comparison as Comparison
    from romou.tuner.measure.measure_options import MeasureOptions as MeasureOptions
    from romou.tuner.pruning.prune import PrunedSpace as PrunedSpace
    from romou.tuner.search.trial import Trial as Trial

    devices = attached_devices

_NAMES = {
    **{f"romou.api.{name}": (name,) for name in ("tune", "compile", "bench", "check", "compare")},
    "romou.api.decoder": ("Decoder", "Generated"),
    "romou.api.doctor": ("Diagnosis", "doctor"),
    "romou.api.inspect": ("inspect", "memory_plan", "simulate"),
    "romou.api.session": ("NodeArg", "Session"),
    "romou.api.spaces": ("pruned_spaces",),
    "romou.api.quantize": ("Quantized", "quantize"),
    "romou.api.report": ("charts", "write_report"),
    "romou.api.operators": ("OperatorModel", "tune_operator"),
    "romou.runtime.module.saved": ("load",),
    "romou.runtime.module.tuned_model": ("TunedModel",),
    "romou.runtime.module.multi_shape": ("MultiShapeModel",),
    "romou.runtime.module.run_time_sizes": ("RunTimeRowsModel", "RunTimeSizesModel"),
    "romou.runtime.module.binding": ("BoundModel",),
    "romou.runtime.module.outputs": ("Outputs",),
    "romou.runtime.module.profile": ("Profile",),
    "romou.runtime.module.summary": ("LayerRow", "Summary"),
    "romou.compiler.graph.memory.memory": ("MemoryPlan",),
    "romou.tools.inspection.check_report": ("CheckReport",),
    "romou.tools.inspection.execute": ("ExecutedFunction",),
    "romou.tools.inspection.kernels": ("InspectedKernel",),
    "romou.tools.regression.bench_data": ("Bench",),
    "romou.tools.regression.comparison": ("Comparison",),
    "romou.devices.targets": ("Target",),
    "romou.tuner.measure.measure_options": ("MeasureOptions",),
    "romou.tuner.pruning.prune": ("PrunedSpace",),
    "romou.tuner.search.trial": ("Trial",),
    "romou.base.finding": ("Finding",),
    "romou.base.outcome": ("Outcome",),
    "romou.base.errors": (
        *(
            "RomouError",
            "UsageError",
            "DeviceError",
            "ConnectionLostError",
            "ModelError",
            "BrokenModelError",
            "NumericError",
        ),
        *(
            "RecordError",
            "BuildError",
            "BrokenFunctionsError",
            "BrokenNodesError",
            "CompatError",
            "InvalidConfigError",
            "SpaceEmptyError",
        ),
    ),
}
# Modules that belong to the interface too. `romou.devices` can be called.
_MODULES = {"operators": "romou.api.operators", "training": "romou.api.training", "devices": "romou.devices"}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_HOME, "devices"])

# Hidden from type checkers, which would take each name for Any. They read the imports above.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name not in _HOME:
            raise AttributeError(f"module 'romou' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__all__", "__doc__", "__version__"})
