"""Variables instead of private arrays that a kernel only accesses at constant indices.

    float4 acc_local_ptr[2];                                float4 acc_local_0, acc_local_1;
    acc_local_ptr[1] = mad(a, b, acc_local_ptr[1]);   ->    acc_local_1 = mad(a, b, acc_local_1);

    float kept_ptr[8];                                      float4 kept_0, kept_1;
    vstore4(value, 0, kept_ptr + 4);                  ->    kept_1 = value;
    kept_ptr[6] = 0.0f;                                     kept_1.s2 = 0.0f;
    float4 texel = vload4(0, kept_ptr + 4);                 float4 texel = kept_1;

A compiler keeps a variable in registers. An array is in private memory until it has been split, which some drivers'
compilers give up if it is large or if its address is taken. TIR has no variables that change, so TVM writes arrays.
"""

from __future__ import annotations

import re
from collections import Counter

# A declaration by itself: parameters, and arrays in local memory or with attributes, are no match.
_ARRAY = re.compile(r"^( *)((?:u?(?:char|short|int|long)|half|float|double|bool)\d*) (\w+)\[(\d+)\];$", re.MULTILINE)
_ELEMENT = re.compile(r"\b(\w+)\[(\d+)\]")
_LOAD = re.compile(r"\bvload(\d+)\(0, (\w+) \+ (\d+)\)")
_STORE = re.compile(r"^( *)vstore(\d+)\((.*), 0, (\w+) \+ (\d+)\);$", re.MULTILINE)
_ADDRESS = re.compile(r"&\(*(\w+)\b")


def named(body: str) -> str:
    """Return the text of a kernel's body with variables instead of such arrays."""
    words, accesses = Counter(re.findall(r"\w+", body)), Counter(name for name, _ in _ELEMENT.findall(body))
    used = {match[1] for word in words if (match := re.fullmatch(r"(\w*)_\d+", word))}
    addressed = set(_ADDRESS.findall(body))
    vectors: dict[str, list[tuple[int, int]]] = {}
    for width, name, start in _LOAD.findall(body) + [each[1::2] + each[4:] for each in _STORE.findall(body)]:
        vectors.setdefault(name, []).append((int(width), int(start)))
    # Array -> the variables' stem, and the lanes of each.
    variables: dict[str, tuple[str, int]] = {}
    for _, _, name, _ in _ARRAY.findall(body):
        own = vectors.get(name, [])
        lanes = own[0][0] if own else 1
        is_whole = all(width == lanes and start % lanes == 0 for width, start in own)
        # The declaration is one of the accesses.
        if words[name] == accesses[name] + len(own) and name not in addressed and is_whole:
            stem = name.removesuffix("_ptr")
            while stem in used:
                stem += "_"
            used.add(stem)
            variables[name] = stem, lanes

    def declared(match: re.Match[str]) -> str:
        indent, kind, name, length = match.groups()
        if name not in variables:
            return match[0]
        stem, lanes = variables[name]
        texels = ", ".join(f"{stem}_{texel}" for texel in range(-(-int(length) // lanes)))
        return f"{indent}{kind}{'' if lanes == 1 else lanes} {texels};"

    def texel(name: str, start: str) -> str | None:
        if name not in variables:
            return None
        stem, lanes = variables[name]
        return f"{stem}_{int(start) // lanes}"

    def stored(match: re.Match[str]) -> str:
        indent, _, value, *place = match.groups()
        return match[0] if (variable := texel(*place)) is None else f"{indent}{variable} = {value};"

    def element(match: re.Match[str]) -> str:
        name, index = match.groups()
        if (variable := texel(name, index)) is None:
            return match[0]
        lanes = variables[name][1]
        return variable if lanes == 1 else f"{variable}.s{int(index) % lanes:x}"

    body = _STORE.sub(stored, _ARRAY.sub(declared, body))
    return _ELEMENT.sub(element, _LOAD.sub(lambda match: texel(*match.groups()[1:]) or match[0], body))
