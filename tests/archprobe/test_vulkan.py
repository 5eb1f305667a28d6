"""The probes' kernels as compute shaders, and the probes on the Vulkan device at hand (Mesa's lavapipe, a CPU, where there is no GPU)."""

from __future__ import annotations

import numpy as np
import pytest

from archprobe import session
from archprobe.bench import Bench
from archprobe.devices import open_device
from archprobe.devices.base import Device
from archprobe.devices.glsl import compile_kernel, translate
from archprobe.devices.vulkan import list_devices
from archprobe.errors import BuildError, DeviceError, KernelError
from archprobe.probes import all_probes, warp

ADD = "__kernel void add(__global float *out, float a, int b, uint c) { out[get_global_id(0)] += a * b + c * TIMES; }"


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("vulkan:0")


@pytest.fixture
def bench(device: Device) -> Bench:
    return Bench(device=device, is_quick=True, least_s=1e-4, tolerance=0.1, budget_s=0.3, max_repeats=2, min_repeats=2)


def test_a_kernel_becomes_a_shader() -> None:
    source = """
    __kernel void other(__global int *x) { x[0] = 1; }
    __kernel void count(int n, __global const float4 *in, __global int *out) {
      __local int counter;
      if (get_local_id(0) == 0) { counter = (int)in[n].x; }
      barrier(CLK_LOCAL_MEM_FENCE);
      out[get_global_id(0)] = atomic_add(&counter, (int)(1.5f + (float)n));
    }
    """
    text, types = translate(source, "count")
    assert types == ("int", "m", "m")
    for part in (
        "layout(std430, binding = 0) buffer Memory0 { float4 in_[]; };",
        "layout(std430, binding = 1) buffer Memory1 { int out_[]; };",
        "layout(push_constant) uniform Constants { int n; };",
        "shared int counter;",
        "counter = int(in_[n].x)",
        "memoryBarrierShared(); barrier();",
        "atomicAdd(counter, int(1.5f + float(n)))",
    ):
        assert " ".join(part.split()) in " ".join(text.split()), part
    assert "x[0]" not in text
    assert compile_kernel(source, "count", "a GPU").spirv[:4] == b"\x03\x02\x23\x07"


def test_what_has_no_shader_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="a GPU: glslangValidator refused a kernel: ERROR: .*'float16' : undeclared identifier"):
        compile_kernel("__kernel void f(__global float *out) { float16 x; out[0] = 1.0f; }", "f", "a GPU")
    with pytest.raises(BuildError, match="the source holds no kernel g"):
        compile_kernel(ADD, "g", "a GPU")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DeviceError, match="Vulkan needs glslangValidator; on Debian: apt-get install glslang-tools"):
        compile_kernel(ADD, "add", "a GPU")


def test_what_a_vulkan_device_does(device: Device) -> None:
    kernel = device.kernel(ADD, "add", TIMES=2)
    buffer = device.buffer(4 * 130)
    zeros = np.zeros(130, np.float32)
    np.testing.assert_array_equal(device.read(buffer, zeros), zeros)
    for local in (64, 32):
        assert device.launch(kernel, 128, local, buffer, np.float32(0.5), np.int32(-3), np.uint32(7)) > 0
    device.enqueue(kernel, 128, 64, buffer, np.float32(0.5), np.int32(-3), np.uint32(7))
    device.finish()
    np.testing.assert_array_equal(device.read(buffer, zeros), [37.5] * 128 + [0.0] * 2)
    device.write(buffer, np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal(device.read(buffer, zeros)[:4], [0, 1, 2, 37.5])
    other = device.buffer(np.full(130, 9, np.float32))
    assert device.copy(other, buffer, 8) > 0
    np.testing.assert_array_equal(device.read(other, zeros)[:3], [0, 1, 9])
    device.launch(kernel, 128, 64, other, np.float32(1), np.int32(1), np.uint32(0))
    np.testing.assert_array_equal(device.read(other, zeros)[:3], [1, 2, 10])
    with pytest.raises(KernelError, match="does not run add with 100 work-items in groups of 64"):
        device.launch(kernel, 100, 64, buffer, np.float32(0), np.int32(0), np.uint32(0))
    with pytest.raises(DeviceError, match=f"did not give a buffer of {device.facts.max_buffer_bytes + 4} bytes"):
        device.buffer(device.facts.max_buffer_bytes + 4)
    with pytest.raises(DeviceError, match="there is no Vulkan device 99; the loader sees vulkan:0 is"):
        open_device("vulkan:99")
    assert list_devices()[0] == device.facts.name


@pytest.mark.parametrize("name", ["limits", "launch", "cores", "buffer_bandwidth", "local_bandwidth", "vector_width", "gflops", "write_speed"])
def test_probes_run(bench: Bench, name: str) -> None:
    probe = next(probe for probe in all_probes() if probe.name == name)
    found = session.run_probe(probe, bench)
    assert found.state == "done", found.reason
    if name == "limits":
        assert found.answers["LogicThreadCount"].value == bench.device.facts.max_work_group_size
    if name == "gflops":
        assert found.curves[0].x == (1, 2, 4)


def test_warps_are_lanes_in_lockstep(bench: Bench) -> None:
    """Lavapipe runs a vector's lanes in lockstep, as a GPU its warp: by divergence the probe finds them, or declines."""
    found = warp.warp_divergence.measure(bench).answers["WarpThreadCount"]
    if "256 bits" in bench.device.facts.name:
        assert found.is_declined or found.value == 8
    assert warp.warp_order.measure(bench).answers["WarpThreadCount"].unit == "work-items"


def test_images_are_probed_elsewhere(bench: Bench) -> None:
    probe = next(probe for probe in all_probes() if probe.name == "image_bandwidth")
    found = session.run_probe(probe, bench)
    assert found.state == "not_applicable"
    with pytest.raises(DeviceError, match="images are probed through OpenCL only"):
        bench.device.image(np.zeros((1, 1, 4), np.float32))
