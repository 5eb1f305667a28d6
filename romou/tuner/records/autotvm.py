"""Measurements of AutoTVM, an older tuner of TVM, on Adreno GPUs.

Two forms are read, plain or gzipped:

    a line for each measurement     AutoTVM's log: {"input": [..], "config": {..}, "result": [..]}
    a line for each task            {"gpu": .., "template": .., "args": .., "knobs": [..], "rows": [..]}

Source of the meaning of templates and knobs: topi/adreno of TVM 0.14.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from romou.base.errors import RecordError
from romou.base.files import read_file
from romou.base.outcome import Outcome
from romou.compiler.operators.contraction.knobs import FP16, FP32
from romou.compiler.operators.convolution import four_sides
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
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
# Side of the output tile of Winograd's algorithm: 4 if 8 divides the rows of the data.
_TILE_SIDES = (2, 4)


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
        """Type of numbers in memory."""
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
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if "v" in data or "i" in data:
                raise ValueError("written by an older AutoTVM; convert it by `python -m tvm.autotvm.record`")
            (of_line, template, arguments), measured = _from_log(data) if "input" in data else _from_task(data)
            key = json.dumps([of_line or gpu, template, arguments])
            for measurement in measured:
                group = groups.setdefault(key + _form(measurement), ((of_line or gpu, template, arguments), {}))
                group[1][json.dumps(measurement.knobs, sort_keys=True)] = measurement
        except _DAMAGED as error:
            text = f"{type(error).__name__}: {error}"
            raise RecordError(
                f"{path}:{number}: no measurements of AutoTVM: {text}", hint="Leave this line out."
            ) from error
    if not groups:
        raise RecordError(f"{path}: holds no measurements of AutoTVM")
    return [_checked(path, identity, tuple(configs.values())) for identity, configs in groups.values()]


def _lines(path: Path) -> list[str]:
    try:
        raw = read_file(path)
        return (gzip.decompress(raw) if raw.startswith(_GZIP) else raw).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot read this as measurements of AutoTVM: {error}") from error


def _checked(path: Path, identity: tuple[str, str, Sequence[Any]], measured: tuple[Measurement, ...]) -> AutotvmTask:
    gpu, template, arguments = identity
    task = AutotvmTask(gpu=gpu, template=template, arguments=arguments, measurements=measured)
    try:
        _ = task.work, task.layout, task.sums, task.algorithm
    except _DAMAGED as error:
        raise RecordError(
            f"{path}: {template}: cannot read its arguments {arguments!r}: {type(error).__name__}: {error}"
        ) from error
    return task


_Read = tuple[tuple[str, str, Sequence[Any]], Iterator[Measurement]]


def _from_log(data: Mapping[str, Any]) -> _Read:
    """Read a line of AutoTVM's own log, one measurement."""
    _target, template, arguments, _ = data["input"]
    knobs = {name: value for name, _kind, value in data["config"]["entity"]}
    times, error, _cost, _when = data["result"]
    outcome = OUTCOMES[error]
    seconds = tuple(map(float, times)) if outcome == Outcome.OK else ()
    return ("", str(template), _shapes(arguments)), iter([_measured(knobs, outcome, seconds)])


def _from_task(data: Mapping[str, Any]) -> _Read:
    """Read a line of one task. Its times are in microseconds."""
    names = data["knobs"]

    def measurements() -> Iterator[Measurement]:
        for values, time_us, error in data["rows"]:
            outcome = OUTCOMES[error]
            seconds = (float(time_us) * _US,) if outcome == Outcome.OK else ()
            yield _measured(dict(zip(names, values, strict=True)), outcome, seconds)

    return (str(data["gpu"]), str(data["template"]), _shapes(data["args"])), measurements()


def _measured(knobs: Mapping[str, Any], outcome: Outcome, times_s: tuple[float, ...]) -> Measurement:
    # NaN fails this comparison as well.
    if not all(0 < time < float("inf") for time in times_s) or (outcome == Outcome.OK and not times_s):
        raise ValueError(f"times {times_s!r}")
    for name, value in knobs.items():
        sizes = value[1:] if isinstance(value, list) and name.startswith("tile_") else [1]
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(f"{name} {value!r} is no split")
    return Measurement(knobs=knobs, outcome=outcome, times_s=times_s)


def _form(measurement: Measurement) -> str:
    """Return the names of the knobs, and into how many sizes each is split. They differ between versions of TVM."""
    return str([(name, len(value) if isinstance(value, list) else 0) for name, value in measurement.knobs.items()])


def _shapes(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the template's arguments after a check that the first two are tensors."""
    for _word, shape, dtype in arguments[:2]:
        if not isinstance(dtype, str) or not all(type(extent) is int and extent > 0 for extent in shape):
            raise ValueError(f"{shape!r} {dtype!r} is no tensor")
    return arguments


def _pair(values: int | Sequence[int]) -> tuple[int, int]:
    height, width = (values, values) if isinstance(values, int) else values
    return int(height), int(width)
