"""What an examination of a machine finds."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at. `is_ok` None: worth knowing, but nothing is broken."""

    name: str
    is_ok: bool | None
    detail: str
    hint: str | None = None
