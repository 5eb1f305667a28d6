"""Command-line options made from the fields of option classes, so that names, defaults and help are written once."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from romou.base.checked_options import CheckedOptions
from romou.base.errors import UsageError
from romou.driver.options import ImportOptions, ModelOptions, TuneOptions

_F = TypeVar("_F", bound=Callable[..., Any])
_MIB = 1 << 20


def options_of(options: type[CheckedOptions], *names: str) -> Callable[[_F], _F]:
    """Return a decorator that adds a command-line option for each of the named fields, in this order.

    The command gets the parsed values by the names of the fields.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}

    def decorate(function: _F) -> _F:
        for name in reversed(names):
            function = _click_option(fields[name])(function)
        return function

    return decorate


def _click_option(field: dataclasses.Field[Any]) -> Callable[[_F], _F]:
    spelled = field.name.replace("_", "-")
    name = f"--{spelled}/--no-{spelled}" if field.default is True else f"--{spelled}"
    names, form, spelling = _SPECIAL.get(field.name, ((name,), _form_of(field), ""))
    unset = field.metadata["unset"] and f"[default: {field.metadata['unset']}]"
    text = " ".join(filter(None, (field.metadata["text"].replace("`", ""), spelling, unset)))
    return click.option(*names, help=text, **form)


def _form_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the arguments of `click.option` for a field of a plain type."""
    default, metadata, lowest = field.default, field.metadata, field.metadata["lowest"]
    form: dict[str, Any] = {"default": default, "show_default": default is not None}
    if default is False:
        return {"is_flag": True}
    if "choices" in metadata:
        form |= {"type": click.Choice(metadata["choices"]), "show_default": default or False}
    elif lowest == "above 0":
        form |= {"type": click.FloatRange(min=0, min_open=True)}
    elif lowest is not None:
        form |= {"type": click.IntRange(min=lowest)}
    elif isinstance(default, int) and not isinstance(default, bool):
        form |= {"type": int}
    return form | ({"metavar": metadata["metavar"]} if "metavar" in metadata else {})


_Parse = Callable[[click.Context, click.Parameter, Any], Any]


def _parsing(parse: Callable[[Any], Any]) -> _Parse:
    return lambda _context, _parameter, value: parse(value)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]] | list[dict[str, tuple[int, ...]]] | None:
    """Return ("x=1,3,224,224",) as {"x": (1, 3, 224, 224)}. None for no text, UsageError for anything else.

    An input that is there several times has several shapes: ("x=1,32", "x=1,64") are [{"x": (1, 32)}, {"x": (1, 64)}].
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        name, sizes = _sizes_in("--shape", text, "input=1,3,224,224")
        if sizes in shapes.setdefault(name, []):
            raise UsageError(f"--shape gives {name!r} the shape {sizes} twice", name=name)
        shapes[name].append(sizes)
    count = max(map(len, shapes.values()), default=0)
    for name, several in shapes.items():
        if len(several) not in (1, count):
            raise UsageError(
                f"--shape gives {name!r} {len(several)} shapes, and another input {count}",
                hint="Give each input one shape, or as many as the others, in the same order.",
                name=name,
            )
    sets = [
        {name: several[i] if len(several) > 1 else several[0] for name, several in shapes.items()} for i in range(count)
    ]
    return sets if len(sets) > 1 else sets[0] if sets else None


def parse_dims(texts: tuple[str, ...]) -> dict[str, Sequence[int] | Sequence[range]] | None:
    """Return ("batch=1,4", "tokens=1..9") as {"batch": (1, 4), "tokens": range(1, 10)}. None for no text.

    Several ranges are a list: "tokens=1,2..9,10..20". A number among them is a range of one size.
    """
    dims: dict[str, Sequence[int] | Sequence[range]] = {}
    for text in texts:
        sizes: Sequence[int] | Sequence[range]
        name, _, given = text.rpartition("=")
        bounds = [re.fullmatch(r"(\d+)(?:\.\.(\d+))?", each) for each in given.split(",")]
        if name and ".." in given and all(bounds):
            classes = [range(int(each[1]), int(each[2] or each[1]) + 1) for each in bounds if each is not None]
            sizes = classes if len(classes) > 1 else classes[0]
        else:
            name, sizes = _sizes_in("--dim", text, "batch=1,4,8")
        if name in dims:
            raise UsageError(f"--dim gives {name!r} twice: {dims[name]} and {sizes}", name=name)
        dims[name] = sizes
    return dims or None


def parse_pad(texts: tuple[str, ...]) -> dict[str, float] | None:
    """Return ("ids=0",) as {"ids": 0.0}. None for no text, UsageError for anything else."""
    values: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            values[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"--pad {text!r}: expected NAME=VALUE", hint="For example --pad ids=0.")
    return values or None


def _sizes_in(option: str, text: str, example: str) -> tuple[str, tuple[int, ...]]:
    """Return "x=1,32" as ("x", (1, 32))."""
    # The last "=": names of ONNX inputs may contain one.
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        shape = (0,)
    if not equals or not name or any(size <= 0 for size in shape):
        raise UsageError(
            f"{option} {text!r}: expected NAME=SIZES",
            hint=f"For example {option} {example}; sizes are whole numbers above zero.",
        )
    return name, shape


def parse_constants(texts: tuple[str, ...]) -> dict[str, Any] | None:
    """Return ("sr=16000",) as {"sr": 16000}. None for no text. Values are JSON."""
    constants: dict[str, Any] = {}
    for text in texts:
        # The last "=": names of ONNX inputs may contain one.
        name, _, value = text.rpartition("=")
        if not name:
            raise UsageError(
                f"--set {text!r}: expected NAME=VALUE", hint="For example --set sr=16000 or --set axes=[1,2]."
            )
        if name in constants:
            raise UsageError(f"--set gives {name!r} twice", name=name)
        try:
            constants[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UsageError(
                f"--set {text!r}: {value!r} is no value", hint="A number, true, false, or a list as in JSON: [1, 2]."
            ) from None
    return constants or None


def parse_measures(texts: tuple[str, ...]) -> dict[str, float]:
    """Return ("repeat=5",) as {"repeat": 5}. `MeasureOptions` checks names and values."""
    numbers: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers[name] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            raise UsageError(
                f"--measure {text!r}: expected NAME=NUMBER",
                hint="For example --measure repeat=5; romou.MeasureOptions says which.",
            ) from None
    return numbers


def _read_calibration(paths: tuple[Path, ...]) -> list[dict[str, Any]] | None:
    return [_arrays_in(path) for path in paths] or None


def _arrays_in(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--calibration {str(path)!r} is no file of numpy.savez with arrays by the names of inputs: {error}"
        ) from error


def _mib_to_bytes(mib: float | None) -> int | None:
    return None if mib is None else max(1, int(mib * _MIB))


def _repeated(parse: Callable[[Any], Any], metavar: str, kind: click.Path | None = None) -> dict[str, Any]:
    return {"multiple": True, "type": kind, "metavar": metavar, "callback": _parsing(parse)}


# An option that may be given without its value: the target's own GPU then (`romou.devices.mobile_compilers.OWN`).
GPU_FORM: Mapping[str, Any] = {"is_flag": False, "flag_value": "own", "metavar": "[NAME]"}
# Field -> names, form and spelling of an option that is spelled in another way than its field
_SPECIAL: Mapping[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "shapes": (
        ("--shape", "shapes"),
        _repeated(parse_shapes, "NAME=SIZES"),
        "As input=1,3,224,224. May be repeated: other inputs, or other shapes of the same ones.",
    ),
    "dims": (
        ("--dim", "dims"),
        _repeated(parse_dims, "NAME=SIZES"),
        "As batch=1, or several: batch=1,4,8, or at run time: tokens=1..512, or in classes: tokens=1,2..32,33..512. May"
        " be repeated.",
    ),
    "pad": (("--pad", "pad"), _repeated(parse_pad, "NAME=VALUE"), "As ids=0. May be repeated."),
    "constants": (
        ("--set", "constants"),
        _repeated(parse_constants, "NAME=VALUE"),
        "As sr=16000, axes=[1,2]. May be repeated.",
    ),
    "calibration": (
        ("--calibration",),
        _repeated(_read_calibration, "FILE.npz", click.Path(exists=True, dir_okay=False, path_type=Path)),
        "May be repeated.",
    ),
    "gpu": (("--gpu",), {**GPU_FORM, "default": None}, "Without a name, or as `own`: the target's GPU."),
    "measure": (("--measure",), _repeated(parse_measures, "NAME=VALUE"), "As repeat=5. May be repeated."),
    "max_memory": (
        ("--max-memory",),
        {
            "type": click.FloatRange(min=0, min_open=True),
            "default": None,
            "metavar": "MIB",
            "callback": _parsing(_mib_to_bytes),
        },
        "",
    ),
    "work_dir": (("--work-dir",), {"type": click.Path(file_okay=False, path_type=Path), "default": None}, ""),
    "output": (
        ("-o", "--output"),
        {"type": click.Path(dir_okay=False, path_type=Path), "default": "report.html", "show_default": True},
        "",
    ),
}

target_option = options_of(ModelOptions, "target", "device")
shape_options = options_of(ImportOptions, "shapes", "dims", "constants")
precision_options = options_of(ImportOptions, "precision", "io_precision", "calibration")
rpc_option = options_of(TuneOptions, "rpc")
