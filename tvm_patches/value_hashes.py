"""Hash and equality of TVM's PrimType for tvm-ffi 0.1.15, which calls them in another way than TVM 0.27 was built for.

A type may come with C functions for its hash and its equality. TVM 0.27 has them for PrimType only, as tvm-ffi 0.1.14
declares them; 0.1.15 expects a struct of them. So whatever hashes a PrimType ended the process: `tvm.ir.save_json` of
any expression, pickle, and with them each kernel that is sent to a worker. Functions of the FFI are called alike by
both. Drop this when TVM is built with 0.1.15.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import Any

_TYPE = "ir.PrimType"
# tvm_ffi/include/tvm/ffi/c_api.h
_OPAQUE_POINTER, _FUNCTION = 4, 68


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Any(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64)]


class _Column(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(_Any)), ("size", ctypes.c_int32), ("begin", ctypes.c_int32)]


def _hash(value: Any) -> int:
    return zlib.crc32(str(value.dtype).encode())


def _equal(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype)


_FUNCTIONS: dict[str, Callable[..., int]] = {"__any_hash__": _hash, "__any_equal__": _equal}
_kept: list[Any] = []


def replace_c_functions() -> None:
    """Put functions of the FFI into the places of the C functions, once a process, if tvm-ffi needs it."""
    import tvm_ffi
    from tvm_ffi import core

    if _kept or not tvm_ffi.__version__.startswith("0.1.15."):
        return
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    library.TVMFFIGetTypeAttrColumn.restype = ctypes.POINTER(_Column)
    index = core._object_type_key_to_index(_TYPE)
    for name, function in _FUNCTIONS.items():
        column = library.TVMFFIGetTypeAttrColumn(ctypes.byref(_Bytes(name.encode(), len(name)))).contents
        place = column.data[index - column.begin]
        if place.type_index != _OPAQUE_POINTER:
            continue
        made = tvm_ffi.convert(function)
        handle = made.__chandle__()
        library.TVMFFIObjectIncRef(ctypes.c_void_p(handle))  # the place owns it
        place.value, place.type_index = handle, _FUNCTION
        _kept.append(made)
