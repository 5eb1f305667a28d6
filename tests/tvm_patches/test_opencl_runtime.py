"""The OpenCL runtime as plain TVM code sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from support.devices import standin
from support.servers import forked

HOST_AND_OPENCL = tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})


@I.ir_module
class TwoKernels:
    @T.prim_func
    def add_one(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            B[i] = A[i] + T.float32(1)

    @T.prim_func
    def scaled(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), factor: T.float32):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            B[i] = A[i] * factor


@I.ir_module
class Busy:
    @T.prim_func
    def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
        for block in T.thread_binding(64, thread="blockIdx.x"):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                B[block * 64 + i] = T.float32(0)
                for _ in range(2000):
                    B[block * 64 + i] = T.sin(B[block * 64 + i] + A[block * 64 + i])


def statistics() -> dict[str, int]:
    return json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run("-c", code, env={**os.environ, **variables}, timeout=120)


def test_devices_and_their_facts(opencl_device: tvm.runtime.Device) -> None:
    facts = json.loads(str(tvm.get_global_func("romou.opencl.devices")()))
    assert opencl_device.device_name == facts[0]["name"]
    assert opencl_device.max_threads_per_block == facts[0]["max_work_group_size"] >= 1
    assert opencl_device.max_shared_memory_per_block == facts[0]["local_mem_bytes"] >= 1024
    assert [f["index"] for f in facts] == list(range(len(facts)))
    ranks = [{"gpu": 0, "accelerator": 1, "cpu": 2}.get(f["type"], 3) for f in facts]
    assert ranks == sorted(ranks)
    assert not tvm.opencl(len(facts)).exist
    assert str(tvm.get_global_func("romou.opencl.library")())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 13), (0, 3)])
def test_tensors_go_there_and_back(opencl_device: tvm.runtime.Device, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensor = tvm.runtime.tensor(array, opencl_device)
    np.testing.assert_array_equal(tensor.numpy(), array)
    again = tvm.runtime.empty(shape, dtype, opencl_device).copyfrom(tensor)
    np.testing.assert_array_equal(again.numpy(), array)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("scope", "shape"),
    [
        ("global.texture", (2, 3, 5, 7, 4)),
        ("global.texture", (6, 4)),
        ("global.texture-weight", (3, 5, 2, 2, 4)),
        ("global.texture-nhwc", (2, 3, 5, 7, 4)),
        ("global.texture-2d", (3, 5, 2, 2, 4)),
        ("global.texture-rows", (2, 3, 20)),
        ("global.texture-rows-joined", (2, 3, 20)),
    ],
)
def test_images_go_there_and_back(
    opencl_device: tvm.runtime.Device, dtype: str, scope: str, shape: tuple[int, ...]
) -> None:
    array = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    before = statistics()["live_images"]
    image = tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope).copyfrom(array)
    assert statistics()["live_images"] == before + 1
    np.testing.assert_array_equal(image.numpy(), array)
    # Through a buffer, and from image to image.
    buffer = tvm.runtime.empty(shape, dtype, opencl_device).copyfrom(image)
    np.testing.assert_array_equal(buffer.numpy(), array)
    other = tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope).copyfrom(buffer)
    np.testing.assert_array_equal(
        tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope).copyfrom(other).numpy(), array
    )
    del image, other
    assert statistics()["live_images"] == before


@pytest.mark.parametrize(
    ("shape", "dtype", "scope", "message"),
    [
        ((2, 3), "float32", "global.texture", "its last axis must be 4"),
        ((2, 6), "float32", "global.texture-rows", "its last axis must be a multiple of 4"),
        ((2, 0), "float32", "global.texture-rows", "it is empty"),
        ((2, 3, 6), "float32", "global.texture-rows-joined", "its last axis must be a multiple of 4"),
        ((8, 4), "float32", "global.texture-rows-joined", "too few axes for an image .3 are needed"),
        ((2, 3, 4), "int32", "global.texture", "only float32 and float16"),
        ((2, 3, 4), "float32", "global.sprite", "unknown memory scope 'global.sprite'"),
        ((4,), "float32", "global.texture", "too few axes"),
        ((1 << 20, 1, 4), "float32", "global.texture", "image too large"),
    ],
)
def test_what_cannot_be_an_image(
    opencl_device: tvm.runtime.Device, shape: tuple[int, ...], dtype: str, scope: str, message: str
) -> None:
    with pytest.raises((RuntimeError, ValueError), match=message):
        tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope)


def test_kernels_read_and_write_images(opencl_device: tvm.runtime.Device) -> None:
    shape = (3, 5, 4)
    source = tirx.decl_buffer(shape, "float32", name="source", scope="global.texture")
    result = tirx.decl_buffer(shape, "float32", name="result", scope="global.texture")
    thread = tirx.Var("thread", "int32")
    axis = tirx.IterVar(tvm.ir.Range(0, 15), thread, tirx.IterVar.ThreadIndex, "threadIdx.x")
    x, y, layer, bits = thread % 5, thread // 5, tirx.const(0, "int32"), tirx.const(128, "int32")
    texel = tirx.call_intrin("float32x4", "tirx.texture2d_load", source.data, x, y, layer, bits, tirx.Ramp(0, 1, 4))
    double = texel * tirx.Broadcast(tirx.const(2, "float32"), 4)
    store = tirx.Evaluate(tirx.call_intrin("int32", "tirx.texture2d_store", result.data, x, y, layer, bits, double))
    func = tirx.PrimFunc([source, result], tirx.AttrStmt(axis, "thread_extent", tirx.const(15, "int32"), store))
    func = func.with_attrs({"global_symbol": "main", "tirx.noalias": True})
    array = np.random.default_rng(2).standard_normal(shape).astype("float32")
    given = tvm.runtime.empty(shape, "float32", opencl_device, mem_scope="global.texture").copyfrom(array)
    made = tvm.runtime.empty(shape, "float32", opencl_device, mem_scope="global.texture")
    tirx.build(tvm.IRModule({"main": func}), target=HOST_AND_OPENCL)["main"](given, made)
    np.testing.assert_array_equal(made.numpy(), 2 * array)


def test_modules_are_saved_and_loaded_in_another_process(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    module = tirx.build(TwoKernels, target=HOST_AND_OPENCL)
    path = tmp_path / "two.so"
    module.export_library(str(path))
    code = f"""
import numpy as np, tvm
module = tvm.runtime.load_module({str(path)!r})
a = tvm.runtime.tensor(np.arange(64, dtype="float32"), tvm.opencl(0))
b = tvm.runtime.empty((64,), "float32", tvm.opencl(0))
module["add_one"](a, b)
np.testing.assert_array_equal(b.numpy(), np.arange(64) + 1)
module["scaled"](a, b, 3.0)
np.testing.assert_array_equal(b.numpy(), np.arange(64) * 3)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_a_cut_off_library_is_refused(opencl_device: tvm.runtime.Device) -> None:
    load = tvm.get_global_func("ffi.Module.load_from_bytes.opencl")
    with pytest.raises(ValueError, match=r"cannot be read \(3 bytes\)"):
        load(b"abc")


def test_source_can_be_read(opencl_device: tvm.runtime.Device) -> None:
    (kernels,) = tirx.build(TwoKernels, target=HOST_AND_OPENCL).imports
    text = kernels.inspect_source()
    assert "void add_one_kernel(" in text
    assert "void scaled_kernel(" in text


def test_event_times_lie_within_wall_time(opencl_device: tvm.runtime.Device) -> None:
    module = tirx.build(Busy, target=HOST_AND_OPENCL)
    a = tvm.runtime.tensor(np.ones(4096, "float32"), opencl_device)
    b = tvm.runtime.empty((4096,), "float32", opencl_device)
    module["main"](a, b)
    opencl_device.sync()
    start = time.perf_counter()
    found = module.time_evaluator("main", opencl_device, number=3, repeat=4)(a, b).results
    wall = time.perf_counter() - start
    assert len(found) == 4
    assert all(t > 1e-5 for t in found)
    assert 3 * sum(found) <= wall


def test_a_kernel_that_does_not_build(opencl_device: tvm.runtime.Device) -> None:
    @I.ir_module
    class Bad:
        @T.prim_func
        def main(A: T.Buffer((4,), "float32")):
            for i in T.thread_binding(4, thread="threadIdx.x"):
                A[i] = T.call_extern("float32", "no_such_function", A[i])

    module = tirx.build(Bad, target=HOST_AND_OPENCL)
    with pytest.raises(RuntimeError) as caught:
        module["main"](tvm.runtime.empty((4,), "float32", opencl_device))
    text = str(caught.value)
    for part in (
        "clBuildProgram failed: CL_BUILD_PROGRAM_FAILURE (-11)",
        "kernel main_kernel",
        "device opencl:0",
        "no_such_function",
    ):
        assert part in text
    saved = Path(text.partition("source saved in ")[2].splitlines()[0])
    assert "no_such_function" in saved.read_text()


def test_a_work_group_that_is_too_large(opencl_device: tvm.runtime.Device) -> None:
    size = opencl_device.max_threads_per_block * 2

    @I.ir_module
    class Large:
        @T.prim_func
        def main(A: T.Buffer((size,), "float32")):
            for i in T.thread_binding(size, thread="threadIdx.x"):
                A[i] = T.float32(1)

    target = tvm.target.Target(
        {"kind": "opencl", "max_num_threads": size, "max_threads_per_block": size}, host={"kind": "llvm"}
    )
    module = tirx.build(Large, target=target)
    with pytest.raises(RuntimeError, match=rf"clEnqueueNDRangeKernel failed.*local size \({size}\)"):
        module["main"](tvm.runtime.empty((size,), "float32", opencl_device))


def test_host_tensors_are_refused(opencl_device: tvm.runtime.Device) -> None:
    module = tirx.build(TwoKernels, target=HOST_AND_OPENCL)
    on_host = tvm.runtime.tensor(np.zeros(64, "float32"))
    with pytest.raises(Exception, match="device"):
        module["add_one"](on_host, on_host)


def test_no_leak_over_ten_thousand_launches_and_allocations(opencl_device: tvm.runtime.Device) -> None:
    module = tirx.build(TwoKernels, target=HOST_AND_OPENCL)
    add_one = module["add_one"]
    a = tvm.runtime.tensor(np.zeros(64, "float32"), opencl_device)

    def rounds(count: int) -> None:
        for i in range(count):
            b = tvm.runtime.empty((64,), "float32", opencl_device)
            image = tvm.runtime.empty((4, 4, 4), "float32", opencl_device, mem_scope="global.texture")
            add_one(a, b)
            del b, image
            if i % 500 == 0:
                opencl_device.sync()
        opencl_device.sync()

    rounds(1000)  # driver pools fill up
    before, rss = statistics(), psutil.Process().memory_info().rss
    rounds(10_000)
    after = statistics()
    assert after["launches"] - before["launches"] == 10_000
    assert {n: v for n, v in after.items() if "live" in n} == {n: v for n, v in before.items() if "live" in n}
    # 10,000 leaked buffers, images and events would take hundreds of megabytes here; a page per launch would be 40.
    assert psutil.Process().memory_info().rss - rss < 20e6


def test_modules_release_their_kernels(opencl_device: tvm.runtime.Device) -> None:
    before = statistics()
    module = tirx.build(TwoKernels, target=HOST_AND_OPENCL)
    a = tvm.runtime.tensor(np.zeros(64, "float32"), opencl_device)
    module["add_one"](a, a)
    assert statistics()["live_kernels"] == before["live_kernels"] + 1
    del module
    assert statistics()["live_kernels"] == before["live_kernels"]
    assert statistics()["live_programs"] == before["live_programs"]


def test_kernels_are_compiled_as_one_program(opencl_device: tvm.runtime.Device) -> None:
    before = statistics()
    module = tirx.build(TwoKernels, target=HOST_AND_OPENCL)
    tvm.get_global_func("romou.opencl.compile_as_one")(module, 0, "")
    a = tvm.runtime.tensor(np.arange(64, dtype="float32"), opencl_device)
    b, c = (tvm.runtime.empty((64,), "float32", opencl_device) for _ in range(2))
    module["add_one"](a, b)
    module["scaled"](a, c, 3.0)
    np.testing.assert_array_equal(b.numpy(), np.arange(64) + 1)
    np.testing.assert_array_equal(c.numpy(), np.arange(64) * 3)
    assert statistics()["live_programs"] == before["live_programs"] + 1
    assert statistics()["live_kernels"] == before["live_kernels"] + 2
    del module
    assert statistics()["live_programs"] == before["live_programs"]


def test_a_kernel_that_the_driver_refuses_is_named_among_several(opencl_device: tvm.runtime.Device) -> None:
    @I.ir_module
    class OneIsBroken:
        @T.prim_func
        def right(A: T.Buffer((64,), "float32")):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                A[i] = T.float32(7)

        @T.prim_func
        def wrong(A: T.Buffer((64,), "float32")):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                A[i] = T.call_extern("float32", "no_such_function", A[i])

    module = tirx.build(OneIsBroken, target=HOST_AND_OPENCL)
    tvm.get_global_func("romou.opencl.compile_as_one")(module, 0, "")
    a = tvm.runtime.tensor(np.zeros(64, "float32"), opencl_device)
    module["right"](a)
    assert (a.numpy() == 7).all()
    with pytest.raises(RuntimeError, match=r"wrong_kernel(?s:.*)no_such_function"):
        module["wrong"](a)


def test_launches_from_several_threads(opencl_device: tvm.runtime.Device) -> None:
    scaled = tirx.build(TwoKernels, target=HOST_AND_OPENCL)["scaled"]
    failures: list[str] = []

    def work(factor: int) -> None:
        a = tvm.runtime.tensor(np.arange(64, dtype="float32"), opencl_device)
        b = tvm.runtime.empty((64,), "float32", opencl_device)
        for _ in range(100):
            scaled(a, b, float(factor))
            if not np.array_equal(b.numpy(), np.arange(64) * factor):
                failures.append(f"factor {factor}")

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_relax_runs_and_gives_memory_back(opencl_device: tvm.runtime.Device) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    with builder.function("main", [x]):
        weight = relax.const(np.eye(16, dtype="float32") * 2)
        builder.emit_func_output(builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight)))))
    executable = tvm.compile(builder.get(), target=HOST_AND_OPENCL)
    machine = relax.VirtualMachine(executable, opencl_device)
    array = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    given = tvm.runtime.tensor(array, opencl_device)
    for _ in range(3):  # the pool fills up
        machine["main"](given).numpy()
    before = statistics()["live_buffers"]
    for _ in range(20):
        np.testing.assert_allclose(machine["main"](given).numpy(), np.maximum(2 * array, 0), rtol=1e-6)
    assert statistics()["live_buffers"] == before


def test_rpc_server_offers_opencl(opencl_device: tvm.runtime.Device, tmp_path: Path) -> None:
    from tvm import rpc

    server = rpc.Server(host="127.0.0.1", port=9190, port_end=9290)
    try:
        remote = rpc.connect("127.0.0.1", server.port)
        device = remote.cl(0)
        assert device.exist
        path = tmp_path / "two.so"
        tirx.build(TwoKernels, target=HOST_AND_OPENCL).export_library(str(path))
        remote.upload(str(path))
        module = remote.load_module("two.so")
        a = tvm.runtime.tensor(np.arange(64, dtype="float32"), device)
        b = tvm.runtime.empty((64,), "float32", device)
        module["add_one"](a, b)
        np.testing.assert_array_equal(b.numpy(), np.arange(64) + 1)
        assert module.time_evaluator("add_one", device, number=2)(a, b).mean > 0
        array = np.random.default_rng(3).standard_normal((2, 3, 4)).astype("float32")
        image = tvm.runtime.empty((2, 3, 4), "float32", device, mem_scope="global.texture").copyfrom(array)
        np.testing.assert_array_equal(image.numpy(), array)
    finally:
        server.terminate()


def test_import_without_an_icd_loader() -> None:
    code = """
import tvm
assert not tvm.opencl(0).exist
try:
    tvm.runtime.empty((1,), "float32", tvm.opencl(0))
except RuntimeError as error:
    print(error)
"""
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "no OpenCL library could be opened" in result.stdout
    assert "/nonexistent/libOpenCL.so" in result.stdout


def test_a_device_is_chosen_by_name(opencl_device: tvm.runtime.Device) -> None:
    name = opencl_device.device_name
    code = "import tvm; print(tvm.opencl(0).device_name)"
    assert run_python(code, ROMOU_OPENCL_DEVICE=name[:8].upper()).stdout.strip() == name
    result = run_python(code, ROMOU_OPENCL_DEVICE="no such GPU")
    assert result.returncode != 0
    assert "ROMOU_OPENCL_DEVICE='no such GPU' matches no OpenCL device; found are" in result.stderr
    assert name in result.stderr


@pytest.mark.parametrize(
    ("driver", "hint", "properties"),
    [
        ("performance hint", "high", "properties 40c2 40c3"),
        ("performance hint", "", "properties"),
        ("performance hint", "low", "properties"),
        ("no extension", "high", ""),
    ],
)
def test_a_context_requests_the_highest_clock_if_it_is_asked_to(driver: str, hint: str, properties: str) -> None:
    code = "import romou, tvm; tvm.runtime.empty((1,), 'float32', romou.Target('opencl').backend.device(0))"
    variables = {"ROMOU_OPENCL_LIBRARY": str(standin.library()), "STANDIN": driver, "ROMOU_OPENCL_PERF_HINT": hint}
    done = run_python(code, **variables)
    assert (done.returncode, done.stdout.strip()) == (0, properties), done.stderr
