"""CUDA graphs: a whole run that is captured once and then started by one call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm_ffi

from romou.base.errors import DeviceError
from romou.devices.backends.cuda.driver import cuda_driver, value
from romou.devices.backends.cuda.overlapped_launches import overlap


class CudaGraph:
    """A run captured on a separate stream, with all memory that it allocated.

    TVM has a pool of workspaces for each thread, and frees a page of it when a larger one is requested. The run is
    therefore captured in a thread of the graph, whose pool nothing else uses.

    vm: None if no virtual machine runs. `run` is then called twice, because the pool may also replace pages in the
        first call.
    """

    def __init__(self, device: Any, vm: Any | None, run: Callable[[], None]) -> None:
        cuda = self._cuda = cuda_driver()
        self._device = device
        self._context = value(cuda, cuda.cuDevicePrimaryCtxRetain(value(cuda, cuda.cuDeviceGet(device.index))))
        value(cuda, cuda.cuCtxSetCurrent(self._context))
        # Storages return to TVM's pool when the run ends, and their next user would write into the graph's memory.
        self._kept: list[Any] = []
        self._thread = ThreadPoolExecutor(1, "captured-run")
        # The thread ends after the executable graph, whose finalizer is registered later and therefore runs earlier.
        weakref.finalize(self, self._thread.shutdown, wait=False).atexit = False
        graph = self._thread.submit(self._capture, vm, run).result()
        try:
            _, launches = value(cuda, cuda.cuGraphGetNodes(graph))
            if launches == 0:
                raise DeviceError("nothing of the run was captured: its kernels did not go to TVM's stream")
            overlap(cuda, graph)
            self._executable = value(cuda, cuda.cuGraphInstantiate(graph, 0))
        finally:
            cuda.cuGraphDestroy(graph)
        self.what = f"a CUDA graph of {launches} launches"
        self._begin, self._end = (
            value(cuda, cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DEFAULT.value)) for _ in range(2)
        )
        for destroy, what in (
            (cuda.cuGraphExecDestroy, self._executable),
            (cuda.cuEventDestroy, self._begin),
            (cuda.cuEventDestroy, self._end),
        ):
            # At the end of the process the driver may be gone first.
            weakref.finalize(self, destroy, what).atexit = False

    def _capture(self, vm: Any | None, run: Callable[[], None]) -> Any:
        cuda = self._cuda

        def keep(function: Any, name: str, is_before: bool, result: Any, *arguments: Any) -> None:
            if not is_before and result is not None:
                self._kept.append(result)

        value(cuda, cuda.cuCtxSetCurrent(self._context))
        stream = value(cuda, cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        try:
            if vm is None:
                run()
            else:
                vm["set_instrument"](keep)
            with tvm_ffi.use_raw_stream(self._device, int(stream)):
                # Relaxed: the pool may allocate during the capture.
                value(cuda, cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
                try:
                    run()
                except BaseException:
                    _, *graph = cuda.cuStreamEndCapture(stream)
                    if graph and graph[0]:
                        cuda.cuGraphDestroy(graph[0])
                    raise
                return value(cuda, cuda.cuStreamEndCapture(stream))
        finally:
            if vm is not None:
                vm["set_instrument"](None)
            cuda.cuStreamDestroy(stream)

    def launch(self) -> None:
        cuda = self._cuda
        value(cuda, cuda.cuCtxSetCurrent(self._context))
        value(cuda, cuda.cuGraphLaunch(self._executable, self._stream()))

    def time_ms(self) -> float:
        cuda = self._cuda
        value(cuda, cuda.cuCtxSetCurrent(self._context))
        stream = self._stream()
        value(cuda, cuda.cuEventRecord(self._begin, stream))
        value(cuda, cuda.cuGraphLaunch(self._executable, stream))
        value(cuda, cuda.cuEventRecord(self._end, stream))
        value(cuda, cuda.cuEventSynchronize(self._end))
        return float(value(cuda, cuda.cuEventElapsedTime(self._begin, self._end)))

    def _stream(self) -> Any:
        return self._cuda.CUstream(tvm_ffi.get_raw_stream(self._device))
