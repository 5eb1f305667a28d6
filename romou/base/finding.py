"""Findings of an examination of a machine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding. `is_ok` is None for a remark: nothing is broken."""

    name: str
    is_ok: bool | None
    detail: str
    hint: str | None = None
