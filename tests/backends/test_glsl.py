"""Vulkan's code generator: every construct as a shader that Vulkan's validator takes, and one clear error for what
there is none of.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from romou.base.errors import BuildError
from romou.devices.backends.vulkan import BACKEND, glslang
from romou.devices.backends.vulkan.glsl import Kernel
from romou.devices.backends.vulkan.glslang_library import library_in
from romou.devices.targets import Target
from support.kernels.operators import conv, small_tasks, task_of
from support.kernels.shaders import shaders_of, validate

PHONE = Target("vulkan -device=adreno640")
SIZE = 64


def kernel_of(compute: Callable[..., tirx.Expr], *dtypes: str) -> Kernel:
    """Return the kernel that computes each element of its output from the same element of its inputs."""
    inputs = [te.placeholder((SIZE,), dtype, f"x{i}") for i, dtype in enumerate(dtypes)]
    output = te.compute((SIZE,), lambda i: compute(*(x[i] for x in inputs)), "out")
    sch = s_tir.Schedule(te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main"))
    group, item = sch.split(*sch.get_loops(sch.get_sblock("out")), [None, 16])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    (kernel,) = shaders_of(sch.mod, PHONE)
    return kernel


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_of_templates_are_valid(dtype: str) -> None:
    for task in [*small_tasks(), task_of(conv(5, (6, 7), 7, (3, 3), dtype, padding=(1, 1, 1, 1)))]:
        free = task.with_free_images()
        configs = [free.default_config(PHONE), *free.space(PHONE).sample(np.random.default_rng(3), 1)]
        for config in configs:
            for kernel in shaders_of(free.schedule(config, PHONE), PHONE):
                validate(kernel)
                assert kernel.shared_bytes <= PHONE.limits.local_memory_bytes
                assert np.prod(kernel.local_size) <= PHONE.limits.max_work_group_size
                assert "buffer:w" in kernel.arguments or any(a.startswith("image:w") for a in kernel.arguments)


MEMORY = {
    "float32": (), "int32": (), "uint32": (), "float64": ("shaderFloat64",), "int64": ("shaderInt64",),
    "int8": ("storageBuffer8BitAccess",), "uint8": ("storageBuffer8BitAccess",), "bool": ("storageBuffer8BitAccess",),
    "int16": ("storageBuffer16BitAccess",),
}  # fmt: skip


@pytest.mark.parametrize("dtype", MEMORY)
def test_what_a_type_needs_of_the_device(dtype: str) -> None:
    kernel = kernel_of(lambda x: x if dtype == "bool" else x + x, dtype)
    validate(kernel)
    assert kernel.needs == MEMORY[dtype]
    assert kernel.arguments == ("buffer:w", "buffer:r")


def test_fp16_in_memory_is_read_by_any_device() -> None:
    kernel = kernel_of(lambda x: x.astype("float32") * 2.0, "float16")
    validate(kernel)
    assert kernel.needs == ()


@pytest.mark.parametrize(
    ("compute", "dtypes"),
    [
        (lambda x, y: tirx.truncmod(x, y) + tirx.floordiv(x, y) * tirx.floormod(x, 8), ("int32", "int32")),
        (lambda x, y: tirx.if_then_else(x > y, x >> 1, ~y) ^ (x & y | 3), ("int32", "int32")),
        (lambda x, y: (x + y) * x - y // 3, ("uint8", "uint8")),
        (lambda x: x.astype("uint8").astype("float32") + (x != 0.0).astype("float32"), ("float32",)),
        (lambda x: tirx.Select(tirx.isnan(x), tirx.infinity("float32"), tirx.min_value("float32") + x), ("float32",)),
        (lambda x, y: tirx.all(x, tirx.Not(y)), ("bool", "bool")),
        (
            lambda x: (
                tirx.erf(tirx.tanh(tirx.pow(x, 1.5))) + tirx.rsqrt(tirx.log1p(x)) + tirx.atan2(x, x) + tirx.nearbyint(x)
            ),
            ("float32",),
        ),
        (lambda x: tirx.reinterpret("float32", x) + tirx.popcount(x).astype("float32"), ("int32",)),
        (lambda x: x * tirx.const(2**40, "int64") - tirx.min_value("int64"), ("int64",)),
        (lambda x: tirx.tanh(x) + tirx.exp(x), ("float16",)),
    ],
)
def test_constructs_are_valid(compute: Callable[..., tirx.Expr], dtypes: tuple[str, ...]) -> None:
    validate(kernel_of(compute, *dtypes))


def test_what_glsl_lacks_is_one_error_that_names_the_kernel() -> None:
    with pytest.raises(BuildError, match="^kernel main_kernel: GLSL cannot express a call of unheard_of\n"):
        kernel_of(lambda x: tirx.call_pure_extern("float32", "unheard_of", x), "float32")
    with pytest.raises(BuildError, match="exp_of_fp64|GLSL|glslang refused"):
        validate(kernel_of(tirx.tanh, "float64"))


def test_reads_outside_an_image_are_guarded_unless_the_runtime_says_otherwise() -> None:
    task = task_of(conv(4, (6, 6), 4, (3, 3), padding=(1, 1, 1, 1))).with_free_images()
    config = task.default_config(PHONE)
    (kernel,) = shaders_of(task.schedule(config, PHONE), PHONE)
    assert {a for a in kernel.arguments if a.startswith("image")} == {"image:r:float32", "image:w:float32"}
    assert "layout(constant_id = 0) const bool HAS_ZEROS_OUTSIDE = false;" in kernel.text
    assert kernel.text.count("texelFetch(") == 1


def test_names_of_the_graph_may_be_words_of_glsl() -> None:
    texture, sample = te.placeholder((SIZE,), "float32", "texture"), te.placeholder((SIZE,), "float32", "sample__")
    output = te.compute((SIZE,), lambda i: tirx.max(texture[i], sample[i]), "out")
    sch = s_tir.Schedule(te.create_prim_func([texture, sample, output]).with_attr("global_symbol", "main"))
    sch.bind(*sch.get_loops(sch.get_sblock("out")), "threadIdx.x")
    (kernel,) = shaders_of(sch.mod, PHONE)
    validate(kernel)


def test_a_module_is_its_kernels() -> None:
    texts = {"a": kernel_of(lambda x: x, "float32").text, "b": kernel_of(tirx.abs, "float32").text}
    found = BACKEND.split_kernels(glslang.join(texts))
    assert {name: text.split() for name, text in found.items()} == {name: text.split() for name, text in texts.items()}
    assert all(glslang.compile_shader(text)[:4] == b"\x03\x02\x23\x07" for text in found.values())


def test_without_glslang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "distribution", none)
    glslang.glslang.cache_clear()
    try:
        with pytest.raises(
            BuildError,
            match=(
                "needs glslang, which is not on this machine\n.*pip install 'romou\\[vulkan\\]'.*apt-get install"
                " glslang-tools"
            ),
        ):
            glslang.compile_shader("void main() {}")
    finally:
        glslang.glslang.cache_clear()


def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a word for each shader that glslang compiles from now on, with an empty cache."""
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "64")
    asked: list[str] = []
    real = glslang.compile_shader
    monkeypatch.setattr(glslang, "compile_shader", lambda source: asked.append("compiled") or real(source))
    return asked


def kept_entries() -> list[Path]:
    return sorted((Path(os.environ["ROMOU_CACHE_DIR"]) / "programs").glob("*.program"))


CONSTANT = "#version 450\nlayout(set = 0, binding = 0) buffer Out { float y[]; };\nvoid main() { y[0] = 3.25; }\n"


def test_a_model_s_shader_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's is compiled anew."""
    asked = started(monkeypatch)
    (first,) = glslang.compile_shaders([CONSTANT])
    assert (len(asked), kept_entries()) == (1, [])
    with BACKEND.keeping_programs():
        assert [glslang.compile_shaders([CONSTANT]) for _ in range(3)] == [[first]] * 3
        assert (len(asked), len(kept_entries())) == (2, 1)
    glslang.compile_shaders([CONSTANT])
    assert len(asked) == 3


@pytest.mark.parametrize("damage", ["another constant", "cut off", "empty"])
def test_damaged_spirv_is_compiled_again(
    damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = started(monkeypatch)
    with BACKEND.keeping_programs(), caplog.at_level("WARNING", "romou"):
        right = glslang.compile_shaders([CONSTANT])
        (entry,) = kept_entries()
        whole, constant = entry.read_bytes(), struct.pack("<f", 3.25)
        assert whole.count(constant) == 1
        damaged = {
            "another constant": whole.replace(constant, struct.pack("<f", 1000.0)),
            "cut off": whole[: len(whole) // 2],
            "empty": b"",
        }
        entry.write_bytes(damaged[damage])
        assert glslang.compile_shaders([CONSTANT]) == right
        assert len(asked) == 2
        assert "the kept program of a shader is" in caplog.text
        assert entry.read_bytes() == whole


def test_spirv_in_a_folder_of_everybody_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = started(monkeypatch)
    with BACKEND.keeping_programs(), caplog.at_level("WARNING", "romou"):
        glslang.compile_shaders([CONSTANT])
        (entry,) = kept_entries()
        entry.parent.chmod(0o777)
        glslang.compile_shaders([CONSTANT])
    assert len(asked) == 2
    assert f"others may write to {entry.parent}" in caplog.text


@pytest.fixture(params=["library", "process"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "process":
        monkeypatch.setattr(glslang, "_library", lambda tool: None)
    elif glslang._library(glslang.glslang()) is None:
        pytest.skip("glslang is installed without a library of the known release")
    return str(request.param)


def test_a_refused_text_comes_with_the_compilers_words(way: str) -> None:
    with pytest.raises(BuildError, match="glslang refused a kernel: ERROR: kernel:2: 'x' : undeclared identifier"):
        glslang.compile_shader("#version 450\nvoid main() { x = 1; }\n")


def test_the_library_gives_what_the_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several threads, too."""
    texts = [CONSTANT, *(kernel_of(function, "float32").text for function in (tirx.abs, tirx.erf, tirx.sin))]
    found = [glslang.compile_shaders(texts * 20) for _ in range(3)]
    monkeypatch.setattr(glslang, "_library", lambda tool: None)
    assert found == [glslang.compile_shaders(texts) * 20] * 3


def test_a_folder_without_the_known_release_has_no_library(tmp_path: Path) -> None:
    assert library_in(tmp_path) is None
    for name in ("libglslang", "libSPIRV", "libglslang-default-resource-limits"):
        (tmp_path / f"{name}.so.13").write_bytes(b"of another machine")
    assert library_in(tmp_path) is None


def test_limits_come_from_the_device_or_are_the_least_that_vulkan_promises() -> None:
    assert (PHONE.limits.max_work_group_size, PHONE.limits.has_fp16_arithmetic) == (1024, True)
    assert not Target("vulkan -device=adreno640 -half=storage").limits.has_fp16_arithmetic
    assert (
        Target("vulkan -device=adreno640 -max_per_stage_descriptor_storage_buffer=4").tvm_target.attrs[
            "max_per_stage_descriptor_storage_buffer"
        ]
        == 4
    )
    assert BACKEND.default_limits["max_num_threads"] == 128
    assert BACKEND.default_limits["max_shared_memory_per_block"] == 16384


def test_a_target_for_a_device_keeps_what_the_attached_one_allows() -> None:
    facts = {
        "max_work_group_size": 128, "local_mem_bytes": 16384, "max_image_width": 4096, "max_image_height": 8192, "max_image_layers": 256, "has_images": True,  # noqa: E501
        "has_fp16_arithmetic": False, "max_storage_buffers": 4,
    }  # fmt: skip
    narrowed = PHONE.limited_to(facts)
    assert narrowed.limits.max_work_group_size == 128
    assert narrowed.limits.max_image == (4096, 4096, 256)
    assert not narrowed.limits.has_fp16_arithmetic
    assert narrowed.options["max_per_stage_descriptor_storage_buffer"] == 4
