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

# A declaration by itself: parameters, and arrays in local memory or with attributes, are no match.
_ARRAY = re.compile(r"^( *)((?:u?(?:char|short|int|long)|half|float|double|bool)\d*) (\w+)\[(\d+)\];$", re.MULTILINE)


def named(body: str) -> str:
    """Return the text of a kernel's body with variables instead of such arrays."""
    words = set(re.findall(r"\w+", body))
    for indent, kind, name, length in _ARRAY.findall(body):
        load, store = rf"\bvload(\d+)\(0, {name} \+ (\d+)\)", rf"^( *)vstore(\d+)\((.*), 0, {name} \+ (\d+)\);$"
        vectors = [(int(width), int(start)) for width, start in re.findall(load, body)]
        vectors += [(int(width), int(start)) for _, width, _, start in re.findall(store, body, re.MULTILINE)]
        # The declaration is one of them.
        known = len(re.findall(rf"\b{name}\[\d+\]", body)) + len(vectors)
        lanes = vectors[0][0] if vectors else 1
        is_whole = all(width == lanes and start % lanes == 0 for width, start in vectors)
        if known != len(re.findall(rf"\b{name}\b", body)) or re.search(rf"&\(*{name}\b", body) or not is_whole:
            continue
        stem = name.removesuffix("_ptr")
        while any(re.fullmatch(rf"{stem}_\d+", word) for word in words):
            stem += "_"
        texels = [f"{stem}_{texel}" for texel in range(-(-int(length) // lanes))]
        words.update(texels)
        declared = f"{indent}{kind}{lanes if vectors else ''} {', '.join(texels)};"
        body = body.replace(f"{indent}{kind} {name}[{length}];", declared)
        body = re.sub(load, lambda m: f"{stem}_{int(m[2]) // lanes}", body)  # noqa: B023
        body = re.sub(store, lambda m: f"{m[1]}{stem}_{int(m[4]) // lanes} = {m[3]};", body, flags=re.MULTILINE)  # noqa: B023
        body = re.sub(rf"\b{name}\[(\d+)\]", lambda m: _element(stem, int(m[1]), lanes), body)  # noqa: B023
    return body


def _element(stem: str, index: int, lanes: int) -> str:
    return f"{stem}_{index}" if lanes == 1 else f"{stem}_{index // lanes}.s{index % lanes:x}"
