"""The database of tuned schedules: for each device, the best measured config of each operator.

The files are in `schedules/`, beside the package `romou`. A search tries these configs right after the default one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romou.base.errors import RecordError
from romou.base.files import read_file, replacing
from romou.base.foreign import refused
from romou.base.knob import Choice, nearest
from romou.base.schema import made_of
from romou.base.space import Config, Space
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.tuner.records.record import Record, fastest, record_data

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

SHIPPED = Path(__file__).parents[3] / "schedules"
SUFFIX = ".jsonl"
# Most configs of the same operator that a search tries. The operator may be recorded with several epilogues.
_MOST_STARTS = 2
# Measured by Romou's own kernels. Times of others are not comparable with these.
_OWN = "romou"
# Two operators are similar if their numbers differ by at most this many factors of two in all.
_FARTHEST = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedSchedule:
    """The best config of an operator on a device. One line of a database file.

    record: the measurement of the config
    family: the operator family. Empty if it is not known
    workload: the operator's numbers (`Workload.to_dict`). Empty if it has none or they are not known
    source: origin of the measurement
    measured_by: tool whose kernel was measured. If it is not Romou, the config has only the knobs that say the same,
        the time is of the other tool's kernel, and the device's name is the GPU's
    """

    record: Record
    family: str = ""
    workload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""
    measured_by: str = _OWN

    @property
    def is_foreign(self) -> bool:
        """Return whether another tool's kernel was measured."""
        return self.measured_by != _OWN

    def to_line(self) -> str:
        """Return one line of JSON without its newline. It is a line of records with more fields."""
        own = {"family": self.family, "workload": dict(self.workload), "source": self.source}
        fields = json.loads(self.record.to_line())
        if self.is_foreign:
            own["measured_by"] = self.measured_by
            # Another tool's log has few of the fields.
            fields = {name: value for name, value in fields.items() if value not in (None, "", 0, False)}
        return json.dumps({**fields, **own}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> TunedSchedule:
        """Return the schedule that `to_line` wrote.

        RecordError if the line is no schedule, or its config did not work.
        """
        data = record_data(line)
        with refused(RecordError, "no schedule"):
            schedule = made_of(cls, {**data, "record": data})
        if schedule.record.time_s is None:
            raise RecordError("no schedule: it lacks a time")
        return schedule

    @property
    def time_s(self) -> float:
        """Median of the repeats in seconds."""
        assert self.record.time_s is not None, "from_line and best_schedules refuse records without a time"
        return self.record.time_s

    def is_of(self, task: TunableTask) -> bool:
        """Return whether the operator is the task's, perhaps with another epilogue."""
        is_same_name = bool(self.family) and (self.family, self.record.task_name) == (task.family, task.name)
        return self.has_key_of(task) or (is_same_name and self.workload == workload_of(task))

    def has_key_of(self, task: TunableTask) -> bool:
        """Return whether the kernel is the task's, by a key of this version or of one before 0.2.0."""
        return self.record.task_key in (task.key, task.structure)


class ScheduleDatabase:
    """The tuned schedules in a folder, read for a device when they are first needed."""

    def __init__(self, folder: Path = SHIPPED) -> None:
        self._folder = folder
        self._of_file = functools.cache(read_schedules)

    def starts(
        self, task: TunableTask, space: Space, default: Config, device: Mapping[str, Any], gpu: str | None = None
    ) -> list[Config]:
        """Return the configs that a search on the device starts with, the fastest first.

        They are recorded for the same operator. If there are none, the config of the most similar operator of the
        family is returned. Choices that the task's space lacks are replaced by the next lower ones. Drivers may differ.
        The last config says the same as the best kernel that another tool measured on `gpu` or on the nearest GPU.

        space, default: the task's space and default config
        device: `DeviceFingerprint.to_dict()`
        gpu: name of the device file of the target, if it names one
        """
        of_device = [s for s in self._of_file(file_of(self._folder, device)) if _is_on(s, device)]
        by_time = sorted((s for s in of_device if s.is_of(task)), key=lambda s: (not s.has_key_of(task), s.time_s))
        chosen = (by_time or _most_similar(of_device, task))[:_MOST_STARTS]
        foreign = [s for s in self._near(gpu) if s.is_foreign] if gpu else []
        chosen += [s for s in foreign if s.is_of(task)][:1] or _most_similar(foreign, task)
        configs = (s.record.config if s.is_foreign else space.completed(s.record.config) for s in chosen)
        return list(dict.fromkeys(_fitted(config, space, default) for config in configs))

    def _near(self, gpu: str) -> Sequence[TunedSchedule]:
        """Return the schedules of a GPU, or of the nearest one by its number: adreno750 -> adreno_740.jsonl."""
        series, number = _series_and_number(gpu)
        files = {}
        for path in self._folder.glob(f"{series}*{SUFFIX}") if number is not None else ():
            name, other = _series_and_number(path.stem)
            if name == series and other is not None and number is not None:
                files[path] = abs(other - number)
        return self._of_file(min(files, key=lambda path: (files[path], path))) if files else ()


def file_of(folder: Path, device: Mapping[str, Any]) -> Path:
    """Return the database file of a device. It is named by the driver's name of the device."""
    return folder / (re.sub(r"[^a-z0-9]+", "_", str(device.get("name", "")).lower()).strip("_") + SUFFIX)


def _series_and_number(gpu: str) -> tuple[str, int | None]:
    """Return the parts of a GPU's name: "adreno660" and "adreno_660" -> ("adreno", 660)."""
    match = re.fullmatch(r"([a-z_]*[a-z])_?(\d+)[a-z]?", gpu)
    return (match[1], int(match[2])) if match else (gpu, None)


def read_schedules(path: Path) -> tuple[TunedSchedule, ...]:
    """Return the schedules of a file. Empty if there is no file. A damaged line is skipped with a warning."""
    try:
        lines = read_file(path).splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        logger.warning("%s: cannot read the tuned schedules: %s", path, error)
        return ()
    return tuple(_valid_schedules(path, lines))


def _valid_schedules(path: Path, lines: Iterable[bytes]) -> Iterator[TunedSchedule]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield TunedSchedule.from_line(line)
        except RecordError as error:
            logger.warning("%s:%d: this tuned schedule is skipped: %s", path, number, error)


def write_schedules(path: Path, schedules: Iterable[TunedSchedule]) -> None:
    """Write a file of schedules, ordered by name and key, in one piece. RecordError if that cannot be done."""
    ordered = sorted(schedules, key=lambda s: (s.record.task_name, s.record.task_key, str(s.record.device)))
    try:
        with replacing(path) as partial:
            partial.write_text("".join(f"{s.to_line()}\n" for s in ordered), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot write: {error}", hint="Give a file that may be written.") from error


def best_schedules(
    records: Iterable[Record], tasks: Mapping[str, TunableTask], source: str = "romou tune, {} configs"
) -> list[TunedSchedule]:
    """Return the fastest config of each task on each device and driver.

    tasks: task key -> task. Other tasks have neither family nor workload.
    source: origin of the measurements, with a place for the number of configs
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.task_key in tasks:
            record = dataclasses.replace(record, task_key=tasks[record.task_key].key)
        identity = json.dumps([record.task_key, record.device], sort_keys=True)
        groups.setdefault(identity, []).append(record)
    schedules = []
    for group in groups.values():
        best = fastest(group)
        if best is not None:
            task = tasks.get(best.task_key)
            family, workload = ("", {}) if task is None else (task.family, workload_of(task))
            count = len({Config(record.config) for record in group})
            schedules.append(TunedSchedule(record=best, family=family, workload=workload, source=source.format(count)))
    return schedules


def merged(old: Iterable[TunedSchedule], new: Iterable[TunedSchedule]) -> list[TunedSchedule]:
    """Return one schedule for each task and device: the newer driver's, or the faster one of the same driver."""
    best: dict[str, TunedSchedule] = {}
    for schedule in (*old, *new):
        device = {name: value for name, value in schedule.record.device.items() if name != "driver"}
        identity = json.dumps([schedule.record.task_key, device], sort_keys=True)
        before = best.get(identity)
        has_same_driver = before is not None and before.record.device == schedule.record.device
        if before is None or not has_same_driver or schedule.time_s < before.time_s:
            best[identity] = schedule
    return list(best.values())


def workload_of(task: TunableTask) -> dict[str, Any]:
    """Return the numbers of a task's operator as they are read from JSON. Empty if its template has none."""
    template = task.template
    return json.loads(json.dumps(template.workload.to_dict())) if isinstance(template, ContractionTemplate) else {}


def _is_on(schedule: TunedSchedule, device: Mapping[str, Any]) -> bool:
    return all(schedule.record.device.get(name) == device.get(name) for name in ("kind", "name", "platform"))


def _most_similar(schedules: Sequence[TunedSchedule], task: TunableTask) -> list[TunedSchedule]:
    """Return the schedule of the most similar operator of the task's family. Empty if all are too different."""
    workload = workload_of(task)
    candidates = [(distance(s.workload, workload), s) for s in schedules if workload and s.family == task.family]
    near = [(apart, s) for apart, s in candidates if apart <= _FARTHEST]
    return [min(near, key=lambda pair: (pair[0], pair[1].time_s))[1]] if near else []


def distance(workload: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return by how many factors of two the numbers of two operators differ in all. Infinite if other data differs."""
    if workload.keys() != other.keys():
        return math.inf
    apart = 0.0
    for name, value in workload.items():
        ours, theirs = _numbers(value), _numbers(other[name])
        if ours is None or theirs is None or len(ours) != len(theirs):
            if value != other[name]:
                return math.inf
            continue
        apart += sum(abs(math.log2((1 + a) / (1 + b))) for a, b in zip(ours, theirs, strict=True))
    return apart


def _numbers(value: object) -> list[float] | None:
    """Return a number or a list of numbers as a list. None for everything else."""
    values: list[Any] = value if isinstance(value, list) else [value]
    is_numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in values)
    return [float(v) for v in values] if is_numeric else None


def _fitted(config: Mapping[str, Choice], space: Space, default: Config) -> Config:
    """Return the config of a space with the choices nearest to `config`. A missing knob gets the default's choice."""
    fitted: dict[str, Choice] = {}
    for name, choices in space.knobs.items():
        wanted = config.get(name, default[name])
        is_choice = any(choice == wanted and type(choice) is type(wanted) for choice in choices)
        is_number = isinstance(wanted, int) and not isinstance(wanted, bool)
        fitted[name] = wanted if is_choice else nearest(choices, wanted) if is_number else default[name]
    return Config(fitted)
