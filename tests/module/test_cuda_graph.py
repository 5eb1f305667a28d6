"""CUDA graphs: the calls of NVIDIA's driver, checked with a stand-in if there is no GPU, and the results of captured
runs if there is one.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import romou
from romou import models
from romou.base.errors import DeviceError
from romou.base.inputs import random_inputs
from romou.devices.backends.cuda import graph as cuda_graph
from romou.devices.backends.cuda.graph import CudaGraph
from romou.devices.targets import Target
from support.kernels.operators import has_device
from support.models.small_networks import residual_net

STREAM = 77


class Driver:
    """NVIDIA's driver as far as a recording needs it, as cuda-bindings spells it: every call succeeds and is written
    down.

    launches: how many it says were captured.
    failing: name of a call that fails.
    nodes: the captured graph in order: "kernel" waits for the node before it, "old kernel" does not, or a copy.
    """

    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1

    def __init__(self, launches: int = 3, failing: str = "", nodes: Sequence[str] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.launches, self.failing = launches, failing
        self.streams: list[int] = []
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0)
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
        self.CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=SimpleNamespace(value=0))
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
        self.CUstream = int
        self.CUgraphEdgeData = SimpleNamespace
        self.CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
        self.CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")
        self.nodes = nodes

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == self.failing:
                return (SimpleNamespace(name="CUDA_ERROR_OF_THE_TEST"), None)
            answers = {
                "cuStreamCreate": (STREAM,),
                "cuGraphGetNodes": ([], self.launches),
                "cuEventElapsedTime": (0.25,),
                "cuStreamEndCapture": ("graph",),
                "cuGraphGetEdges": (range(len(self.nodes) - 1), range(1, len(self.nodes)), None, len(self.nodes[1:])),
            }
            if name == "cuGraphNodeGetType":
                return (0, self.nodes[arguments[0]].split()[-1])
            if name == "cuGraphKernelNodeGetParams":
                return (0, SimpleNamespace(func=arguments[0]))
            if name == "cuFuncGetModule":
                return (0, self.nodes[arguments[0]])
            if name == "cuModuleGetGlobal":
                return (1 if arguments[0] == "old kernel" else 0, None)
            handles = {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuGraphInstantiate", "cuEventCreate"}
            return (0, *answers.get(name, (name,) if name in handles else ()))

        return call

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(cuda_graph, "cuda_driver", lambda: found)
    return found


def chain() -> tuple[relax.VirtualMachine, Any]:
    """Return a virtual machine of the CPU with a module of four steps and planned storages, and its input."""
    x = relax.Var("x", relax.TensorType((1031,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y: relax.Expr = x
        for op in (relax.op.exp, relax.op.negative, relax.op.exp, relax.op.sqrt):
            y = builder.emit(relax.op.add(op(y), y))
        builder.emit_func_output(y)
    machine = relax.VirtualMachine(tvm.compile(builder.finalize(), target="llvm"), tvm.cpu())
    data = tvm.runtime.tensor(np.random.default_rng(0).random(1031).astype("float32"), tvm.cpu())
    machine.set_input("main", data)
    machine.invoke_stateful("main")
    return machine, data


def test_what_is_asked_of_the_driver(driver: Driver) -> None:
    machine, _ = chain()
    streams = []

    def run() -> None:
        driver.calls.append(("run",))
        streams.append(tvm_ffi.get_raw_stream(tvm.cpu()))
        machine.invoke_stateful("main")

    graph = CudaGraph(tvm.cpu(), machine, run)
    names = driver.names()
    capture = ["cuStreamCreate", "cuStreamBeginCapture", "run", "cuStreamEndCapture", "cuStreamDestroy"]
    # The context belongs to a thread: the caller's and that of the graph.
    order = ["cuCtxSetCurrent", "cuCtxSetCurrent", *capture, "cuGraphInstantiate", "cuGraphDestroy"]
    assert [name for name in names if name in order] == order
    assert ("cuStreamBeginCapture", STREAM, 2) in driver.calls
    # TVM's kernels go to the stream that is captured while it is, and to TVM's own afterwards.
    assert streams == [STREAM]
    assert tvm_ffi.get_raw_stream(tvm.cpu()) == 0
    assert graph.what == "a CUDA graph of 3 launches"
    driver.calls.clear()
    graph.launch()
    assert driver.calls == [("cuCtxSetCurrent", "cuDevicePrimaryCtxRetain"), ("cuGraphLaunch", "cuGraphInstantiate", 0)]
    driver.calls.clear()
    assert graph.time_ms() == 0.25
    assert driver.names()[1:] == [
        "cuEventRecord",
        "cuGraphLaunch",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuEventElapsedTime",
    ]
    driver.calls.clear()
    del graph
    assert sorted(driver.names()) == ["cuEventDestroy", "cuEventDestroy", "cuGraphExecDestroy"]


def test_no_other_run_gets_the_storages_of_a_recording(driver: Driver) -> None:
    def storages(machine: relax.VirtualMachine) -> set[int]:
        found = set()

        def look(function: Any, name: str, is_before: bool, result: Any, *arguments: Any) -> None:
            if not is_before and isinstance(result, tvm.runtime.Tensor):
                found.add(address(result))

        machine.set_instrument(look)
        machine.invoke_stateful("main")
        machine.set_instrument(None)
        return found

    def address(tensor: Any) -> int:
        return int(np.from_dlpack(tensor).ctypes.data)

    machine, _ = chain()
    before = storages(machine)
    assert storages(machine) & before, "the pool gives a run what the run before gave back"
    graph = CudaGraph(tvm.cpu(), machine, lambda: machine.invoke_stateful("main"))
    recorded = {address(kept) for kept in graph._kept if isinstance(kept, tvm.runtime.Tensor)}
    other, _ = chain()
    assert len(recorded) >= 2
    assert not recorded & (storages(machine) | storages(other))


def workspace(n_bytes: int) -> int:
    """Return the address of a workspace as a kernel's host function gets it from TVM, and gives it back."""
    runtime = ctypes.CDLL(None)
    allocate, free = runtime.TVMBackendAllocWorkspace, runtime.TVMBackendFreeWorkspace
    allocate.restype = ctypes.c_void_p
    pointer: int = allocate(tvm.cpu().dlpack_device_type(), 0, ctypes.c_uint64(n_bytes), 2, 32)
    assert free(tvm.cpu().dlpack_device_type(), 0, ctypes.c_void_p(pointer)) == 0
    return pointer


def test_no_other_run_gets_or_frees_the_workspaces_of_a_recording(driver: Driver) -> None:
    pages: dict[str, list[int]] = {"small": [], "large": []}

    def run(name: str, *n_bytes: int) -> None:
        pages[name] = [workspace(n) for n in n_bytes]

    # In the first call the second workspace replaces the page of the first one, which a captured kernel would use.
    graphs = [CudaGraph(tvm.cpu(), None, lambda: run("small", 1 << 16, 1 << 17))]
    assert len(set(pages["small"])) == 1, "captured is a run in which the pool replaces no page"
    graphs.append(CudaGraph(tvm.cpu(), None, lambda: run("large", 1 << 20)))
    others = {workspace(n) for n in (1 << 12, 1 << 16, 1 << 22)}
    assert not set(pages["small"]) & {*pages["large"], *others}
    assert not set(pages["large"]) & others
    threads = [thread for graph in graphs for thread in graph._thread._threads]
    assert all(thread.is_alive() for thread in threads)
    del graphs
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_run_that_fails_leaves_nothing_captured(driver: Driver) -> None:
    machine, _ = chain()

    def run() -> None:
        raise RuntimeError("of the test")

    with pytest.raises(RuntimeError, match="of the test"):
        CudaGraph(tvm.cpu(), machine, run)
    assert driver.names()[-3:] == ["cuStreamEndCapture", "cuGraphDestroy", "cuStreamDestroy"]
    assert tvm_ffi.get_raw_stream(tvm.cpu()) == 0


@pytest.mark.parametrize("failing", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_a_call_that_fails_is_named(driver: Driver, failing: str) -> None:
    machine, _ = chain()
    driver.failing = failing
    with pytest.raises(DeviceError, match="NVIDIA's driver failed: CUDA_ERROR_OF_THE_TEST"):
        CudaGraph(tvm.cpu(), machine, lambda: machine.invoke_stateful("main"))
    assert "cuStreamDestroy" in driver.names()
    assert tvm_ffi.get_raw_stream(tvm.cpu()) == 0


def test_an_empty_capture_is_no_recording(driver: Driver) -> None:
    machine, _ = chain()
    driver.launches = 0
    with pytest.raises(DeviceError, match="nothing of the run was captured"):
        CudaGraph(tvm.cpu(), machine, lambda: machine.invoke_stateful("main"))
    assert driver.names()[-1] == "cuGraphDestroy"


def test_only_kernels_that_wait_are_launched_early(driver: Driver) -> None:
    driver.nodes = ["copy", "kernel", "kernel", "old kernel", "kernel", "copy"]
    CudaGraph(tvm.cpu(), None, lambda: None)
    (removed,), (added,) = (
        [rest for called, *rest in driver.calls if called == name]
        for name in ("cuGraphRemoveDependencies", "cuGraphAddDependencies")
    )
    assert removed == ["graph", [1, 3], [2, 4], None, 2]
    assert added == ["graph", [1, 3], [2, 4], [SimpleNamespace(from_port=1, type=1)] * 2, 2]


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"(?s)the Python package cuda-bindings.*pip install 'romou\[cuda\]'"):
        cuda_graph.cuda_driver()


def test_captured_runs_on_a_gpu(cuda_target: Target) -> None:
    """Equal to plain runs for changed inputs, with two models alternately."""
    plain = {"residual": romou.compile(residual_net(), target=cuda_target)}
    if has_device(cuda_target):
        plain["bert_2layer"] = romou.compile(models.load("bert_2layer"), target=cuda_target)
    recorded = {name: copy.copy(model) for name, model in plain.items()}
    for name in plain:
        plain[name].capture, recorded[name].capture = False, True
    if not has_device(cuda_target):
        assert all(model.sources() for model in recorded.values())
        return
    for seed in range(4):
        for name, model in recorded.items():
            inputs = random_inputs(model.inputs, seed=seed)
            for found, right in zip(model.run(inputs), plain[name].run(inputs), strict=True):
                assert found.tobytes() == right.tobytes(), (name, seed)
    for name, model in recorded.items():
        assert model.launching.startswith("a CUDA graph of "), (name, model.launching)
        assert 0 < min(model.times(repeat=5)) < 1e3
        assert plain[name].launching == "kernel by kernel"
