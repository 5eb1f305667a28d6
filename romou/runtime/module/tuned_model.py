"""A compiled model that can run, in the process that tuned it or loaded from its folder."""

from __future__ import annotations

import dataclasses
import html
import logging
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from romou.base.arguments import instance_of, path_of, whole_of
from romou.base.errors import DeviceError, ModelError, UsageError
from romou.base.folders import HeldFolder, replacing
from romou.base.inputs import checked_inputs, random_inputs, signature_text
from romou.base.linking import export_library, is_here
from romou.compiler.frontend.declared import check_settled
from romou.devices.backends.base import HOST
from romou.devices.backends.programs import ProgramReport
from romou.devices.targets import Target
from romou.runtime.deploy import ShapeEntry, Variant, check_exportable, check_project, export_models, write_project
from romou.runtime.module.binding import BoundModel, bound_arrays
from romou.runtime.module.built import BuiltModel
from romou.runtime.module.host_code import HOST_CODE, packed_modules, read_host_code, write_host_code
from romou.runtime.module.host_memory import HostMemory
from romou.runtime.module.host_nodes import LEDGER
from romou.runtime.module.library import copy_library, executable_of, library_name, module_of, modules_of
from romou.runtime.module.machine import Machine, check_process, free_idle_memory
from romou.runtime.module.manifest import META, write_manifest
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.profile import Profile, named_calls
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.module.summary import HostRow, Summary
from romou.runtime.module.timing_job import KernelTimers
from tvm_patches.libraries import load_library
from tvm_patches.quiet import quiet_stderr
from tvm_patches.runtime import exists
from tvm_patches.short_types import restored, stored

if TYPE_CHECKING:
    import tvm
    from tvm import relax

logger = logging.getLogger("romou")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """A tensor argument of a function. scope: "global", or the memory scope of an image."""

    shape: tuple[int, ...]
    dtype: str
    scope: str

    @classmethod
    def of_parameters(cls, func: tvm.tirx.PrimFunc) -> tuple[Argument, ...]:
        """Return the arguments that a function of static shapes takes."""
        return tuple(
            cls(shape=tuple(int(extent) for extent in p.shape), dtype=str(p.dtype), scope=str(p.scope()))
            for p in func.params
        )


class TunedModel:
    """A model compiled for a target, with the record of how it was tuned.

    `romou.tune`, `romou.compile` and `romou.load` create instances.

    Parameters
    ----------
    built
        The library, its target and tensors.
    summary
        Results of tuning and of the checks.
    device_index
        Number of the device of this machine that runs the model.
    remote
        The device that runs the model, if it is not on this machine.
    capture
        Whether to capture a run once and launch it as a whole afterwards (an OpenCL command buffer or launch list, a
        CUDA graph). None: if that is not slower. Runs behind a connection are not captured.
    beside
        Another model of the same library, which loads it. Both use the same weights on the device.
    """

    def __init__(
        self,
        built: BuiltModel,
        summary: Summary,
        *,
        device_index: int = 0,
        remote: RemoteDevice | None = None,
        capture: bool | None = None,
        beside: TunedModel | None = None,
    ):
        self.built, self._summary = built, summary
        self.target = built.target
        self.inputs = dict(built.inputs)
        self.outputs = built.outputs
        self.device_index = device_index
        self.remote = remote
        self.capture = capture
        self._beside = beside
        self._others: weakref.WeakSet[TunedModel] = weakref.WeakSet()
        if beside is not None:
            beside._others.add(self)
        self._local: Machine | None = None
        # Only one thread loads the model, and links the library that is sent to a server.
        self._lock = threading.Lock()
        # Runs that are started and not waited for. Its thread begins with the first one.
        self._started = ThreadPoolExecutor(1, thread_name_prefix="romou-run")
        self._folder: HeldFolder | None = None
        self._library_name = library_name()
        self._timers = KernelTimers(built.target.kind, device_index)
        if remote is not None:
            self._refuse_host_nodes(f"the model cannot run at {remote.address}")

    def __repr__(self) -> str:
        where = f" at {self.remote.address}" if self.remote is not None else ""
        signature = f"{signature_text(self.inputs)} -> {', '.join(self.outputs)}"
        return f"TunedModel({self.target}{where}; {signature}; {self._summary.headline})"

    def _repr_html_(self) -> str:
        return f"<p><code>{html.escape(repr(self))}</code></p>{self._summary._repr_html_()}"

    @property
    def host_nodes(self) -> tuple[str, ...]:
        """Nodes that run on the host between kernels, by onnxruntime: operator and name of each."""
        return tuple(name for row in self._summary.host for name in row.nodes)

    @property
    def settled(self) -> dict[str, np.ndarray]:
        """Inputs with a value that the model's declared shapes determine, such as the shape of a Reshape."""
        return {entry.name: entry.array for entry in self.built.settled}

    def _refuse_host_nodes(self, what: str) -> None:
        if self.host_nodes:
            nodes = ", ".join(self.host_nodes)
            raise ModelError(
                f"{what}: there are no kernels for {nodes}, which would run on this machine, by onnxruntime",
                nodes=self.host_nodes,
            )

    def summary(self) -> Summary:
        """Return the results of tuning, layer by layer."""
        return self._summary

    def with_summary(self, summary: Summary) -> TunedModel:
        """Replace the model's summary by `summary`, and return the model itself."""
        self._summary = summary
        return self

    def moved(self, device_index: int = 0, remote: RemoteDevice | None = None) -> TunedModel:
        """Return the model for device number `device_index` of this machine, or for `remote`."""
        if (device_index, remote) == (self.device_index, self.remote):
            return self
        return self.changed(device_index=device_index, remote=remote)

    def changed(self, **changes: Any) -> TunedModel:
        """Return a model with other arguments of the constructor. It is not loaded yet.

        Parameters
        ----------
        changes
            The arguments that change, by name.
        """
        return TunedModel(**{**self.arguments(), **changes})

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, without the links to other models."""
        return {
            "built": dataclasses.replace(self.built, program=None),
            "summary": self._summary,
            "device_index": self.device_index,
            "remote": self.remote,
            "capture": self.capture,
        }

    def forget_program(self) -> TunedModel:
        """Drop what the model was built from, when nothing is linked with it any more. Return the model itself."""
        self.built = dataclasses.replace(self.built, program=None)
        return self

    @property
    def device(self) -> tvm.runtime.Device:
        """The device of this machine that runs the model.

        Raises
        ------
        UsageError
            The model runs behind a connection.
        """
        if self.remote is not None:
            raise UsageError(f"the model runs at {self.remote.address}, which is no device of this machine")
        return self.target.backend.device(self.device_index)

    @cached_property
    def _executable(self) -> relax.VMExecutable | tvm.runtime.Module:
        if self._beside is not None:
            return self._beside._executable
        if not isinstance(self.built.executable, Path):
            return self.built.executable
        self.target.backend.prepare_to_load()
        with quiet_stderr(), self.target.backend.keeping_programs():
            try:
                return load_library(self.built.executable)
            except (RuntimeError, OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[-1]
                raise ModelError(
                    f"{self.built.executable}: this library does not load here: {reason}",
                    hint="Compile the model for this machine.",
                ) from error

    def _machine(self) -> Machine:
        # Checked without the lock, which another thread may have held at the fork.
        check_process()
        how: dict[str, Any] = {"capture": self.capture, "has_host_nodes": bool(self.host_nodes)}
        if self._beside is not None:
            first = self._beside._machine()
            with self._lock:
                if self._local is None or not self._local.is_beside(first):
                    self._local = first.beside(self.built.entry, **how)
                return self._local
        with self._lock:
            if self._local is None:
                self._check_device()
                with quiet_stderr():
                    how |= {
                        "kind": self.target.kind,
                        "entry": self.built.entry,
                        "has_images": self.target.limits.prefers_images,
                    }
                    programs = self.target.backend.programs(self._executable, self.device_index)
                    machine = Machine(self._executable, self.device, module_of, programs=programs, **how)
                # Outside of quiet_stderr, because the driver may print warnings.
                try:
                    machine.prepare()
                except DeviceError as error:
                    if (name := self.target.device_name) is None:
                        raise
                    hint = (
                        f"The model is compiled for {name}: run it there, or compile it for the attached device,"
                        f" --target {self.target.kind}."
                    )
                    raise DeviceError(error.message, hint=hint, **error.fields) from error
                self._local = machine
                if self.built.library:
                    # The weights are on the device and in the file. `release` and exports read the file again.
                    self.target.backend.drop_weights(executable_of(self._executable))
            return self._local

    def _check_device(self) -> None:
        """Raise an error if the device is missing. Log a warning if a loaded model was compiled for another one."""
        devices = self.target.backend.list_devices()
        if not exists(self.device):
            raise self.target.backend.no_device_error(self.device_index, devices)
        # A backend on top of another one's runtime may list no devices.
        for facts in devices[self.device_index :][:1]:
            if self.built.library and (missing := self.target.missing_on(facts)):
                text = "no %s is attached: the model was compiled for it and runs on %s, whose times are not its"
                logger.warning(text, missing, facts["name"])

    @property
    def programs(self) -> ProgramReport | None:
        """Sources of the model's compiled programs: the cache or the driver's compiler. None if they are not cached.

        Behind a connection it is None as well.
        """
        return None if self.remote is not None else self._machine().program_report

    @property
    def launching(self) -> str:
        """Launch mode of runs: kernel by kernel with the reason, or captured with the gain.

        It is decided in the second run, or in `times`.
        """
        if self.remote is not None:
            return "kernel by kernel: runs behind a connection are not captured"
        return self._machine().launching

    def _library(self) -> Path:
        """Return the shared library that is sent to a server."""
        if self._beside is not None:
            return self._beside._library()
        if self.built.library:
            return self.built.library
        with self._lock:
            path = self._held().path / self._library_name
            if not path.exists():
                self._export(path)
            return path

    def _held(self) -> HeldFolder:
        """Return the folder of this model's temporary files."""
        if self._folder is None:
            self._folder = HeldFolder("model")
        return self._folder

    def _kernels(self) -> Path:
        """Return a shared library with the model's kernels, and its weights if it was loaded from a file."""
        if self._beside is not None:
            return self._beside._kernels()
        if self.built.library:
            return self.built.library
        with self._lock:
            path = self._held().path / "kernels.so"
            if not path.exists():
                executable = self.built.executable
                imports = list(executable.mod.imports) if hasattr(executable, "mod") else []
                with quiet_stderr():
                    # Weights are constants of the executable, which imports the kernels.
                    export_library(imports[0] if len(imports) == 1 else executable, path, host=self.target.host)
            return path

    def _export(self, path: Path) -> None:
        if self.built.library:
            copy_library(self.built.library, path)
            return
        with quiet_stderr():
            memory = self._summary.memory
            export_library(self._executable, path, host=self.target.host, weight_bytes=memory.weights if memory else 0)

    def release(self) -> None:
        """Release the device: end the session with a remote one, free the memory on a local one.

        The next run acquires it again. Models of one library are released together.
        """
        if self.remote is not None:
            self.remote.release()
        for other in self._others:
            other._local = None
        if self._beside is not None:
            self._beside.release()
        self._timers.close()
        with self._lock:
            self._local = None
            if self.built.library:
                self.__dict__.pop("_executable", None)
        free_idle_memory()

    def forget_runs(self) -> None:
        """Forget the tensors of inputs and outputs. The next run makes others. Weights of other models, too, stay."""
        if self._beside is None:
            self.release()
        self._local = None

    def sources(self) -> dict[str, str]:
        """Return (name of a kernel -> source for the driver's compiler), in the order of the module.

        No device is needed.
        """
        kernels: dict[str, str] = {}
        for module in modules_of(self._executable):
            if module.kind == self.target.backend.tvm_kind:
                kernels.update(self.target.backend.split_kernels(module.inspect_source()))
        return kernels

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Run once, and return the outputs as a list and by name: `outputs[0]`, `outputs["logits"]`.

        Threads may share a model. Their runs take turns.

        Parameters
        ----------
        inputs
            An array or a list for every input, with exactly its shape (see `inputs`), or one with sizes at run time.
            Floats of another size are converted, and integers of another type if they fit.

        Raises
        ------
        UsageError
            An input is missing or unknown, has another shape or dtype, or contradicts the declared shapes (`settled`).
        DeviceError
            The device failed, or cannot be reached.
        """
        arrays, sizes = self._stored(inputs)
        if self.remote is None:
            outputs = self._machine().run(arrays, sizes)
        else:
            outputs = self.remote.run(self._library(), arrays, entry=self.built.entry, sizes=sizes)
        named = zip(self.outputs, outputs, strict=True)
        kinds = self.built.short_outputs
        return Outputs(
            self.outputs, [restored(self._cut(name, array, sizes), kinds.get(name, "")) for name, array in named]
        )

    def _stored(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Return the inputs as the library takes them, and the sizes that it takes at run time."""
        arrays = [stored(array) for array in checked_inputs(inputs, self.inputs)]
        check_settled(self.built.settled, inputs)
        return arrays, ()

    def _cut(self, name: str, array: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        """Return an output of the library as it is with sizes."""
        del name, sizes
        return array

    def signature_for(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of all inputs, if some have these shapes: `inputs`, because the model has one shape.

        Parameters
        ----------
        shapes
            Shape of some inputs by name.
        """
        del shapes
        return self.inputs

    def run_async(self, inputs: Mapping[str, np.ndarray]) -> Future[Outputs]:
        """Start a run and return its future. Runs of a model are made in the order in which they are started.

        `result()` waits for the outputs, `asyncio.wrap_future` makes the future awaitable. The inputs are copied, so
        their arrays may be written at once.

        Parameters
        ----------
        inputs
            As in `run`. Its errors are raised by `result()`.

        Raises
        ------
        UsageError
            The inputs are no mapping.
        """
        instance_of("inputs", inputs, Mapping)
        return self._started.submit(self.run, {name: np.array(array) for name, array in inputs.items()})

    def bind(self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None) -> BoundModel:
        """Return the model with its inputs and outputs in fixed arrays, which are bound once.

        Devices that share the host's memory use them in place. Others copy them in each run, without new memory.

        ```python
        bound = model.bind()
        bound.inputs["input"][:] = pixels
        label = bound.run()["logits"].argmax()
        ```

        Parameters
        ----------
        inputs, outputs
            Name -> NumPy array, or a tensor of the host with `__dlpack__`, of exactly its shape and type. The model
            makes the others, of zeros. It runs on the inputs as they are now, to find where its outputs are stored.
            Arrays that do not begin at a page of memory are copied in each run.

        Raises
        ------
        UsageError
            A name is unknown, an array has another shape or dtype, is not contiguous, read-only or bound twice, or the
            model runs behind a connection.
        DeviceError
            The device failed.
        """
        if self.remote is not None:
            raise UsageError(f"the model runs at {self.remote.address}: arrays are bound to devices of this machine")
        arrays = bound_arrays("input", self.inputs, inputs, self.settled)
        results = bound_arrays("output", {name: self.built.stored_outputs[name] for name in self.outputs}, outputs)
        host = HostMemory(self.target.kind, self.device)
        return BoundModel(self._machine(), host, arrays, results, self.built.settled)

    def time(self, repeat: int = 10, seed: int = 0) -> float:
        """Return the median time of `repeat` runs in milliseconds, on random inputs of `seed` on the device.

        It raises the same errors as `times`.
        """
        return float(np.median(self.times(repeat=repeat, seed=seed)))

    def times(
        self, repeat: int = 10, seed: int = 0, *, clock: Literal["device", "wall"] = "device", capture: bool = True
    ) -> list[float]:
        """Return the times of `repeat` runs in milliseconds after one warm-up, on random inputs on the device.

        Parameters
        ----------
        repeat
            Number of timed runs.
        seed
            Seed of the inputs.
        clock
            "device" sums the times of all kernels, from the device's events. A captured run is timed from its first
            kernel to its last. "wall" is the time until the device is idle, with launches, host code, and the network
            to a remote device. Models with nodes on the host always use it.
        capture
            Whether a captured run may be timed. False launches kernel by kernel.

        Raises
        ------
        UsageError
            `clock` is unknown, or `repeat` is no positive integer.
        DeviceError
            The device failed or cannot be reached, or capturing is required and fails.
        """
        return self._times(repeat, seed, clock, capture)

    def _times(self, repeat: int, seed: int, clock: str, capture: bool, sizes: Sequence[int] = ()) -> list[float]:
        """Return the times of runs. sizes: as in `Machine.run`."""
        repeat = whole_of("repeat", repeat, lowest=1)
        if clock not in ("device", "wall"):
            raise UsageError(f"clock {clock!r}: expected 'device' or 'wall'")
        arrays = [stored(array) for array in random_inputs(self.inputs, whole_of("seed", seed)).values()]
        if self.remote is not None:
            how: dict[str, Any] = {"entry": self.built.entry, "sizes": sizes}
            return self.remote.times(self._library(), arrays, repeat, is_wall=clock == "wall", **how)
        return self._machine().times(arrays, repeat, is_wall=clock == "wall", is_captured=capture, sizes=sizes)

    def profile(self, inputs: Mapping[str, np.ndarray] | None = None, *, repeat: int = 10, seed: int = 0) -> Profile:
        """Return the time of each call of a run, with the names of its ONNX nodes.

        Parameters
        ----------
        inputs
            As in `run`. None: random ones of `seed`.
        repeat
            Number of times that each kernel is timed.

        Raises
        ------
        UsageError
            A wrong argument, or the model has sizes at run time and runs behind a connection.
        DeviceError
            The device failed, or cannot be reached.
        """
        repeat = whole_of("repeat", repeat, lowest=1)
        given = random_inputs(self.inputs, whole_of("seed", seed)) | self.settled if inputs is None else inputs
        arrays, sizes = self._stored(given)
        if self.remote is not None:
            if sizes:
                raise UsageError("calls of a model with a size at run time are not timed behind a connection")
            library = self._library()
            device, profiled = self.remote.profile(library, arrays, repeat, entry=self.built.entry)
            whole = self.remote.times(library, arrays, repeat, entry=self.built.entry)
        else:
            machine = self._machine()
            profiled = machine.profile(arrays, repeat, sizes)
            device = str(self.target.backend.facts(self.device_index)["name"])
            whole = machine.times(arrays, repeat, sizes=sizes)
        calls = named_calls(profiled, self._summary.calls, [row.nodes for row in self._summary.host])
        return Profile.of(device, tuple(calls), float(np.median(whole)))

    def host_times(self, repeat: int = 3) -> tuple[HostRow, ...]:
        """Return the host nodes, each group with its mean time over `repeat` runs and a warm-up, on random inputs."""
        LEDGER.seconds.clear()
        if self.host_nodes:
            self.times(repeat=repeat, clock="wall")
        return tuple(
            dataclasses.replace(row, ms=1e3 * LEDGER.seconds[row.nodes] / (repeat + 1)) for row in self._summary.host
        )

    def operator_timer(
        self, function: str, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]
    ) -> Callable[[int, int], list[float]]:
        """Return a timer of one function: (launches per repeat, repeats) -> mean milliseconds of a launch per repeat.

        Parameters
        ----------
        function
            Name of a function in the compiled module.
        arguments, arrays
            Its parameters and their contents. They are copied to the device now, into tensors that live as long as the
            timer. Behind a connection, every call of the timer copies them again.

        Raises
        ------
        UsageError
            The model has no such function. Behind a connection, the timer raises it.
        DeviceError
            The device failed. A kernel on this machine may have ended the process that times it.
        """
        scopes = [argument.scope for argument in arguments]
        if self.remote is None:
            return self._timers.timer(self._kernels, function, scopes, arrays)
        remote, library = self.remote, self._library()
        return lambda number, repeat: remote.operator_times(library, function, scopes, arrays, number, repeat)

    def save(self, path: str | Path) -> Path:
        """Write the model to the folder `path`: a shared library and its manifest. An earlier model is replaced.

        Loading the folder runs the library's code. A loaded model is copied from its folder. Host functions before code
        generation are kept beside the library, so that a saved model can be exported for any host.

        Raises
        ------
        UsageError
            `path` exists and is no saved model, or cannot be written. Its earlier contents stay.
        BuildError
            The library cannot be linked.
        """
        path = path_of("path", path)
        with replacing(path, marker=META, what="a saved model") as fresh:
            # Each save has a new file name, because a process that has loaded the old file would get it again.
            library = library_name()
            self._export(fresh / library)
            if self.target.backend.is_served or not self.target.backend.has_kernels:
                self._write_host_code(fresh / HOST_CODE)
            self._write_beside(fresh)
            write_manifest(fresh, {**self._meta(), "library": library})
        return path

    def export_android(
        self,
        folder: str | Path,
        *,
        others: Sequence[TunedModel] = (),
        host: str = "aarch64-linux-android",
        project: str | Path | None = None,
        runtime: str | Path | None = None,
    ) -> Path:
        """Write the model as files that apps run through `romou.h`, without Romou and Python.

        They need the runtime that `romou phone build` builds.

        - model.json: inputs, outputs, devices, and a checksum of every file
        - DEVICE/model.so: kernels and host code
        - DEVICE/weights.bin: the graph and its weights
        - run_model.py: a sample that runs a phone from here, over RPC. Not of a language model's decoder

        Parameters
        ----------
        folder
            A new folder, or an earlier export, which is replaced.
        others
            The same ONNX model tuned for other devices. An app takes the one that suits its device best, by the name
            that the driver gives it. One for "null" is plain code for the processor, for phones without a driver.
        host
            LLVM triple of the machine that runs it: "aarch64-linux-gnu" for arm64 Linux, "x86_64-linux-gnu".
        project
            Folder for an Android project: a library with a Kotlin class, the runtime and the model, and an app that
            classifies a picture. An earlier one is replaced.
        runtime
            Folder of `romou phone build`, for the project.

        Raises
        ------
        UsageError
            A wrong argument, no phone has devices of the target's kind, `folder`, `project` or `runtime` holds
            something else, or `others` are different models or for the same device.
        ModelError
            The model was loaded from a folder that is gone or damaged. Or some of its nodes run on the host.
        BuildError
            There is no compiler for `host` (ANDROID_NDK_HOME names the NDK), or it fails.
        """
        folder = path_of("folder", folder)
        HOST.checked(host)
        models = [self, *others]
        for model in models:
            instance_of("others", model, TunedModel)
            model._check_exportable()
            check_exportable(model.target, folder, host)
        runtime = None if runtime is None else path_of("runtime", runtime)
        if project is not None:
            check_project(path_of("project", project), host, runtime)
        export_models([model._variant(host) for model in models], folder, host)
        if project is not None and runtime is not None:
            write_project(path_of("project", project), folder, runtime)
        return folder

    def _check_exportable(self) -> None:
        if self._beside is not None or self._others:
            raise UsageError("one shape of a model of several cannot be exported", hint="Export the whole model.")
        self._refuse_host_nodes("the model cannot be exported")

    def _variant(self, host: str) -> Variant:
        """Return the model with host code for the triple `host`."""
        from romou.compiler.assembly.build import host_library  # the compiler

        target = Target({"kind": self.target.kind, **{n: v for n, v in self.target.options.items() if n != "host"}})
        target = target if is_here(host) else Target(target, host=host)
        kind = self.target.backend.tvm_kind if self.target.backend.has_kernels else None
        self.target.backend.prepare_to_load()
        with quiet_stderr():
            if self.built.library:
                host_code = read_host_code(self.built.library.with_name(HOST_CODE))
                modules = packed_modules(self.built.library)
            else:
                assert self.built.host_code is not None
                host_code, modules = self.built.host_code, list(modules_of(self.built.executable))
            library = host_library(host_code, target, [module for module in modules if module.kind == kind])
        return Variant(
            target=target,
            program=next(module for module in modules if module.kind == "relax.VMExecutable"),
            kernels=library,
            inputs=self.inputs,
            outputs=self.built.stored_outputs,
            values=self.settled,
        )

    def _shape_entry(self) -> ShapeEntry:
        """Return the function of the library that computes the model, for an export of several shapes."""
        return ShapeEntry(entry=self.built.entry, inputs=self.inputs, outputs=self.built.stored_outputs)

    def _write_beside(self, folder: Path) -> None:
        """Write further files of a saved model."""

    def _write_host_code(self, path: Path) -> None:
        if self.built.host_code is not None:
            write_host_code(self.built.host_code, path)
        elif self.built.library and self.built.library.with_name(HOST_CODE).exists():
            shutil.copyfile(self.built.library.with_name(HOST_CODE), path)

    def _meta(self) -> dict[str, Any]:
        return {**self.built.to_dict(), "summary": self._summary.to_dict()}
