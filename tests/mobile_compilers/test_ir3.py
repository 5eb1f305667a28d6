"""The simulator of Adreno's machine code: instructions, control flow, memory, kept kernels, planted faults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romou.devices.mobile_compilers.ir3 import (
    BadAccessError,
    Buffer,
    Caches,
    Counts,
    Image,
    Launch,
    Level,
    UnknownInstructionError,
    execute,
    read_program,
)
from romou.devices.mobile_compilers.ir3.caches import Cache
from romou.devices.mobile_compilers.ir3.machine import Machine
from romou.devices.mobile_compilers.ir3.steps import Steps
from romou.devices.mobile_compilers.statistics import read_statistics

DATA = Path(__file__).parent / "data"
LANES = 4
HEADER = """
NIR (final form)
decl_var uniform INTERP_MODE_NONE none sampler #0 (2, 16, 0) = { clamp, false, nearest }
decl_var uniform INTERP_MODE_NONE none sampler #1 (2, 24, 0) = { clamp_to_edge, false, nearest }
decl_var uniform INTERP_MODE_NONE none sampler #2 (2, 32, 0) = { repeat, true, linear }
Native code for unnamed CL shader
; offsets:
;   ubo_ranges                 c4.x (4 vec4)
;   driver_params              c20.x (4 vec4)
; ubo_state:
;   range[0]:
;     block:          0
;     offset:         c4.x
;     size:           4 vec4 (0b -> 64b)
@const(c9.x)\t0x00000007, 0x3fc00000, 0xffffffff, 0x00010002
"""
FOOTER = """
end
nop
; CL: inputs: r0.x (SYSTEM_VALUE_LOCAL_INVOCATION_ID slot=40) r48.x (SYSTEM_VALUE_WORKGROUP_ID slot=45)
"""


def launch_of(
    code: str,
    arguments: Sequence[Buffer | Image | int] = (),
    kinds: Sequence[str] = (),
    *,
    groups: tuple[int, int, int] = (1, 1, 1),
    work_group: tuple[int, int, int] = (LANES, 1, 1),
    local_memory_bytes: int = 0,
    wave: int = 64,
) -> Launch:
    text = "\n".join(line.strip() for line in code.strip().splitlines())
    return Launch(
        program=read_program(HEADER + text + FOOTER, "made"),
        arguments=arguments,
        kinds=kinds,
        groups=groups,
        work_group=work_group,
        local_memory_bytes=local_memory_bytes,
        wave=wave,
    )


def after(code: str, registers: Mapping[str, Sequence[float]], launch: Launch | None = None) -> Machine:
    """Return the lanes after some code. registers: "r1.x" -> 32-bit values of the lanes, "hr1.x" -> fp16."""
    launch = launch or launch_of(code)
    machine = Machine(launch, launch.constants(), np.zeros(1, int))
    for name, values in registers.items():
        row(machine, name, np.array(values).dtype.kind == "f")[...] = values
    with np.errstate(all="ignore"):
        Steps(machine, launch, Caches()).run(0, len(launch.program.code))
    return machine


def row(machine: Machine, name: str, is_float: bool) -> np.ndarray:
    """Return a view of a register of all lanes."""
    match = re.fullmatch(r"(h?)r(\d+)\.([xyzw])", name)
    assert match
    index = 4 * int(match[2]) + "xyzw".index(match[3])
    bits: np.ndarray = machine.halves[index // 2, :, index % 2] if match[1] else machine.registers[index]
    return bits.view(f"{'f' if is_float else 'i'}{bits.dtype.itemsize}")


HALF = np.float16
# Code, registers before, register after, its values. Integers are signed here.
INSTRUCTIONS: dict[str, tuple[str, dict[str, list[Any]], str, list[Any]]] = {
    "mov_constant": ("mov.u32u32 r1.x, c9.x", {}, "r1.x", [7] * 4),
    "mov_immediate": ("mov.u32u32 r1.x, 0x80000001", {}, "r1.x", [-(2**31) + 1] * 4),
    "mov_float": ("mov.f32f32 r1.x, (1.500000)", {}, "r1.x", [1.5] * 4),
    "repeat": (
        "(rpt1)add.u r1.x, (r)r2.x, r3.x",
        {"r2.x": [1, 2, 3, 4], "r2.y": [5, 6, 7, 8], "r3.x": [10] * 4},
        "r1.y",
        [15, 16, 17, 18],
    ),
    "swap": ("swz.u32u32 r1.x, r1.y, r1.y, r1.x", {"r1.x": [1] * 4, "r1.y": [2] * 4}, "r1.y", [1] * 4),
    "gather": ("gat.u32u32 r2.x, r1.x, r1.y, r1.x, r1.y", {"r1.x": [1] * 4, "r1.y": [2] * 4}, "r2.w", [2] * 4),
    "cov_even": ("cov.f32s32 (even)r1.x, r2.x", {"r2.x": [0.5, 1.5, -2.5, 3e9]}, "r1.x", [0, 2, -2, 2**31 - 1]),
    "cov_zero": ("cov.f32s32 r1.x, r2.x", {"r2.x": [1.9, -1.9, np.nan, -3e9]}, "r1.x", [1, -1, 0, -(2**31)]),
    "cov_s32f32": ("cov.s32f32 (even)r1.x, r2.x", {"r2.x": [1, -1, 16777217, 5]}, "r1.x", [1.0, -1.0, 16777216.0, 5.0]),
    "cov_u16": ("cov.u16s32 r1.x, hr2.x", {"hr2.x": [1, -1, 0, 2]}, "r1.x", [1, 65535, 0, 2]),
    "cov_u8s16": ("cov.u8s16 hr1.x, hr2.x", {"hr2.x": [1, 255, 128, 383]}, "hr1.x", [1, -1, -128, 127]),
    "cov_u8s32": ("cov.u8s32 r1.x, hr2.x", {"hr2.x": [1, 255, 128, 383]}, "r1.x", [1, -1, -128, 127]),
    "cov_s16": ("cov.s16s32 r1.x, hr2.x", {"hr2.x": [1, -1, 0, 2]}, "r1.x", [1, -1, 0, 2]),
    "cov_f16": (
        "cov.f32f16 (even)hr1.x, r2.x",
        {"r2.x": [1 / 3, 2049.0, 1e6, -0.5]},
        "hr1.x",
        [HALF(1 / 3), 2048.0, np.inf, -0.5],
    ),
    "cov_f16_zero": (
        "cov.f32f16 hr1.x, r2.x",
        {"r2.x": [2 / 3, -2 / 3, 1e6, 1.0]},
        "hr1.x",
        [0.66650390625, -0.66650390625, 65504.0, 1.0],
    ),
    "halves": ("mov.u16u16 hr2.y, hr2.x", {"r1.x": [0x1234] * 4}, "r1.x", [0x12341234] * 4),
    "add_f": (
        "add.f r1.x, (neg)r2.x, (abs)r3.x",
        {"r2.x": [1.0, 2.0, 3.0, 4.0], "r3.x": [-5.0] * 4},
        "r1.x",
        [4.0, 3.0, 2.0, 1.0],
    ),
    "add_f_half": (
        "add.f hr1.x, hr2.x, h(0.5)",
        {"hr2.x": [1.0, 2048.0, 0.1, 4.0]},
        "hr1.x",
        [1.5, 2048.0, HALF(0.1) + HALF(0.5), 4.5],
    ),
    "mul_f_constant": ("mul.f hr1.x, hr2.x, hc9.y", {"hr2.x": [1.0, 2.0, 3.0, 4.0]}, "hr1.x", [1.5, 3.0, 4.5, 6.0]),
    "saturate": ("(sat)add.f r1.x, r2.x, (0.0)", {"r2.x": [-1.0, 0.25, 7.0, 1.0]}, "r1.x", [0.0, 0.25, 1.0, 1.0]),
    "max_f": ("max.f r1.x, r2.x, (1.0)", {"r2.x": [np.nan, 0.0, 2.0, -1.0]}, "r1.x", [1.0, 1.0, 2.0, 1.0]),
    "rndne": ("rndne.f r1.x, r2.x", {"r2.x": [0.5, 1.5, -1.5, 2.2]}, "r1.x", [0.0, 2.0, -2.0, 2.0]),
    "sub_u": ("sub.u r1.x, r2.x, r3.x", {"r2.x": [0, 1, 2, 3], "r3.x": [1] * 4}, "r1.x", [-1, 0, 1, 2]),
    "min_s": ("min.s r1.x, r2.x, -2", {"r2.x": [0, -5, 2, -2]}, "r1.x", [-2, -5, -2, -2]),
    "max_u": ("max.u r1.x, r2.x, 3", {"r2.x": [-1, 1, 2, 5]}, "r1.x", [-1, 3, 3, 5]),
    "absneg": ("absneg.s r1.x, (abs)r2.x", {"r2.x": [-1, 1, -7, 0]}, "r1.x", [1, 1, 7, 0]),
    "and_not": ("and.b r1.x, (neg)r2.x, 15", {"r2.x": [0, 1, 15, 6]}, "r1.x", [15, 14, 0, 9]),
    "not": ("not.b r1.x, r2.x", {"r2.x": [0, -1, 1, 2]}, "r1.x", [-1, 0, -2, -3]),
    "ashr": ("ashr.b r1.x, r2.x, 31", {"r2.x": [-5, 5, 0, -1]}, "r1.x", [-1, 0, 0, -1]),
    "shr": ("shr.b r1.x, r2.x, r3.x", {"r2.x": [-1, 16, 16, 16], "r3.x": [28, 4, 33, 0]}, "r1.x", [15, 1, 8, 16]),
    "mull": (
        "mull.u r1.x, r2.x, r3.x",
        {"r2.x": [0x10003, 3, 65535, 0], "r3.x": [5, 0x20005, 65535, 9]},
        "r1.x",
        [15, 15, -131071, 0],
    ),
    # The lower half of the first, the upper half of the second.
    "madsh": (
        "madsh.m16 r1.x, r2.x, r3.x, r4.x",
        {"r2.x": [0x50003] * 4, "r3.x": [0x70002] * 4, "r4.x": [1] * 4},
        "r1.x",
        [(21 << 16) + 1] * 4,
    ),
    "mul_s24": (
        "mul.s24 r1.x, r2.x, r3.x",
        {"r2.x": [-3, 1 << 24, 5, 0xFFFFFF], "r3.x": [7, 3, -5, 2]},
        "r1.x",
        [-21, 0, -25, -2],
    ),
    "mad_f32": (
        "(rpt1)mad.f32 r1.x, r2.x, (neg)(r)r3.x, (r)r4.x",
        {"r2.x": [2.0] * 4, "r3.y": [3.0] * 4, "r4.y": [1.0] * 4},
        "r1.y",
        [-5.0] * 4,
    ),
    "mad_f16": (
        "mad.f16 hr1.x, hr2.x, hr3.x, hr4.x",
        {"hr2.x": [2.0] * 4, "hr3.x": [1.5] * 4, "hr4.x": [0.25] * 4},
        "hr1.x",
        [3.25] * 4,
    ),
    "select": ("sel.b32 r1.x, c9.x, r2.x, r3.x", {"r2.x": [0, 1, -1, 0], "r3.x": [1, 2, 3, 4]}, "r1.x", [1, 7, 7, 4]),
    "sum_of_three": ("sad.s32 r1.x, r2.x, r2.x, c9.z", {"r2.x": [1, 2, 3, 4]}, "r1.x", [1, 3, 5, 7]),
    "shrg": ("shrg r1.x, 30, r2.x, r3.x", {"r2.x": [-1, 0, 1 << 30, 5], "r3.x": [8] * 4}, "r1.x", [11, 8, 9, 8]),
    "andg": ("andg r1.x, r2.x, r3.x, r4.x", {"r2.x": [6] * 4, "r3.x": [3] * 4, "r4.x": [8] * 4}, "r1.x", [10] * 4),
    "dp4acc": (
        "dp4acc.mixed r1.x, r2.x, r3.x, r4.x",
        {"r2.x": [0x01FF02FE] * 4, "r3.x": [0x01020304] * 4, "r4.x": [100] * 4},
        "r1.x",
        [1 - 2 + 6 - 8 + 100] * 4,
    ),
    "dp4acc_unsigned": (
        "dp4acc.unsigned r1.x, r2.x, r3.x, r4.x",
        {"r2.x": [0xFF] * 4, "r3.x": [0x02] * 4, "r4.x": [0] * 4},
        "r1.x",
        [510] * 4,
    ),
    "rcp": ("rcp r1.x, r2.x", {"r2.x": [1.0, 2.0, -4.0, 0.0]}, "r1.x", [1.0, 0.5, -0.25, np.inf]),
    "rsq": ("rsq r1.x, r2.x", {"r2.x": [1.0, 4.0, 16.0, 0.25]}, "r1.x", [1.0, 0.5, 0.25, 2.0]),
    "exp2": ("(rpt1)exp2 r1.x, (r)r2.x", {"r2.y": [0.0, 1.0, -1.0, 3.0]}, "r1.y", [1.0, 2.0, 0.5, 8.0]),
    "log2": ("log2 r1.x, r2.x", {"r2.x": [1.0, 2.0, 8.0, 0.5]}, "r1.x", [0.0, 1.0, 3.0, -1.0]),
    "compare_half": ("cmps.u.lt hr1.x, r2.x, 5", {"r2.x": [1, -1, 5, 4]}, "hr1.x", [1, 0, 0, 1]),
    "compare_nan": ("cmps.f.ne r1.x, r2.x, r2.x", {"r2.x": [np.nan, 1.0, 2.0, np.inf]}, "r1.x", [1, 0, 0, 0]),
    "predicates": (
        "cmps.s.ge p0.x, r2.x, 2\nand.b p0.y, r2.x, 1\nbraa p0.x, !p0.y, #l9\nmov.u32u32 r1.x, 5\nl9:\nnop",
        {"r1.x": [0] * 4, "r2.x": [0, 1, 2, 3]},
        "r1.x",
        [5, 5, 0, 5],
    ),
    "relative": (
        "mova a0.x, hr2.x\nmov.u32u32 r1.x, r<a0.x + 16>\nmov.u32u32 r<a0.x + 20>, r1.x",
        {"hr2.x": [0, 1, 0, 1], "r4.x": [10] * 4, "r4.y": [20] * 4},
        "r5.y",
        [0, 20, 0, 20],
    ),
    "constant_by_address": (
        "mov.u32u32 r48.x, 9\nmov.u32u32 r48.y, 11\nmova1 a1.x, 256\nstc.u32 c[a1.x+4], r48.x, 2\n"
        "mov.u32u32 r1.x, c65.y",
        {},
        "r1.x",
        [11] * 4,
    ),
    "leading_zeros": ("clz.b r1.x, r2.x", {"r2.x": [0, 1, -1, 0x00FFFFFF]}, "r1.x", [-1, 31, 0, 8]),
    "relative_constant": (
        "mova1.u a1.x, 40\nldc.1.k.imm c[a1.x], 0, 0\nmova a0.x, hr2.x\nmov.u32u32 r1.x, c<a0.x + 36>",
        {"hr2.x": [0, 1, 2, 4]},
        "r1.x",
        [7, 0x3FC00000, -1, 0],
    ),
    # Lanes of a wave share r48 to r55: the first active lane's value counts, also for lanes that are not active.
    "shared": (
        "cmps.s.ge p0.x, r2.x, 2\npredt\nmov.u32u32 r49.x, r2.x\nprede\nmov.u32u32 r1.x, r49.x",
        {"r2.x": [0, 1, 2, 3]},
        "r1.x",
        [2, 2, 2, 2],
    ),
    "predication": (
        "cmps.s.lt p0.x, r2.x, 1\npredt\nmov.u32u32 r1.x, 5\npredf\nmov.u32u32 r1.x, 6\nprede\nadd.u r1.x, r1.x, 1",
        {"r2.x": [0, 1, 2, 0]},
        "r1.x",
        [6, 7, 7, 6],
    ),
    # Lane i runs i iterations, and all lanes go on together.
    "loop": (
        "l1:\ncmps.s.ge p0.x, r3.x, r2.x\nbr p0.x, #l2\nadd.u r1.x, r1.x, 10\nadd.u r3.x, r3.x, 1\njump #l1\n"
        "l2:\nadd.u r1.x, r1.x, 1",
        {"r1.x": [0] * 4, "r2.x": [0, 1, 2, 3], "r3.x": [0] * 4},
        "r1.x",
        [1, 11, 21, 31],
    ),
    "getone": ("getone #l1\nmov.u32u32 r1.x, 5\nl1:\nnop", {"r1.x": [0] * 4}, "r1.x", [5, 0, 0, 0]),
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction(name: str) -> None:
    code, registers, result, expected = INSTRUCTIONS[name]
    machine = after(code, registers)
    is_float = np.array(expected).dtype.kind == "f"
    found = row(machine, result, is_float)
    wanted = np.array(expected).astype(found.dtype) if is_float else np.array(expected, np.int64).astype(found.dtype)
    assert np.array_equal(found, wanted), f"{found} instead of {wanted}"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("bfrev.b r1.x, r2.x", "does not know bfrev.b: bfrev.b r1.x, r2.x"),
        ("saml.3d (f32)(xyzw)r1.x, r2.x, r3.x, s#0, t#0", r"does not know saml.3d \(this form of it\)"),
        ("saml (f32)(xyzw)r1.x, r2.x, r3.x, s#2, t#0", r"the sampler \('repeat', True, 'linear'\)"),
        ("(neg)add.f r1.x, r2.x, r3.x", "the flag neg"),
        ("sel.b32 r1.x, (neg)r2.x, r3.x, r4.x", r"\(neg\) of bits"),
        ("ldg.a.u32 r1.x, g[r2.x+(r3.x<<2)], 1", "the address"),
        ("mov.u32u32 r1.x, 520\nmov.u32u32 r1.y, 0\nldg.u32 r2.x, g[r1.x], 1", "data of the compiler's own"),
        ("(sat)add.s r1.x, r2.x, r3.x", r"\(sat\) of integers"),
        ("atomic.add.untyped.1d.u32.1.l r1.x, l[r2.x], r3.x", "does not know atomic.add"),
        ("mov.u32u32 r61.x, r2.x", "the destination r61"),
        ("alias.tex.b32.0 r1.x, r2.x\nadd.u r1.x, r1.x, r2.x", "aliases of registers before it"),
    ],
)
def test_what_is_not_known_is_refused(code: str, what: str) -> None:
    texture = Image(np.zeros((1, 1, 1, 4), np.float32))
    with pytest.raises(UnknownInstructionError, match=what):
        execute(launch_of(code, [texture], ["texture"]))


def test_an_unknown_system_value_is_refused() -> None:
    program = read_program(HEADER + "nop" + FOOTER.replace("WORKGROUP_ID", "SUBGROUP_ID"), "made")
    with pytest.raises(UnknownInstructionError, match="the system value SUBGROUP_ID"):
        execute(Launch(program=program, arguments=[], kinds=[], groups=(1, 1, 1), work_group=(1, 1, 1)))


# Address of the work-item's element of 4 bytes in the buffer that is the first argument
ADDRESS = "shl.b r1.z, r0.x, 2\nadd.u r1.x, c4.x, r1.z\nmov.u32u32 r1.y, c4.y"


def test_buffers_are_read_and_written() -> None:
    data, wide = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    buffers = [Buffer(data), Buffer(wide)]
    load = f"{ADDRESS}\nldg.u32 r2.x, g[r1.x+4], 2\n"
    code = f"{load}add.f r2.x, r2.x, r2.y\nadd.u r3.x, c4.z, r1.z\nmov.u32u32 r3.y, c4.w\nstg.u32 g[r3.x], r2.x, 1"
    counts = execute(launch_of(code, buffers, ["buffer"] * 2))
    assert wide.tolist() == [3.0, 5.0, 7.0, 9.0]
    assert buffers[1].is_written.all()
    assert not buffers[0].is_written.any()
    assert counts.executed["ldg.u32"] == 1
    assert counts.active_lanes["ldg.u32"] == LANES


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (f"{ADDRESS}\nldg.u32 r2.x, g[r1.x+8], 1", "an access of 4 bytes at 20 of a buffer of 16 bytes"),
        (f"{ADDRESS}\nstg.u32 g[r1.x-4], r2.x, 1", "an access to no buffer"),
        (f"{ADDRESS}\nldg.u32 r2.x, g[r1.x+2], 1", "at no multiple of them"),
        ("mov.u32u32 r1.x, 8\nldl.u32 r2.x, l[r1.x+4], 2", "an access at byte 12 of 16 bytes"),
        ("mov.u32u32 r1.x, -1\nmov.u32u32 r1.y, 0\nstib.b.typed.2d.f32.4.imm.base0 r2.x, r1.x, 32", "a write outside"),
        ("cmps.s.lt p0.x, r0.x, 2\nbr p0.x, #l1\nbar.g\nl1:\nnop", "some work-items of a work group miss a barrier"),
    ],
)
def test_an_access_outside_is_an_error(code: str, text: str) -> None:
    arguments: list[Buffer | Image | int] = [Buffer(np.zeros(4, np.float32)), Image(np.zeros((1, 2, 2, 4), np.float32))]
    with pytest.raises(BadAccessError, match=text):
        execute(launch_of(code, arguments, ["buffer", "image"], local_memory_bytes=16))


def test_elements_of_16_and_8_bits() -> None:
    halves, bytes_ = np.array([1, 2, 3, 4, 5, 6, 7, 8], np.uint16), np.arange(250, 254, dtype=np.uint8)
    code = """
        shl.b r1.z, r0.x, 2
        add.u r1.x, c4.x, r1.z
        mov.u32u32 r1.y, c4.y
        ldg.u16 hr8.x, g[r1.x], 2
        stg.u16 g[r1.x], hr8.y, 1
        add.u r2.x, c4.z, r0.x
        mov.u32u32 r2.y, c4.w
        ldg.u8 hr12.x, g[r2.x], 1
        add.u hr12.x, hr12.x, 1
        stg.u8 g[r2.x], hr12.x, 1
    """
    execute(launch_of(code, [Buffer(halves), Buffer(bytes_)], ["buffer"] * 2))
    assert halves.tolist() == [2, 2, 4, 4, 6, 6, 8, 8]
    assert bytes_.tolist() == [251, 252, 253, 254]


def test_local_memory_belongs_to_a_work_group() -> None:
    """Work-items write, wait, and read what another one of their group wrote."""
    out = np.zeros(8, np.int32)
    code = """
        shl.b r1.x, r0.x, 2
        shl.b r2.x, r48.x, 2
        add.u r2.y, r2.x, r0.x
        stl.u32 l[r1.x], r2.y, 1
        (sy)(ss)bar.g
        sub.u r1.y, 4, r1.x
        ldl.u32 r3.x, l[r1.y+8], 1
        shl.b r2.z, r2.y, 2
        add.u r4.x, c4.x, r2.z
        mov.u32u32 r4.y, c4.y
        stg.u32 g[r4.x], r3.x, 1
    """
    counts = execute(launch_of(code, [Buffer(out)], ["buffer"], groups=(2, 1, 1), local_memory_bytes=16))
    assert out.tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
    assert (counts.groups, counts.waves, counts.bank_conflicts) == (2, 2, 0)


def test_local_memory_holds_halves() -> None:
    """Mesa prints the halves that ldl and stl move without their h."""
    code = """
        mov.u32u32 r1.x, 8
        stl.u16 l[r1.x], r8.x, 2
        ldl.u16 r9.x, l[r1.x+2], 1
        cov.u16s32 r2.x, hr9.x
        ldl.u32 r2.y, l[r1.x], 1
    """
    registers = {"hr8.x": [3] * LANES, "hr8.y": [5] * LANES}
    machine = after("", registers, launch_of(code, local_memory_bytes=16))
    assert row(machine, "r2.x", False).tolist() == [5] * LANES
    assert row(machine, "r2.y", False).tolist() == [3 + (5 << 16)] * LANES


def test_only_chosen_groups_run() -> None:
    out = np.zeros(6, np.int32)
    code = """
        add.u r1.x, r48.x, r48.y
        shl.b r1.y, r1.x, 2
        add.u r2.x, c4.x, r1.y
        mov.u32u32 r2.y, c4.y
        mov.u32u32 r3.x, 9
        stg.u32 g[r2.x], r3.x, 1
    """
    counts = execute(
        launch_of(code, [Buffer(out)], ["buffer"], groups=(2, 3, 1), work_group=(1, 1, 1)), [0, 5], lanes=1
    )
    assert out.tolist() == [9, 0, 0, 9, 0, 0]
    assert counts.groups == 2


def texels(layers: int, height: int, width: int, kind: type[np.generic] = np.float32) -> np.ndarray:
    return np.arange(layers * height * width * 4).reshape(layers, height, width, 4).astype(kind)


def test_images_are_read_with_and_without_a_sampler() -> None:
    """Outside of an image a sampler gives zero or the nearest texel, and nothing is defined without one."""
    image = texels(2, 2, 2)
    coordinates = {"r2.x": [0.5, -0.5, 1.5, 5.5], "r2.y": [0.5, 0.5, 1.5, 0.5], "r2.z": [0.5, 0.5, 1.5, 9.5]}
    launch = launch_of(
        """
        saml.a (f32)(xyzw)r4.x, r2.x, r3.x, s#0, t#0
        saml.a (f32)(xyzw)r5.x, r2.x, r3.x, s#1, t#0
        cov.f32s32 r2.x, r2.x
        cov.f32s32 r2.y, r2.y
        cov.f32s32 r2.z, r2.z
        isaml.a (f16)(y)hr24.x, r2.x, r3.x, s#0, t#0
        """,
        [Image(image)],
        ["texture"],
    )
    machine = after("", coordinates, launch)
    assert row(machine, "r4.y", True).tolist() == [1.0, 0.0, 29.0, 0.0]
    assert row(machine, "r5.y", True).tolist() == [1.0, 1.0, 29.0, 21.0]
    found = row(machine, "hr24.y", True)
    assert found[:3].tolist() == [1.0, 1.0, 29.0]
    assert np.isnan(found[3])


def test_an_alias_replaces_a_register_of_one_read() -> None:
    launch = launch_of(
        """
        alias.tex.b32.1 r2.y, r6.x
        alias.tex.b32.0 r40.x, (0x0)
        isaml (f32)(xyzw)r4.x, r2.x, r40.x, s#0, t#0
        isaml (f32)(xyzw)r5.x, r2.x, r7.x, s#0, t#0
        alias.tex.b32.0 r2.y, r6.x
        isam.1d (f32)(xyzw)r6.x, r2.x, s#0, t#0
        isam.a.1d (f32)(xyzw)r7.x, r2.x, s#0, t#0
        """,
        [Image(texels(1, 4, 4))],
        ["texture"],
    )
    machine = after("", {"r2.x": [0, 1, 2, 3], "r2.y": [0] * 4, "r6.x": [1] * 4}, launch)
    assert row(machine, "r4.x", True).tolist() == [16.0, 20.0, 24.0, 28.0]
    assert row(machine, "r5.x", True).tolist() == [0.0, 4.0, 8.0, 12.0]
    # As Mesa 26 spells reads without a level, of an image and of a layer
    assert row(machine, "r6.x", True).tolist() == [16.0, 20.0, 24.0, 28.0]
    assert row(machine, "r7.x", True).tolist() == [0.0, 4.0, 8.0, 12.0]


def test_images_are_written() -> None:
    image = Image(np.zeros((2, 1, 4, 4), np.float16))
    code = """
        mov.u32u32 r1.x, r0.x
        mov.u32u32 r1.y, 0
        mov.u32u32 r1.z, 1
        (rpt3)mov.f16f16 hr8.x, h(2.000000)
        stib.b.typed.3d.f16.4.imm.base0 hr8.x, r1.x, 32
    """
    execute(launch_of(code, [image], ["image"]))
    assert image.array[1].tolist() == [[[2.0] * 4] * 4]
    assert not image.array[0].any()
    assert image.is_written.tolist() == [False] * 4 + [True] * 4


def test_the_preamble_computes_constants_from_arguments() -> None:
    """Mesa passes a pointer and an image that is read in 8 bytes, a number in 4, an image that is written in none."""
    out = np.zeros(LANES, np.int32)
    code = f"""
        shps #l3
        getone #l3
        ldc.u.offset1.2.imm r49.x, 1, 0
        ldc.4.k.imm c[a1.x], 0, 0
        (sy)add.u r50.x, r49.x, r49.y
        stc.u32 c[64], r50.x, 1
        (sy)(ss)shpe
        l3:
        {ADDRESS}
        mov.u32u32 r2.x, c16.x
        stg.u32 g[r1.x], r2.x, 1
    """
    image, texture = Image(texels(1, 1, 1)), Image(texels(1, 1, 1))
    arguments: list[Buffer | Image | int] = [image, Buffer(out), texture, 7, -2, 40]
    kinds = ["image", "buffer", "texture", "scalar", "scalar", "scalar"]
    launch = launch_of(code, arguments, kinds)
    assert launch.argument_words()[:7].tolist() == [0, 2 << 8, 0, 3 << 8, 7, 2**32 - 2, 40]
    assert launch.constants()[80 + 8 : 80 + 11, 0].tolist() == [LANES, 1, 1]
    execute(launch)
    assert out.tolist() == [38] * LANES


def test_lines_conflicts_and_divergence_are_counted() -> None:
    """64 lanes of one wave: neighbouring texels of 16 bytes, words 8 apart in local memory, a branch that splits."""
    code = """
        mov.u32u32 r1.x, r0.x
        mov.u32u32 r1.y, 0
        (nop3) mov.u32u32 r2.x, 0
        isaml (f32)(xyzw)r4.x, r1.x, r2.x, s#0, t#0
        isaml (f32)(xyzw)r4.x, r1.x, r2.x, s#0, t#0
        shl.b r3.x, r0.x, 5
        stl.u32 l[r3.x], r0.x, 1
        cmps.s.lt p0.x, r0.x, 16
        br p0.x, #l1
        add.u r5.x, r0.x, 1
        l1:
        (jp)add.u r5.x, r0.x, 1
    """
    launch = launch_of(code, [Image(texels(1, 1, 64))], ["texture"], work_group=(64, 1, 1), local_memory_bytes=2048)
    counts = execute(launch)
    assert counts.lines == {"image": 32}
    assert counts.group_lines == {"image": 16}
    # 16 lanes on each of 4 banks
    assert counts.bank_conflicts == 15
    assert counts.divergent_branches == 1
    assert counts.active_lanes["add.u"] == 48 + 64
    assert counts.executed["add.u"] == 2
    assert counts.issue_slots == sum(counts.executed.values()) + 3
    doubled = Counts()
    doubled.add(counts)
    doubled.add(counts)
    assert (doubled.instructions, doubled.issue_slots, doubled.lines, doubled.lanes) == (
        2 * counts.instructions,
        2 * counts.issue_slots,
        {"image": 64},
        counts.lanes,
    )


def hits_of_an_array(lines: Sequence[int], count: int) -> int:
    """Return the hits of the least recently used policy, by the number of other lines since the last access."""
    return sum(
        line in lines[:at] and len(set(lines[at - lines[:at][::-1].index(line) : at])) < count
        for at, line in enumerate(lines)
    )


def test_a_cache_evicts_the_least_recently_used_line() -> None:
    lines = np.random.default_rng(3).zipf(1.3, 400).clip(max=60).tolist()
    for count in (1, 4, 16, 64):
        missing = Cache(Level(bytes=32 * count, line_bytes=32)).missing(lines)
        assert len(lines) - len(missing) == hits_of_an_array(lines, count)
    # Lines of one set evict each other in a cache with ways, and nothing else.
    direct = Cache(Level(bytes=256, line_bytes=32, ways=1))
    assert direct.missing([0, 8, 0, 1, 1, 8]) == [0, 8, 0, 1, 8]


def test_loads_come_from_levels() -> None:
    """One wave of 64 texels of 16 bytes, twice: 1 KiB of an image. Each core has a first level, all have one second."""
    code = """
        mov.u32u32 r1.x, r0.x
        mov.u32u32 r1.y, 0
        mov.u32u32 r2.x, 0
        isaml (f32)(xyzw)r4.x, r1.x, r2.x, s#0, t#0
        isaml (f32)(xyzw)r4.x, r1.x, r2.x, s#0, t#0
    """
    launch = launch_of(code, [Image(texels(1, 1, 64))], ["texture"], groups=(2, 1, 1), work_group=(64, 1, 1))

    def served(first: int, second: int, waves: int) -> list[int]:
        caches = Caches(
            first=Level(bytes=first, line_bytes=32), second=Level(bytes=second, line_bytes=128), resident_waves=waves
        )
        return list(execute(launch, caches=caches).bytes_from.values())

    assert served(1024, 4096, 1) == [4096, 2048, 1024]
    assert served(1024, 4096, 2) == [4096, 1024, 1024]
    # The lines of a cycle that is longer than the cache are evicted before they are used again.
    assert served(1024 - 32, 4096, 2) == [4096, 4096, 1024]
    # Each line of the second level serves four of the first, then it is evicted.
    assert served(32, 128, 1) == [4096, 4096, 4096]
    assert execute(launch, caches=Caches(second=Level(bytes=4096, line_bytes=64))).bytes_from == {}
    # A line of the first level takes two of the second: 768 bytes keep no line of these 1,024 until the next wave.
    levels = {"first": Level(bytes=256, line_bytes=128), "second": Level(bytes=768, line_bytes=64)}
    assert execute(launch, caches=Caches(**levels)).bytes_from == {"l1": 4096, "l2": 4096, "memory": 4096}


def test_buffers_are_read_through_the_second_level() -> None:
    launch = launch_of(f"{ADDRESS}\nldg.u32 r2.x, g[r1.x], 1", [Buffer(np.zeros(LANES, np.float32))], ["buffer"])
    levels = {"first": Level(bytes=1024, line_bytes=32), "second": Level(bytes=4096, line_bytes=64)}
    assert execute(launch, caches=Caches(**levels)).bytes_from == {"l2": 32, "memory": 64}
    through = Caches(**levels, buffers_in_first=True)
    assert execute(launch, caches=through).bytes_from == {"l1": 32, "l2": 32, "memory": 64}


# Kernels of data/kernels.cl, as Mesa's compiler for a630 printed them.
DOT4, SHUFFLE = read_statistics((DATA / "a630.txt").read_text(encoding="utf-8"), "a630")


def dot4(listing: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the output of the kept kernel, and what it should be."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, 8, 6, 4), np.float32), rng.standard_normal(5, np.float32)
    c = np.full((8, 4), np.nan, np.float32)
    execute(
        Launch(
            program=read_program(listing, "dot4"),
            arguments=[Image(a), Buffer(b), Buffer(c), 5],
            kinds=["texture", "buffer", "buffer", "scalar"],
            groups=(1, 1, 1),
            work_group=(8, 1, 1),
        )
    )
    return c, np.einsum("yxl,x->yl", a[0, :, :5], b)


def test_a_kept_kernel_computes_what_its_source_says() -> None:
    found, expected = dot4(DOT4.machine_code)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_kept_kernel_with_private_memory() -> None:
    a, n = np.arange(64, dtype=np.float32), np.array([5, 9, *range(3, 65)], np.int32)
    expected = sum({i * 5 & 63: a[i] for i in range(64)}[int(n[i]) & 63] for i in range(9))
    execute(
        Launch(
            program=read_program(SHUFFLE.machine_code, "shuffle"),
            arguments=[Buffer(a), Buffer(n)],
            kinds=["buffer", "buffer"],
            groups=(1, 1, 1),
            work_group=(4, 1, 1),
            private_memory_bytes=SHUFFLE.private_memory_bytes,
        )
    )
    assert a[:4].tolist() == [expected] * 4


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(sy)(rpt3)mad.f32 r2.x, (r)r3.x, r5.z, (r)r2.x", "(sy)(rpt3)mad.f32 r2.x, (r)r3.x, r5.w, (r)r2.x"),
        ("mov.u32u32 r1.w, r0.x\n", ""),
        ("shl.b r4.y, r1.z, 2", "shl.b r4.y, r1.z, 3"),
    ],
    ids=["wrong register", "dropped instruction", "changed constant"],
)
def test_a_planted_fault_is_found(right: str, wrong: str) -> None:
    assert DOT4.machine_code.count(right) == 1
    try:
        found, expected = dot4(DOT4.machine_code.replace(right, wrong))
    except BadAccessError:
        return
    assert not np.allclose(found, expected, rtol=1e-3, atol=1e-3)
