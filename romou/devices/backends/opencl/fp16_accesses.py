"""Loads and stores that convert fp16 in memory, by the instructions of a device that computes in fp16.

Every OpenCL device has vloada_half4 and vstorea_half4. Mesa's compilers make four loads of the one, and compute the
bits of the other by integers. If the driver has cl_khr_fp16, a vector is loaded or stored as such, and converted by an
instruction for each lane. The device's compiler decides, so the text of a kernel for one device compiles on any.

    vloada_half4(i, (__global half*)p)          ->      LOAD_HALF4(i, p)
        #ifdef cl_khr_fp16                                  convert_float4(((const __global half4*)p)[i])
        #else                                               vloada_half4(i, (const __global half*)p)
    vstorea_half4(v, i, (__global half*)p)      ->      STORE_HALF4(v, i, p)

Bits of fp16 that registers hold in 32-bit integers (`compiler/passes/double_buffers.py`):

    uint2 v = LOAD_BITS_HALF4(i, p)                     ((const __global uint2*)p)[i]
    float4 w = OF_BITS_HALF4(v)                         convert_float4(as_half4(v))

vload_half4 and vstore_half4 take any address. Of the load, Mesa's compilers make one for each lane.

    vload_half4(0, (__global half*)p)           ->      LOAD_UNALIGNED_HALF4(0, p)
                                                            convert_float4(as_half4(…)), from a packed structure
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Loads of vectors, and all stores: of one number too.
_ACCESS = re.compile(r"\bv(load|store)(a?)_half(\d*)\(")
_NAME = re.compile(r"\b(LOAD|LOAD_UNALIGNED|STORE|STORE_UNALIGNED|LOAD_BITS|OF_BITS)_HALF(\d*)\(")
# Name -> (its arguments, its text if the driver has cl_khr_fp16, its text on every device).
_MACROS = {
    "LOAD": (
        "offset, pointer",
        "convert_floatLANES(((const __global halfLANES*)(pointer))[offset])",
        "vloada_halfLANES(offset, pointer)",
    ),
    "LOAD_UNALIGNED": (
        "offset, pointer",
        "floatLANES_unaligned((const __global ushort*)(pointer) + LANES * (offset))",
        "vload_halfLANES(offset, pointer)",
    ),
    "LOAD_BITS": ("offset, pointer", *2 * ("((const __global uintWORDS*)(pointer))[offset]",)),
    "OF_BITS": ("bits", "convert_floatLANES(as_halfLANES(bits))", "floatLANES_of_bits(bits)"),
    "STORE": (
        "value, offset, pointer",
        "(((__global halfLANES*)(pointer))[offset] = convert_halfLANES(value))",
        "vstorea_halfLANES(value, offset, pointer)",
    ),
    "STORE_UNALIGNED": (
        "value, offset, pointer",
        "vstoreLANES(convert_halfLANES(value), offset, pointer)",
        "vstore_halfLANES(value, offset, pointer)",
    ),
}
_UNALIGNED = (
    "floatLANES floatLANES_unaligned(const __global ushort* at) { struct __attribute__((packed,"
    " aligned(sizeof(ushort)))) packed { ushortLANES lanes; }; return convert_floatLANES(as_halfLANES(((const __global"
    " struct packed*)at)->lanes)); }"
)
_OF_BITS = "floatLANES floatLANES_of_bits(uintWORDS bits) { return vload_halfLANES(0, (const half*)&bits); }"


# TVM writes it into the text of modules that compute in fp16.
_REQUIRED = '#error "Half precision'


def needs_fp16(text: str) -> bool:
    """Return whether a module's text compiles only if the driver has cl_khr_fp16."""
    return _REQUIRED in text


def renamed(body: str) -> str:
    """Return the text of a kernel with its accesses as calls of the macros."""

    def name(access: re.Match[str]) -> str:
        # One number has any address. The compilers convert it in a load.
        if access[1] == "load" and not access[3]:
            return access[0]
        return f"{access[1].upper()}{'' if access[2] or not access[3] else '_UNALIGNED'}_HALF{access[3]}("

    return _ACCESS.sub(name, body)


def definitions(texts: Sequence[str]) -> str:
    """Return the macros of the accesses in front of kernels. "" if there is none."""
    names = sorted({call for text in texts for call in _NAME.findall(text)})
    if not names:
        return ""
    lines = ["#ifdef cl_khr_fp16", "#pragma OPENCL EXTENSION cl_khr_fp16 : enable"]
    lines += [_with_lanes(_UNALIGNED, lanes) for name, lanes in names if name == "LOAD_UNALIGNED"]
    lines += [_macro(name, lanes, converts=True) for name, lanes in names]
    lines.append("#else")
    lines += [_with_lanes(_OF_BITS, lanes) for name, lanes in names if name == "OF_BITS"]
    lines += [_macro(name, lanes, converts=False) for name, lanes in names]
    return "\n".join([*lines, "#endif"]) + "\n"


def _macro(name: str, lanes: str, *, converts: bool) -> str:
    arguments, converting, plain = _MACROS[name]
    # One number has any address.
    text = converting if converts else plain if lanes else plain.replace("storea", "store")
    return _with_lanes(f"#define {name}_HALFLANES({arguments}) {text}", lanes)


def _with_lanes(text: str, lanes: str) -> str:
    words = int(lanes or 1) // 2
    return text.replace("LANES", lanes).replace("WORDS", str(words) if words > 1 else "")
