"""Dot products of four bytes with four bytes in OpenCL C, for kernels with the calls of `DOT_CALL`.

The compiler takes the first of these that the driver has: the extension of Khronos, of Qualcomm, of Arm, or four
products. So the text of a kernel for one device compiles on any. Qualcomm's function multiplies signed with unsigned
bytes, Arm's bytes of equal signs.
"""

from __future__ import annotations

from collections.abc import Sequence

from romou.devices.backends.dialect import DOT_CALL
from romou.devices.backends.opencl.extensions import ARM_DOT, KHRONOS_DOT, QUALCOMM_DOT

# Sign of the first factor -> (extension, with what it is there, expression).
_FUNCTIONS = {
    "ss": (
        (KHRONOS_DOT, "__opencl_c_integer_dot_product_input_4x8bit_packed", "c + dot_4x8packed_ss_int(a, b)"),
        (ARM_DOT, ARM_DOT, "c + arm_dot(as_char4(a), as_char4(b))"),
    ),
    "us": (
        (KHRONOS_DOT, "__opencl_c_integer_dot_product_input_4x8bit_packed", "c + dot_4x8packed_us_int(a, b)"),
        (QUALCOMM_DOT, QUALCOMM_DOT, "qcom_dot8_acc(b, a, c)"),
    ),
}
_BYTES = {"s": "(as_int{n}(({x}) << {up}) >> 24)", "u": "as_int{n}(({x}) >> {down} & 255u)"}
# Where the runtime defines this, the processor multiplies a word's unsigned bytes with the signed bytes of a vector of
# words in one instruction, for which PoCL's compiler has no function.
_VNNI = "defined(ROMOU_VNNI) && defined(__AVX512VL__)"
_FETCH_HEAD = "void fetch_ahead(const __global void* word, int ahead)"
_FETCH = f"""#if {_VNNI}
{_FETCH_HEAD} {{ __asm__ volatile("prefetcht0 (%0)" : : "r"((const __global uint*)word + ahead)); }}
#else
{_FETCH_HEAD} {{}}
#endif
"""


def definitions(texts: Sequence[str]) -> str:
    """Return the text in front of kernels that call dot products. "" if none does."""
    calls = sorted({call for text in texts for call in DOT_CALL.findall(text)})
    fetch = _FETCH if any("fetch_ahead(" in text for text in texts) else ""
    return fetch + "".join(_of_vectors(signs, lanes) if lanes else _of_words(signs) for signs, lanes in calls)


def _of_words(signs: str) -> str:
    head, lines = f"int dot_of_bytes_{signs}(uint a, uint b, int c)", []
    for number, (extension, macro, expression) in enumerate(_FUNCTIONS[signs]):
        lines += [
            f"#{'elif' if number else 'if'} defined({macro})",
            *([f"#pragma OPENCL EXTENSION {extension} : enable"] if extension != KHRONOS_DOT else []),
            f"{head} {{ return {expression}; }}",
        ]
    lines += ["#else", f"{head} {{ return {_products(signs, '')}; }}", "#endif"]
    return "\n".join(lines) + "\n"


def _of_vectors(signs: str, lanes: str) -> str:
    head = f"int{lanes} dot_of_bytes_{signs}_{lanes}(uint a, uint{lanes} b, int{lanes} c)"
    plain = f"{head} {{ return {_products(signs, lanes)}; }}\n"
    if signs != "us":
        return plain
    assembly = f'__asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"((uint{lanes})a), "v"(b)); return c;'
    return f"#if {_VNNI}\n{head} {{ {assembly} }}\n#else\n{plain}#endif\n"


def _products(signs: str, lanes: str) -> str:
    """Return c and the products of the bytes of a word `a` with those of `b`, words of `lanes` lanes."""

    def byte(sign: str, word: str, lanes: str, number: int) -> str:
        return _BYTES[sign].format(x=word, n=lanes, up=24 - 8 * number, down=8 * number)

    return " + ".join(["c", *(f"{byte(signs[0], 'a', '', at)} * {byte(signs[1], 'b', lanes, at)}" for at in range(4))])
