"""The probes' kernels as compute shaders, and the probes on the attached Vulkan device (Mesa's lavapipe, a CPU, if
there is no GPU).
"""

from __future__ import annotations

import numpy as np
import pytest

from archprobe import session
from archprobe.devices import open_device, vulkan
from archprobe.devices.base import Device
from archprobe.devices.glsl import compile_kernel, translate
from archprobe.devices.vulkan import list_devices
from archprobe.errors import BuildError, DeviceError, KernelError
from archprobe.meter import Meter
from archprobe.probes import all_probes, warp
from archprobe.probes.caches import ImageChase
from support.suite.exhaustive import few

ADD = "__kernel void add(__global float *out, float a, int b, uint c) { out[get_global_id(0)] += a * b + c * TIMES; }"


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("vulkan:0")


@pytest.fixture
def meter(device: Device) -> Meter:
    return Meter(device=device, is_quick=True, least_s=1e-4, tolerance=0.1, budget_s=0.3, max_repeats=2, min_repeats=2)


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
    with pytest.raises(
        BuildError, match="a GPU: glslangValidator refused a kernel: ERROR: .*'float16' : undeclared identifier"
    ):
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
    with pytest.raises(DeviceError, match="there is no Vulkan device 99; the driver loader sees vulkan:0 is"):
        open_device("vulkan:99")
    assert list_devices()[0].name == device.facts.name


PROBES = ("limits", "launch", "cores", "buffer_bandwidth", "local_bandwidth", "vector_width", "gflops", "write_speed")


# Facts, launches, local memory, and arithmetic.
@pytest.mark.parametrize("name", few(PROBES, 0, 1, 4, 6))
def test_probes_run(meter: Meter, name: str) -> None:
    probe = next(probe for probe in all_probes() if probe.name == name)
    found = session.run_probe(probe, meter)
    assert found.state == "done", found.reason
    if name == "limits":
        assert found.answers["LogicThreadCount"].value == meter.device.facts.max_work_group_size
    if name == "gflops":
        # fp32 and fp16.
        assert [curve.x for curve in found.curves] == [(1, 2, 4), (1, 2, 4)]


def test_warps_are_lanes_in_lockstep(meter: Meter) -> None:
    """Lavapipe runs a vector's lanes in lockstep, as a GPU its warp: by divergence the probe finds them, or declines."""  # noqa: E501
    if "256 bits" in meter.device.facts.name:
        # Other work on the same cores that ends between two blocks doubles the times before it, as divergence would:
        # one undisturbed run will do.
        runs = (warp.warp_divergence.measure(meter).answers["WarpThreadCount"] for _ in range(4))
        assert any(found.is_declined or found.value == 8 for found in runs)
    assert warp.warp_order.measure(meter).answers["WarpThreadCount"].unit == "work-items"


def test_images_are_read_written_and_chased(meter: Meter) -> None:
    """Probes of images run on a GPU. A CPU's driver has no texture units, so the probes decline there."""
    device = meter.device
    rng = np.random.default_rng(4)
    texels = rng.standard_normal((3, 5, 4)).astype(np.float32)
    source = """__constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE;
    __kernel void flipped(__global float4 *out, __read_only image2d_t in, __write_only image2d_t copy, int width) {
      const int x = get_global_id(0) % width, y = get_global_id(0) / width;
      float4 texel = read_imagef(in, NEAREST, (int2)(width - 1 - x, y));
      out[get_global_id(0)] = texel;
      write_imagef(copy, (int2)(x, y), texel * (float4)(2.0f));
    }
    __kernel void copied(__global float4 *out, __read_only image2d_t in, int width) {
      out[get_global_id(0)] = read_imagef(in, NEAREST, (int2)(get_global_id(0) % width, get_global_id(0) / width));
    }"""
    out, copy = device.buffer(texels.nbytes), device.image(np.zeros_like(texels), is_written=True)
    assert device.launch(device.kernel(source, "flipped"), 15, 5, out, device.image(texels), copy, np.int32(5)) > 0
    np.testing.assert_array_equal(device.read(out, texels), texels[:, ::-1])
    device.launch(device.kernel(source, "copied"), 15, 5, out, copy, np.int32(5))
    np.testing.assert_array_equal(device.read(out, texels), 2 * texels[:, ::-1])
    run, lap = ImageChase(meter).run(64)
    assert lap == 8
    assert run(16) > 0
    with pytest.raises(DeviceError, match="did not give an image of .* texels: .* texels a side are the most"):
        device.image(np.zeros((1, device.facts.max_image_width + 1, 4), np.float32))


def test_a_large_image_goes_in_parts(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_STAGED_BYTES", 200)
    texels = np.arange(4 * 7 * 4, dtype=np.float32).reshape(7, 4, 4)
    image, out = meter.device.image(texels), meter.device.buffer(texels.nbytes)
    source = """__kernel void all(__global float4 *out, __read_only image2d_t in) {
      out[get_global_id(0)] = read_imagef(in, 0, (int2)(get_global_id(0) % 4, get_global_id(0) / 4));
    }"""
    meter.device.launch(meter.device.kernel(source, "all"), 28, 4, out, image)
    np.testing.assert_array_equal(meter.device.read(out, texels), texels)
