"""The file of records: appended to, never rewritten, repaired where a writer was cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from romou.core.errors import RecordError
from romou.records.record import Origin, Record

logger = logging.getLogger("romou")

FILE_NAME = "records.jsonl"
_LOCK_NAME = "records.lock"


class Records(Protocol):
    """What a search needs of its records: `RecordStore` keeps them on disk; those in a list end with the process."""

    def append(self, record: Record, /) -> None:
        """Keep a record."""

    def __iter__(self) -> Iterator[Record]:
        """All of them, oldest first."""


class RecordStore:
    """All records of a folder. One writer at a time: a second one gets a RecordError that names the first.

    A record is on disk before `append` returns, so a tuner that is killed loses at most the line it was writing. Such a cut-off last
    line is moved to `records.jsonl.damaged` when the folder is opened again.

    RecordError where another process writes to the folder, a line in the middle is no record, or the folder cannot be used.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE_NAME
        with contextlib.ExitStack() as on_error, self._usable():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path.parent / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
            on_error.callback(os.close, self._lock)
            self._take_lock()
            # A pipe would be waited for without an end.
            if (self.path.exists() or self.path.is_symlink()) and not self.path.is_file():
                raise RecordError(f"{self.path} is no file that records could be kept in; move it away, or give another work_dir")
            self._repair()
            self._records = self._read()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            on_error.pop_all()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(f"{self.path.parent}: cannot keep records here: {error}", hint="Give another work_dir.") from error

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise RecordError(f"{self.path.parent}: process {owner} is tuning with this work_dir; wait for it or give another one", pid=owner) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _repair(self) -> None:
        """Move a last line without its newline, or with unreadable content, out of the way."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        end = content.rfind(b"\n", 0, max(0, len(content) - 1)) + 1
        last = content[end:]
        if not last or (last.endswith(b"\n") and _is_record(last)):
            return
        if _is_record(last):
            with self.path.open("ab") as file:
                file.write(b"\n")  # whole but for its newline
            return
        if last.endswith(b"\n") and last.strip().startswith(b"{") and last.strip().endswith(b"}"):
            return  # complete, but not ours: _read says what is wrong with it
        damaged = self.path.with_name(f"{FILE_NAME}.damaged")
        with damaged.open("ab") as file:
            file.write(last if last.endswith(b"\n") else last + b"\n")
        with self.path.open("rb+") as file:
            file.truncate(end)
        logger.warning("%s: the last line was cut off; moved it to %s and went on with the %d before it", self.path, damaged.name, content[:end].count(b"\n"))

    def _read(self) -> list[Record]:
        if not self.path.exists():
            return []
        found = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            try:
                found.append(Record.from_line(line))
            except RecordError as error:
                hint = error.hint or "Move the line away, or use another work_dir."
                raise RecordError(f"{self.path}, line {number}: {error.message}", hint=hint, line=number) from error
        return found

    def append(self, record: Record, /) -> None:
        """Write a record to disk; RecordError where the disk is full or gone; what was written before is intact."""
        line = (record.to_line() + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise RecordError(
                f"{self.path}: cannot write: {error}; the {len(self._records)} records before are kept", hint="Free some space, then go on."
            ) from error
        self._records.append(record)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def add_missing(self, records: Iterable[Record]) -> int:
        """Append those whose task and config have no record of the same origin yet; how many there were. Raises RecordError as `append` does."""

        def identity(record: Record) -> str:
            return json.dumps([record.task_key, record.config, dataclasses.asdict(Origin.of(record))], sort_keys=True)

        known = {identity(record) for record in self._records}
        before = len(self)
        for record in records:
            if identity(record) not in known:
                known.add(identity(record))
                self.append(record)
        return len(self) - before

    def of(self, task_key: str, device: dict[str, Any]) -> list[Record]:
        """Records of a task on exactly this device and driver, oldest first. Timings of other devices say nothing here."""
        return [r for r in self._records if r.task_key == task_key and r.device == device]

    def best(self, task_key: str, device: dict[str, Any]) -> Record | None:
        """The fastest right candidate of a task on this device; None where there is none."""
        timed = [r for r in self.of(task_key, device) if r.time_s is not None]
        return min(timed, key=lambda r: r.time_s or 0.0, default=None)

    def close(self) -> None:
        """Let go of the file and the lock."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()


def _is_record(line: bytes) -> bool:
    try:
        Record.from_line(line.decode())
    except (RecordError, UnicodeDecodeError):
        return False
    return True
