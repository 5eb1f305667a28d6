"""A model with inputs and outputs in fixed arrays, which kernels read and write in place if the device allows it."""

from __future__ import annotations

import itertools
import math
import mmap
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.errors import UsageError, unknown_name
from romou.compiler.frontend.declared import Settled, check_settled
from romou.runtime.module.host_memory import HostMemory, Placement
from romou.runtime.module.outputs import Outputs
from tvm_patches.runtime import device_tensor, read, read_into, write
from tvm_patches.short_types import restored, stored

if TYPE_CHECKING:
    from romou.runtime.module.machine import Machine


class BoundInputs(Mapping[str, np.ndarray]):
    """Fixed arrays by name. They are filled, never replaced."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        _check_same(self, "inputs", name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class BoundOutputs(Outputs):
    """Fixed arrays with the results of the last run."""

    def __setitem__(self, key: Any, value: Any) -> None:
        _check_same(self, "outputs", key, value)


def _check_same(arrays: Any, what: str, key: Any, value: Any) -> None:
    """Raise UsageError unless the value is the array that is there already, as after `bound.inputs["x"] += 1`."""
    if value is not arrays[key]:
        raise UsageError(
            f"bound.{what}[{key!r}] is an array that the device uses, and cannot be replaced by another one",
            hint=f"Copy into it, bound.{what}[{key!r}][...] = array, or bind another array by bind(...).",
        )


class BoundModel:
    """A model whose inputs and outputs are fixed arrays. `TunedModel.bind` creates it.

    Fill `inputs`, call `run`, and read `outputs`. During a run, the arrays belong to the device. `copied` names inputs
    and outputs that each run copies. `TunedModel.release` does not release a bound model.

    Parameters
    ----------
    machine
        The model on a device of this machine.
    host
        Memory of that device.
    inputs, outputs
        Arrays by name, in call order.
    settled
        Inputs whose values are checked in each run.
    """

    def __init__(
        self,
        machine: Machine,
        host: HostMemory,
        inputs: dict[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        settled: Sequence[Settled] = (),
    ) -> None:
        _check_apart({**inputs, **outputs})
        self._inputs, self._settled = BoundInputs(inputs), settled
        self._outputs = BoundOutputs(tuple(outputs), tuple(outputs.values()))
        self._binding = Binding(machine, host, tuple(inputs.values()), tuple(outputs.values()))
        names = (*inputs, *outputs)
        self.copied = tuple(n for n, in_place in zip(names, self._binding.in_place, strict=True) if not in_place)

    @property
    def inputs(self) -> BoundInputs:
        """The arrays that a run reads, by name. They live as long as the bound model."""
        return self._inputs

    @property
    def outputs(self) -> BoundOutputs:
        """The arrays that a run writes, by position and by name."""
        return self._outputs

    def __repr__(self) -> str:
        copied = f"copied in each run: {', '.join(self.copied)}" if self.copied else "nothing is copied"
        return f"BoundModel({', '.join(self.inputs)} -> {', '.join(self.outputs.names)}; {copied})"

    def run(self) -> Outputs:
        """Run once on `inputs`, and return `outputs`, which have the results then.

        Threads may share a bound model. Their runs take turns.

        Raises
        ------
        UsageError
            An input contradicts the declared shapes (`TunedModel.settled`).
        DeviceError
            The device failed.
        """
        check_settled(self._settled, self.inputs)
        self._binding.run()
        return self.outputs


class Binding:
    """Arrays of the host as inputs and outputs of a machine, in call order.

    in_place: for each input and each output, whether kernels use the array itself.
    """

    def __init__(
        self, machine: Machine, host: HostMemory, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        places = [host.tensor(array) for array in inputs]
        tensors = [
            device_tensor(stored(array), host.device) if place is None else place
            for place, array in zip(places, inputs, strict=True)
        ]
        self._placement = Placement(host, [host.tensor(array) for array in outputs])
        # Before the arrays, so that it and its tensors are deleted first.
        self._machine = machine.bound(tensors, self._placement)
        self._host, self._inputs, self._outputs = host, inputs, outputs
        self._sent = [(tensors[i], array) for i, array in enumerate(inputs) if places[i] is None and array.nbytes]
        self._lock = threading.Lock()
        self._placement.learn(self._machine.run_bound())
        host.hold()
        weakref.finalize(self, host.let_go).atexit = False
        self.in_place = [place is not None or not array.nbytes for place, array in zip(places, inputs, strict=True)]
        self.in_place += [i in self._placement.learned or not array.nbytes for i, array in enumerate(outputs)]

    def run(self) -> None:
        """Run once. Afterwards, the outputs have the results."""
        with self._lock:
            self._host.let_go()
            try:
                for tensor, array in self._sent:
                    write(tensor, stored(array))
                for place, tensor, array in zip(
                    self._placement.places, self._machine.run_bound(), self._outputs, strict=True
                ):
                    if place is None or tensor.data_ptr() != place.data_ptr():
                        _copy(tensor, array)
            finally:
                self._host.hold()


def _copy(tensor: Any, array: np.ndarray) -> None:
    """Copy a tensor's numbers into an array of the host."""
    data = stored(array)
    if data.ctypes.data == array.ctypes.data:
        read_into(tensor, array)
    else:
        array[...] = restored(read(tensor), array.dtype.name)


def bound_arrays(
    what: str,
    signature: Mapping[str, tuple[tuple[int, ...], str]],
    given: Mapping[str, Any] | None,
    values: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return an array for each name: the given one, or a new one. Raise UsageError for one that does not fit.

    values: contents of new arrays. The others are zeros.
    """
    arrays = given or {}
    if not isinstance(arrays, Mapping):
        raise UsageError(f"{what}s are bound by name, as {{name: array}}; got {type(given).__name__}")
    for name in arrays:
        if name not in signature:
            raise unknown_name(what, name, signature)
    bound: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in signature.items():
        if name in arrays:
            bound[name] = _fitting(f"{what} {name!r}", arrays[name], shape, np.dtype(dtype))
        else:
            bound[name] = _zeros(shape, np.dtype(dtype))
            bound[name][...] = (values or {}).get(name, 0)
    return bound


def _fitting(what: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array, or the memory of another library's tensor, as an array. Raise UsageError unless it fits."""
    if not isinstance(value, np.ndarray):
        try:
            value = np.from_dlpack(value)
        except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
            raise UsageError(
                f"{what}: a {type(value).__name__} has no memory that can be bound; expected a NumPy array, or a tensor"
                " of the host with __dlpack__"
            ) from error
    if value.shape != shape or value.dtype != dtype:
        raise UsageError(f"{what} is {value.dtype} {value.shape}; the model was compiled for {dtype} {shape}")
    if not value.flags.c_contiguous:
        raise UsageError(f"{what} is not contiguous", hint="Bind numpy.ascontiguousarray of it.")
    if what.startswith("output") and not value.flags.writeable:
        raise UsageError(f"{what} is read-only: results cannot be written to it")
    return np.asarray(value)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of zeros in pages of its own, which drivers use in place."""
    size = math.prod(shape)
    pages = mmap.mmap(-1, max(1, size * dtype.itemsize))
    return np.frombuffer(pages, dtype, size).reshape(shape)


def _check_apart(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise UsageError if two arrays have memory in common."""
    for (name, array), (other, another) in itertools.combinations(arrays.items(), 2):
        if np.may_share_memory(array, another):
            raise UsageError(f"{name!r} and {other!r} are bound to the same memory")
