"""Records of measured configs: append-only JSON lines, T4, and the database of tuned schedules."""

from romou.tuner.records.record import SCHEMA, Origin, Record, fastest
from romou.tuner.records.store import FILE_NAME, Records, RecordStore
from romou.tuner.records.t4 import export_t4, from_t4, import_t4, to_t4

__all__ = [
    "FILE_NAME",
    "SCHEMA",
    "Origin",
    "Record",
    "RecordStore",
    "Records",
    "export_t4",
    "fastest",
    "from_t4",
    "import_t4",
    "to_t4",
]
