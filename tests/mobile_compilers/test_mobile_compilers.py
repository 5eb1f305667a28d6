"""Mesa's mobile compilers: their output is parsed correctly, everywhere from kept output and live if they are set up.

data/a630.txt, g57.txt and g76.txt are the compilers' output for data/kernels.cl under Mesa 25.0.7, and mesa26/ under
26.1.6, without the intermediate forms that are not read. Mesa 26's for Mali is of `dot4` only.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.base.errors import BuildError, UsageError
from romou.cli import main
from romou.devices.hardware import known_devices
from romou.devices.mobile_compilers import (
    GPUS,
    KernelStatistics,
    LoopStatistics,
    MobileCompilersMissingError,
    compile_all,
    compile_statistics,
    compiler_for,
    find_compilers,
    mesa_version,
)
from romou.devices.mobile_compilers.gpus import MOBILE_GPUS
from romou.devices.mobile_compilers.statistics import read_statistics

DATA = Path(__file__).parent / "data"
SOURCE = (DATA / "kernels.cl").read_text(encoding="utf-8")
# One compiler for each form of printed code: running one takes seconds.
LIVE = ("a630", "g57", "g76")
SETUP = Path(__file__).parents[2] / "romou/devices/mobile_compilers/setup.sh"


def kept(file: str, gpu: str = "") -> list[KernelStatistics]:
    return read_statistics((DATA / f"{file}.txt").read_text(encoding="utf-8"), gpu or file)


def test_adreno() -> None:
    dot4, shuffle = kept("a630")
    assert dot4 == KernelStatistics(
        name="dot4",
        gpu="a630",
        instructions=115,
        registers=24,
        waves=16,
        occupancy=1.0,
        spills=0,
        private_memory_bytes=0,
        local_memory_bytes=0,
        cycles=None,
        cycles_by_unit={},
        loops=1,
        # The loop counted by hand: one (rpt3)mad.f32, isaml and ldg.u32; waits included. Outside it are four stores.
        code=LoopStatistics(
            instructions=76,
            multiply_adds=0,
            memory=4,
            inner=(LoopStatistics(instructions=39, multiply_adds=4, memory=2),),
        ),
    )
    assert dot4.inner.instructions_per_multiply_add == 39 / 4
    assert (shuffle.name, shuffle.loops, shuffle.spills, shuffle.private_memory_bytes) == ("shuffle", 2, 2, 512)
    assert [loop.memory for loop in shuffle.code.inner] == [3, 3]
    assert shuffle.code.instructions + sum(loop.instructions for loop in shuffle.code.inner) == shuffle.instructions
    # None of its loops multiplies, so the code outside of loops is reported.
    assert shuffle.inner is shuffle.code
    assert shuffle.inner.instructions_per_multiply_add is None


def test_code_that_the_simulator_refuses_has_statistics() -> None:
    """A flag, an alias and a label that its parser does not know."""
    text = (DATA / "a630.txt").read_text(encoding="utf-8").replace("#l34", "#l99")
    text = text.replace("(sy)(rpt3)mad.f32", "(odd)(rpt3)mad.f32").replace(
        "cov.u16s32 r5.y, hr10.x", "alias.tex.b32.0 r5.y, c1.x"
    )
    changed, kept_one = read_statistics(text, "a630")[0], kept("a630")[0]
    assert (changed.instructions, changed.code) == (kept_one.instructions, kept_one.code)


def test_mali() -> None:
    dot4, shuffle = kept("g76")
    assert (dot4.name, dot4.instructions, dot4.registers, dot4.waves, dot4.occupancy) == ("dot4", 75, 11, None, 1.0)
    assert dot4.cycles == 5.0
    assert dot4.cycles_by_unit == {"arith": 2.416667, "texture": 0.5, "vary": 0.0, "ldst": 5.0}
    assert dot4.inner == LoopStatistics(instructions=22, multiply_adds=4, memory=2, units=dot4.inner.units)
    # The compiler's own bound is for the code as written: 24 lanes of arithmetic, half a cycle for an image, one for
    # any other access.
    units = [own + loop for own, loop in zip(dot4.code.units, dot4.inner.units, strict=True)]
    assert units[0] / 24 == pytest.approx(dot4.cycles_by_unit["arith"], abs=1e-5)
    assert (units[1] / 2, units[2]) == (dot4.cycles_by_unit["texture"], dot4.cycles_by_unit["ldst"])
    assert (shuffle.spills, shuffle.private_memory_bytes, [loop.instructions for loop in shuffle.code.inner]) == (
        2,
        256,
        [20, 24],
    )


def test_valhall() -> None:
    """Jumps of Valhall's code are distances, and only the form before its machine code shows private memory."""
    dot4, shuffle = kept("g57")
    assert (dot4.name, dot4.instructions, dot4.registers, dot4.occupancy, dot4.cycles, dot4.is_adreno) == (
        "dot4",
        85,
        10,
        1.0,
        5.0,
        False,
    )
    assert dot4.inner == LoopStatistics(instructions=27, multiply_adds=4, memory=2)
    assert dot4.code.instructions + dot4.inner.instructions == dot4.instructions
    assert (shuffle.spills, shuffle.private_memory_bytes, [loop.instructions for loop in shuffle.code.inner]) == (
        2,
        256,
        [24, 28],
    )


def test_mesa_26_prints_other_summaries() -> None:
    """Adreno's has the waves, and whether they have 128 work-items. Mali's has other words and registers."""
    (a830, shuffle), (g57,), (g76,) = (kept(f"mesa26/{gpu}", gpu) for gpu in ("a830", "g57", "g76"))
    assert (a830.instructions, a830.registers, a830.waves, shuffle.waves, shuffle.spills) == (75, 36, 16, 16, 2)
    assert [(dot4.instructions, dot4.registers, dot4.cycles) for dot4 in (g57, g76)] == [(79, 12, 5.0), (75, 11, 5.0)]
    assert g76.cycles_by_unit == {"arith": 2.416667, "t": 0.5, "ldst": 5.0, "v": 0.0}
    assert [(dot4.loops, dot4.inner.multiply_adds, dot4.inner.memory) for dot4 in (a830, g57, g76)] == [(1, 4, 2)] * 3


@pytest.mark.parametrize(("printed", "waves"), [("16 max_waves, 1", 16), ("4 max_waves, 1", 8), ("4 max_waves, 0", 4)])
def test_waves_of_128_count_twice(printed: str, waves: int) -> None:
    text = (DATA / "mesa26/a830.txt").read_text(encoding="utf-8").replace("16 max_waves, 0", printed)
    assert [statistics.waves for statistics in read_statistics(text, "a830")] == [waves, waves]


@pytest.mark.parametrize("gpu", GPUS)
def test_a_refused_file_gives_the_compilers_words(gpu: str) -> None:
    with pytest.raises(BuildError, match=r"refuses the kernel: input.cl:1:31: error: unknown type name 'flot'"):
        read_statistics(
            "@romou begin x.cl\n@romou failed input.cl:1:31: error: unknown type name 'flot'\nmore\n@romou end\n", gpu
        )


@pytest.mark.parametrize("gpu", GPUS)
def test_output_without_statistics_is_an_error(gpu: str) -> None:
    with pytest.raises(BuildError, match="printed no statistics for f; its last words: (?s:.*)nothing known"):
        read_statistics("@romou begin x.cl\nimpl __wrapped_f {\n}\n@romou kernel f 0 0\nnothing known\n", gpu)


def test_missing_compilers_name_the_script(tmp_path: Path) -> None:
    with pytest.raises(MobileCompilersMissingError) as caught:
        compile_statistics(SOURCE, "a630", folder=tmp_path)
    assert str(caught.value).splitlines()[0] == f"Mesa's mobile compilers are not in {tmp_path}"
    assert "Run romou setup mobile-compilers" in str(caught.value)


def test_unknown_gpu() -> None:
    with pytest.raises(
        UsageError, match=r"unknown mobile GPU 'a63'; known: a618, a630, .*, g76\nDid you mean 'a630'\?"
    ):
        compile_statistics(SOURCE, "a63")


def test_the_compiler_of_a_device_is_one_of_its_instruction_set() -> None:
    assert [compiler_for(device) for device in ("adreno640", "adreno650", "adreno740", "mali_g78", "mali_g710")] == [
        "a630",
        "a660",
        "a740",
        "g57",
        "g610",
    ]
    named = [device for gpu in MOBILE_GPUS.values() for device in gpu.devices]
    assert sorted(named) == sorted(set(named)), "one compiler a device"
    assert set(named) <= set(known_devices())
    with pytest.raises(
        UsageError, match="Mesa has no compiler for adreno840; it has them for a618, .*\nName one, e.g. --gpu a740"
    ):
        compiler_for("adreno840")


def test_a_newer_mesa_is_in_the_folder_or_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, beside = tmp_path / "mesa", tmp_path / "mesa_26"
    monkeypatch.setenv("ROMOU_MOBILE_COMPILERS", str(folder))
    for made, version in ((folder, "25.0.7-2+deb13u1"), (beside, "26.1.6-1~bpo13+1")):
        missing_text = f"Mesa 26's mobile compilers are not in {folder}"
        with pytest.raises(MobileCompilersMissingError, match=missing_text) as missing:
            compile_statistics(SOURCE, "a830")
        assert "Run romou setup mobile-compilers --mesa 26" in str(missing.value.hint)
        made.mkdir()
        (made / "ready.json").write_text(json.dumps({"mesa": version}), encoding="utf-8")
    assert (find_compilers(), find_compilers(mesa=26), find_compilers(beside, mesa=26)) == (folder, beside, beside)
    assert [mesa_version(mesa=mesa)[:2] for mesa in (25, 26)] == ["25", "26"]
    done = CliRunner().invoke(main, ["setup", "mobile-compilers", "--mesa", "26", str(folder)])
    assert done.exit_code == 1
    assert f"{folder} holds an older Mesa than 26" in done.stderr
    done = CliRunner().invoke(main, ["setup", "mobile-compilers", "--mesa", "26", "--json"])
    assert json.loads(done.stdout) == {"folder": str(beside), "mesa": "26.1.6-1~bpo13+1"}


def test_the_script_says_what_it_lacks(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "env", "dirname"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(SETUP), str(tmp_path / "to")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: the mobile compilers could not be set up: apt-get is missing; this works on Debian and its"
        " descendants\n"
    )
    assert not (tmp_path / "to").exists()


def test_the_script_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text("{}")
    done = subprocess.run(
        ["bash", str(SETUP)],
        env={**os.environ, "ROMOU_MOBILE_COMPILERS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"==> the mobile compilers are already in {tmp_path}\n"


def test_the_command_runs_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`romou setup mobile-compilers` has the script's result, and its error as an error of Romou's."""
    (tmp_path / "ready.json").write_text('{"mesa": "25.0.7"}')
    done = CliRunner().invoke(main, ["setup", "mobile-compilers", str(tmp_path), "--json"])
    assert json.loads(done.stdout) == {"folder": str(tmp_path), "mesa": "25.0.7"}
    assert done.stderr == f"==> the mobile compilers are already in {tmp_path}\n"
    (tmp_path / "ready.json").rename(tmp_path / "letter")
    failed = CliRunner().invoke(main, ["setup", "mobile-compilers", str(tmp_path)])
    assert failed.exit_code == 1
    assert failed.stderr == (
        f"romou: the mobile compilers could not be set up: {tmp_path} holds something else; give another folder, or"
        " remove it\n"
    )


# Together they exceed the compiler's time limit.
SIZES = [16 * n for n in range(1, 13)]
# They differ in the size of the local array.
SIZED = (
    "__kernel void f(__global float* a) { __local float t[SIZE]; t[get_local_id(0)] = a[0];"
    " barrier(CLK_LOCAL_MEM_FENCE); a[1] = t[SIZE - 1]; }"
)
REFUSED = "__kernel void f(__global flot* a) { a[0] = 1; }"
SCALE = "__kernel void scale(__global float* a) { a[get_global_id(0)] *= 2.0f; }"
# A read as Romou's kernels spell it, and its sum, in fp32 and in fp16.
READS = """
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define READ_INSIDE_IMAGEH(image, sampler, coord) read_imageh(image, coord)
#define READ_INSIDE_IMAGEF(image, sampler, coord) read_imagef(image, coord)
__kernel void sum(__read_only image2d_array_t a, __global TYPE4* b, int n) {
  TYPE4 sum = (TYPE4)(0);
  for (int i = 0; i < n; ++i) sum = mad(READ(a, s, ((int4)(get_local_id(0), i, 0, 0))), b[0], sum);
  b[get_local_id(0)] = sum;
}
"""
FP32_READS, FP16_READS = (
    READS.replace("TYPE", name).replace("READ(", f"READ_INSIDE_IMAGE{letter}(")
    for name, letter in (("float", "F"), ("half", "H"))
)
EQUAL = "__kernel void one(__global float* a) { a[get_local_id(0)] = 1.0f; }"


@pytest.fixture(scope="module")
def answers(compilers: Path) -> Callable[[str], list[list[KernelStatistics] | BuildError]]:
    """Return a compiler's results for all files here, compiled in one process: starting it takes
    longer than its work.
    """
    sources = [SOURCE, REFUSED, SOURCE.replace("n[0]", "n[2]")]
    more = {
        "a630": [SCALE, FP32_READS, FP16_READS, *(SIZED.replace("SIZE", str(size)) for size in SIZES)],
        "g76": [EQUAL, EQUAL + "// the same"],
    }
    return cache(lambda gpu: compile_all([*sources, *more.get(gpu, [])], gpu, folder=compilers))


def test_each_file_gets_its_own_answer(answers: Callable[[str], list[list[KernelStatistics] | BuildError]]) -> None:
    results = answers("a630")[6:]
    assert [r[0].local_memory_bytes if isinstance(r, list) else str(r) for r in results] == [4 * size for size in SIZES]


def test_equal_kernels_both_get_an_answer(answers: Callable[[str], list[list[KernelStatistics] | BuildError]]) -> None:
    first, second = answers("g76")[3:]
    assert first == second
    assert isinstance(first, list)


def test_the_script_spares_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    done = subprocess.run(["bash", str(SETUP), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds something else; give another folder, or remove it" in done.stderr
    assert (tmp_path / "letter").read_text() == "mine"


def test_an_fp16_image_is_read_without_conversions(
    answers: Callable[[str], list[list[KernelStatistics] | BuildError]],
) -> None:
    fp32, fp16 = answers("a630")[4:6]
    assert isinstance(fp32, list)
    assert isinstance(fp16, list)
    assert fp16[0].inner.multiply_adds == fp32[0].inner.multiply_adds == 4
    assert fp16[0].inner.instructions <= fp32[0].inner.instructions


@pytest.mark.parametrize("gpu", LIVE)
def test_live(gpu: str, answers: Callable[[str], list[list[KernelStatistics] | BuildError]]) -> None:
    good, refused, again = answers(gpu)[:3]
    assert isinstance(refused, BuildError)
    for found in (good, again):
        assert isinstance(found, list)
        dot4, shuffle = found
        assert (dot4.name, dot4.spills, dot4.private_memory_bytes, dot4.loops) == ("dot4", 0, 0, 1)
        assert dot4.inner.multiply_adds == 4
        assert shuffle.spills > 0
        assert shuffle.private_memory_bytes >= 256
    assert isinstance(good, list)
    # The kept output was printed by these compilers. Another version's code may differ, but not its kind.
    assert [s.inner.memory for s in good] == [s.inner.memory for s in kept(gpu)]


def test_a_fixed_work_group_saves_address_arithmetic(
    compilers: Path, answers: Callable[[str], list[list[KernelStatistics] | BuildError]]
) -> None:
    answer = answers("a630")[3]
    assert isinstance(answer, list)
    (any_group,) = answer
    (fixed,) = compile_statistics(SCALE, "a630", (8, 8, 1), folder=compilers)
    assert fixed.instructions < any_group.instructions


def test_a_kernel_of_sub_groups_is_said_to_be_one(tmp_path: Path) -> None:
    """Mesa's OpenCL has no sub-group functions. Without the check its error would be that names are not declared."""
    (tmp_path / "ready.json").write_text("{}", encoding="utf-8")
    source = "__kernel void sums(__global float *a) { a[0] = sub_group_add_of_64(a[get_local_id(0)]); }"
    (result,) = compile_all([source], "a630", folder=tmp_path)
    assert isinstance(result, BuildError)
    assert "no sub-groups" in str(result)
    assert "sub_group=1" in str(result.hint)
