"""Romou: fast DNN kernels for every GPU, mobile ones first, on the official apache-tvm wheel.

    import romou
    tuned = romou.tune("model.onnx", target="opencl -device=adreno640", trials=200)
    outputs = tuned.run({"input": x})

Names are imported when first used: `import tvm` itself loads romou.tvm_patches, and a command line should answer at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from romou.core.version import __version__ as __version__

_HOME = {
    "tune": "romou.api.tune",
    "compile": "romou.api.compile",
    "inspect": "romou.api.inspect",
    "bench": "romou.api.bench",
    "compare": "romou.api.compare",
    "pruned_spaces": "romou.api.spaces",
    "load": "romou.module.tuned_model",
    "TunedModel": "romou.module.tuned_model",
    "Target": "romou.target",
    "MeasureOptions": "romou.measure.options",
    "Outputs": "romou.module.outputs",
    "Trial": "romou.search.trial",
    "Outcome": "romou.core.outcome",
    **dict.fromkeys(
        (
            "RomouError",
            "UsageError",
            "DeviceError",
            "ConnectionLostError",
            "ModelError",
            "RecordError",
            "BuildError",
            "CompatError",
            "InvalidConfigError",
            "SpaceEmptyError",
        ),
        "romou.core.errors",
    ),
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'romou' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
