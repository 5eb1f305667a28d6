"""Weights that a wave copies into its own memory, for Qualcomm's compiler (cl_qcom_subgroup_constant_load).

The kernel takes a buffer whose place in constant memory all waves of a core share. Each wave has a slice of it. It
copies what the next statements load in units of 16 bytes, waits, and loads from its slice:

    half4 value = weight[at];                   COPY_TO_WAVE(weight, 0, (at) >> 1, 2)
    half4 value_1 = weight[(at + 1)];           WAIT_FOR_COPIES
    half4 value_2 = weight[(at + 2)];    ->     half4 value = wave[0];
    half4 value_3 = weight[(at + 3)];           half4 value_1 = wave[1];
                                                half4 value_2 = wave[2];
                                                half4 value_3 = wave[3];

Elsewhere each work-item copies into private memory. The functions, the attributes and the sizes are those of
llama.cpp's kernel_gemm_xmem_f16_f32_os8 (pull request 22755).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import partial

from romou.base.errors import BuildError
from romou.devices.backends.launch import WAVE_MEMORY, WAVE_MEMORY_BYTES, WAVES

# Bytes of a copied unit, the units for which a wave has memory, and how many vectors are a unit.
_UNIT_BYTES = 16
_UNITS = WAVE_MEMORY_BYTES // WAVES // _UNIT_BYTES
_PER_UNIT = {"half4": 2, "float4": 1}
_NUMBER = re.compile(r"^ *int (\w+) = (.*);$", re.MULTILINE)
_MEMORY, _COPY, _WAIT = f"{WAVE_MEMORY}(memory, type)", "COPY_TO_WAVE(source, slot, unit, count)", "WAIT_FOR_COPIES"
# The macros, with the extension and without.
CONSTANT_LOAD = {
    _MEMORY: "__constant half8* wave_memory = (__constant half8*)memory;"
    f" int wave_slice = (qcom_get_physical_sub_group_id() & 31) % {WAVES} * {_UNITS};"
    " __constant type* wave = (__constant type*)(wave_memory + wave_slice);",
    _COPY: "qcom_sub_group_constant_load8(wave_memory, (__constant half8*)source, wave_slice + slot, unit, count);",
    _WAIT: "qcom_sub_group_sync(QCOM_CLK_CONST_LOAD_SYNC);",
}
PRIVATE_COPY = {
    _MEMORY: f"type wave[{_UNITS * _UNIT_BYTES} / sizeof(type)]; const int per_unit = {_UNIT_BYTES} / sizeof(type);",
    _COPY: "for (int i = 0; i < count * per_unit; ++i) wave[slot * per_unit + i] = source[(unit) * per_unit + i];",
    _WAIT: "",
}
# Units that are copied together: (address without its constant, number) -> an address in the unit.
_Chunk = dict[tuple[str, int], str]


def with_copies(text: str, uniform: set[str]) -> str:
    """Return a definition in which waves copy the weights, the buffer of `uniform` that is loaded first.

    Raises
    ------
    BuildError
        The weights are not loaded in vectors, or are not aligned to units.
    """
    head, _, body = text.partition("{")
    weight = min(uniform, key=lambda name: body.index(f"{name}["), default="")
    kind = re.search(rf"\b({'|'.join(_PER_UNIT)})\* restrict {weight}\b", head)
    if not weight or kind is None:
        raise BuildError("the kernel loads no vectors of weights that a wave can copy", hint="Take wave=uniform.")
    per_unit, unit_of = _PER_UNIT[kind[1]], partial(_unit, _PER_UNIT[kind[1]], dict(_NUMBER.findall(body)))
    load = re.compile(rf"\b{weight}\[([^\[\]]*)\]")
    lines, starts, chunk_of = body.split("\n"), dict[int, _Chunk](), dict[int, _Chunk]()
    chunk: _Chunk | None = None
    defined = set[str]()
    for number, line in enumerate(lines):
        if "{" in line or "}" in line:
            chunk = None
        if units := {unit_of(address)[0]: address for address in load.findall(line)}:
            is_late = not defined.isdisjoint(re.findall(r"\w+", " ".join(units.values())))
            if chunk is None or is_late or len(chunk | units) > _UNITS:
                chunk, defined = starts.setdefault(number, {}), set()
            chunk |= units
            chunk_of[number] = chunk
        defined.update(name for name, _ in _NUMBER.findall(line))

    def loaded(chunk: _Chunk, match: re.Match[str]) -> str:
        unit, place = unit_of(match[1])
        return f"wave[{sorted(chunk).index(unit) * per_unit + place}]"

    changed = []
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        changed += [indent + copy for copy in _copies(starts.get(number, {}), weight, per_unit)]
        changed.append(load.sub(partial(loaded, chunk_of[number]), line) if number in chunk_of else line)
    return head + "{" + re.sub(rf"\b({WAVE_MEMORY}\(\w+)\);", rf"\1, {kind[1]})", "\n".join(changed))


def _copies(chunk: _Chunk, weight: str, per_unit: int) -> list[str]:
    """Return the lines that copy a chunk, one for each range of adjacent units, and wait."""
    lines = []
    for slot, (base, first) in enumerate(sorted(chunk)):
        if (base, first - 1) not in chunk:
            count = next(n for n in range(1, _UNITS + 1) if (base, first + n) not in chunk)
            address = chunk[base, first] + (" >> 1" if per_unit == 2 else "")
            lines.append(f"COPY_TO_WAVE({weight}, {slot}, {address}, {count})")
    return [*lines, _WAIT] if lines else []


def _unit(per_unit: int, numbers: Mapping[str, str], address: str) -> tuple[tuple[str, int], int]:
    """Return the unit of an address in vectors, and the vector's place in it. numbers: definitions of its variables."""
    terms = _terms(address, numbers)
    constant = terms.pop("", 0)
    if any(factor % per_unit for factor in terms.values()):
        raise BuildError(f"weights at {address} are not aligned to {_UNIT_BYTES} bytes", hint="Take wave=uniform.")
    base = " + ".join(f"{factor} * {term}" for term, factor in sorted(terms.items()) if factor)
    return (base, constant // per_unit), constant % per_unit


def _terms(text: str, numbers: Mapping[str, str]) -> dict[str, int]:
    """Return term -> factor, of a sum of integers. The constant is the factor of the term ""."""
    node = ast.parse(text.replace("(int)", ""), mode="eval").body
    if isinstance(node, ast.Constant):
        return {"": int(str(node.value))}
    if isinstance(node, ast.Name) and node.id in numbers:
        return _terms(numbers[node.id], numbers)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        left, right = (_terms(ast.unparse(side), numbers) for side in (node.left, node.right))
        if isinstance(node.op, ast.Mult) and right.keys() == {""}:
            return {term: factor * right[""] for term, factor in left.items()}
        if not isinstance(node.op, ast.Mult):
            sign = 1 if isinstance(node.op, ast.Add) else -1
            return {term: left.get(term, 0) + sign * right.get(term, 0) for term in left | right}
    return {ast.unparse(node): 1}
