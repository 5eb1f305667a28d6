"""Host code of a saved model, kept as functions before code generation, so that it can be made for another host.

A saved model's library holds the graph with its weights and the kernels, as bytes that do not depend on the host:

    __tvm_ffi__library_bin = size, import tree, (kind, bytes of the module) of each module

They are read from the file without opening the library, because a library for a phone does not open here.
"""

from __future__ import annotations

import gzip
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import ModelError, first_line
from tvm_patches.runtime import global_function

if TYPE_CHECKING:
    import tvm

HOST_CODE = "host.json.gz"
# The place of the library itself in its import tree.
_LIBRARY = "_lib"
_BLOB = b"__tvm_ffi__library_bin"
_DYNSYM = 11
_NO_BITS = 8


def write_host_code(host: tvm.IRModule, path: Path) -> None:
    """Write host functions. The same functions give the same bytes."""
    from tvm.ir import save_json

    path.write_bytes(gzip.compress(save_json(host).encode(), compresslevel=6, mtime=0))


def read_host_code(path: Path) -> tvm.IRModule:
    """Return the host functions in the file `path`. Raise ModelError if it cannot be read."""
    import tvm

    try:
        host = tvm.ir.load_json(gzip.decompress(path.read_bytes()).decode())
    except Exception as error:  # by TVM's parser, of many types
        raise ModelError(f"{path}: cannot be read: {first_line(error)}; save the model again") from error
    assert isinstance(host, tvm.IRModule)
    return host


def packed_modules(library: Path) -> list[tvm.runtime.Module]:
    """Return the modules that a library for any 64-bit host imports: the graph with its weights, and the kernels.

    Raise ModelError if the file is no such library.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return [
                global_function(f"ffi.Module.load_from_bytes.{kind}")(content)
                for kind, content in _entries(data, _blob_offset(data))
            ]
    except (OSError, ValueError, struct.error, StopIteration) as error:
        raise ModelError(f"{library}: no library of a model: {error}; save the model again") from error


def _entries(data: mmap.mmap, start: int) -> Iterator[tuple[str, bytes]]:
    """Yield kind and bytes of each module behind the import tree."""
    offset = start + 8

    def take(width: int) -> bytes:
        """Return the next vector of elements of `width` bytes. Its length comes first."""
        nonlocal offset
        (count,) = struct.unpack_from("<Q", data, offset)
        offset += 8 + count * width
        if offset > len(data):
            raise ValueError("it ends too early")
        return data[offset - count * width : offset]

    modules = len(take(8)) // 8 - 1
    take(8)
    for _ in range(modules):
        kind = take(1).decode()
        if kind != _LIBRARY:
            yield kind, take(1)


def _blob_offset(data: mmap.mmap) -> int:
    """Return the offset of the packed modules in an ELF file, by the file's table of dynamic symbols."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    # name, type, flags, address, offset, size, link
    sections: list[tuple[int, ...]] = [struct.unpack_from("<IIQQQQI", data, table + i * size) for i in range(count)]
    for _, kind, _, _, offset, length, link in sections:
        if kind != _DYNSYM:
            continue
        names = sections[link][4]
        for symbol in range(offset, offset + length, 24):
            name, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", data, symbol)
            if data[names + name : names + name + len(_BLOB) + 1] == _BLOB + b"\0":
                places = (s[4] + address - s[3] for s in sections if s[1] != _NO_BITS and 0 <= address - s[3] < s[5])
                return int(next(places))
    raise ValueError(f"it lacks {_BLOB.decode()}")
