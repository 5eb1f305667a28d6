"""The file of records: appended to by any number of processes, never rewritten, repaired after a killed writer."""

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

from romou.base.errors import RecordError
from romou.base.files import regular
from romou.tuner.records.record import Origin, Record

logger = logging.getLogger("romou")

FILE_NAME = "records.jsonl"
# A single read returns at most 2 GiB, and what it leaves out would be taken for a line that was cut off.
_MOST_BYTES = 1 << 30


class Records(Protocol):
    """The records of a search: a `RecordStore` on disk, or a list that ends with the process."""

    def append(self, record: Record, /) -> None:
        """Add a record."""

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, the oldest first."""


class RecordStore:
    """The records of a folder. Any number of processes append at the same time.

    A record is on disk before `append` returns, so a killed tuner loses at most the line that it was writing. The next
    reader or writer moves such a partial line to `records.jsonl.damaged`. `append` also reads the records that others
    appended.

    RecordError if a line in the middle is no record, or if the folder cannot be used.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE_NAME
        self._records: list[Record] = []
        # Bytes of the file that were read or written so far: whole lines.
        self._known_bytes = 0
        with contextlib.ExitStack() as on_error, self._usable():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if (self.path.exists() or self.path.is_symlink()) and not self.path.is_file():
                raise RecordError(
                    f"{self.path} is no file that records could be kept in; move it away, or give another work_dir"
                )
            self._file = regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            on_error.callback(os.close, self._file)
            with self._locked():
                self._catch_up()
            on_error.pop_all()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"{self.path.parent}: cannot keep records here: {error}", hint="Give another work_dir."
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file for other processes. A killed process holds the lock until its children have ended too."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> list[Record]:
        """Read the records that others appended since.

        Call it only under the lock: an unfinished line is then from a dead process.
        """
        size = os.fstat(self._file).st_size
        if size - self._known_bytes > _MOST_BYTES:
            text = f"{self.path} has more than {_MOST_BYTES >> 20} MiB"
            raise RecordError(text, hint="Move it away, or use another work_dir.")
        content = (
            self._repaired(os.pread(self._file, size - self._known_bytes, self._known_bytes))
            if size > self._known_bytes
            else b""
        )
        appended: list[Record] = []
        for number, line in enumerate(content.splitlines(), start=len(self._records) + 1):
            try:
                appended.append(Record.from_line(line))
            except RecordError as error:
                hint = error.hint or "Move the line away, or use another work_dir."
                raise RecordError(f"{self.path}, line {number}: {error.message}", hint=hint, line=number) from error
        self._records += appended
        self._known_bytes += len(content)
        return appended

    def _repaired(self, content: bytes) -> bytes:
        """Return the end of the file.

        A last line without its newline, or with unreadable content, is moved out of the way.
        """
        end = content.rfind(b"\n", 0, max(0, len(content) - 1)) + 1
        last = content[end:]
        if last.endswith(b"\n") and _is_record(last):
            return content
        if _is_record(last):
            os.write(self._file, b"\n")  # whole but for its newline
            return content + b"\n"
        if last.endswith(b"\n") and last.strip().startswith(b"{") and last.strip().endswith(b"}"):
            return content  # complete, but no record: _catch_up reports the error
        damaged = self.path.with_name(f"{FILE_NAME}.damaged")
        with open(damaged, "ab", opener=regular) as file:
            file.write(last if last.endswith(b"\n") else last + b"\n")
        os.ftruncate(self._file, self._known_bytes + end)
        before = len(self._records) + content[:end].count(b"\n")
        logger.warning(
            "%s: the last line was cut off; moved it to %s and went on with the %d before it",
            self.path,
            damaged.name,
            before,
        )
        return content[:end]

    def append(self, record: Record, /) -> None:
        """Write a record to disk, unless another process has meanwhile done so for the same config and origin.

        RecordError if the disk is full or gone. Earlier records stay intact.
        """
        line = (record.to_line() + "\n").encode()
        try:
            with self._locked():
                others = self._catch_up()
                if record.is_again or _identity(record) not in map(_identity, others):
                    self._write(line)
                    self._records.append(record)
        except OSError as error:
            raise RecordError(
                f"{self.path}: cannot write: {error}; the {len(self._records)} records before are kept",
                hint="Free some space, then go on.",
            ) from error

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._known_bytes)
            raise
        self._known_bytes += len(line)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def add_missing(self, records: Iterable[Record]) -> int:
        """Append each record with a new combination of task, config and origin.

        Return their number. RecordError as in `append`.
        """
        identities = {_identity(record) for record in self._records}
        before = len(self)
        for record in records:
            if _identity(record) not in identities:
                identities.add(_identity(record))
                self.append(record)
        return len(self) - before

    def of(self, task_key: str, device: dict[str, Any]) -> list[Record]:
        """Return the records of a task on exactly this device and driver, the oldest first."""
        return [r for r in self._records if r.task_key == task_key and r.device == device]

    def best(self, task_key: str, device: dict[str, Any]) -> Record | None:
        """Return the fastest record of a task on this device. None if no record has a time."""
        timed = [r for r in self.of(task_key, device) if r.time_s is not None]
        return min(timed, key=lambda r: r.time_s or 0.0, default=None)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _identity(record: Record) -> str:
    return json.dumps([record.task_key, record.config, dataclasses.asdict(Origin.of(record))], sort_keys=True)


def _is_record(line: bytes) -> bool:
    try:
        Record.from_line(line)
    except RecordError:
        return False
    return True
