"""Write compiled models as a folder that an app opens without Romou and Python.

    model.json             inputs, outputs, variants, and the size and checksum of every file
    VARIANT/model.so       kernels of a device, and host code
    VARIANT/weights.bin    the graph and its weights

`tvm_patches/app_runtime` reads it.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from romou.base.errors import UsageError
from romou.base.folders import check_replaceable, replacing
from romou.base.linking import check_linker, export_library, is_here
from romou.compiler.frontend.padding import Padding
from romou.devices.backends import device_backends
from romou.devices.backends.launch import SEPARATORS
from tvm_patches.quiet import quiet_stderr
from tvm_patches.short_types import STORAGE

if TYPE_CHECKING:
    import tvm

    from romou.devices.targets import Target

META = "model.json"
FORMAT = 2
_WHAT = "an exported model"
_SAMPLES = ("run_model.py",)
# What a graph of TVM's older format begins with. It has no memory scopes.
_WITHOUT_SCOPES = (0xD225DE2F4214151D).to_bytes(8, "little")


Tensors: TypeAlias = "Mapping[str, tuple[tuple[int, ...], str]]"


@dataclass(frozen=True, kw_only=True)
class ShapeEntry:
    """A function of the program, for one shape.

    inputs, outputs: name -> (shape, numpy dtype name), in call order.
    sizes: what model.json says of sizes at run time, up to this shape. Empty for one shape.
    """

    entry: str
    inputs: Tensors
    outputs: Tensors
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model compiled for one device.

    target: with the host that runs it.
    program: the graph with its weights.
    kernels: host code, and the kernels that it launches.
    inputs, outputs: name -> (shape, numpy dtype name), in call order.
    values: the only value of inputs that have one.
    shapes: the functions of a model of several shapes, whose largest is that of `inputs`. Empty for one shape.
    padding: how inputs between the shapes are run.
    decoder: names and sizes of a language model's decoder. Its shapes are the models for one token and for a chunk.
    """

    target: Target
    program: tvm.runtime.Module
    kernels: tvm.runtime.Module
    inputs: Tensors
    outputs: Tensors
    values: Mapping[str, np.ndarray]
    shapes: tuple[ShapeEntry, ...] = ()
    padding: Padding | None = None
    decoder: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The variant's folder."""
        backend = self.target.backend
        return "-".join(filter(None, (backend.device_type, self.target.device_name if backend.has_kernels else None)))

    def to_dict(self) -> dict[str, Any]:
        """Return the variant's entry in model.json."""
        backend, device = self.target.backend, self.target.device_name or ""
        return {
            "name": self.name,
            "kind": backend.device_type,
            "device": device,
            "target": self.target.to_json(),
            # As `device_called` finds them in a driver's name of a device.
            "words": re.findall(r"[a-z]+|\d+", device.lower()),
            "device_type": backend.device().dlpack_device_type(),
            # Relax counts one device per memory scope in a module. On the phone all of them are the same device.
            "scopes": 1 + len(SEPARATORS),
        }

    def signature(self) -> dict[str, Any]:
        """Return the inputs and outputs in model.json. A decoder has no inputs: romou_decode makes them of tokens."""
        if self.decoder is not None:
            others = {*self.decoder["state"].values(), self.decoder["token"]}
            logits = {name: kind for name, kind in self.outputs.items() if name not in others}
            return {
                "inputs": [],
                "outputs": _tensors(logits),
                "decoder": {**self.decoder, "models": self._entries()},
            }
        inputs = [_tensor(name, *kind) for name, kind in self.inputs.items()]
        for entry in inputs:
            if entry["name"] in self.values:
                entry["value"] = list(self.values[entry["name"]].tobytes())
        return {"inputs": inputs, "outputs": _tensors(self.outputs), **(self._shape_set() if self.shapes else {})}

    def _shape_set(self) -> dict[str, Any]:
        """Return what chooses a shape. Inputs are places, and values are bytes."""
        padding, place_of = self.padding, {name: place for place, name in enumerate(self.inputs)}
        values = {} if padding is None else padding.values
        types = {name: STORAGE.get(dtype, dtype) for name, (_, dtype) in self.inputs.items()}
        return {
            "shapes": self._entries(),
            "padding": {name: list(np.array(value, types[name]).tobytes()) for name, value in values.items()},
            "groups": [
                [number for name, axis in group for number in (place_of[name], axis)]
                for group in (() if padding is None else padding.groups)
            ],
            "cuts": [
                [cut.output, cut.axis, place_of[cut.input], cut.input_axis, cut.factor, cut.offset, cut.divisor]
                for cut in (() if padding is None else padding.cuts)
            ],
        }

    def _entries(self) -> list[dict[str, Any]]:
        return [
            {
                "entry": each.entry,
                "inputs": _tensors(each.inputs),
                "outputs": _tensors(each.outputs),
                **({"sizes": each.sizes} if each.sizes else {}),
            }
            for each in self.shapes
        ]


def _tensors(tensors: Tensors) -> list[dict[str, Any]]:
    return [_tensor(name, *kind) for name, kind in tensors.items()]


def _tensor(name: str, shape: Sequence[int], dtype: str) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "dtype": dtype, "stored": STORAGE.get(dtype, dtype)}


def check_exportable(target: Target, folder: Path, host: str) -> None:
    """Raise the errors of `export_models` that are known before code is generated."""
    if not target.backend.is_served and target.backend.has_kernels:
        kinds = ", ".join(served.name for served in device_backends() if served.is_served)
        raise UsageError(
            f"a model for {target.kind} cannot be exported: the phone's runtime has devices of {kinds}",
            kind=target.kind,
        )
    check_linker(host)
    check_replaceable(folder, marker=META, what=_WHAT)


def export_models(variants: Sequence[Variant], folder: Path, host: str) -> Path:
    """Write variants of one model. Parameters and errors as in `romou.export_android`."""
    signature = variants[0].signature()
    names = [variant.name for variant in variants]
    for variant in variants[1:]:
        if variant.signature() != signature:
            what = f"{variant.name} and {names[0]} are different models: inputs or outputs differ"
            raise UsageError(what, hint="Export models of one ONNX file, tuned for several devices.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two models are for {twice}", hint="Give one model for each device.")
    with replacing(folder, marker=META, what=_WHAT) as fresh:
        for variant in variants:
            own = fresh / variant.name
            own.mkdir()
            with quiet_stderr():
                export_library(variant.kernels, own / "model.so", host=None if is_here(host) else host)
                variant.program.write_to_file(str(own / "weights.bin"))
            weights = own / "weights.bin"
            weights.write_bytes(_without_empty_scopes(weights.read_bytes()))
        about = {
            "format": FORMAT,
            "host": host,
            **signature,
            "variants": [variant.to_dict() for variant in variants],
            "files": {str(path.relative_to(fresh)): _file(path) for path in sorted(fresh.rglob("*")) if path.is_file()},
        }
        (fresh / META).write_text(_document(about), encoding="utf-8")
        for sample in _SAMPLES if variants[0].decoder is None else ():
            shutil.copyfile(Path(__file__).with_name(sample), fresh / sample)
    return folder


def _without_empty_scopes(program: bytes) -> bytes:
    """Return a saved graph without empty memory scopes, for each of which TVM prints a warning while it opens a model.

    A constant without a scope has an empty one. Drop this when src/runtime/vm/executable.cc prints nothing.
    """
    at = 8

    def number() -> int:
        nonlocal at
        at += 8
        return int.from_bytes(program[at - 8 : at], "little")

    def text() -> bytes:
        nonlocal at
        length = number()
        at += length
        return program[at - length : at]

    text()  # the version
    for _ in range(number()):  # functions: their kind, name, four numbers, and parameters
        at += 4
        text()
        at += 4 * 8
        for _ in range(number()):
            text()
    start = at
    scopes = [(number(), text()) for _ in range(number())]
    kept = [(constant, scope) for constant, scope in scopes if scope]
    if not kept:
        return _WITHOUT_SCOPES + program[8:start] + program[at:]
    section = b"".join(each.to_bytes(8, "little") + len(s).to_bytes(8, "little") + s for each, s in kept)
    return program[:start] + len(kept).to_bytes(8, "little") + section + program[at:]


def _file(path: Path) -> dict[str, int]:
    content = path.read_bytes()
    return {"bytes": len(content), "checksum": zlib.adler32(content)}


def _document(about: Mapping[str, Any]) -> str:
    """Return the text of model.json. Its last entry is the checksum of the text before it."""
    text = json.dumps(about, indent=1)[: -len("\n}")] + ",\n "
    return f'{text}"checksum": {zlib.adler32(text.encode())}\n}}'
