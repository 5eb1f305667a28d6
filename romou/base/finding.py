"""Findings of an examination of a machine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding. `is_ok` is None for a remark: nothing is broken.

    limits: what is left out, though it works otherwise.
    short: the detail for a person who reads all findings. "" if it is the same.
    """

    name: str
    is_ok: bool | None
    detail: str
    hint: str | None = None
    limits: tuple[str, ...] = ()
    short: str = ""
