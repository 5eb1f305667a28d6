"""The time of day, as files have it."""

from __future__ import annotations

import datetime


def timestamp() -> str:
    """Return the time now in UTC, to the second, in ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
