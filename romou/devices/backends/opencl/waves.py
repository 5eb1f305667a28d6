"""Attributes of kernels about waves, for Qualcomm's compiler. Macros hide them from other compilers.

The width of a wave (cl_qcom_reqd_sub_group_size):

    __kernel void conv(...)      ->      __kernel HALF_WAVE void conv(...)

Buffers at whose elements all work-items of a wave load the same (cl_qcom_subgroup_uniform_load):

    __global float4* restrict weight      ->      UNIFORM_SPACE float4* restrict weight UNIFORM
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from romou.devices.backends.launch import UNIFORM
from romou.devices.backends.opencl.extensions import QUALCOMM_SIZED

# Waves of a core that drivers' own kernels with uniform loads ask for (llama.cpp, pull request 22755).
_WAVES = 12
_UNIFORM_LOAD = "cl_qcom_subgroup_uniform_load"
_DEFINED = {
    **{
        f"{word.upper()}_WAVE": (
            QUALCOMM_SIZED,
            {f"{word.upper()}_WAVE": f'__attribute__((qcom_reqd_sub_group_size("{word}")))'},
            {},
        )
        for word in ("half", "full")
    },
    "UNIFORM_WAVE": (
        _UNIFORM_LOAD,
        {
            "UNIFORM_WAVE": f"__attribute__((qcom_max_concurrent_subgroups({_WAVES})))",
            "UNIFORM_SPACE": "__constant",
            "UNIFORM": "__attribute__((sub_group_uniform))",
        },
        {"UNIFORM_SPACE": "__global"},
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
        extension, there, elsewhere = _DEFINED[name]
        lines += [f"#ifdef {extension}", f"#pragma OPENCL EXTENSION {extension} : enable"]
        lines += [f"#define {macro} {text}" for macro, text in there.items()]
        lines += ["#else", *(f"#define {macro} {elsewhere.get(macro, '')}".rstrip() for macro in there), "#endif"]
    return "".join(f"{line}\n" for line in lines)


def with_uniform_buffers(texts: Sequence[str]) -> list[str]:
    """Return declarations and definitions of kernels whose uniform buffers are marked, if they have the attribute."""
    uniform = {buffer for text in texts if attribute(UNIFORM) in text for buffer in _uniform_buffers(text)}

    def marked(match: re.Match[str]) -> str:
        return f"UNIFORM_SPACE {match[1]} UNIFORM" if match[2] in uniform else match[0]

    return [_PARAMETER.sub(marked, text) for text in texts]


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
