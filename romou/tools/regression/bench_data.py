"""The data that `romou bench` stores of a model: every repeat of every time, and measures that need no device."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from romou.base.arguments import path_of
from romou.base.errors import ModelError, UsageError
from romou.devices.targets import Target
from romou.runtime.module.saved import load
from romou.runtime.module.tuned_model import Argument

if TYPE_CHECKING:
    from romou.runtime.module import TunedModel

KIND = "romou bench"
# Incremented if a field changes its meaning. A new field has a default and keeps the number.
SCHEMA = 2
# Schema -> measures that had another meaning in it. They are left out when a file is read, and so not compared.
_REPLACED = {1: frozenset({"registers"}), SCHEMA: frozenset[str]()}

# The repeats of each round, in milliseconds of one call.
Rounds = tuple[tuple[float, ...], ...]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorBench:
    """A distinct function of a model.

    name           operation with its shapes. Operators of two benches are matched by it
    key            16 hex digits of its unscheduled structure
    function       its name in the module, numbered among similar functions
    calls          how often the model calls it
    config         config of Romou's template. Empty if TVM's default schedule makes it
    arguments      arguments of the function, the output last
    source_sha256  SHA-256 of its kernels' sources (`source_mark`)
    source_bytes   size of its kernels' sources
    measures       see `JUDGED`
    times_ms       one entry for each round. Empty if nothing was timed
    nodes          names of its ONNX nodes. Empty in files of versions that did not keep them
    """

    name: str
    key: str
    function: str
    calls: int
    config: Mapping[str, int | str | bool]
    arguments: tuple[Argument, ...]
    source_sha256: str
    source_bytes: int
    measures: Mapping[str, int]
    times_ms: Rounds = ()
    nodes: tuple[str, ...] = ()

    @property
    def time_ms(self) -> float | None:
        """Median over the rounds of each round's shortest repeat. None if nothing was timed."""
        return round_median(self.times_ms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """The operators and times of a model. `load` reads the file that `save` writes.

    model               the model's name as the caller gave it
    target              `Target.to_json()`
    device              `DeviceFingerprint.to_dict()`. None if nothing was timed
    romou, tvm          versions
    time                time of the bench in UTC, ISO 8601
    operators           the model's distinct functions
    model_times_ms      times of the whole model
    reference_times_ms  times in the same rounds of a model that no version of Romou changes. They show the machine's
    speed
    module              file name of the compiled model's library. Its folder is beside the bench and has the bench's
                        name with ".romou". None: the library was not kept
    compiled            the compiled model. It is not stored in the file
    """

    model: str
    target: str
    device: Mapping[str, Any] | None
    romou: str
    tvm: str
    time: str
    operators: tuple[OperatorBench, ...]
    model_times_ms: Rounds = ()
    reference_times_ms: Rounds = ()
    module: str | None = None
    compiled: TunedModel | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def time_ms(self) -> float | None:
        """Median over the rounds of the model's shortest repeat in each round. None if nothing was timed."""
        return round_median(self.model_times_ms)

    def to_json(self) -> str:
        """Return JSON text with one line for each field and operator, so that two versions differ line by line."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("operators", "compiled")
        }
        head = "".join(
            f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)},\n"
            for name, value in {"kind": KIND, "schema": SCHEMA, **fields}.items()
        )
        lines = ",\n".join(f"  {json.dumps(dataclasses.asdict(o), allow_nan=False)}" for o in self.operators)
        return f'{{\n{head} "operators": [\n{lines}\n ]\n}}\n'

    def save(self, path: str | Path, *, module: bool = True) -> Path:
        """Write the bench and, beside it, the compiled model if there is one. An earlier bench of the name is replaced.

        module: whether to write the compiled model

        Raises
        ------
        UsageError
            `path` cannot be written, or its model's folder holds something else.
        """
        path = path_of("path", path)
        bench = dataclasses.replace(self, module=None)
        folder = module_folder(path)
        if module and self.compiled is not None:
            self.compiled.save(folder)
            bench = dataclasses.replace(self, module=library_of(folder))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(bench.to_json(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}", path=str(path)) from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Bench:
        """Read a file that `save` wrote, without the compiled model. Raise UsageError for anything else."""
        path = path_of("path", path)
        renew = f"Write it anew: romou bench MODEL --save {path}"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"bench {str(path)!r} does not exist", hint=renew, path=str(path)) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read: {error}", hint=renew, path=str(path)) from error
        try:
            return cls.from_json(text)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint or renew, path=str(path)) from error

    @classmethod
    def from_json(cls, text: str) -> Bench:
        """Return the bench that `to_json` wrote. Raise UsageError that names the field."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"not JSON, or cut off: {error}") from error
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise UsageError(f"this is no file of `{KIND}`: it lacks kind = {KIND!r}")
        schema = data.get("schema")
        if not isinstance(schema, int) or schema not in _REPLACED:
            raise UsageError(f"written in schema {schema!r}, this Romou reads {' and '.join(map(str, _REPLACED))}")
        operators = _read(data, "operators", list)
        replaced = _REPLACED[schema]
        benches = tuple(_field(f"operators[{i}]", partial(_operator, o, replaced)) for i, o in enumerate(operators))
        names = [o.name for o in benches]
        if len(set(names)) != len(names):
            raise UsageError("two operators have one name")
        return cls(
            model=_read(data, "model", str),
            target=_field("target", lambda: Target.from_json(_read(data, "target", str))).to_json(),
            device=_read(data, "device", dict, type(None)),
            romou=_read(data, "romou", str),
            tvm=_read(data, "tvm", str),
            time=_read(data, "time", str),
            operators=benches,
            model_times_ms=_rounds(data, "model_times_ms"),
            reference_times_ms=_rounds(data, "reference_times_ms"),
            module=_read(data, "module", str, type(None)),
        )


def load_module(
    bench: Bench, path: str | Path, *, device: Callable[[], int], rpc: str | None = None
) -> TunedModel | None:
    """Return the compiled model beside a bench's file. None if it was not kept or is gone.

    device: returns the index of the device to run it on. Called only if there is a model.
    rpc: address of a remote device to run it on instead.

    Raise UsageError if the folder holds another model.
    """
    folder = module_folder(Path(path))
    if bench.module is None or not folder.is_dir():
        return None
    if library_of(folder) != bench.module:
        raise UsageError(
            f"{folder} holds another model than {path} was measured with",
            hint="Keep the two together, or delete the folder.",
            path=str(folder),
        )
    try:
        return load(folder, device=device(), rpc=rpc)
    except ModelError as error:
        raise UsageError(
            error.message,
            hint="Restore the folder, or delete it: the times in the file are compared then.",
            path=str(folder),
        ) from error


def module_folder(path: Path) -> Path:
    """Return the folder of the compiled model that belongs to a bench's file."""
    return path.with_suffix(".romou")


def library_of(folder: Path) -> str:
    """Return the file name of a saved model's library. Every save has a new name."""
    return next((p.name for p in sorted(folder.glob("module-*.so"))), "")


def round_median(rounds: Rounds) -> float | None:
    """Return the median of the rounds' shortest repeats, because other processes can only add time."""
    return median(min(r) for r in rounds) if rounds else None


def _operator(data: Any, replaced: Collection[str]) -> OperatorBench:
    if not isinstance(data, dict):
        raise UsageError("must be an object")
    arguments = [
        Argument(shape=tuple(map(int, a["shape"])), dtype=str(a["dtype"]), scope=str(a["scope"]))
        for a in _read(data, "arguments", list)
    ]
    measures = _read(data, "measures", dict)
    if not all(isinstance(v, int) for v in measures.values()):
        raise UsageError("measures: must be whole numbers")
    return OperatorBench(
        name=_read(data, "name", str),
        key=_read(data, "key", str),
        function=_read(data, "function", str),
        calls=_read(data, "calls", int),
        config=_read(data, "config", dict),
        arguments=tuple(arguments),
        source_sha256=_read(data, "source_sha256", str),
        source_bytes=_read(data, "source_bytes", int),
        measures={name: value for name, value in measures.items() if name not in replaced},
        times_ms=_rounds(data, "times_ms"),
        nodes=tuple(map(str, _read(data, "nodes", list))) if "nodes" in data else (),
    )


def _field(name: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{name}: {type(error).__name__}: {error}") from error


def _read(data: Mapping[str, Any], name: str, *types: type) -> Any:
    if name not in data:
        raise UsageError(f"{name} is missing")
    if not isinstance(data[name], types):
        raise UsageError(f"{name} is {data[name]!r:.60}; expected {' or '.join(t.__name__ for t in types)}")
    return data[name]


def _rounds(data: Mapping[str, Any], name: str) -> Rounds:
    rounds = _field(name, lambda: tuple(tuple(float(t) for t in r) for r in _read(data, name, list)))
    if any(not r or not all(math.isfinite(t) and t > 0 for t in r) for r in rounds):
        raise UsageError(f"{name}: every round needs times above zero")
    return rounds
