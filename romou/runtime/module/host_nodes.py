"""The packed function that runs host nodes: copies device tensors to onnxruntime, and its results back."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
import tvm_ffi

from romou.base.errors import DeviceError
from romou.compiler.frontend.host_runner import host_runner
from tvm_patches import runtime
from tvm_patches.host_nodes import FUNCTION


class Ledger(threading.local):
    """Times and failures of host nodes in this thread.

    seconds: names of a group -> total time, with copies.
    failure: error of the last group that failed.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.failure: DeviceError | None = None


LEDGER = Ledger()


@tvm_ffi.register_global_func(FUNCTION, override=True)
def _run(text: str, *tensors: Any) -> Any:
    runner = host_runner(str(text))
    # Wait for earlier kernels, so that their time does not count.
    runtime.synchronize(tensors[0].device)
    started = time.perf_counter()
    try:
        arrays = runner.run([runtime.read(tensor) for tensor in tensors])
    except DeviceError as error:
        LEDGER.failure = error
        raise
    results = [runtime.device_tensor(np.asarray(array, order="C"), tensors[0].device) for array in arrays]
    LEDGER.seconds[runner.nodes] += time.perf_counter() - started
    return results[0] if len(results) == 1 else results
