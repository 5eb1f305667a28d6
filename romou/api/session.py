"""romou.Session: an ONNX model behind onnxruntime's interface. Each shape gets kernels at its first run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from romou.base import environment
from romou.base.arguments import instance_of
from romou.base.errors import BuildError, ModelError, RomouError, UsageError, unknown_name
from romou.base.version import __version__
from romou.compiler.frontend.onnx_file import graph_inputs, load_onnx
from romou.devices.backends import DEFAULT_KIND, device_backends
from romou.devices.hardware.quirks import rules_for
from romou.devices.targets import Target, with_device
from romou.driver.options import PrecisionName
from romou.runtime.module.manifest import META
from romou.runtime.module.saved import load
from romou.runtime.module.tuned_model import TunedModel
from romou.runtime.workers import nursery

logger = logging.getLogger("romou")

# Shapes that a session keeps on the device.
_MOST_SHAPES = 8
_MIB = 1 << 20

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class NodeArg:
    """An input or output of a session, as onnxruntime describes it.

    Parameters
    ----------
    name
        The tensor's name.
    type
        onnxruntime's name of its type, such as "tensor(float)".
    shape
        A number for each axis, the name of a dimension that is open, or None for one without a name.
    """

    name: str
    type: str
    shape: list[int | str | None]


class Session:
    """An ONNX model that runs as onnxruntime's `InferenceSession` does, on a GPU or a CPU's OpenCL or Vulkan.

    The first run of a shape compiles default kernels for it, and compares their outputs with onnxruntime's. They are
    kept below ROMOU_CACHE_DIR, by the model's content, its shapes, the device and Romou's version, so a later process
    loads them. Nothing is tuned: `romou.tune` makes a faster model for one device.

    A session may be used by several threads.

    Parameters
    ----------
    path
        An ONNX file, a loaded model or its bytes, or "bundled:NAME" for a bundled network.
    sess_options, providers, provider_options
        Not read. They are here so that code for onnxruntime runs as it is.
    device
        Attached device by its number in `romou devices`, or a part of its name (1, vulkan:0, intel). None: the first
        GPU, through CUDA, OpenCL or Vulkan, else the CPU's OpenCL.
    precision
        "float32": the model's own types. "float16", "mixed": as in `romou.compile`.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing or broken.
    DeviceError
        No such device is attached.
    """

    def __init__(
        self,
        path: str | Path | bytes | onnx.ModelProto,
        sess_options: object = None,
        providers: object = None,
        provider_options: object = None,
        *,
        device: int | str | None = None,
        precision: PrecisionName = "float32",
    ) -> None:
        self._model = load_onnx(_parsed(path) if isinstance(path, bytes) else path)
        self._inputs = [_described(value) for value in graph_inputs(self._model)]
        self._outputs = [_described(value) for value in self._model.graph.output]
        self._target, index = with_device(Target(DEFAULT_KIND), _first_device() if device is None else device)
        if index is None:
            raise UsageError(
                f"device={device!r} names a device to compile for; a session runs on an attached one",
                hint="`romou devices` lists them.",
            )
        self._index, self._precision = index, precision
        self._identity = self._digest()
        self._models: OrderedDict[_Shapes, TunedModel] = OrderedDict()
        # Held while a shape is compiled, so that several threads do not compile it at once.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{each.name} {each.type} {each.shape}" for each in self._inputs)
        outputs = ", ".join(each.name for each in self._outputs)
        return f"Session({self._target}:{self._index}; {inputs} -> {outputs}; {len(self._models)} shapes)"

    def get_inputs(self) -> list[NodeArg]:
        """Return name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return name, type and shape of each output."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Return what runs the model: the target and the device's number."""
        return [f"{self._target}:{self._index}"]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray], run_options: object = None
    ) -> list[np.ndarray]:
        """Run the model once, and return arrays.

        Parameters
        ----------
        output_names
            Outputs to return, in this order. None or empty: all, in the model's order.
        input_feed
            An array or a list for every input. A new shape is compiled first, which takes seconds.
        run_options
            Not read.

        Raises
        ------
        UsageError
            A name is unknown, or an array does not fit the model.
        ModelError, NumericError, DeviceError
            As `romou.compile`, for a new shape.
        """
        names = [each.name for each in self._outputs]
        for name in output_names or ():
            if name not in names:
                raise unknown_name("output", name, names)
        outputs = self.compiled(self._shapes(input_feed)).run(input_feed)
        return [outputs[name] for name in output_names or names]

    def compiled(self, shapes: Mapping[str, Sequence[int]]) -> TunedModel:
        """Return the model of one shape, compiled or from the cache.

        It is what `romou.compile` returns: `summary()` has its kernels and the error of its outputs.

        Parameters
        ----------
        shapes
            Shape of each input by name.

        Raises
        ------
        UsageError, ModelError, NumericError, DeviceError
            As `romou.compile`.
        """
        key = tuple(tuple(shapes[each.name]) for each in self._inputs)
        with self._lock:
            if key not in self._models:
                self._models[key] = self._kept_or_made(key)
            self._models.move_to_end(key)
            if len(self._models) > _MOST_SHAPES:
                self._models.popitem(last=False)[1].release()
            return self._models[key]

    def _kept_or_made(self, key: _Shapes) -> TunedModel:
        limit = environment.from_environment().session_cache_mb * _MIB
        folder = _folder() / hashlib.sha256(f"{self._identity} {key}".encode()).hexdigest()[:16]
        shapes = {each.name: shape for each, shape in zip(self._inputs, key, strict=True)}
        # What is damaged, or another model than this session wrote, is compiled anew.
        with contextlib.suppress(RomouError, OSError):
            if limit and _takes(model := load(folder, device=self._index), shapes):
                with contextlib.suppress(OSError):  # a cache that is only read
                    (folder / META).touch()
                return model
        if rules_for(self._target.backend.facts(self._index)).compiles_apart:
            # That process starts while this one imports the compiler.
            nursery.begin()
        from romou.api.compile import compile

        text = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        logger.info("compiling for %s on %s:%d", text, self._target, self._index)
        model = compile(self._model, target=self._target, device=self._index, shapes=shapes, precision=self._precision)
        if limit:
            # `save` refuses to replace what is no saved model, as a damaged one may be.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                model.save(folder)
            except (BuildError, UsageError, OSError) as error:  # without a linker, or a disk that is full
                logger.warning("the kernels are compiled again by the next process: %s", error)
            _shrink(_folder(), limit)
        return model

    def _shapes(self, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input. UsageError for arrays that do not fit the model or each other."""
        instance_of("input_feed", feed, Mapping)
        names = [each.name for each in self._inputs]
        for name in feed:
            if name not in names:
                raise unknown_name("input", str(name), names)
        sizes: dict[str, int] = {}
        found = {}
        for each in self._inputs:
            if each.name not in feed:
                raise UsageError(f"input {each.name!r}, a {each.type} of {each.shape}, is missing")
            try:
                shape = np.shape(feed[each.name])
            except ValueError as error:
                raise UsageError(f"input {each.name!r} is no array: its rows differ in length") from error
            fits = len(shape) == len(each.shape) and all(
                size == (sizes.setdefault(side, size) if isinstance(side, str) else side if side is not None else size)
                for size, side in zip(shape, each.shape, strict=True)
            )
            if not fits:
                named = "".join(f", {name}={size}" for name, size in sizes.items())
                raise UsageError(f"input {each.name!r} is {list(shape)}; the model takes {each.shape}{named}")
            found[each.name] = shape
        return found

    def _digest(self) -> str:
        """Return a text that two sessions share if a compiled model of one may serve the other."""
        facts = self._target.backend.facts(self._index)
        versions = __version__, _code_age(), importlib.metadata.version("apache-tvm")
        about = [*versions, str(self._target), facts, self._precision]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
        graph = self._model.graph
        values = (*graph.input, *graph.output, *graph.value_info)
        others = (*self._model.opset_import, *self._model.functions)
        for part in (*graph.initializer, *graph.sparse_initializer, *graph.node, *values, *others):
            data = part.SerializeToString(deterministic=True)
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()


def _described(value: onnx.ValueInfoProto) -> NodeArg:
    tensor = value.type.tensor_type
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    sides = [axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None for axis in tensor.shape.dim]
    return NodeArg(name=value.name, type=f"tensor({kind})", shape=sides)


def _parsed(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_from_string(data)
    except Exception as error:  # protobuf's exceptions share no base class
        raise ModelError(f"{len(data)} bytes are no ONNX model; give what an exporter wrote") from error


def _takes(model: TunedModel, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return type(model) is TunedModel and {name: shape for name, (shape, _) in model.inputs.items()} == shapes


def _first_device() -> str:
    """Return the first GPU, or the first device if there is none. The default kind's first if none is attached."""
    ranks = [
        (facts["type"] == "cpu", not backend.is_vendors_own, place, index, backend.name)
        for place, backend in enumerate(device_backends())
        for index, facts in enumerate(backend.list_devices())
    ]
    *_, index, name = min(ranks, default=(0, DEFAULT_KIND))
    return f"{name}:{index}"


def _folder() -> Path:
    return environment.from_environment().cache_dir.expanduser() / "sessions"


def _code_age() -> float:
    """Return when Romou's code changed last. Kernels of other code are others, in a checkout without a new version."""
    package = Path(__file__).parents[1]
    return max(path.stat().st_mtime for path in package.rglob("*.py"))


def _shrink(folder: Path, limit: int) -> None:
    """Remove the models that were used longest ago until all take `limit` bytes. The newest one stays."""
    with contextlib.suppress(OSError):  # another process removes models as well
        kept = sorted(folder.glob(f"*/{META}"), key=lambda path: path.stat().st_mtime)
        sizes = {path: sum(file.stat().st_size for file in path.parent.iterdir()) for path in kept}
        for path in kept[:-1]:
            if sum(sizes.values()) <= limit:
                return
            sizes.pop(path)
            shutil.rmtree(path.parent, ignore_errors=True)
