"""Measurement: build candidates, run them on a device, compare them with a reference, and time the correct ones."""

from romou.runtime.workers.child import ChildBugError
from romou.tuner.measure.builder import LocalBuilder
from romou.tuner.measure.fingerprint import DeviceFingerprint
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.rpc_runner import RpcRunner
from romou.tuner.measure.runner import LocalRunner
from romou.tuner.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner, Toolchain

__all__ = [
    "BuildResult",
    "Builder",
    "Candidate",
    "ChildBugError",
    "DeviceFingerprint",
    "LocalBuilder",
    "LocalRunner",
    "MeasureOptions",
    "MeasureResult",
    "RpcRunner",
    "Runner",
    "Toolchain",
]
