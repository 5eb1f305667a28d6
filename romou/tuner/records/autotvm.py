"""Measurements of AutoTVM, an older tuner of TVM, on Adreno GPUs.

Two forms are read, plain or gzipped:

    a line for each measurement     AutoTVM's log: {"input": [..], "config": {..}, "result": [..]}
    a line for each task            {"gpu": .., "template": .., "args": .., "knobs": [..], "rows": [..]}

Source of the meaning of templates and knobs: topi/adreno of TVM 0.14.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

from romou.base.errors import RecordError
from romou.base.files import read_file
from romou.base.foreign import parsed, refused, unzipped
from romou.base.outcome import Outcome
from romou.base.schema import FileName, Matching, Range, made_of, shown
from romou.compiler.operators.contraction.knobs import FP16, FP32
from romou.compiler.operators.families.bases.convolution import four_sides
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d, Workload
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.compiler.tir.expressions import FLOATS
from romou.compiler.tir.primitives import LANES

_GZIP = b"\x1f\x8b"
_US = 1e-6
# AutoTVM's error code -> outcome. Builds that take too long are build errors in both.
OUTCOMES = {
    0: Outcome.OK,
    1: Outcome.INVALID,
    2: Outcome.BUILD_ERROR,
    3: Outcome.BUILD_ERROR,
    4: Outcome.RUN_ERROR,
    5: Outcome.WRONG_RESULT,
    6: Outcome.BUILD_ERROR,
    7: Outcome.TIMEOUT,
    8: Outcome.RUN_ERROR,
}
_Error: TypeAlias = Annotated[int, Range(0, max(OUTCOMES))]
_MOST_SIZE = 1 << 24
_Extent: TypeAlias = Annotated[int, Range(1, _MOST_SIZE)]
_Step: TypeAlias = Annotated[int, Range(0, 1 << 16)]
_Steps: Any = _Step | list[_Step] | str | None
_Time: TypeAlias = Annotated[float, Range(1e-12)]
_Knob: TypeAlias = int | str | bool | list[int | str | bool]
# A word that is part of a file's name.
_Word: TypeAlias = Annotated[str, Matching(r"\w{1,30}", "a word")]
# Side of the output tile of Winograd's algorithm: 4 if 8 divides the rows of the data.
_TILE_SIDES = (2, 4)


@dataclass(frozen=True, kw_only=True)
class _LogConfig:
    entity: tuple[tuple[str, str, _Knob], ...]


@dataclass(frozen=True, kw_only=True)
class _LogLine:
    """The schema of a line of AutoTVM's own log."""

    input: tuple[Any, FileName, list[Any], Any]
    config: _LogConfig
    result: tuple[list[Any], _Error, Any, Any]


@dataclass(frozen=True, kw_only=True)
class _TaskLine:
    """The schema of a line of one task."""

    gpu: FileName
    template: FileName
    args: list[Any]
    knobs: list[str]
    rows: list[tuple[list[_Knob], Any, _Error]]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A config of AutoTVM and its outcome.

    knobs: knob -> sizes of a split (the first one is -1, which stands for the rest), or a value
    times_s: every repeat in seconds. Empty unless the outcome is OK
    """

    knobs: Mapping[str, Any]
    outcome: Outcome
    times_s: tuple[float, ...] = ()

    @property
    def time_s(self) -> float | None:
        """Median of the repeats in seconds. None if there is no time."""
        return median(self.times_s) if self.outcome == Outcome.OK and self.times_s else None


@dataclass(frozen=True, kw_only=True)
class AutotvmTask:
    """The measured configs of one operator by one template on one GPU.

    gpu: name of a device file, as "adreno660". Empty if the log does not name one
    template: AutoTVM's name, as "conv2d_nchwc_acc32.image2d"
    arguments: of the template: tensors as ("TENSOR", shape, dtype), strides, padding, dilation, output dtype
    measurements: in the order of the file. If a config was measured again, the last time counts
    """

    gpu: str
    template: str
    arguments: Sequence[Any]
    measurements: tuple[Measurement, ...]

    @property
    def layout(self) -> str:
        """Layout of the data: "NCHW", "NHWC", or "NCHW4c" for channels packed by four. A matrix is "NC"."""
        if self.template.startswith("dense"):
            return "NC"
        return "NHWC" if "nhwc" in self.template else "NCHW4c" if len(self.arguments[0][1]) > 4 else "NCHW"

    @property
    def dtype(self) -> str:
        """Type of elements in memory."""
        return str(self.arguments[0][2])

    @property
    def sums(self) -> str:
        """Type of the partial sums, a choice of the knob `accumulate`."""
        is_fp32 = self.dtype == FP32 or self.arguments[-1] == FP32 or "_acc32" in self.template
        return FP32 if is_fp32 else FP16

    @property
    def is_depthwise(self) -> bool:
        """Return whether each channel is a group."""
        return self.template.startswith("depthwise")

    @property
    def algorithm(self) -> str:
        """The value of Romou's knob `algorithm`: "direct", "winograd2" or "winograd4"."""
        if "wino" not in self.template:
            return "direct"
        rows = self.arguments[0][1][1 if self.layout == "NHWC" else 2]
        return f"winograd{_TILE_SIDES[rows % 8 == 0]}"

    @property
    def reads_images(self) -> bool:
        """Return whether the template is one for Adreno, which reads its data from images."""
        return self.template.endswith(".image2d")

    @cached_property
    def work(self) -> Workload | None:
        """The numbers of the operator. None if Romou has no template for it."""
        (_, data, _), (_, weight, dtype) = self.arguments[:2]
        if self.dtype not in FLOATS or dtype != self.dtype or "without_weight_transform" in self.template:
            return None
        if self.template.startswith("dense"):
            return Dense(m=data[0], k=data[1], n=weight[0], dtype=self.dtype)
        if not self.template.startswith(("conv2d_n", "depthwise_conv2d_n")):
            return None
        return self._convolution(data, weight)

    def _convolution(self, data: Sequence[int], weight: Sequence[int]) -> Conv2d | None:
        strides, padding, dilation = self.arguments[2:5]
        if self.layout == "NHWC":
            (n, h, w, channels), (kh, kw, *shape) = data, weight
            outputs, of_group = shape if self.is_depthwise else reversed(shape)
        else:
            (n, channels, h, w, *_), (outputs, of_group, kh, kw, *_) = data, weight
        if self.layout == "NCHW4c":
            channels, outputs = channels * LANES, outputs * LANES
        groups = channels if self.is_depthwise else 1
        if of_group != channels // groups or outputs % groups:
            return None
        work = Conv2d(
            batch=n,
            in_channels=channels,
            in_hw=(h, w),
            out_channels=outputs,
            kernel=(kh, kw),
            stride=_pair(strides),
            padding=four_sides([padding] if isinstance(padding, int) else padding),
            dilation=_pair(dilation),
            groups=groups,
            dtype=self.dtype,
        )
        return work if min(work.out_hw) > 0 else None

    @cached_property
    def task(self) -> TunableTask | None:
        """The operator as a task of Romou, without an epilogue. None if Romou has no template for it."""
        return None if self.work is None else task_of(self.work, has_epilogue=False).with_free_images()

    @property
    def algorithms(self) -> Collection[str]:
        """The algorithms that Romou has for the operator."""
        return getattr(self.task and self.task.template, "algorithms", ())

    @property
    def name(self) -> str:
        """A name for files: operator, types and template."""
        work = "unknown" if self.work is None else self.work.name
        return f"{self.template.partition('.')[0]}_{work}_{self.dtype}"


def read_autotvm(path: Path, gpu: str = "") -> list[AutotvmTask]:
    """Read AutoTVM's measurements, one task for each template, operator and GPU, and for each form of the knobs.

    gpu: name of the device if the file does not give it. AutoTVM's own logs do not.

    Raises
    ------
    RecordError
        The file cannot be read, or a line is damaged, with its number.
    """
    groups: dict[str, tuple[tuple[str, str, Sequence[Any]], dict[str, Measurement]]] = {}
    with refused(RecordError, f"{path}: cannot read this as measurements of AutoTVM"):
        raw = read_file(path)
        lines = (unzipped(raw) if raw.startswith(_GZIP) else raw).splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        with refused(RecordError, f"{path}:{number}: no measurements of AutoTVM", hint="Leave this line out."):
            data = parsed(line)
            if "v" in data or "i" in data:
                raise ValueError("written by an older AutoTVM; convert it by `python -m tvm.autotvm.record`")
            (of_line, template, arguments), measured = _from_log(data) if "input" in data else _from_task(data)
            key = json.dumps([of_line or gpu, template, arguments])
            for measurement in measured:
                group = groups.setdefault(key + _form(measurement), ((of_line or gpu, template, arguments), {}))
                group[1][json.dumps(measurement.knobs, sort_keys=True)] = measurement
    if not groups:
        raise RecordError(f"{path}: holds no measurements of AutoTVM")
    return [_checked(path, identity, tuple(configs.values())) for identity, configs in groups.values()]


def _checked(path: Path, identity: tuple[str, str, Sequence[Any]], measured: tuple[Measurement, ...]) -> AutotvmTask:
    gpu, template, arguments = identity
    task = AutotvmTask(gpu=gpu, template=template, arguments=arguments, measurements=measured)
    with refused(RecordError, f"{path}: {template}: cannot read its arguments {shown(arguments)}"):
        _ = task.work, task.layout, task.sums, task.algorithm
    return task


_Read = tuple[tuple[str, str, Sequence[Any]], Iterator[Measurement]]


def _from_log(data: Mapping[str, Any]) -> _Read:
    """Read a line of AutoTVM's own log, one measurement."""
    line = made_of(_LogLine, data)
    _target, template, arguments, _ = line.input
    knobs = {name: value for name, _kind, value in line.config.entity}
    times, error, _cost, _when = line.result
    return ("", template, _shapes(arguments)), iter([_measured(knobs, OUTCOMES[error], times, 1.0)])


def _from_task(data: Mapping[str, Any]) -> _Read:
    """Read a line of one task. Its times are in microseconds."""
    line = made_of(_TaskLine, data)
    measured = (
        _measured(dict(zip(line.knobs, values, strict=True)), OUTCOMES[error], [time_us], _US)
        for values, time_us, error in line.rows
    )
    return (line.gpu, line.template, _shapes(line.args)), measured


def _measured(knobs: Mapping[str, Any], outcome: Outcome, times: list[Any], unit_s: float) -> Measurement:
    """Return a measurement. times: in units of `unit_s`. They count if the config worked."""
    seconds = tuple(unit_s * time for time in made_of(tuple[_Time, ...], times)) if outcome == Outcome.OK else ()
    if outcome == Outcome.OK and not seconds:
        raise ValueError("it lacks a time")
    for name, value in knobs.items():
        sizes = value[1:] if isinstance(value, list) and name.startswith("tile_") else [1]
        if not sizes or not all(type(size) is int and 0 < size <= _MOST_SIZE for size in sizes):
            raise ValueError(f"{name} {shown(value)} is no split")
    return Measurement(knobs=knobs, outcome=outcome, times_s=seconds)


def _form(measurement: Measurement) -> str:
    """Return the names of the knobs, and into how many sizes each is split. They differ between versions of TVM."""
    return str([(name, len(value) if isinstance(value, list) else 0) for name, value in measurement.knobs.items()])


def _shapes(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the template's arguments after a check that the first two are tensors."""
    made_of(list[tuple[str, tuple[_Extent, ...], _Word]], arguments[:2])
    for steps in arguments[2:5]:
        # TVM's indices have 32 bits.
        made_of(_Steps, steps)
    return arguments


def _pair(values: int | Sequence[int]) -> tuple[int, int]:
    height, width = (values, values) if isinstance(values, int) else values
    return int(height), int(width)
