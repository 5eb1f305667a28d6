"""CUDA kernels of whole models are all compiled by NVRTC, and run if there is a GPU. Missing parts are reported
clearly.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner

import romou
from romou import models
from romou.base.errors import BuildError, CompatError, DeviceError
from romou.cli import main
from romou.compiler.assembly import build
from romou.compiler.assembly.kernel import build_task
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.operators.costs.estimate import can_estimate, missing_facts, spec_to_rank_by
from romou.compiler.operators.costs.pretrained import model_path, pretrained_for
from romou.devices.backends.cuda import BACKEND, nvrtc
from romou.devices.backends.cuda import backend as cuda_backend
from romou.devices.backends.cuda.dialect import complete
from romou.devices.backends.programs import is_keeping
from romou.devices.hardware import load_device
from romou.devices.targets import Target
from romou.tuner.measure.fingerprint import device_fingerprint
from support.kernels.operators import conv, has_device, target_of, task_of
from support.models.small_networks import random_inputs, residual_net
from support.suite.exhaustive import few
from tvm_patches import cuda_runtime

TARGET = target_of("cuda")
NETWORKS = {
    "single": lambda: residual_net(),
    "half": lambda: residual_net(dtype="float16"),
    "bert_2layer": lambda: models.load("bert_2layer"),
}


def error_of(compiled: romou.TunedModel, model: onnx.ModelProto) -> float:
    inputs = (
        random_inputs(model, seed=5)
        if model.graph.input[0].type.tensor_type.elem_type != onnx.TensorProto.INT64
        else {}
    )
    for name, (shape, dtype) in compiled.inputs.items():
        inputs.setdefault(name, np.random.default_rng(5).integers(0, 2, shape).astype(dtype))
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    return max(relative_l2_error(a, b) for a, b in zip(compiled.run(inputs), reference, strict=True))


@pytest.mark.parametrize("name", few(NETWORKS, 0, 1))
def test_models(name: str, cuda_target: Target) -> None:
    model = NETWORKS[name]()
    compiled = romou.compile(model, target=cuda_target)
    sources = compiled.sources()
    assert len(sources) >= 15
    for kernel, source in sources.items():
        assert f" {kernel}(" in source
        assert source.count("__global__") == 1
        # By itself, and by the header that it brings.
        assert nvrtc.compile_cuda(source, str(cuda_target.tvm_target.attrs["arch"])).startswith(b"\x7fELF")
    if has_device(cuda_target):
        assert error_of(compiled, model) < (2e-2 if name == "half" else 1e-4)


def test_conditions_of_rows_and_inverted_bits(cuda_target: Target) -> None:
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [helper.make_node("BitwiseNot", ["bits"], ["inverted"]), helper.make_node("Softmax", ["b"], ["soft"])]
    nodes.append(helper.make_node("Where", ["row", "a", "soft"], ["chosen"]))
    given = [
        ("bits", kinds.INT32, (6, 8)),
        ("row", kinds.BOOL, (1, 1, 4, 1)),
        ("a", kinds.FLOAT, ()),
        ("b", kinds.FLOAT, (2, 3, 4, 6)),
    ]
    made = [("inverted", kinds.INT32, (6, 8)), ("chosen", kinds.FLOAT, (2, 3, 4, 6))]
    graph = helper.make_graph(
        nodes, "g", *([helper.make_tensor_value_info(*value) for value in values] for values in (given, made))
    )
    compiled = romou.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), target=cuda_target, strict=True
    )
    sources = compiled.sources()
    assert len(sources) == 2
    assert any("int4* __restrict__" in source for source in sources.values())  # vectors, which need care
    for source in sources.values():
        assert nvrtc.compile_cuda(source, str(cuda_target.tvm_target.attrs["arch"])).startswith(b"\x7fELF")
    if has_device(cuda_target):
        rng = np.random.default_rng(3)
        a, b = np.float32(rng.standard_normal()), rng.standard_normal((2, 3, 4, 6)).astype("float32")
        bits, row = (
            rng.integers(-(2**31), 2**31, (6, 8)).astype("int32"),
            np.array([True, False, False, True]).reshape(1, 1, 4, 1),
        )
        inverted, chosen = compiled.run({"bits": bits, "row": row, "a": a, "b": b})
        assert np.array_equal(inverted, ~bits)
        assert np.allclose(chosen, np.where(row, a, np.exp(b) / np.exp(b).sum(axis=-1, keepdims=True)), rtol=1e-4)


def test_a_model_is_saved_and_loaded(tmp_path: Path, cuda_target: Target) -> None:
    saved = romou.compile(residual_net(), target=cuda_target).save(tmp_path / "model.romou")
    if has_device(cuda_target):
        assert error_of(romou.load(saved), residual_net()) < 1e-4
    else:
        with pytest.raises(DeviceError, match="no CUDA device: "):
            romou.load(saved)


def test_sources_are_written_as_cu_files(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(residual_net().SerializeToString())
    arguments = [
        "compile",
        str(tmp_path / "net.onnx"),
        "--target",
        str(TARGET),
        "--emit-source",
        str(tmp_path / "out"),
        "--output",
        str(tmp_path / "m"),
        "--no-verify",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    written = list((tmp_path / "out").iterdir())
    assert written
    assert {path.suffix for path in written} == {".cu"}


def test_what_opencl_spells_otherwise_is_not_left() -> None:
    """The text has no construct that CUDA lacks: images, half arithmetic, vector operators."""
    for dtype in ("float32", "float16"):
        task = task_of(conv(32, (14, 14), 24, (3, 3), dtype, padding=(1, 1, 1, 1)))
        space = task.space(TARGET)
        assert {
            name: space.knobs[name]
            for name in ("data", "weight", "output", "autobroadcast", "multiply_add", "accumulate")
        } == {
            "data": ("buffer",),
            "weight": ("buffer",),
            "output": ("buffer",),
            "autobroadcast": (False,),
            "multiply_add": ("fma", "mma" if dtype == "float16" else "tf32x3"),
            "accumulate": ("float32",),
        }
        source = build_task(task, task.default_config(TARGET), TARGET).imports[0].inspect_source()
        for word in ("(float4)(", "mad(", "vload", "vstore", "image2d", "cuda_fp16"):
            assert word not in source
        assert ("float_of_half" in source) == (dtype == "float16")


def test_functions_come_before_the_kernels_that_call_them() -> None:
    assert complete("__global__ void f() {}") == "__global__ void f() {}"
    text = complete("__global__ void f(float* a, unsigned short* b) { a[0] = float_of_half(b[0]); }")
    assert nvrtc.compile_cuda(text, "sm_90a")
    assert "half_of_float" not in text


def test_kernels_wait_for_the_kernels_before() -> None:
    """A module with the variable may be launched early. GPUs before compute capability 9.0 cannot wait."""
    task = task_of(conv(8, (7, 7), 8, (1, 1)))
    source = build_task(task, task.default_config(TARGET), TARGET).imports[0].inspect_source()
    for kernel in BACKEND.split_kernels(source).values():
        assert re.search(r"\)\s*{\n  wait_for_kernels_before\(\);\n", kernel[kernel.index("__global__") :])
    assert b"romou_kernels_wait" in nvrtc.compile_cuda(source, "sm_90a")
    assert b"romou_kernels_wait" not in nvrtc.compile_cuda(source, "sm_80")


def test_the_library_headers_say_the_truth() -> None:
    """A few lines replace the C++ library's headers in TVM's preamble."""
    checks = """
    static_assert(sizeof(uint8_t) == 1 && sizeof(uint16_t) == 2 && sizeof(uint32_t) == 4 && sizeof(uint64_t) == 8, "");
    static_assert(int8_t(-1) < 0 && int16_t(-1) < 0 && int32_t(-1) < 0 && int64_t(-1) < 0 && uint8_t(-1) > 0, "");
    static_assert(std::is_same_v<int, int> && !std::is_same_v<int, float> && std::is_integral<long long>::value && !std::is_integral<float>::value, "");
    static_assert(std::is_floating_point<double>::value && std::is_signed<char>::value && std::is_unsigned<unsigned>::value, "");
    static_assert(std::is_same<std::conditional<true, int, float>::type, int>::value && std::is_same_v<std::enable_if<true, int>::type, int>, "");
    """  # noqa: E501
    task = task_of(conv(8, (7, 7), 8, (1, 1)))
    (source,) = BACKEND.split_kernels(
        build_task(task, task.default_config(TARGET), TARGET).imports[0].inspect_source()
    ).values()
    assert nvrtc.compile_cuda(source + checks, "sm_90a")


def test_a_kernel_that_is_refused_says_why() -> None:
    with pytest.raises(BuildError, match=r'(?s)refused a kernel for sm_90a: .*identifier "y" is undefined'):
        nvrtc.compile_cuda("__global__ void f() { int x = y; }", "sm_90a")


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    try:
        with pytest.raises(
            CompatError, match=r"(?s)compiling for CUDA needs NVIDIA's NVRTC.*pip install 'romou\[cuda\]'"
        ):
            nvrtc.compile_cuda("", "sm_90a")
    finally:
        nvrtc._nvrtc.cache_clear()


def test_the_attached_gpu_or_none() -> None:
    if has_device(TARGET):
        report = BACKEND.check_device(0)
        assert report.is_usable, report
        assert not report.has_images
        found = device_fingerprint("cuda:0")
        assert (found.kind, found.is_host_cpu, found.name) == ("cuda", False, tvm.cuda(0).device_name)
        assert romou.tune(residual_net(), target="cuda", trials=12).summary().is_right
        return
    assert BACKEND.list_devices() == []
    assert cuda_runtime.load() is not None
    with pytest.raises(DeviceError, match="no CUDA device: "):
        device_fingerprint("cuda:0")
    with pytest.raises(DeviceError, match=r"(?s)no CUDA device: .*cuda -device=nvidia_h200"):
        Target("cuda").tvm_target  # noqa: B018
    with pytest.raises(DeviceError, match="no CUDA device: "):
        romou.tune(residual_net(), target=TARGET, trials=1)


def test_an_architecture_is_enough_to_compile_for() -> None:
    target = Target("cuda -arch=sm_80")
    assert target.tvm_target.export()["arch"] == "sm_80"
    task = task_of(conv(8, (7, 7), 8, (1, 1)))
    assert nvrtc.compile_cuda(
        build_task(task, task.default_config(target), target).imports[0].inspect_source(), "sm_80"
    )


def test_machine_code_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second build of a model's module does not call NVRTC. Another architecture or version, candidates of a
    search, and damaged entries do.
    """
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "64")
    asked: list[str] = []
    real = nvrtc.compile_cuda
    monkeypatch.setattr(nvrtc, "compile_cuda", lambda source, arch: asked.append(arch) or real(source, arch))
    nvrtc.install()
    compile_text = tvm.get_global_func("tvm_callback_cuda_compile")
    complete_text = tvm.get_global_func("tvm_callback_cuda_postproc")

    def built(arch: str) -> bytes:
        target = Target(f"cuda -arch={arch}").tvm_target
        return bytes(
            compile_text(complete_text('extern "C" __global__ void f(float* a) { a[threadIdx.x] = 1; }', target))
        )

    plain = built("sm_90a")
    with BACKEND.keeping_programs():
        assert [built("sm_90a") for _ in range(3)] == [plain] * 3
        assert asked == ["sm_90a"] * 2
        assert built("sm_80") != plain
    built("sm_90a")
    assert asked == ["sm_90a", "sm_90a", "sm_80", "sm_90a"]
    entries = sorted((tmp_path / "programs").glob("*.program"))
    assert len(entries) == 2
    for entry in entries:
        content = bytearray(entry.read_bytes())
        content[-1] ^= 1
        entry.write_bytes(content)
    with BACKEND.keeping_programs(), caplog.at_level("WARNING", "romou"):
        assert built("sm_90a") == plain
        assert len(asked) == 5
        assert "a CUDA module for sm_90a" in caplog.text
        assert built("sm_90a") == plain
        monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
        built("sm_90a")
    assert len(asked) == 6
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "0")
    with BACKEND.keeping_programs():
        built("sm_90a")
    assert len(asked) == 7


def test_a_model_s_module_is_kept(monkeypatch: pytest.MonkeyPatch, cuda_target: Target) -> None:
    """The cache is available whenever code is generated for a module, at its build or at its load."""
    seen: list[bool] = []
    monkeypatch.setattr(
        build, "codegen_build", lambda *_args: seen.append(is_keeping()) or (_ for _ in ()).throw(BuildError("seen"))
    )
    with pytest.raises(BuildError, match="seen"):
        romou.compile(residual_net(), target=cuda_target, verify=False)
    assert seen
    assert all(seen)
    assert not is_keeping()


NVML = r"""
#include <stdio.h>
#include <string.h>
static int is_open = 0;
extern "C" int nvmlInitWithFlags(unsigned flags) { is_open = flags == 2; return 0; }
extern "C" int nvmlSystemGetDriverVersion(char *version, unsigned length) { snprintf(version, length, "580.159.04"); return is_open ? 0 : 1; }
extern "C" int nvmlShutdown() { is_open = 0; return 0; }
extern "C" int stays_open() { return is_open; }
"""  # noqa: E501


def test_the_drivers_version_is_asked_of_nvml_without_attaching_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = cuda_backend._driver.__wrapped__
    library, source = tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.cc"
    source.write_text(NVML)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(cuda_backend, "_NVML", str(library))
    assert ask() == "580.159.04"
    # PyTorch in the same process would find no GPU.
    assert not ctypes.CDLL(str(library)).stays_open()
    monkeypatch.setattr(cuda_backend, "_NVML", str(tmp_path / "none.so"))
    assert ask() == f"unknown (no {tmp_path / 'none.so'})"


def test_a_search_ranks_configs_by_a_gpu_of_the_same_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        "name": "NVIDIA H100 PCIe",
        "platform": "NVIDIA CUDA",
        "type": "gpu",
        "compute_units": 114,
        "clock_mhz": 1755,
        "warp_size": 32,
        "max_work_group_size": 1024,
        "local_mem_bytes": 49152,
    }

    def attached(arch: str) -> Target:
        monkeypatch.setattr(type(BACKEND), "list_devices", lambda _: [{**facts, "arch": arch}])
        return Target("cuda")

    h100, h200 = attached("sm_90a"), load_device("nvidia_h200")
    ranked = spec_to_rank_by(h100)
    assert can_estimate(ranked)
    assert (ranked.shader_cores, ranked.clock_mhz, ranked.l2_bandwidth_gbps) == (114, 1755, h200.l2_bandwidth_gbps)
    model = pretrained_for(h100)
    assert model is not None
    assert model.path == model_path("opencl", "nvidia_h200")
    # Default configs and criteria depend on the GPU's own facts only.
    own = dataclasses.replace(h100.spec, nearest=None)
    assert not can_estimate(h100.spec)
    with monkeypatch.context() as context:
        context.setattr(type(BACKEND), "attached_spec", lambda _: own)
        assert Target("cuda").limits == h100.limits
    other = attached("sm_80")
    assert spec_to_rank_by(other) is other.spec
    assert pretrained_for(other) is None
    # The gaps of a phone's GPU are not filled without -facts=nearest.
    phone = Target("opencl -device=mali_g77")
    assert missing_facts(phone.spec)
    assert phone.spec.nearest
    assert spec_to_rank_by(phone) is phone.spec
