"""Timers change the queue under everybody else: order holds across the change, and no event is left behind."""

from __future__ import annotations

import gc
import json
import threading
import time

import numpy as np
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

HOST_AND_OPENCL = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})
SECONDS = 4.0


@I.ir_module
class Scaled:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), factor: T.float32):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            B[i] = A[i] * factor


def live_events() -> int:
    gc.collect()  # models that other tests left behind hold events
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_events"]


def test_launches_keep_their_order_while_others_time(opencl_device: tvm.runtime.Device) -> None:
    """A read after a launch sees its writes, whichever queues the two went to."""
    module = tirx.build(Scaled, target=HOST_AND_OPENCL)
    scaled = module["main"]
    evaluate = module.time_evaluator("main", opencl_device, number=1, repeat=1)
    end = time.monotonic() + SECONDS
    failures: list[str] = []
    others = live_events()
    counts = {"launch": 0, "time": 0}

    def guarded(work: object) -> None:
        try:
            a = tvm.runtime.tensor(np.arange(64, dtype="float32"), opencl_device)
            b = tvm.runtime.empty((64,), "float32", opencl_device)
            while time.monotonic() < end:
                work(a, b)  # type: ignore[operator]
        except Exception as error:
            failures.append(str(error))

    def launch(a: tvm.runtime.Tensor, b: tvm.runtime.Tensor) -> None:
        counts["launch"] += 1
        factor = counts["launch"] % 1000 + 1
        scaled(a, b, float(factor))
        found = b.numpy()[1]
        if found != factor:
            failures.append(f"read {found} after writing {factor}")

    def measure(a: tvm.runtime.Tensor, b: tvm.runtime.Tensor) -> None:
        evaluate(a, b, 2.0)
        counts["time"] += 1

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (launch, launch, launch, measure, measure)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts["launch"] > 100, counts
    assert counts["time"] > 10, counts
    assert not failures, failures[:5]
    assert live_events() <= others


def test_a_timer_keeps_few_events_and_releases_them(opencl_device: tvm.runtime.Device) -> None:
    module = tirx.build(Scaled, target=HOST_AND_OPENCL)
    a = tvm.runtime.tensor(np.ones(64, "float32"), opencl_device)
    others = live_events()
    module.time_evaluator("main", opencl_device, number=5000, repeat=1)(a, a, 1.0)
    assert live_events() <= others
