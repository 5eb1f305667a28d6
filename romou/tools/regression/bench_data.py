"""The data that `romou bench` stores of a model: every repeat of every time, and measures that need no device."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

from romou.base.arguments import path_of
from romou.base.errors import ModelError, UsageError
from romou.base.files import read_file, replacing
from romou.base.foreign import parsed, refused
from romou.base.headline import Headline
from romou.base.schema import Range, made_of, shown
from romou.devices.mobile_compilers import Compiler
from romou.devices.targets import Target
from romou.runtime.module.saved import load
from romou.runtime.module.tuned_model import Argument, TunedModel

KIND = "romou bench"
# Incremented if a field changes its meaning. A new field has a default and keeps the number.
SCHEMA = 2
# Schema -> measures that had another meaning in it. They are left out when a file is read, and so not compared.
_REPLACED = {1: frozenset({"registers"}), SCHEMA: frozenset[str]()}

_OF_APPS = ("about", "open_ms", "first_run_ms", "inputs_ms", "outputs_ms")
# The repeats of each round, in milliseconds of one call.
Rounds: TypeAlias = tuple[tuple[Annotated[float, Range(1e-9)], ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorBench:
    """A distinct function of a model.

    name           operation with its shapes. Operators of two benches are matched by it
    key            `Task.key`, or `structure` if no family tunes the function
    function       its name in the module, numbered among similar functions
    calls          how often the model calls it
    config         config of Romou's template. Empty if TVM's default schedule makes it
    arguments      arguments of the function, the output last
    source_sha256  SHA-256 of its kernels' sources (`source_mark`)
    source_bytes   size of its kernels' sources
    measures       see `JUDGED`
    times_ms       one entry for each round. Empty if nothing was timed
    nodes          names of its ONNX nodes. Empty in files of versions that did not keep them
    structure      16 hex digits of its unscheduled TIR, the key in files of versions before 0.2.0. Empty there
    """

    name: str
    key: str
    function: str
    calls: int
    config: Mapping[str, int | str | bool]
    arguments: tuple[Argument, ...]
    source_sha256: str
    source_bytes: int
    measures: Mapping[str, int | float]
    times_ms: Rounds = ()
    nodes: tuple[str, ...] = ()
    structure: str = ""

    @property
    def time_ms(self) -> float | None:
        """Median over the rounds of each round's shortest repeat. None if nothing was timed."""
        return round_median(self.times_ms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """An exported model as an app opened it, by `romou_about`.

    variant    the variant that runs
    programs   numbers of programs, "cached" and "compiled". Empty for plain code
    ms         step of opening -> milliseconds: "read", "programs", "weights"
    left       why other variants were left
    """

    variant: str
    programs: Mapping[str, Any]
    ms: Mapping[str, float]
    left: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Bench(Headline):
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
    about               the opened model, if `romou_bench` timed an exported one. None otherwise, as for what follows
    open_ms             time to open it
    first_run_ms        time of its first run
    inputs_ms           times to copy its inputs to the device
    outputs_ms          times to copy its outputs from there
    compiler            compilers that counted (`operators.COMPILED`). None: there are no counts
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
    about: OpenedModel | None = None
    open_ms: float | None = None
    first_run_ms: float | None = None
    inputs_ms: tuple[float, ...] = ()
    outputs_ms: tuple[float, ...] = ()
    compiler: Compiler | None = None
    compiled: TunedModel | None = dataclasses.field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """The model, the number of operators and the time."""
        time_ms = "not timed" if self.time_ms is None else f"{self.time_ms:.3f} ms"
        return f"{self.model}; {len(self.operators)} operators, {time_ms}"

    @property
    def time_ms(self) -> float | None:
        """Median over the rounds of the model's shortest repeat in each round. None if nothing was timed."""
        return round_median(self.model_times_ms)

    def to_json(self) -> str:
        """Return JSON text with one line for each field and operator, so that two versions differ line by line."""
        left_out = ("operators", "compiled", *(_OF_APPS if self.about is None else ()))
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        head = "".join(
            f" {json.dumps(name)}: {json.dumps(value, allow_nan=False, default=dataclasses.asdict)},\n"
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
            with replacing(path) as partial:
                partial.write_text(bench.to_json(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}", path=str(path)) from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Bench:
        """Read the file `path` that `save` wrote, without the compiled model. Raise UsageError for anything else."""
        path = path_of("path", path)
        renew = f"Write it anew: romou bench MODEL --save {path}"
        with refused(UsageError, f"{path}", hint=renew, path=str(path)):
            text = read_file(path)
        try:
            return cls.from_json(text)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint or renew, path=str(path)) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Bench:
        """Return the bench whose `text` `to_json` wrote. Raise UsageError that names the field."""
        what = f"no file of `{KIND}`"
        with refused(UsageError, what):
            data = _of_kind(parsed(text))
            schema = data.get("schema")
            if type(schema) is not int or schema not in _REPLACED:
                raise UsageError(
                    f"written in schema {shown(schema)}, this Romou reads {' and '.join(map(str, _REPLACED))}"
                )
            bench = made_of(cls, {name: value for name, value in data.items() if name != "compiled"})
        try:
            target = Target.from_json(bench.target).to_json()
        except UsageError as error:
            raise UsageError(f"target: {error.message}") from error
        names = [o.name for o in bench.operators]
        if len(set(names)) != len(names):
            raise UsageError("two operators have one name")
        if not all(map(all, (bench.model_times_ms, bench.reference_times_ms, *(o.times_ms for o in bench.operators)))):
            raise UsageError("a round has no times")
        operators = [
            dataclasses.replace(o, measures={k: v for k, v in o.measures.items() if k not in _REPLACED[schema]})
            for o in bench.operators
        ]
        return dataclasses.replace(bench, target=target, operators=tuple(operators))


def _of_kind(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ValueError(f"it lacks kind = {KIND!r}")
    return data


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
