"""Attributes of kernels about waves, for Qualcomm's compiler. Macros hide them from other compilers.

The width of a wave (cl_qcom_reqd_sub_group_size):

    __kernel void conv(...)      ->      __kernel HALF_WAVE void conv(...)

Buffers at whose elements all work-items of a wave load the same (cl_qcom_subgroup_uniform_load):

    __global float4* restrict weight      ->      UNIFORM_SPACE float4* restrict weight UNIFORM

Copies of such elements in a wave's memory (`wave_copies.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from romou.devices.backends.launch import COPIED, UNIFORM, WAVE_MEMORY, WAVE_MEMORY_BYTES, WAVES
from romou.devices.backends.opencl.extensions import QUALCOMM_SIZED
from romou.devices.backends.opencl.wave_copies import CONSTANT_LOAD, PRIVATE_COPY, with_copies

# Waves of a core that drivers' own kernels with uniform loads ask for (llama.cpp, pull request 22755).
_CONCURRENT = f"__attribute__((qcom_max_concurrent_subgroups({WAVES})))"
_UNIFORM = {"UNIFORM_SPACE": "__constant", "UNIFORM": "__attribute__((sub_group_uniform))"}
_GLOBAL = {"UNIFORM_SPACE": "__global"}
_DEFINED = {
    **{
        f"{word.upper()}_WAVE": (
            QUALCOMM_SIZED,
            {f"{word.upper()}_WAVE": f'__attribute__((qcom_reqd_sub_group_size("{word}")))'},
            {},
        )
        for word in ("half", "full")
    },
    "UNIFORM_WAVE": ("cl_qcom_subgroup_uniform_load", {"UNIFORM_WAVE": _CONCURRENT, **_UNIFORM}, _GLOBAL),
    "COPIED_WAVE": (
        "cl_qcom_subgroup_constant_load cl_qcom_subgroup_uniform_load cl_khr_fp16",
        {
            "COPIED_WAVE": _CONCURRENT,
            **_UNIFORM,
            "WAVE_BYTES": f"__attribute__((max_constant_size(({WAVE_MEMORY_BYTES}))))",
            **CONSTANT_LOAD,
        },
        {**_GLOBAL, **PRIVATE_COPY},
    ),
}
_PARAMETER = re.compile(r"__global (\w+\* restrict (\w+))\b")
_VARIABLE = re.compile(r"\b(?:int|uint|bool) (\w+) = (.*);")


def attribute(wave: str) -> str:
    """Return the attribute in a kernel's declaration. "" for a kernel without the knob's choice."""
    return f" {wave.upper()}_WAVE" if wave else ""


def definitions(texts: Sequence[str]) -> str:
    """Return the text in front of kernels with such attributes. "" without one."""
    used = [name for name in _DEFINED if any(f" {name} " in text for text in texts)]
    lines = []
    for name in used:
        extensions, there, elsewhere = _DEFINED[name]
        lines.append(f"#ifdef {extensions.split()[0]}")
        lines += [f"#pragma OPENCL EXTENSION {extension} : enable" for extension in extensions.split()]
        lines += [f"#define {macro} {text}" for macro, text in there.items()]
        lines += ["#else", *(f"#define {macro} {elsewhere.get(macro, '')}".rstrip() for macro in there), "#endif"]
    return "".join(f"{line}\n" for line in lines)


def with_uniform_buffers(texts: Sequence[str]) -> list[str]:
    """Return declarations and definitions of kernels whose uniform buffers are marked, if they have the attribute."""
    marks: dict[str, str] = {}
    copied = []
    for text in texts:
        uniform = _uniform_buffers(text) if attribute(UNIFORM) in text or attribute(COPIED) in text else set()
        memory = re.findall(rf"\b{WAVE_MEMORY}\((\w+)\);", text)
        copied.append(with_copies(text, uniform) if memory else text)
        marks |= dict.fromkeys(uniform, "UNIFORM") | dict.fromkeys(memory, "WAVE_BYTES")

    def marked(match: re.Match[str]) -> str:
        return f"UNIFORM_SPACE {match[1]} {marks[match[2]]}" if match[2] in marks else match[0]

    return [_PARAMETER.sub(marked, text) for text in copied]


def _uniform_buffers(text: str) -> set[str]:
    """Return the buffers that a definition only loads from, at addresses without a work-item's number."""
    head, _, body = text.partition("{")
    by_lane: set[str] = {"get_local_id", "get_global_id"}
    for name, value in _VARIABLE.findall(body):
        if not by_lane.isdisjoint(re.findall(r"\w+", value)):
            by_lane.add(name)
    found = set()
    for _, buffer in _PARAMETER.findall(head):
        loads = re.findall(rf"\b{buffer}\[([^\[\]]*)\](?! =)", body)
        is_whole = len(loads) == len(re.findall(rf"\b{buffer}\b", body)) > 0
        if is_whole and all(by_lane.isdisjoint(re.findall(r"\w+", index)) for index in loads):
            found.add(buffer)
    return found
