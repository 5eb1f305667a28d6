"""Kernels with a schedule of the user's: a function of TVM's schedule and of knobs (Romou paper, Listing 4).

    def schedule(sch, cfg):
        cfg.define_knob("tile", [1, 2, 4])
        if cfg["tile"] > 1: ...

The function is run once to collect its knobs, and once for each config. It stays in the process that defined it: a
process that builds a config gets the scheduled function, as an attribute of the plain one.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import threading
import tokenize
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx

from romou.base.errors import BuildError, InvalidConfigError, RomouError, UsageError, first_line
from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.schedule_template import Template
from romou.compiler.scheduling.blocks import operations_of
from romou.compiler.scheduling.placement import excess_of_image
from romou.compiler.scheduling.rewrites import as_module
from romou.compiler.tir import primitives
from romou.compiler.tir.primitives import LANES, activation_scope, is_image, set_image
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.launch import ROWS_IMAGE

# Attributes of a function: its `OwnSchedule` as JSON, and the function that the schedule makes of it for one config.
OWN, _SCHEDULED = "romou.own", "romou.own_scheduled"

ScheduleFunction: TypeAlias = "Callable[[s_tir.Schedule, KernelConfig], object]"
# Token of a schedule -> the function. Only the process that defined a schedule has it.
_functions: dict[str, ScheduleFunction] = {}
# TVM's scheduler, and perhaps the user's function, are not for several threads.
_lock = threading.Lock()


class KernelConfig:
    """The knobs of a kernel, and their values in one config. A schedule gets it as its second argument.

    cfg.define_knob("tile", [1, 2, 4])      declares a knob; the first choice is the default
    cfg["tile"]                             the value of the knob
    cfg.set_image("a")                      the parameter "a" is in an image
    cfg.autobroadcast(block)                scalars of the block are not copied into vectors
    """

    def __init__(self, func: tirx.PrimFunc, sch: s_tir.Schedule, values: Mapping[str, Choice] | None) -> None:
        self._func, self._sch = func, sch
        # None while knobs are collected.
        self._given = values
        self._values: dict[str, Choice] = {}
        self.knobs: dict[str, tuple[Choice, ...]] = {}
        self.images: dict[str, str] = {}

    def define_knob(self, name: str, choices: Sequence[Choice]) -> None:
        """Declare a knob. Its choices are numbers, words or truth values, and the first one is the default.

        Raises
        ------
        UsageError
            There is no choice, two are equal, one is of another type, or the knob is declared twice.
        """
        choices = tuple(choices)
        if not choices or len(set(choices)) != len(choices) or not all(isinstance(c, int | str) for c in choices):
            raise UsageError(
                f"knob {name!r}: choices must be distinct whole numbers, words or truth values, at least one;"
                f" got {list(choices)!r}"
            )
        if name in self.knobs:
            raise UsageError(f"knob {name!r} is declared twice; give the second one another name")
        if self._given is not None and name not in self._given:
            raise UsageError(
                f"knob {name!r} is declared in some configs only", hint="Declare every knob before any is read."
            )
        self.knobs[name] = choices
        self._values[name] = choices[0] if self._given is None else self._given[name]

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise UsageError(
                f"knob {name!r} is not declared; declared: {', '.join(self._values) or 'none'}",
                hint=f"cfg.define_knob({name!r}, [...]) declares it.",
            )
        return self._values[name]

    def set_image(self, tensor: str) -> None:
        """Put a parameter into an image, which the kernel accesses in texels of four lanes (paper, section 4.1).

        On a target whose images cannot hold it, it stays in a buffer.

        tensor: name of an input or of the output.

        Raises
        ------
        UsageError
            There is no such parameter, or it does not consist of texels.
        """
        parameters = {str(p.name): p for p in self._func.params}
        if tensor not in parameters:
            raise UsageError(f"set_image({tensor!r}): there is no such parameter; there are {', '.join(parameters)}")
        scope = image_scope_of(parameters[tensor])
        if scope is None:
            shape = "x".join(str(int(extent)) for extent in parameters[tensor].shape)
            raise UsageError(
                f"set_image({tensor!r}): {shape} {parameters[tensor].dtype} cannot be an image: its last axis has to be"
                f" {LANES} or a multiple of it, of float32 or float16, with another axis before it"
            )
        self.images[tensor] = scope

    def autobroadcast(self, block: s_tir.schedule.SBlockRV) -> None:
        """Compute with scalars and vectors in `block`, without a vector of copies (paper, section 4.1)."""
        primitives.autobroadcast(self._sch, block)


def image_scope_of(parameter: tirx.Buffer) -> str | None:
    """Return the memory scope of an image that holds a parameter. None if it does not consist of texels."""
    shape = [int(extent) for extent in parameter.shape]
    if str(parameter.dtype) not in ("float32", "float16") or len(shape) < 2 or shape[-1] % LANES:
        return None
    return activation_scope(shape) if shape[-1] == LANES and len(shape) > 2 else ROWS_IMAGE


@dataclass(frozen=True, kw_only=True)
class OwnSchedule:
    """A schedule of the user's, as data.

    name: of the kernel.
    digest: 16 hex digits of the schedule's text. Records of another text do not count.
    knobs: name -> choices.
    """

    name: str
    digest: str
    knobs: Mapping[str, tuple[Choice, ...]]

    @property
    def token(self) -> str:
        """Its key in this process."""
        return f"{self.name} {self.digest}"

    def to_json(self) -> str:
        """Return text from which `from_json` makes an equal schedule."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OwnSchedule:
        """Inverse of `to_json`."""
        data = json.loads(text)
        return cls(**data | {"knobs": {name: tuple(choices) for name, choices in data["knobs"].items()}})


def with_schedule(func: tirx.PrimFunc, name: str, schedule: ScheduleFunction) -> tirx.PrimFunc:
    """Return `func` with a schedule of the user's, after a run of it that collects its knobs.

    Raises
    ------
    UsageError
        The schedule raises an exception, or binds no loop to work-items.
    """
    scheduled, cfg = _run(func, name, schedule, None)
    if not any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in nodes_in(scheduled.body, tirx.For)):
        raise UsageError(
            f"the schedule of {name!r} makes no kernel: no loop is bound to work-items",
            hint='sch.bind(loop, "blockIdx.x") and sch.bind(loop, "threadIdx.x") bind loops.',
        )
    own = OwnSchedule(name=name, digest=_digest_of(schedule), knobs=cfg.knobs)
    _functions[own.token] = schedule
    return func.with_attr(OWN, own.to_json())


def _run(
    func: tirx.PrimFunc, name: str, schedule: ScheduleFunction, config: Mapping[str, Choice] | None
) -> tuple[tirx.PrimFunc, KernelConfig]:
    """Return the function scheduled under `config`, without images, and what the schedule did with its knobs.

    InvalidConfigError if TVM refuses a step, UsageError for any other exception. Without a config both are UsageErrors.
    """
    with _lock:
        # A copy: TVM's scheduler may change a function in place.
        sch = s_tir.Schedule(as_module(copy.deepcopy(func)))
        cfg = KernelConfig(func, sch, config)
        try:
            schedule(sch, cfg)
        except RomouError:
            raise
        except Exception as error:
            where = "with the first choice of each knob" if config is None else f"in {config}"
            text = f"the schedule of {name!r} fails {where}: {type(error).__name__}: {_reason(error)}"
            if config is not None and _is_of_tvm(error):
                raise InvalidConfigError(text) from error
            raise UsageError(text, hint=_line_of(error, schedule)) from error
        return sch.mod["main"], cfg


def _reason(error: Exception) -> str:
    """Return the line of an error's text that gives the reason. TVM's scheduler prints the whole function below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Error message:")), None)
    return said.removeprefix("Error message:").strip() if said else first_line(error)


def _is_of_tvm(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].filename if frames else ""
    return isinstance(error, s_tir.ScheduleError) or last.endswith((".cc", ".h", ".pyx", ".pxi", "<unknown>"))


def _line_of(error: Exception, schedule: ScheduleFunction) -> str | None:
    """Return the line of the schedule at which it failed."""
    file = schedule.__code__.co_filename if inspect.isfunction(schedule) else ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == file]
    return f"{os.path.basename(file)}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def _digest_of(schedule: ScheduleFunction) -> str:
    """Return 16 hex digits of the schedule's text and of the plain values that it closes over."""
    try:
        text = inspect.getsource(schedule)
    except (OSError, TypeError, tokenize.TokenError):
        # There is no file, or it has changed since: from Python 3.12 on, inspect passes on the tokenizer's error.
        code = getattr(schedule, "__code__", None)
        text = repr(schedule) if code is None else f"{code.co_code!r} {code.co_names} {code.co_consts}"
    plain = (int, float, str, bool, tuple, type(None))
    closed = inspect.getclosurevars(schedule).nonlocals if inspect.isfunction(schedule) else {}
    values = sorted((name, repr(value)) for name, value in closed.items() if isinstance(value, plain))
    return hashlib.sha256(f"{text} {values}".encode()).hexdigest()[:16]


class OwnTemplate(Template):
    """The template of a function with a schedule of the user's."""

    family = "own"
    sums_products = False

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.own = OwnSchedule.from_json(str(func.attrs[OWN]))
        self.knobs = tuple(
            Knob(name=name, choices=choices, default=choices[0], help="a knob of the user's")
            for name, choices in self.own.knobs.items()
        )
        self._runs: dict[Config, tuple[tirx.PrimFunc, dict[str, str]]] = {}

    @property
    def name(self) -> str:
        return f"{self.own.name}_{'x'.join(str(int(extent)) for extent in self.func.params[-1].shape)}"

    @property
    def flops(self) -> int:
        return operations_of(self.func)

    def space(self, limits: Limits) -> Space:
        return Space.of(self.knobs, limits, {})

    def default_config(self, limits: Limits) -> Config:
        return self.space(limits).default()

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        return tvm.IRModule({"main": self._scheduled(config, limits)})

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        return {str(p.name): str(p.scope()) for p in self._scheduled(config, limits).params if is_image(p)}

    def ready_to_build(self, config: Config, limits: Limits) -> tirx.PrimFunc:
        return self.func.with_attr(_SCHEDULED, self._scheduled(config, limits))

    def _scheduled(self, config: Config, limits: Limits) -> tirx.PrimFunc:
        """Return the scheduled function, with those images that the device has."""
        if _SCHEDULED in self.func.attrs:
            scheduled: tirx.PrimFunc = self.func.attrs[_SCHEDULED]
            return scheduled
        if config not in self._runs:
            if self.own.token not in _functions:
                raise BuildError(
                    f"the schedule of {self.own.name!r} is not defined in this process",
                    hint="romou.operators.from_te defines it.",
                )
            func, cfg = _run(self.func, self.own.name, _functions[self.own.token], config)
            if cfg.knobs != self.own.knobs:
                raise UsageError(
                    f"the schedule of {self.own.name!r} declares other knobs in {config} than at first",
                    hint="Declare every knob with the same choices before any is read.",
                )
            self._runs[config] = func, cfg.images
        func, images = self._runs[config]
        for name, scope in images.items():
            shape = next([int(extent) for extent in p.shape] for p in func.params if str(p.name) == name)
            if limits.max_image is not None and excess_of_image(shape, scope, limits.max_image) is None:
                func = set_image(func, name, scope)
        return func
