"""What was measured, kept: append-only JSON lines."""

from romou.records.record import SCHEMA, Record
from romou.records.recorded_space import RecordedConfig, RecordedSpace
from romou.records.store import FILE_NAME, MemoryRecords, Records, RecordStore

__all__ = ["FILE_NAME", "SCHEMA", "MemoryRecords", "Record", "RecordStore", "RecordedConfig", "RecordedSpace", "Records"]
