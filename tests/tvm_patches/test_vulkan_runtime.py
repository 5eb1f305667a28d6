"""The Vulkan runtime as plain TVM code sees it, with kernels written by hand. `test_vulkan_modes.py` runs all of it
again under the validation layer.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from support.kernels import glsl
from support.kernels.glsl import launch

N = 256  # numbers that SCALE reads and writes with 4 work groups of 64
GRID = (4, 64)


@pytest.fixture(scope="module")
def scale(vulkan_device: tvm.runtime.Device) -> tvm.runtime.Module:
    """Return the kernel b = a * factor + 1."""
    return glsl.module(scale=glsl.entry(glsl.SCALE, glsl.SCALE_ARGS))


def statistics() -> dict[str, int]:
    return json.loads(str(tvm.get_global_func("romou.vulkan.statistics")()))


def counted(name: str, before: dict[str, int]) -> int:
    return statistics()[name] - before[name]


def numbers(device: tvm.runtime.Device, seed: int = 0) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.random.default_rng(seed).standard_normal(N).astype("float32"), device)


def room(device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    return tvm.runtime.empty((N,), "float32", device)


def test_devices_and_their_facts(vulkan_device: tvm.runtime.Device) -> None:
    facts = json.loads(str(tvm.get_global_func("romou.vulkan.devices")()))
    assert vulkan_device.device_name == facts[0]["name"]
    assert vulkan_device.max_threads_per_block == facts[0]["max_work_group_size"] >= 128
    assert vulkan_device.max_shared_memory_per_block == facts[0]["local_mem_bytes"] >= 16384
    assert facts[0]["max_storage_buffers"] >= 4
    assert facts[0]["max_push_constant_bytes"] >= 128
    assert [f["index"] for f in facts] == list(range(len(facts)))
    ranks = [{"gpu": 0, "cpu": 1}.get(f["type"], 2) for f in facts]
    assert ranks == sorted(ranks)
    assert not tvm.device("vulkan", len(facts)).exist


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 13), (0, 3)])
def test_tensors_go_there_and_back(vulkan_device: tvm.runtime.Device, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensor = tvm.runtime.tensor(array, vulkan_device)
    np.testing.assert_array_equal(tensor.numpy(), array)
    again = tvm.runtime.empty(shape, dtype, vulkan_device).copyfrom(tensor)
    np.testing.assert_array_equal(again.numpy(), array)


def test_a_large_tensor_goes_in_parts(vulkan_device: tvm.runtime.Device) -> None:
    array = np.arange(10_000_001, dtype="int32")
    tensor = tvm.runtime.tensor(array, vulkan_device)
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("scope", "shape"),
    [
        ("global.texture", (2, 3, 5, 7, 4)),
        ("global.texture", (9, 4)),
        ("global.texture-weight", (5, 3, 2, 7, 4)),
        ("global.texture-rows", (5, 3, 28)),
        ("global.texture-rows-joined", (5, 3, 28)),
        ("global.texture-nhwc", (2, 5, 7, 3, 4)),
    ],
)
def test_images_go_there_and_back(
    vulkan_device: tvm.runtime.Device, dtype: str, scope: str, shape: tuple[int, ...]
) -> None:
    """They are also copied into a buffer and into an image of another shape, both in row-major order."""
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    image = tvm.runtime.empty(shape, dtype, vulkan_device, mem_scope=scope).copyfrom(array)
    np.testing.assert_array_equal(image.numpy(), array)
    for other in ("global", scope, *(("global.texture", "global.texture-weight") if shape[-1] == 4 else ())):
        copied = tvm.runtime.empty(shape, dtype, vulkan_device, mem_scope=other).copyfrom(image)
        np.testing.assert_array_equal(copied.numpy(), array)


@pytest.mark.parametrize(
    ("shape", "dtype", "scope", "message"),
    [
        ((2, 3, 5), "float32", "global.texture", "its last axis must be 4"),
        ((2, 3, 4), "int32", "global.texture", "only float32 and float16"),
        ((2, 0, 4), "float32", "global.texture", "it is empty"),
        ((3, 4), "float32", "global.image2d", "unknown memory scope 'global.image2d' for Vulkan"),
        (
            (100_000, 4),
            "float32",
            "global.texture",
            r"image too large for device vulkan:0 .*100000x1x1 texels of 16 bytes .*; the device allows",
        ),
    ],
)
def test_what_cannot_be_an_image(
    vulkan_device: tvm.runtime.Device, shape: tuple[int, ...], dtype: str, scope: str, message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        tvm.runtime.empty(shape, dtype, vulkan_device, mem_scope=scope)


DOUBLE = """
layout(local_size_x = 1) in;
layout(binding = 0) uniform texture2DArray given;
layout(binding = 1, FORMAT) uniform writeonly image2DArray made;
void main() {
  ivec3 at = ivec3(gl_WorkGroupID.x % 7, gl_WorkGroupID.x / 7 % 5, gl_WorkGroupID.x / 35);
  imageStore(made, at, 2.0 * texelFetch(given, at, 0));
}
"""


@pytest.mark.parametrize(("dtype", "texels"), [("float32", "rgba32f"), ("float16", "rgba16f")])
def test_kernels_read_and_write_images(vulkan_device: tvm.runtime.Device, dtype: str, texels: str) -> None:
    double = glsl.module(double=glsl.entry(DOUBLE.replace("FORMAT", texels), (f"image:r:{dtype}", f"image:w:{dtype}")))[
        "double"
    ]
    shape = (2, 3, 5, 7, 4)  # 6 layers of 5 rows of 7 texels
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    given = tvm.runtime.empty(shape, dtype, vulkan_device, mem_scope="global.texture").copyfrom(array)
    made, again = (tvm.runtime.empty(shape, dtype, vulkan_device, mem_scope="global.texture") for _ in range(2))
    launch(double, given, made, 210, 1)
    launch(double, made, again, 210, 1)
    np.testing.assert_array_equal(again.numpy(), 4 * array)
    with pytest.raises(
        ValueError, match=r"argument 0 of kernel double is to be an image of texels of \d+ bytes and is a buffer"
    ):
        launch(double, numbers(vulkan_device), made, 210, 1)


def test_scalars_of_every_type(vulkan_device: tvm.runtime.Device) -> None:
    source = """
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer B { double b[]; };
layout(push_constant) uniform P { int i; uint u; int64_t l; float f; };
void main() { b[0] = i; b[1] = u; b[2] = double(l); b[3] = f; }
"""
    args = ("scalar:int32", "buffer:w", "scalar:uint32", "scalar:int64", "scalar:float32")
    store = glsl.module(store=glsl.entry(source, args, push_offsets=[0, 4, 8, 16]))["store"]
    found = tvm.runtime.empty((4,), "float64", vulkan_device)
    launch(store, -3, found, 2**32 - 5, -(2**40), 0.25, 1, 1)
    assert found.numpy().tolist() == [-3, 2**32 - 5, -(2**40), 0.25]


def test_a_chain_computes_in_order_and_pays_for_nothing_else(
    vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module
) -> None:
    """There is a barrier if a kernel reads a tensor that another wrote (memory), or writes one that another read
    (execution), and no other barrier.
    """
    step = scale["scale"]
    a, b, c, d = (numbers(vulkan_device, seed) for seed in range(4))
    start = a.numpy()
    vulkan_device.sync()
    before = statistics()
    for _ in range(3):
        launch(step, a, b, 1.5, *GRID)
        launch(step, b, a, 0.5, *GRID)
    assert (counted("memory_barriers", before), counted("execution_barriers", before)) == (5, 0)
    for _ in range(3):
        start = (start * np.float32(1.5) + 1) * np.float32(0.5) + 1
    np.testing.assert_allclose(a.numpy(), start, rtol=1e-5, atol=1e-5)

    before = statistics()
    launch(step, a, b, 1.0, *GRID)
    launch(step, a, c, 2.0, *GRID)
    assert (counted("memory_barriers", before), counted("execution_barriers", before)) == (0, 0)
    launch(step, d, a, 3.0, *GRID)
    assert (counted("memory_barriers", before), counted("execution_barriers", before)) == (0, 1)
    np.testing.assert_allclose(b.numpy(), start + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c.numpy(), 2 * start + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(a.numpy(), 3 * d.numpy() + 1, rtol=1e-5, atol=1e-5)


def test_a_copy_between_launches(vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module) -> None:
    """A copy takes part in the order of launches: it reads the output of one launch, and another launch reads its
    output.
    """
    step = scale["scale"]
    a, b, c, d = (numbers(vulkan_device, seed) for seed in range(4))
    start = a.numpy()
    before = statistics()
    launch(step, a, b, 2.0, *GRID)
    launch(step, b, c, 0.5, *GRID)
    b.copyto(a)
    launch(step, a, d, 3.0, *GRID)
    assert (
        counted("submissions", before),
        counted("memory_barriers", before),
        counted("execution_barriers", before),
    ) == (0, 2, 0)
    np.testing.assert_allclose(d.numpy(), (start * 2 + 1) * 3 + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c.numpy(), (start * 2 + 1) * np.float32(0.5) + 1, rtol=1e-5, atol=1e-5)


def test_launches_gather_until_somebody_waits(vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module) -> None:
    a, b = numbers(vulkan_device), room(vulkan_device)
    vulkan_device.sync()
    before = statistics()
    for _ in range(100):
        launch(scale["scale"], a, b, 1.0, *GRID)
    assert counted("submissions", before) == 0
    vulkan_device.sync()
    assert (counted("submissions", before), counted("launches", before)) == (1, 100)
    for _ in range(1100):
        launch(scale["scale"], a, b, 1.0, *GRID)
    assert counted("submissions", before) == 3


def test_times_lie_within_wall_time(vulkan_device: tvm.runtime.Device) -> None:
    source = glsl.SCALE.replace(
        "b[i] = a[i] * factor + 1.0;", "float x = a[i]; for (int k = 0; k < 20000; ++k) x = sin(x) + factor; b[i] = x;"
    )
    module = glsl.module(busy=glsl.entry(source, glsl.SCALE_ARGS))
    a, b = numbers(vulkan_device), room(vulkan_device)
    start = time.perf_counter()
    found = module.time_evaluator("busy", vulkan_device, number=3, repeat=2)(
        glsl.pointer(a), glsl.pointer(b), 1.0, *GRID
    ).results
    wall = time.perf_counter() - start
    assert all(t > 1e-5 for t in found)
    assert 3 * sum(found) <= wall


@I.ir_module
class Host:
    @T.prim_func
    def nothing(A: T.Buffer((1,), "float32")):
        A[0] = T.float32(1)


def test_modules_are_saved_and_loaded_in_another_process(
    tmp_path: Path, vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module
) -> None:
    library = tirx.build(Host, target=tvm.target.Target("llvm"))
    library.import_module(scale)
    library.export_library(str(tmp_path / "scale.so"))
    code = f"""
import ctypes, numpy as np, tvm
kernels = tvm.runtime.load_module({str(tmp_path / "scale.so")!r}).imports[0]
assert kernels.inspect_source() == "// GLSL by hand"
a = tvm.runtime.tensor(np.arange({N}, dtype="float32"), tvm.device("vulkan", 0))
b = tvm.runtime.empty(({N},), "float32", tvm.device("vulkan", 0))
kernels["scale"](ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), 3.0, *{GRID})
np.testing.assert_array_equal(b.numpy(), np.arange({N}) * 3 + 1)
"""
    done = glsl.run_python(code)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ValueError, match=r"cannot be read \(3 bytes\)"):
        tvm.get_global_func("ffi.Module.load_from_bytes.vulkan")(b"abc")


def test_launches_from_several_threads(vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module) -> None:
    failures: list[str] = []

    def work(factor: int) -> None:
        a, b = numbers(vulkan_device, factor), room(vulkan_device)
        expected = a.numpy() * np.float32(factor) + 1
        for i in range(40):
            launch(scale["scale"], a, b, float(factor), *GRID)
            if i % 4 == 0 and not np.allclose(b.numpy(), expected, rtol=1e-5, atol=1e-5):
                failures.append(f"factor {factor}")

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_no_leak_over_thousands_of_launches_and_allocations(
    vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module
) -> None:
    a = numbers(vulkan_device)

    def rounds(count: int) -> None:
        for i in range(count):
            b = room(vulkan_device)
            image = tvm.runtime.empty((4, 4, 4), "float32", vulkan_device, mem_scope="global.texture")
            launch(scale["scale"], a, b, 1.0, *GRID)
            del b, image
            if i % 500 == 0:
                vulkan_device.sync()
        vulkan_device.sync()

    rounds(1500)  # pools fill up
    before, rss = statistics(), psutil.Process().memory_info().rss
    rounds(3000)
    assert counted("launches", before) == 3000
    assert {name: value for name, value in statistics().items() if name.startswith("live")} == {
        n: v for n, v in before.items() if n.startswith("live")
    }
    # 3,000 leaked buffers and images would take tens of megabytes of the heap's blocks.
    assert psutil.Process().memory_info().rss - rss < 10e6


def test_memory_is_freed_when_the_device_is_done_with_it(vulkan_device: tvm.runtime.Device) -> None:
    """A kernel's tensors, and its module, may be released before it has run."""
    module = glsl.module(scale=glsl.entry(glsl.SCALE, glsl.SCALE_ARGS))
    vulkan_device.sync()
    before = statistics()
    a, b = numbers(vulkan_device), room(vulkan_device)
    launch(module["scale"], a, b, 1.0, *GRID)
    assert counted("live_kernels", before) == 1
    del a, b, module
    assert (counted("live_buffers", before), counted("live_kernels", before)) == (2, 1)
    vulkan_device.sync()
    assert (counted("live_buffers", before), counted("live_kernels", before)) == (0, 0)


def test_a_recorded_run_computes_again(vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module) -> None:
    record = tvm.get_global_func("romou.vulkan.record")
    a, b = numbers(vulkan_device), room(vulkan_device)
    start = a.numpy()
    recording = record(0)
    launch(scale["scale"], a, b, 2.0, *GRID)
    launch(scale["scale"], b, a, 0.5, *GRID)
    with pytest.raises(RuntimeError, match="a run that copies tensors cannot be recorded"):
        b.numpy()
    with pytest.raises(RuntimeError, match="this thread records a run on vulkan:0 .* already"):
        record(0)
    with pytest.raises(RuntimeError, match="a run is replayed whose recording has not ended"):
        recording["launch"]()
    assert recording["finish"]() == 2
    np.testing.assert_array_equal(a.numpy(), start)
    before = statistics()
    for _ in range(3):
        recording["launch"]()
    assert recording["time_ns"]() > 0
    assert counted("submissions", before) == 4
    launch(scale["scale"], a, b, 1.0, *GRID)
    for _ in range(4):
        start = (start * np.float32(2) + 1) * np.float32(0.5) + 1
    np.testing.assert_allclose(a.numpy(), start, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b.numpy(), start + 1, rtol=1e-5, atol=1e-5)
    # An input that is written while the recording lives. Everything else that it used stays.
    a.copyfrom(np.zeros(N, "float32"))
    del b
    recording["launch"]()
    np.testing.assert_array_equal(a.numpy(), np.full(N, 1.5, "float32"))
    with pytest.raises(RuntimeError, match="no kernel was launched on vulkan:0 .* while a run was recorded"):
        record(0)["finish"]()


def test_host_memory_is_refused(vulkan_device: tvm.runtime.Device, scale: tvm.runtime.Module) -> None:
    on_host = tvm.runtime.tensor(np.zeros(N, "float32"))
    with pytest.raises(ValueError, match="a data pointer was passed to Vulkan that this runtime did not allocate"):
        launch(scale["scale"], on_host, on_host, 1.0, *GRID)


def test_a_forked_process_is_told(vulkan_device: tvm.runtime.Device) -> None:
    code = """
import os, numpy as np, tvm
device = tvm.device("vulkan", 0)
tensor = tvm.runtime.tensor(np.ones(3, "float32"), device)
child = os.fork()
if child == 0:
    try:
        tensor.numpy()
    except RuntimeError as error:
        os._exit(7 if "this process was forked from one that had used Vulkan" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done: subprocess.CompletedProcess[str] = glsl.run_python(code)
    assert done.returncode == 0, done.stderr


def test_pipelines_are_kept_on_disk_and_torn_files_do_no_harm(
    vulkan_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    prepare, keep = (tvm.get_global_func(f"romou.vulkan.{name}") for name in ("prepare", "keep"))
    a, b = numbers(vulkan_device), room(vulkan_device)

    def start(*, cached: int, stored: int) -> list[str]:
        """Start as a new process would: the module has no state of the previous start."""
        module = glsl.module(scale=glsl.entry(glsl.SCALE, glsl.SCALE_ARGS))
        before = statistics()
        report = json.loads(str(prepare(module, vulkan_device.index, str(folder), 2)))
        assert (report["cached"], report["compiled"]) == (cached, 1 - cached)
        assert counted("pipelines_from_cache", before) == cached
        launch(module["scale"], a, b, 3.0, *GRID)
        np.testing.assert_allclose(b.numpy(), a.numpy() * 3 + 1, rtol=1e-5, atol=1e-5)
        assert json.loads(str(keep(module, vulkan_device.index, str(folder))))["stored"] == stored
        return list(report["notes"])

    assert start(cached=0, stored=1) == []
    assert start(cached=1, stored=0) == []
    (kept,) = folder.glob("*.program")
    kept.write_bytes(kept.read_bytes()[:-7])
    assert len(start(cached=0, stored=1)) == 1
    assert start(cached=1, stored=0) == []


def test_rpc_server_offers_vulkan(vulkan_device: tvm.runtime.Device, tmp_path: Path, scale: tvm.runtime.Module) -> None:
    from tvm import rpc

    library = tirx.build(Host, target=tvm.target.Target("llvm"))
    library.import_module(scale)
    library.export_library(str(tmp_path / "scale.so"))
    server = rpc.Server(host="127.0.0.1", port=9490, port_end=9590)
    try:
        remote = rpc.connect("127.0.0.1", server.port)
        device = remote.device("vulkan", 0)
        assert (
            json.loads(str(remote.get_function("romou.vulkan.devices")()))[0]["name"]
            == vulkan_device.device_name
            == device.device_name
        )
        remote.upload(str(tmp_path / "scale.so"))
        assert remote.load_module("scale.so").implements_function("nothing")
        array = np.random.default_rng(3).standard_normal((2, 3, 4)).astype("float32")
        image = tvm.runtime.empty((2, 3, 4), "float32", device, mem_scope="global.texture").copyfrom(array)
        np.testing.assert_array_equal(image.numpy(), array)
    finally:
        server.terminate()
