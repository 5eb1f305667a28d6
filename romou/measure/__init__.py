"""Build candidates, run them on a device, check them against a reference and time those that are right."""

from romou.measure.builder import LocalBuilder
from romou.measure.child import ChildBugError
from romou.measure.fingerprint import DeviceFingerprint
from romou.measure.options import MeasureOptions
from romou.measure.rpc_runner import RpcRunner
from romou.measure.runner import LocalRunner
from romou.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner, Toolchain

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
