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
_BYTES = {"s": "((int)((x) << (24 - 8 * (i))) >> 24)", "u": "((int)((x) >> (8 * (i)) & 255u))"}


def definitions(texts: Sequence[str]) -> str:
    """Return the text in front of kernels that call dot products. "" if none does."""
    return "".join(_definition(signs) for signs in sorted({call for text in texts for call in DOT_CALL.findall(text)}))


def _definition(signs: str) -> str:
    lines = []
    for number, (extension, macro, expression) in enumerate(_FUNCTIONS[signs]):
        lines += [
            f"#{'elif' if number else 'if'} defined({macro})",
            *([f"#pragma OPENCL EXTENSION {extension} : enable"] if extension != KHRONOS_DOT else []),
            f"int dot_of_bytes_{signs}(uint a, uint b, int c) {{ return {expression}; }}",
        ]
    first, second = (_BYTES[sign].replace("(x)", f"({name})") for sign, name in zip(signs, "ab", strict=True))
    products = " + ".join(f"{first} * {second}".replace("(i)", str(at)) for at in range(4))
    lines += ["#else", f"int dot_of_bytes_{signs}(uint a, uint b, int c) {{ return c + {products}; }}", "#endif"]
    return "\n".join(lines) + "\n"
