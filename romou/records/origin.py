"""Where a record comes from, and why it does not count elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from romou.core.version import __version__

if TYPE_CHECKING:
    from romou.records.record import Record


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What has to be equal for two timings to be comparable.

    device   `DeviceFingerprint.to_dict()`, its driver included
    romou, tvm   versions
    """

    device: dict[str, Any]
    romou: str
    tvm: str

    @classmethod
    def of(cls, record: Record) -> Origin:
        """That of a record."""
        return cls(device=record.device, romou=record.romou, tvm=record.tvm)

    @classmethod
    def here(cls, device: dict[str, Any]) -> Origin:
        """A device with the versions that are installed."""
        import tvm

        return cls(device=device, romou=__version__, tvm=tvm.__version__)

    def refusal(self, other: Origin) -> str | None:
        """Why timings of `other` say nothing here; None where they do."""
        if other.device != self.device:
            mine, theirs = dict(self.device), dict(other.device)
            if {**theirs, "driver": ""} == {**mine, "driver": ""}:
                return f"measured with driver {theirs.get('driver')!r}, this one is {mine.get('driver')!r}"
            return f"measured on {_text(theirs)}, this device is {_text(mine)}"
        for name, ours, others in (("Romou", self.romou, other.romou), ("TVM", self.tvm, other.tvm)):
            if ours != others:
                return f"measured with {name} {others or 'of an unknown version'}, this is {ours}"
        return None


def _text(device: dict[str, Any]) -> str:
    return f"{device.get('name')!r} ({device.get('kind')}, {device.get('platform')}, driver {device.get('driver')})"
