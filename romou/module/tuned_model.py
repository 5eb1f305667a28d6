"""A compiled model that runs: in the process that tuned it, or loaded from its folder in another."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from romou.errors import DeviceError, ModelError, UsageError
from romou.measure.run_job import device_tensor
from romou.module.summary import Summary
from romou.primitives import SEPARATORS
from romou.target import Target
from romou.tvm_patches.quiet import quiet_stderr

META = "romou.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """A tensor that a function of a model takes: shape, dtype, and the memory scope, "global" or that of an image."""

    shape: tuple[int, ...]
    dtype: str
    scope: str


class TunedModel:
    """A model compiled for a target, with the record of how it was tuned.

    inputs: name -> (shape, numpy dtype name), in call order. outputs: names, in the order of `run`.
    """

    def __init__(
        self,
        executable: relax.VMExecutable | tvm.runtime.Module,
        *,
        target: Target,
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        outputs: tuple[str, ...],
        summary: Summary,
        device_index: int = 0,
    ):
        self._executable = executable
        self.target = target
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self.device_index = device_index
        self._summary = summary
        self._vm: relax.VirtualMachine | None = None

    def summary(self) -> Summary:
        """What tuning brought, layer by layer."""
        return self._summary

    def with_summary(self, summary: Summary) -> TunedModel:
        """The same model under another summary."""
        self._summary = summary
        return self

    @property
    def device(self) -> tvm.runtime.Device:
        """The device that the model runs on."""
        return tvm.device(self.target.kind, self.device_index)

    def _machine(self) -> relax.VirtualMachine:
        if self._vm is None:
            if not self.device.exist:
                raise DeviceError(f"{self.target.kind}:{self.device_index} is not there, so the model cannot run", hint="`romou doctor` says what is missing.")
            with quiet_stderr():
                # Relax counts a device for each memory scope that a module names; here all of them are one.
                self._vm = relax.VirtualMachine(self._executable, [self.device] * (1 + len(SEPARATORS)))
        return self._vm

    def sources(self) -> dict[str, str]:
        """Name of a kernel -> its source, ready for the driver's compiler; in the order of the module. No device is needed."""
        found: dict[str, str] = {}
        for module in self._modules():
            if module.kind == self.target.kind:
                found.update(split_kernels(module.inspect_source()))
        return found

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run once.

        Parameters
        ----------
        inputs
            An array for every input, of exactly its shape and dtype.

        Raises
        ------
        UsageError
            If an input is missing, unknown, or of another shape or dtype.
        """
        machine = self._machine()
        arguments = [tvm.runtime.tensor(np.ascontiguousarray(a), self.device) for a in self._checked(inputs)]
        result = machine["main"](*arguments)
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [o.numpy() for o in outputs]

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        for name in inputs:
            if name not in self.inputs:
                raise UsageError(f"the model has no input {name!r}; its inputs are {', '.join(self.inputs)}")
        arrays = []
        for name, (shape, dtype) in self.inputs.items():
            if name not in inputs:
                raise UsageError(f"input {name!r} ({dtype} {shape}) is missing; given: {', '.join(inputs) or 'none'}")
            array = np.asarray(inputs[name])
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise UsageError(f"input {name!r} is {array.dtype} {array.shape}; the model was compiled for {dtype} {shape}")
            arrays.append(array)
        return arrays

    def time(self, repeat: int = 10, seed: int = 0) -> float:
        """Median time of a run in milliseconds, on random inputs that already lie on the device."""
        return float(np.median(self.times(repeat=repeat, seed=seed)))

    def times(self, repeat: int = 10, seed: int = 0, *, clock: str = "device") -> list[float]:
        """Times of `repeat` runs in milliseconds, after one warm-up, on random inputs that already lie on the device.

        clock: "device" adds up the time of all kernels, from the device's events; "wall" is the time until the device is idle again,
        launches and host code included.
        """
        if clock not in ("device", "wall"):
            raise UsageError(f"clock {clock!r}: expected 'device' or 'wall'")
        machine = self._machine()
        arguments = [tvm.runtime.tensor(a, self.device) for a in random_inputs(self.inputs, seed).values()]
        machine["main"](*arguments)
        self.device.sync()
        if clock == "wall":
            return [self._wall_ms(machine, arguments) for _ in range(repeat)]
        evaluator = machine.time_evaluator("main", self.device, number=1, repeat=repeat)
        return [1e3 * float(t) for t in evaluator(*arguments).results]

    def operator_timer(self, function: str, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]) -> Callable[[int, int], list[float]]:
        """A timer of one function of the model, alone: (launches of a repeat, repeats) -> milliseconds of a launch, a mean for each repeat.

        Parameters
        ----------
        function
            Name of a function in the compiled module.
        arguments, arrays
            All of its parameters and what they hold; copied to the device now, into tensors that live as long as the timer.

        Raises
        ------
        UsageError
            The model has no such function.
        """
        self._machine()
        library = next((m for m in self._modules() if m.kind != "relax.VMExecutable" and m.implements_function(function)), None)
        if library is None:
            raise UsageError(f"the model has no function {function!r}", function=function)
        tensors = [device_tensor(array, self.device, argument.scope) for array, argument in zip(arrays, arguments, strict=True)]

        def times(number: int, repeat: int) -> list[float]:
            found = library.time_evaluator(function, self.device, number=number, repeat=repeat)(*tensors)
            return [1e3 * float(t) for t in found.results]

        return times

    def _modules(self) -> Iterator[tvm.runtime.Module]:
        """The library and all that it imports."""
        modules = [getattr(self._executable, "mod", self._executable)]
        while modules:
            module = modules.pop(0)
            modules += list(module.imports)
            yield module

    def _wall_ms(self, machine: relax.VirtualMachine, arguments: list[Any]) -> float:
        start = time.perf_counter()
        machine["main"](*arguments)
        self.device.sync()
        return 1e3 * (time.perf_counter() - start)

    def save(self, path: str | Path) -> Path:
        """Write the model to the folder `path`: a shared library and its description. An earlier model there is replaced."""
        path = Path(path)
        if path.exists() and not (path / META).is_file():
            raise UsageError(f"{path} exists and is not a saved model; choose another path")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its final place and moved: a half-written model never stands under the name.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            fresh = Path(folder) / "model"
            fresh.mkdir()
            # A name of its own for each save: a process that has the old file loaded would get that again under the same name.
            library = f"module-{uuid.uuid4().hex[:12]}.so"
            with quiet_stderr():
                self._executable.export_library(str(fresh / library))
            (fresh / META).write_text(json.dumps({**self._meta(), "library": library}, indent=1), encoding="utf-8")
            if path.exists():
                shutil.rmtree(path)
            os.replace(fresh, path)
        return path

    def _meta(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "target": self.target.to_json(),
            "inputs": {n: [list(s), d] for n, (s, d) in self.inputs.items()},
            "outputs": list(self.outputs),
            "summary": self._summary.to_dict(),
        }


def load(path: str | Path, *, device: int = 0) -> TunedModel:
    """Load a model that `TunedModel.save` wrote; it runs on device number `device` of its target's kind.

    Raises
    ------
    ModelError
        If `path` is no saved model, or was written in another format.
    """
    path = Path(path)
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no saved model (it lacks {META}); `romou tune` or TunedModel.save writes one") from error
    except (ValueError, NotADirectoryError) as error:
        raise ModelError(f"{path}: not a saved model: {error}; save it again") from error
    if meta.get("format") != FORMAT:
        raise ModelError(f"{path}: saved in format {meta.get('format')!r}, this Romou reads {FORMAT}; tune the model again (records are kept)")
    library = path / Path(meta["library"]).name
    if not library.is_file():
        raise ModelError(f"{path}: {library.name} is missing; save the model again")
    with quiet_stderr():
        executable = tvm.runtime.load_module(str(library))
    return TunedModel(
        executable,
        target=Target.from_json(meta["target"]),
        inputs={n: (tuple(s), d) for n, (s, d) in meta["inputs"].items()},
        outputs=tuple(meta["outputs"]),
        summary=Summary.from_dict(meta["summary"]),
        device_index=device,
    )


def split_kernels(source: str) -> dict[str, str]:
    """TVM puts a marker before each kernel and, after it, declarations of all kernels, which are left out."""
    parts = source.split("// Function: ")[1:]
    kernels = {}
    for part in parts:
        name, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if not (line.startswith("__kernel ") and line.endswith(");"))]
        kernels[name.strip()] = "\n".join(lines).strip() + "\n"
    return kernels


def random_inputs(inputs: Mapping[str, tuple[tuple[int, ...], str]], seed: int) -> dict[str, np.ndarray]:
    """Random arrays for `inputs`: normal floats; integers from a range that stays inside any vocabulary."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in inputs.items():
        if np.issubdtype(np.dtype(dtype), np.floating):
            arrays[name] = rng.standard_normal(shape).astype(dtype)
        else:
            arrays[name] = rng.integers(0, 2, shape).astype(dtype)
    return arrays
