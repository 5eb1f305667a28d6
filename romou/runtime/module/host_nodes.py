"""The packed function that runs a model's host nodes: device tensors in, onnxruntime, device tensors out."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from romou.base.errors import DeviceError
from romou.compiler.frontend.host_runner import host_runner
from tvm_patches.host_nodes import FUNCTION


class Ledger(threading.local):
    """What host nodes did in this thread.
    seconds: by the names of a group, copies included.
    failure: why the last one failed.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.failure: DeviceError | None = None


LEDGER = Ledger()


@tvm_ffi.register_global_func(FUNCTION, override=True)
def _run(text: str, *tensors: Any) -> Any:
    runner = host_runner(str(text))
    # Kernels before it are still at work, and their time is not that of the host.
    tensors[0].device.sync()
    started = time.perf_counter()
    try:
        arrays = runner.run([np.asarray(tensor.numpy()) for tensor in tensors])
    except DeviceError as error:
        LEDGER.failure = error
        raise
    made = [tvm.runtime.tensor(np.asarray(array, order="C"), tensors[0].device) for array in arrays]
    LEDGER.seconds[runner.nodes] += time.perf_counter() - started
    return made[0] if len(made) == 1 else made
