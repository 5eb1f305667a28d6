"""Vectors of 32-bit words from tensors of bytes, for kernels with the calls of `WORDS_CALL`.

    uint16 v = load_words_16_by_1(&data[0], at, count)
    store_words_16(v, &output[0], at)

Near the ends of a tensor words are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from romou.devices.backends.dialect import WORDS_CALL


def definitions(texts: Sequence[str]) -> str:
    """Return the functions in front of kernels that call them. "" if none does."""
    calls = sorted({call for text in texts for call in WORDS_CALL.findall(text)})
    return "".join(
        _load(int(lanes), int(stride)) if name == "load" else _store(int(lanes)) for name, lanes, stride in calls
    )


def _load(lanes: int, stride: int) -> str:
    vectors = [f"vload{lanes}(0, words + at + {lanes * part})" for part in range(stride)]
    while len(vectors) > 1:
        # The even words of two vectors, again and again.
        vectors = [f"(uint{lanes})({a}.even, {b}.even)" for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    single = ", ".join(f"words[clamp(at + {stride * lane}, 0, count - 1)]" for lane in range(lanes))
    return (
        f"uint{lanes} load_words_{lanes}_by_{stride}(const __global void* bytes, int at, int count) {{\n"
        "  const __global uint* words = (const __global uint*)bytes;\n"
        f"  if (at >= 0 && at + {lanes * stride} <= count) return {vectors[0]};\n"
        f"  return (uint{lanes})({single});\n"
        "}\n"
    )


def _store(lanes: int) -> str:
    vector, words = (f"uint{lanes}" if lanes > 1 else "uint"), "(__global uint*)bytes + at"
    store = f"vstore{lanes}(v, 0, {words})" if lanes > 1 else f"*({words}) = v"
    return f"void store_words_{lanes}({vector} v, __global void* bytes, int at) {{ {store}; }}\n"
