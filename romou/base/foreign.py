"""Content that others wrote, read within bounds: compressed bytes and JSON. `romou.base.files` reads the files.

`romou.base.schema` checks types and ranges, and `refused` makes one error of whatever is wrong:

    with refused(RecordError, f"{path} is no T4 document"):
        document = made_of(Document, parsed(read_file(path)))
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any

from romou.base.errors import RomouError
from romou.base.files import MOST_BYTES

# Levels of nested lists and objects. What Romou and ArchProbe write has at most 8.
MOST_DEPTH = 64
# Whole numbers of more bits are refused: neither NumPy nor TVM has them.
_MOST_BITS = 64
# A gzip file that is appended to has a member for each time.
_MOST_MEMBERS = 1 << 18
_PIECE_BYTES = 1 << 16
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed(text: str | bytes, *, has_constants: bool = False) -> Any:
    """Return the value of a JSON text. If an object has a key twice, the last one counts.

    has_constants: take NaN and infinity, too, which Python's json writes.

    Raises
    ------
    ValueError
        It is no JSON in UTF-8, has NaN, infinity or a whole number of more than 64 bits, or is nested too deep.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = (_DECODER_OF_CONSTANTS if has_constants else _DECODER).decode(text)
        if _SURROGATE.search(text):
            # Half of a pair could be written nowhere.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    level, depth = [value], 0
    while level := [each for each in level if type(each) in (list, dict)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(_TOO_DEEP)
        level = [child for each in level for child in (each.values() if type(each) is dict else each)]
    return value


_TOO_DEEP = f"nested deeper than {MOST_DEPTH} levels"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _whole(digits: str) -> int:
    # Python takes time by the square of the digits.
    if len(digits) > _MOST_BITS // 3 or (number := int(digits)).bit_length() > _MOST_BITS:
        raise ValueError(f"a whole number of {len(digits)} digits; expected at most {_MOST_BITS} bits")
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is beyond the numbers of float64")
    return number


def unzipped(data: bytes, *, is_cut_off: bool = False, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of all gzip members.

    is_cut_off: leave out a last member that was cut off, as a killed writer leaves it. Without it that is an error.

    Raises
    ------
    ValueError
        The data is damaged, or its content has more than `most_bytes`.
    """
    members: list[bytes] = []
    view, start = memoryview(data), 0
    room = most_bytes
    while start < len(data):
        content, start, is_whole = _member(view, start, room)
        room -= len(content)
        if room < 0 or len(members) == _MOST_MEMBERS:
            text = f"it unpacks to more than {most_bytes >> 20} MiB, or has more than {_MOST_MEMBERS} members"
            raise ValueError(text)
        if is_whole:
            members.append(content)
        elif not is_cut_off:
            raise ValueError("damaged: it ends too early")
    return b"".join(members)


def _member(data: memoryview, start: int, room: int) -> tuple[bytes, int, bool]:
    """Return the content of the gzip member at `start`, where it ends, and whether it is whole.

    The content ends after `room` + 1 bytes.
    """
    member, parts = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), []
    while start < len(data) and not member.eof and room >= 0:
        # In pieces, because zlib copies all that is left after a member.
        piece = data[start : start + _PIECE_BYTES]
        try:
            parts.append(member.decompress(piece, room + 1))
        except zlib.error as error:
            raise ValueError(f"damaged: {error}") from error
        room -= len(parts[-1])
        start += len(piece) - len(member.unused_data) - len(member.unconsumed_tail)
    return b"".join(parts), start, member.eof


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_whole, parse_float=_finite)
_DECODER_OF_CONSTANTS = json.JSONDecoder(parse_int=_whole, parse_float=_finite)


_DAMAGE = (OSError, ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def refused(error: type[RomouError], text: str, *, hint: str | None = None, **fields: Any) -> Iterator[None]:
    """Raise `error`, with `text` and a reason, if what others wrote cannot be read or is damaged.

    A RomouError passes through. Anything else that damage raises becomes the reason.
    """
    try:
        yield
    except _DAMAGE as cause:
        raise error(f"{text}: {_reason(cause)}", hint=hint, **fields) from cause


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error) if isinstance(error, ValueError) else f"damaged: {error}"
