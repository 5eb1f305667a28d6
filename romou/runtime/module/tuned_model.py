"""A compiled model that runs: in the process that tuned it, or loaded from its folder in another."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from romou.base.arguments import path_of, whole_of
from romou.base.errors import DeviceError, ModelError, UsageError
from romou.base.folders import HeldFolder, replacing
from romou.base.inputs import checked_inputs, random_inputs
from romou.base.linking import export_library, is_here
from romou.compiler.frontend.declared import Settled, check_settled
from romou.devices.backends.base import HOST
from romou.devices.backends.programs import ProgramReport
from romou.devices.targets import Target
from romou.runtime.deploy import export_model
from romou.runtime.module.host_nodes import LEDGER
from romou.runtime.module.library import copy_library, executable_of, library_name, module_of, modules_of
from romou.runtime.module.machine import Machine, check_process, free_idle_memory
from romou.runtime.module.manifest import META, write_manifest
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.module.summary import HostRow, Summary
from tvm_patches.libraries import load_library
from tvm_patches.quiet import quiet_stderr


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """A tensor that a function of a model takes: shape, dtype, and the memory scope, "global" or that of an image."""

    shape: tuple[int, ...]
    dtype: str
    scope: str


class TunedModel:
    """A model compiled for a target, with the record of how it was tuned.

    `romou.tune`, `romou.compile` and `romou.load` make one.

    Parameters
    ----------
    executable
        What was compiled, or the shared library that it was saved as.
    target
        What it was compiled for.
    inputs
        Name -> (shape, numpy dtype name), in call order.
    outputs
        Names, in the order of `run`.
    summary
        How it was tuned.
    device_index
        Number of the device of this machine that it runs on.
    remote
        Where it runs, if not on this machine.
    rebuild
        Compiles it again, with host code for an LLVM triple.
    capture
        Whether a run is captured once and started as a whole from then on (an OpenCL command buffer, a CUDA graph).
        None: where that is no slower. Behind a connection it is not done.
    settled
        Inputs that each run is checked for, because the shapes that the model declares decide them.
    """

    def __init__(
        self,
        executable: relax.VMExecutable | tvm.runtime.Module | Path,
        *,
        target: Target,
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        outputs: tuple[str, ...],
        summary: Summary,
        device_index: int = 0,
        remote: RemoteDevice | None = None,
        rebuild: Callable[[str], relax.VMExecutable] | None = None,
        capture: bool | None = None,
        settled: Sequence[Settled] = (),
    ):
        self._given = executable
        self.target = target
        self.inputs = dict(inputs)
        self.outputs = tuple(outputs)
        self.device_index = device_index
        self._summary = summary
        self.remote = remote
        self._rebuild = rebuild
        self.capture = capture
        self._settled = tuple(settled)
        self._local: Machine | None = None
        # Threads that run a model for the first time load it, and link what is sent to a server, once.
        self._lock = threading.Lock()
        self._folder: HeldFolder | None = None
        if remote is not None:
            self._refuse_host_nodes(f"the model cannot run at {remote.address}")

    @property
    def host_nodes(self) -> tuple[str, ...]:
        """Nodes that run on the host, by onnxruntime, between kernels: operator and name of each."""
        return tuple(name for row in self._summary.host for name in row.nodes)

    @property
    def settled(self) -> dict[str, np.ndarray]:
        """Inputs whose value the shapes decide that the model declares, with that value: the shape of a Reshape, say."""  # noqa: E501
        return {one.name: one.array for one in self._settled}

    def _refuse_host_nodes(self, what: str) -> None:
        if self.host_nodes:
            nodes = ", ".join(self.host_nodes)
            raise ModelError(
                f"{what}: there are no kernels for {nodes}, which would run on this machine, by onnxruntime",
                nodes=self.host_nodes,
            )

    def summary(self) -> Summary:
        """What tuning brought, layer by layer."""
        return self._summary

    def with_summary(self, summary: Summary) -> TunedModel:
        """Replace the summary by `summary`; returns the model itself."""
        self._summary = summary
        return self

    def moved(self, device_index: int = 0, remote: RemoteDevice | None = None) -> TunedModel:
        """Return the model for device number `device_index` of this machine, or for `remote`."""
        if (device_index, remote) == (self.device_index, self.remote):
            return self
        return TunedModel(
            self._given,
            target=self.target,
            inputs=self.inputs,
            outputs=self.outputs,
            summary=self._summary,
            device_index=device_index,
            remote=remote,
            rebuild=self._rebuild,
            capture=self.capture,
            settled=self._settled,
        )

    @property
    def device(self) -> tvm.runtime.Device:
        """The device of this machine that the model runs on.

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
        if not isinstance(self._given, Path):
            return self._given
        self.target.backend.prepare_to_load()
        with quiet_stderr(), self.target.backend.keeping_programs():
            try:
                return load_library(self._given)
            except (RuntimeError, OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[-1]
                raise ModelError(
                    f"{self._given}: this library does not load here: {reason}",
                    hint="Compile the model for this machine.",
                ) from error

    def _machine(self) -> Machine:
        # Before the lock, which another thread may have held at the fork.
        check_process()
        with self._lock:
            if self._local is None:
                if not self.device.exist:
                    where = f"{self.target.kind}:{self.device_index}"
                    raise DeviceError(
                        f"{where} is not there, so the model cannot run", hint="`romou doctor` says what is missing."
                    )
                with quiet_stderr():
                    how: dict[str, Any] = {
                        "kind": self.target.kind,
                        "capture": self.capture,
                        "has_host_nodes": bool(self.host_nodes),
                    }
                    programs = self.target.backend.programs(self._executable, self.device_index)
                    machine = Machine(self._executable, self.device, module_of, programs=programs, **how)
                # It may have something to tell.
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
                if isinstance(self._given, Path):
                    # The device has them, and the file: `release` and whoever links the library read it again.
                    self.target.backend.drop_weights(executable_of(self._executable))
            return self._local

    @property
    def programs(self) -> ProgramReport | None:
        """Where the model's compiled programs came from: the cache or the driver's compiler. None behind a connection,
        and where no cache is kept.
        """
        return None if self.remote is not None else self._machine().program_report

    @property
    def launching(self) -> str:
        """How runs are launched: kernel by kernel, and why, or captured, and what that brings. Known after the second
        run, or after `times`.
        """
        if self.remote is not None:
            return "kernel by kernel: runs behind a connection are not captured"
        return self._machine().launching

    def _library(self) -> Path:
        """The shared library that is sent to a server."""
        if isinstance(self._given, Path):
            return self._given
        with self._lock:
            if self._folder is None:
                self._folder = HeldFolder("model")
                self._export(self._folder.path / library_name())
            return next(self._folder.path.iterdir())

    def _export(self, path: Path) -> None:
        if isinstance(self._given, Path):
            copy_library(self._given, path)
            return
        with quiet_stderr():
            memory = self._summary.memory
            export_library(self._executable, path, host=self.target.host, weight_bytes=memory.weights if memory else 0)

    def release(self) -> None:
        """Let go of the device: of one behind a connection, so that others get it; of the memory on one here. The next
        run takes it anew.
        """
        if self.remote is not None:
            self.remote.release()
        with self._lock:
            self._local = None
            if isinstance(self._given, Path):
                self.__dict__.pop("_executable", None)
        free_idle_memory()

    def sources(self) -> dict[str, str]:
        """Name of a kernel
        ->  its source, ready for the driver's compiler; in the order of the module. No device is needed.
        """
        found: dict[str, str] = {}
        for module in modules_of(self._executable):
            if module.kind == self.target.backend.tvm_kind:
                found.update(self.target.backend.split_kernels(module.inspect_source()))
        return found

    def run(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Run once; the outputs as a list, and by name: `outputs[0]`, `outputs["logits"]`. Threads may share a model;
        their runs take turns.

        Parameters
        ----------
        inputs
            An array for every input, of exactly its shape and dtype (`inputs` of the model says which).

        Raises
        ------
        UsageError
            If an input is missing, unknown, or of another shape or dtype, or contradicts the shapes that the model
            declares (`settled`).
        DeviceError
            The device failed, or cannot be reached.
        """
        arrays = checked_inputs(inputs, self.inputs)
        check_settled(self._settled, inputs)
        return Outputs(
            self.outputs,
            self._machine().run(arrays) if self.remote is None else self.remote.run(self._library(), arrays),
        )

    def time(self, repeat: int = 10, seed: int = 0) -> float:
        """Median time of `repeat` runs in milliseconds, on random inputs of `seed` that already lie on the device;
        errors as of `times`.
        """
        return float(np.median(self.times(repeat=repeat, seed=seed)))

    def times(self, repeat: int = 10, seed: int = 0, *, clock: str = "device", capture: bool = True) -> list[float]:
        """Times of `repeat` runs in milliseconds, after one warm-up, on random inputs that already lie on the device.

        Parameters
        ----------
        repeat
            Number of timed runs.
        seed
            Seed of the inputs.
        clock
            "device" adds up the time of all kernels, from the device's events; a captured run is timed from its first
            kernel to its last. "wall" is the time until the device is idle again, launches and host code included, and
            the network where the device is behind a connection. Models with nodes on the host are always timed by it.
        capture
            False launches kernel by kernel, whatever `run` does.

        Raises
        ------
        UsageError
            Another `clock`, or no whole number of runs.
        DeviceError
            The device failed, or cannot be reached; or the run has to be captured and cannot be.
        """
        repeat = whole_of("repeat", repeat, lowest=1)
        if clock not in ("device", "wall"):
            raise UsageError(f"clock {clock!r}: expected 'device' or 'wall'")
        arrays = list(random_inputs(self.inputs, whole_of("seed", seed)).values())
        if self.remote is not None:
            return self.remote.times(self._library(), arrays, repeat, is_wall=clock == "wall")
        return self._machine().times(arrays, repeat, is_wall=clock == "wall", is_captured=capture)

    def host_times(self, repeat: int = 3) -> tuple[HostRow, ...]:
        """The host nodes, each group with its mean time of `repeat` runs and a warm-up, on random inputs."""
        LEDGER.seconds.clear()
        if self.host_nodes:
            self.times(repeat=repeat, clock="wall")
        return tuple(
            dataclasses.replace(row, ms=1e3 * LEDGER.seconds[row.nodes] / (repeat + 1)) for row in self._summary.host
        )

    def operator_timer(
        self, function: str, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]
    ) -> Callable[[int, int], list[float]]:
        """Return a timer of one function of the model, alone: (launches of a repeat, repeats) -> milliseconds of a launch, a mean for each repeat.

        Parameters
        ----------
        function
            Name of a function in the compiled module.
        arguments, arrays
            All of its parameters and what they hold; copied to the device now, into tensors that live as long as the
            timer. Behind a
            connection: with every call of the timer, into new ones.

        Raises
        ------
        UsageError
            The model has no such function; behind a connection, the timer raises it.
        """  # noqa: E501
        scopes = [argument.scope for argument in arguments]
        if self.remote is None:
            return self._machine().timer(function, scopes, arrays)
        remote, library = self.remote, self._library()
        return lambda number, repeat: remote.operator_times(library, function, scopes, arrays, number, repeat)

    def save(self, path: str | Path) -> Path:
        """Write the model to the folder `path`: a shared library and its description. An earlier model there is
        replaced.

        Who loads the folder runs the library's code. What was loaded is copied from where it was loaded.

        Raises
        ------
        UsageError
            `path` exists and is no saved model, or cannot be written: no permission, no space; what was there is as it
            was.
        BuildError
            The library cannot be linked.
        """
        path = path_of("path", path)
        with replacing(path, marker=META, what="a saved model") as fresh:
            # A name of its own for each save: a process that has the old file loaded would get that again under the
            # same name.
            library = library_name()
            self._export(fresh / library)
            write_manifest(fresh, {**self._meta(), "library": library})
        return path

    def export_android(
        self, folder: str | Path, *, host: str = "aarch64-linux-android", runtime: str | Path | None = None
    ) -> Path:
        """Write the model as files that run on a phone without Romou and Python, with the runtime that
        `scripts/build_phone_runtime.sh` makes.

        model.so: kernels and host code.   weights.bin: the graph and its weights.   model.json: inputs and outputs.   run_model.cc, run_model.py:
        samples, one that runs on the phone and one that runs the phone over RPC; both print what loading, the first run
        (the driver compiles the
        kernels), copies and a run cost.   run_model: the former, compiled, if `runtime` is given.

        Parameters
        ----------
        folder
            New, or an earlier export, which is replaced.
        host
            LLVM triple of the machine that is to run it: "aarch64-linux-gnu" for arm64 Linux, "x86_64-linux-gnu".
        runtime
            The folder that was, or will be, pushed: its libraries are linked to.

        Raises
        ------
        UsageError
            A wrong argument; no phone has devices of the target's kind; the model was loaded from a folder and compiled
            for another host, or `folder` or `runtime` holds something else.
        BuildError
            There is no compiler for `host` (ANDROID_NDK_HOME names the NDK), or it fails.
        """  # noqa: E501
        folder = path_of("folder", folder)
        HOST.checked(host)
        self._refuse_host_nodes("the model cannot be exported")
        own = self.target.host
        is_same = own == host or (is_here(own) and is_here(host))
        if is_same and isinstance(self._executable, relax.VMExecutable):
            executable = self._executable
        elif self._rebuild is not None:
            executable = self._rebuild(host)
        else:
            raise UsageError(
                "a model that was saved and loaded cannot be exported: what it was compiled from is not kept",
                hint=(
                    "Call export_android on what romou.tune or romou.compile returns; with the same work_dir nothing is"
                    " measured again."
                ),
            )
        place = None if is_here(host) else host
        runtime = None if runtime is None else path_of("runtime", runtime)
        return export_model(
            executable,
            folder,
            kind=self.target.kind,
            host=place,
            inputs=self.inputs,
            outputs=self.outputs,
            runtime=runtime,
        )

    def _meta(self) -> dict[str, Any]:
        return {
            "target": self.target.to_json(),
            "inputs": {n: [list(s), d] for n, (s, d) in self.inputs.items()},
            "outputs": list(self.outputs),
            "summary": self._summary.to_dict(),
            "settled": [one.to_dict() for one in self._settled],
        }
