"""What was measured, kept: append-only JSON lines."""

from romou.records.record import SCHEMA, Record
from romou.records.recorded_space import RecordedConfig, RecordedSpace
from romou.records.store import FILE_NAME, RecordStore

__all__ = ["FILE_NAME", "SCHEMA", "Record", "RecordStore", "RecordedConfig", "RecordedSpace"]
