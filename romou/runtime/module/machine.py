"""The virtual machine of a model on a device, with the same methods for local and for remote devices."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.device_lock import alone_on
from romou.base.errors import DeviceError, UsageError, first_line
from romou.devices.backends import backend
from romou.devices.backends.base import CapturedRun
from romou.devices.backends.launch import SEPARATORS
from romou.devices.backends.launch_times import launch_times
from romou.devices.backends.programs import ProgramReport, Programs
from romou.runtime.module.compile_job import compile_apart
from romou.runtime.module.host_memory import Placement
from romou.runtime.module.host_nodes import LEDGER
from tvm_patches import runtime
from tvm_patches.host_nodes import FUNCTION as HOST_NODES

MAIN = "main"
# Process that first opened a device for a model, or None.
_user_of_devices: int | None = None
# Timed pairs of runs that decide whether capturing pays.
_PAIRS = 3
# Launches of a profiled kernel if a single launch would measure the host.
_PROFILED = 20


def check_process() -> None:
    """Raise DeviceError if this process was forked from one that had used a device.

    Drivers have threads that a fork does not copy, and would wait for them forever.
    """
    if _user_of_devices not in (None, os.getpid()):
        raise DeviceError(
            f"this process was forked from process {_user_of_devices}, which had used a device; the driver does not"
            " work here, a run would never end",
            hint=(
                "Start processes by spawn (multiprocessing.get_context('spawn')), or fork before a model runs;"
                " romou.compile runs it, unless verify=False."
            ),
        )


def free_idle_memory() -> None:
    """Return the memory of deleted models to the drivers. A pool keeps it for the next run of the same model."""
    runtime.global_function("vm.builtin.memory_manager.clear")()


class Machine:
    """A loaded model on a device, which runs and times it.

    library: TVM's executable or module, or a module behind a connection.
    device: the device that holds the model.
    module_of: (library, name) -> the module of the library that has the compiled function `name`, or None.
    kind: device kind of the target. None for a device behind a connection, where runs are not captured.
    capture: see `TunedModel.capture`.
    has_host_nodes: whether nodes run on the host between kernels. If so, runs are not captured.
    has_images: whether tensors may be in images.
    programs: programs of the library. None if they are compiled at their first launch.
    entry: the function that computes the model. Others of the same library are machines `beside` this one.
    """

    def __init__(
        self,
        library: Any,
        device: Any,
        module_of: Callable[[Any, str], Any],
        *,
        entry: str = MAIN,
        kind: str | None = None,
        capture: bool | None = None,
        has_host_nodes: bool = False,
        has_images: bool = False,
        programs: Programs | None = None,
    ) -> None:
        global _user_of_devices
        check_process()
        _user_of_devices = os.getpid()
        free_idle_memory()
        self._library = library
        self._device = device
        self._module_of = module_of
        self._vm = runtime.virtual_machine(library, device, 1 + len(SEPARATORS))
        # TVM's get_outputs leaves a reference cycle, which would keep machine and library until a garbage collection.
        self._arity_of, self._output_of = self._vm["get_output_arity"], self._vm["get_output"]
        self._set_inputs = self._vm["set_input"]
        # Runs share one virtual machine and the tensors of inputs and outputs, so only one thread runs at a time.
        self._lock = threading.Lock()
        self._is_here = kind is not None
        self._kind = kind
        self._programs = programs
        # The entry that ran last, of all machines that share the virtual machine.
        self._last_run = [entry]
        self._has_images = has_images
        self._begin(entry, capture, has_host_nodes)

    def _begin(self, entry: str, capture: bool | None, has_host_nodes: bool) -> None:
        """Set what belongs to one entry of the library."""
        self._entry = entry
        self._inputs: list[Any] = []
        self._shared: dict[int, Any] = {}
        self._has_run = False
        self._sizes: Sequence[int] = ()
        self._result: Any = None
        self._placing: Placement | None = None
        self._wish = capture
        self._captured: CapturedRun | None = None
        self._outputs: list[Any] = []
        self._is_required = capture is True
        self._is_open = capture is not False and self._kind is not None
        self.launching = (
            "kernel by kernel" if capture is False else "kernel by kernel: runs behind a connection are not captured"
        )
        self._has_host_nodes = has_host_nodes
        if self._is_open and has_host_nodes:
            self._is_open = False
            self.launching = "kernel by kernel: nodes run on the host between kernels"
        if self._is_open:
            self.launching = "kernel by kernel so far: the second run is captured"

    def beside(self, entry: str, *, capture: bool | None = None, has_host_nodes: bool = False) -> Machine:
        """Return a machine for another entry of the library. Both use the same weights, and their runs take turns."""
        other = copy.copy(self)
        other._begin(entry, capture, has_host_nodes)
        return other

    def bound(self, inputs: Sequence[Any], placing: Placement) -> Machine:
        """Return a machine whose runs read these tensors, and launch kernels within `placing`."""
        other = copy.copy(self)
        other._begin(self._entry, self._wish, self._has_host_nodes)
        other._inputs, other._placing = list(inputs), placing
        return other

    def run_bound(self) -> list[Any]:
        """Run, wait for the device, and return the tensors of the outputs. The next run may overwrite them."""
        with self._lock, self._driver():
            self._result = None
            captured = self._captured_run() if self._has_run else None
            if captured is not None:
                captured.launch()
            outputs = self._invoke() if captured is None else self._outputs
            runtime.synchronize(self._device)
            self._keep_programs()
            return outputs

    def is_beside(self, other: Machine) -> bool:
        """Return whether both machines use the same weights on the device."""
        return self._vm is other._vm

    def prepare(self) -> None:
        """Compile or load all programs before the first run. Raise DeviceError if the driver refuses one."""
        if self._programs is not None:
            apart = None if self._kind is None else functools.partial(compile_apart, self._kind)
            with self._lock, self._driver():
                self._programs.prepare(apart)

    @property
    def program_report(self) -> ProgramReport | None:
        """See `TunedModel.programs`."""
        return None if self._programs is None else self._programs.report

    def run(self, inputs: Sequence[np.ndarray], sizes: Sequence[int] = ()) -> list[np.ndarray]:
        """Return the outputs for inputs in call order. Raise DeviceError if the driver fails.

        sizes: the sizes that the library takes at run time.
        """
        with self._lock, self._driver():
            self._sizes = sizes
            # The first run is not captured: some drivers compile kernels in it, and many processes end after it.
            captured = self._captured_run() if self._has_run else None
            self._set(inputs)
            if captured is None:
                outputs = [runtime.read(o) for o in self._invoke()]
                self._keep_programs()
                return outputs
            captured.launch()
            return [runtime.read(o) for o in self._outputs]

    def share(self, tensors: Mapping[int, Any]) -> None:
        """Read inputs from these tensors on the device, by position. No run may have been made before."""
        assert not self._inputs, "a captured run reads the tensors of the first run"
        self._shared = dict(tensors)

    def input_tensor(self, position: int) -> Any:
        """Return the tensor on the device that holds an input."""
        return self._inputs[position]

    def step(
        self, inputs: Sequence[np.ndarray | None], kept: Mapping[int, int], wanted: Sequence[int]
    ) -> list[np.ndarray]:
        """Run, keep some outputs on the device as inputs of the next run, and return others.

        inputs: None for an input that stays as it is.
        kept: position of an output -> position of the input that it becomes.
        wanted: positions of the outputs to return.
        """
        with self._lock, self._driver():
            # First, because capturing runs the model, which may update its inputs in place.
            self._set(inputs)
            captured = self._captured_run() if self._has_run else None
            if captured is None:
                outputs = self._invoke()
                self._keep_programs()
            else:
                captured.launch()
                outputs = self._outputs
            for output, position in kept.items():
                # A kernel that updates its input in place leaves nothing to copy.
                if outputs[output].data_ptr() != self._inputs[position].data_ptr():
                    runtime.write(self._inputs[position], outputs[output])
            return [runtime.read(outputs[position]) for position in wanted]

    def times(
        self,
        inputs: Sequence[np.ndarray],
        repeat: int,
        *,
        is_wall: bool = False,
        is_captured: bool = True,
        sizes: Sequence[int] = (),
    ) -> list[float]:
        """Return milliseconds of `repeat` runs after one warm-up. See `TunedModel.times`. sizes: as in `run`."""
        with self._lock, self._driver(), self._alone():
            self._sizes = sizes
            self._set(inputs)
            self._launch()
            captured = self._captured_run() if is_captured else None
            launch = self._launch if captured is None else captured.launch
            runtime.synchronize(self._device)
            self._keep_programs()
            if is_wall or self._has_host_nodes:
                return [self._wall_ms(launch) for _ in range(repeat)]
            if captured is not None:
                captured.launch()
                return [captured.time_ms() for _ in range(repeat)]
            is_direct = self._is_direct
            function, arguments = (self._entry, self._arguments()) if is_direct else ("invoke_stateful", [self._entry])
            return [1e3 * t for t in runtime.timed(self._vm, function, self._device, arguments, repeat=repeat)]

    def profile(
        self, inputs: Sequence[np.ndarray], repeat: int, sizes: Sequence[int] = ()
    ) -> list[tuple[str, list[float]]]:
        """Return the calls of a run in order: the function, "" for nodes on the host, and `repeat` times in ms.

        Each kernel is timed by the device's clock at its place in the run, on the tensors of the run.
        """
        calls: list[tuple[str, list[float]]] = []
        number = _PROFILED if self._kind is not None and backend(self._kind).is_launch_bound else 1
        started = 0.0

        def instrument(_function: Any, name: str, is_before: bool, _result: Any, *arguments: Any) -> int:
            nonlocal started
            if name == HOST_NODES:
                runtime.synchronize(self._device)
                if is_before:
                    started = time.perf_counter()
                else:
                    calls.append(("", [1e3 * (time.perf_counter() - started)]))
            elif is_before and (module := self._module_of(self._library, name)) is not None:
                calls.append((name, self._launch_times(module, name, arguments, number, repeat)))
            return 0

        with self._lock, self._driver(), self._alone():
            self._sizes = sizes
            self._set(inputs)
            self._launch()
            self._vm["set_instrument"](instrument)
            try:
                self._launch()
            finally:
                self._vm["set_instrument"](lambda *_: 0)
        return calls

    def profile_there(
        self, profile: Callable[..., Any], inputs: Sequence[np.ndarray], repeat: int
    ) -> list[tuple[str, list[float]]]:
        """Return the calls as `profile` does, behind a connection.

        profile: the server's function `romou.rpc.profile`.
        """
        with self._lock:
            self._set(inputs)
            self._launch()
            place = runtime.type_there(self._device), self._device.index
            calls = profile(self._vm, self._library, self._entry, *place, repeat)
        return [(name, [1e3 * seconds for seconds in times]) for name, times in json.loads(str(calls))]

    @contextlib.contextmanager
    def _driver(self) -> Iterator[None]:
        """Turn errors of this machine's driver into DeviceError. A connection converts errors of its server."""
        try:
            yield
        except RuntimeError as error:
            # TVM's errors are subclasses of RuntimeError.
            if not self._is_here or type(error) is not RuntimeError:
                raise
            raise DeviceError(
                f"the device failed: {str(error).strip()[:800]}",
                hint="If it goes on failing, `romou doctor` says whether it works.",
            ) from error

    def timer(
        self, function: str, scopes: Sequence[str], arrays: Sequence[np.ndarray]
    ) -> Callable[[int, int], list[float]]:
        """Return a timer, see `TunedModel.operator_timer`. scopes: memory scopes of the parameters."""
        module = self._module_of(self._library, function)
        if module is None:
            raise UsageError(f"the model has no function {function!r}", function=function)
        tensors = [
            runtime.device_tensor(array, self._device, scope) for array, scope in zip(arrays, scopes, strict=True)
        ]

        def times(number: int, repeat: int) -> list[float]:
            check_process()
            with self._alone():
                return self._launch_times(module, function, tensors, number, repeat)

        return times

    def _launch_times(
        self, module: Any, function: str, tensors: Sequence[Any], number: int, repeat: int
    ) -> list[float]:
        """Return milliseconds of a launch, see `launch_times`."""
        here = None if self._kind is None else backend(self._kind)
        times = launch_times(here, module, function, self._device, tensors, number=number, repeat=repeat)
        return [1e3 * seconds for seconds in times]

    @functools.cached_property
    def _hardware(self) -> tuple[str, str]:
        """Name and identity of the device."""
        assert self._kind is not None
        facts = backend(self._kind).facts(self._device.index)
        return facts["name"], backend(self._kind).identity(facts)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this user from timing on the device, and hold its clocks, during a block.

        Nothing is needed behind a connection, because a server has one session at a time.
        """
        if self._kind is None:
            yield
            return
        with alone_on(*self._hardware):
            backend(self._kind).hold_clocks(self._device.index)
            yield

    def _set(self, inputs: Sequence[np.ndarray | None]) -> None:
        """Copy the inputs into tensors that stay the same, because a captured run reads these tensors.

        Behind a connection, the server's machine copies them again. None: the tensor keeps what it has.
        """
        if self._last_run[0] != self._entry:
            self._last_run[0] = self._entry
            if self._has_images:
                # Images of one entry rarely have the sizes of another one's, so the pool would keep both.
                free_idle_memory()
        # np.ascontiguousarray would give a scalar an axis.
        arrays: list[Any] = [None if a is None else np.asarray(a, order="C") for a in inputs]
        if self._inputs and self._is_here:
            for tensor, array in zip(self._inputs, arrays, strict=True):
                if array is not None:
                    runtime.write(tensor, array)
            return
        self._inputs = [
            self._shared[i] if i in self._shared else runtime.device_tensor(array, self._device)
            for i, array in enumerate(arrays)
        ]
        if not self._is_direct:
            # Only the stateful calls can take tuples over a connection. TVM's wrapper makes tensors of numbers.
            self._set_inputs(self._entry, *self._inputs, *map(int, self._sizes))

    def _arguments(self) -> list[Any]:
        return [*self._inputs, *self._sizes]

    @property
    def _is_direct(self) -> bool:
        """Whether runs are direct calls. All machines of an entry share the inputs of stateful calls."""
        return (bool(self._sizes) and self._is_here) or self._placing is not None

    def _launch(self) -> None:
        """Run kernel by kernel. Raise DeviceError if a node on the host fails."""
        LEDGER.failure = None
        try:
            if self._is_direct:
                with self._placing or contextlib.nullcontext():
                    self._result = self._vm[self._entry](*self._arguments())
            else:
                self._vm["invoke_stateful"](self._entry)
        except Exception:
            if LEDGER.failure is not None:
                raise LEDGER.failure from None
            raise
        self._has_run = True

    def _keep_programs(self) -> None:
        if self._programs is not None:
            self._programs.keep()

    def _invoke(self) -> list[Any]:
        """Launch kernel by kernel, and return the outputs as new tensors."""
        self._launch()
        if self._is_direct:
            return [self._result] if hasattr(self._result, "numpy") else list(self._result)
        arity = int(self._arity_of(self._entry))
        fields = [()] if arity < 0 else [(field,) for field in range(arity)]
        return [self._output_of(self._entry, *field) for field in fields]

    def _captured_run(self) -> CapturedRun | None:
        """Return the captured run if its outputs are the same and it is not slower, or None.

        The first call captures the run and records the result in `launching`. Raise DeviceError if capturing is
        required and fails.
        """
        if not self._is_open:
            return self._captured
        try:
            with self._alone():
                self._captured, self.launching = self._capture()
            self._is_open = False
        except (DeviceError, RuntimeError) as error:
            self._is_open = self._is_required
            self._outputs = []
            reason = first_line(error)
            if self._is_required:
                raise DeviceError(f"the run cannot be captured on {self._kind}: {reason}", reason=reason) from error
            self.launching = f"kernel by kernel: {reason}"
        return self._captured

    def _capture(self) -> tuple[CapturedRun | None, str]:
        """Return a captured run with the outputs of the plain run, or None if the plain run is faster.

        The second result describes how the model is launched.
        """
        assert self._kind is not None
        plain = self._invoke()
        expected = [runtime.read(o) for o in plain]
        captured = backend(self._kind).record(self._device, self._vm, lambda: self._outputs.extend(self._invoke()))
        _invert(self._outputs, plain, expected, set() if self._placing is None else self._placing.addresses)
        del plain
        captured.launch()
        if any(runtime.read(o).tobytes() != right.tobytes() for o, right in zip(self._outputs, expected, strict=True)):
            raise DeviceError(f"{captured.what} was captured, but its outputs are not those of the run")
        plain_ms, captured_ms = (
            min(times)
            for times in zip(
                *((self._wall_ms(self._launch), self._wall_ms(captured.launch)) for _ in range(_PAIRS)), strict=True
            )
        )
        if captured_ms > plain_ms and not self._is_required:
            self._outputs = []
            slower = f"{captured.what} takes {captured_ms / plain_ms:.2f} times as long by the host's clock"
            return None, f"kernel by kernel: {slower}"
        # The captured run keeps its tensors. The tensors of the runs that it was compared with are now unused.
        free_idle_memory()
        # A ratio: milliseconds of another clock beside the model's time would look like a contradiction.
        return captured, f"{captured.what}, {plain_ms / captured_ms:.2f} times as fast as kernel by kernel"

    def _wall_ms(self, launch: Callable[[], object]) -> float:
        start = time.perf_counter()
        launch()
        runtime.synchronize(self._device)
        return 1e3 * (time.perf_counter() - start)


def _invert(
    outputs: Sequence[Any], before: Sequence[Any], values: Sequence[np.ndarray], bound: Collection[int]
) -> None:
    """Overwrite outputs with the complement of `values`, to find outputs that a captured run does not write.

    before: outputs of an earlier run, which are still alive. An output at the address of one of them is an input or a
    constant that kernels read, so it must not be overwritten.
    bound: addresses of outputs that all runs have in common.
    """
    for output, earlier, right in zip(outputs, before, values, strict=True):
        if output.data_ptr() in bound or output.data_ptr() != earlier.data_ptr():
            runtime.write(output, (~np.atleast_1d(right).view(np.uint8)).view(right.dtype).reshape(right.shape))
