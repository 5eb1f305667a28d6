"""Where a tensor lies."""

from __future__ import annotations

from enum import Enum


class Place(str, Enum):
    """A kind of memory; the values are choices of the knobs `data`, `weight` and `output`, and as such stand in records."""

    BUFFER = "buffer"
    IMAGE = "image"

    # Messages, records and kernels show the word alone.
    __str__, __repr__ = str.__str__, str.__repr__
