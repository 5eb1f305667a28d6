"""The memory plan of a model: bytes on the device, computed before anything runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm_ffi.structural import structural_hash

from romou.base.headline import Headline
from romou.base.model_bytes import MemoryUse
from romou.compiler.graph.memory.storage import VIEW
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES, extents_of_texels, image_extents
from romou.devices.backends.launch import SEPARATORS
from tvm_patches.host_nodes import FUNCTION as HOST_NODES

# The runtimes' allocators round buffers up to pages (device_runtime/device_api.h, and TVM's for CUDA).
_PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor between two kernels, an output, a workspace, or a weight.

    function: the first function that reads or writes it, empty for an output without elements.
    bytes: bytes of its elements, with channels padded to four.
    scope: "global", or the scope of an image.
    first, last: positions of the calls between which it is live. `last` of an output is behind all calls.
    """

    function: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    bytes: int
    first: int
    last: int

    @classmethod
    def used_at(cls, position: int, function: str, shape: tuple[int, ...], dtype: str, scope: str) -> PlannedTensor:
        """Return a tensor that only the call at a position uses so far."""
        return cls(
            function=function,
            shape=shape,
            dtype=dtype,
            scope=scope,
            bytes=bytes_of(shape, dtype),
            first=position,
            last=position,
        )

    @property
    def is_workspace(self) -> bool:
        """Return whether it is only live inside one function."""
        return self.first == self.last and self.function != ""


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryPlan(Headline):
    """The tensors of a model over a run.

    calls: functions, in the order of their launches.
    tensors: in the order of their first call.
    live: live bytes during each call.
    use: bytes by what they hold.
    weights: constants, each with the first function that reads it.
    nodes: names of the ONNX nodes of each call, empty if nothing has looked for them.
    """

    calls: tuple[str, ...]
    tensors: tuple[PlannedTensor, ...]
    live: tuple[int, ...]
    use: MemoryUse
    weights: tuple[PlannedTensor, ...] = ()
    nodes: tuple[tuple[str, ...], ...] = ()

    @property
    def headline(self) -> str:
        """The planned bytes in MiB, and the number of tensors."""
        total, weights = (f"{number / 2**20:.2f} MiB" for number in (self.use.total, self.use.weights))
        return f"{total}, {weights} of them weights; {len(self.tensors)} tensors in {len(self.calls)} calls"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "use": self.use.to_dict()}


def plan_memory(scheduled: tvm.IRModule) -> MemoryPlan:
    """Return the memory plan of a module that `schedule_model` returned."""
    main = scheduled["main"]
    pool = _Pool()
    reader = _run_twice(main, pool)
    tensors = tuple(reader.tensors.values())
    live, workspaces = [0] * len(reader.calls), [0] * len(reader.calls)
    for tensor in (tensor for tensor in tensors if tensor.first < len(live)):
        workspaces[tensor.first] += tensor.bytes * tensor.is_workspace
        for position in range(tensor.first, min(tensor.last + 1, len(live))):
            live[position] += tensor.bytes
    use = MemoryUse(
        weights=_bytes_of_weights(reader.weights.values()),
        # A number of rows is no tensor.
        inputs=sum(bytes_of(p.ty.shape, str(p.ty.dtype)) for p in main.params if isinstance(p.ty, relax.TensorType)),
        tensors=pool.created,
        least=max(live, default=0),
        workspaces=max(workspaces, default=0),
    )
    return MemoryPlan(
        calls=tuple(reader.calls), tensors=tensors, weights=tuple(reader.weights.values()), live=tuple(live), use=use
    )


def plan_memory_in_turn(scheduled: Sequence[tvm.IRModule], *, has_images: bool) -> MemoryUse:
    """Return the memory of scheduled modules in one library that run in any order.

    Weights of equal bytes are stored once. Each module keeps its inputs and outputs.

    has_images: idle memory is freed between runs of different modules.
    """
    plans = [plan_memory(module).use for module in scheduled]
    pool = _Pool()
    weights: dict[Any, PlannedTensor] = {}
    peak = 0
    for module in scheduled:
        if has_images:
            pool.clear()
        weights |= _run_twice(module["main"], pool).weights
        peak = max(peak, pool.created)
    return MemoryUse(
        weights=_bytes_of_weights(weights.values()),
        inputs=sum(plan.inputs for plan in plans),
        tensors=peak,
        least=max(plan.least for plan in plans),
        workspaces=max(plan.workspaces for plan in plans),
    )


def _run_twice(main: relax.Function, pool: _Pool) -> _Reader:
    """Read two runs, because the outputs of a run stay live until the next run has written its own."""
    readers = (_Reader(pool), _Reader(pool))
    for reader in readers:
        for binding in bindings_of(main):
            reader.read(binding)
        reader.use(main.body.body, len(reader.calls))
        reader.end(main.body.body)
    readers[0].drop_outputs()
    return readers[1]


def _bytes_of_weights(weights: Iterable[PlannedTensor]) -> int:
    return sum(weight.bytes if weight.scope in SEPARATORS else _paged(weight.bytes) for weight in weights)


class _Pool:
    """The runtimes' pooling allocator: freed memory is reused for the next request of the same size.

    created: bytes that are in use or idle.
    """

    def __init__(self) -> None:
        self.created = 0
        self._idle: Counter[tuple[int, ...]] = Counter()
        self._bytes: dict[tuple[int, ...], int] = {}

    def take(self, size: tuple[int, ...], bytes_: int) -> None:
        if self._idle[size]:
            self._idle[size] -= 1
        else:
            self.created += bytes_
            self._bytes[size] = bytes_

    def give_back(self, size: tuple[int, ...]) -> None:
        self._idle[size] += 1

    def clear(self) -> None:
        self.created -= sum(count * self._bytes[size] for size, count in self._idle.items())
        self._idle.clear()


class _Reader:
    """An interpreter of the allocations and calls of a lowered `main`.

    weights: the constants.
    tensors: the tensors of calls so far.
    """

    def __init__(self, pool: _Pool) -> None:
        self.calls: list[str] = []
        self.weights: dict[Any, PlannedTensor] = {}
        self.tensors: dict[relax.Var, PlannedTensor] = {}
        self._pool = pool
        self._scopes: dict[relax.Var, str] = {}
        # Storages of images.
        self._images: set[relax.Var] = set()
        # Tensor -> its shape, type and scope. Below: another name or a view of a tensor -> the tensor.
        self._allocated: dict[relax.Var, tuple[tuple[int, ...], str, str]] = {}
        self._whole: dict[relax.Var, relax.Var] = {}
        # Allocation from the pool -> its size, and the names that hold it. Tensors also hold their storage.
        self._sizes: dict[relax.Var, tuple[int, ...]] = {}
        self._holders: dict[relax.Var, set[relax.Var]] = {}

    def read(self, binding: relax.Binding) -> None:
        """Read the next binding."""
        var, value = binding.var, binding.value
        name = op_name(value)
        arguments = list(value.args) if isinstance(value, relax.Call) else []
        symbol = str(getattr(getattr(value, "op", None), "global_symbol", ""))
        if name == "relax.vm.alloc_storage":
            self._scopes[var] = scope = str(arguments[3].value)
            shape = tuple(int(extent) for extent in arguments[0].values)
            if scope in SEPARATORS and len(shape) > 1:
                self._images.add(var)
                self._take(var, (*extents_of_texels(shape[:-1], scope), shape[-1]), bytes_of(shape, "uint8"))
            else:
                # In a graph with branches, TVM plans a storage for images that holds next to nothing. Each image in it
                # is a separate allocation.
                size = _paged(1 if scope in SEPARATORS else shape[0])
                self._take(var, (size,), size)
        elif name == "relax.vm.alloc_tensor":
            storage, shape, dtype = (
                arguments[0],
                tuple(int(extent) for extent in arguments[2].values),
                str(arguments[3].value),
            )
            scope = self._scopes[storage]
            self._allocated[var] = shape, dtype, scope
            self._holders[storage].add(var)
            if scope in SEPARATORS and storage not in self._images:
                self._take(
                    var, (*image_extents(shape, scope), LANES * tvm.DataType(dtype).itemsize), bytes_of(shape, dtype)
                )
        elif name == "relax.vm.kill_object":
            self._let_go(arguments[0])
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            self._call(str(value.op.name_hint), arguments)
        elif symbol == HOST_NODES:
            self._call(HOST_NODES, arguments)
        elif symbol == VIEW:
            storage, _, _, shape, dtype, scope = arguments
            self._allocated[var] = tuple(map(int, shape.values)), str(dtype.value), str(scope.value)
            self._holders[storage].add(var)
        elif (operands := list(_vars(value))) and (whole := self._whole_of(operands[0])) in self._allocated:
            self._whole[var] = whole
            for held in self._holders.values():
                if whole in held:
                    held.add(var)

    def use(self, expr: relax.Expr, position: int) -> None:
        """Note the tensors that the call at a position reads or writes, or the results of the graph."""
        function = self.calls[position] if position < len(self.calls) else ""
        if isinstance(expr, tvm.ir.GenericConst):
            device = expr.ty.vdevice
            scope = "global" if device is None else str(device.memory_scope)
            shape, dtype = tuple(map(int, expr.value.shape)), str(expr.value.dtype)
            weight = PlannedTensor.used_at(position, function, shape, dtype, scope)
            # The virtual machine keeps equal constants once, whatever reads them.
            self.weights.setdefault((structural_hash(expr.value), shape, dtype, scope), weight)
        for var in _vars(expr):
            whole = self._whole_of(var)
            if whole in self.tensors:
                self.tensors[whole] = dataclasses.replace(self.tensors[whole], last=position)
            elif whole in self._allocated:
                self.tensors[whole] = PlannedTensor.used_at(position, function, *self._allocated[whole])

    def end(self, result: relax.Expr) -> None:
        """End a run: tuples are freed, and only the outputs stay."""
        kept = set(_vars(result))
        for taken in [taken for taken, holders in self._holders.items() if not holders & kept]:
            del self._holders[taken]
            self._pool.give_back(self._sizes[taken])

    def drop_outputs(self) -> None:
        """Free the outputs of the run, which the next run has replaced."""
        for taken in self._holders:
            self._pool.give_back(self._sizes[taken])

    def _call(self, name: str, arguments: list[relax.Expr]) -> None:
        self.calls.append(name)
        for argument in arguments:
            self.use(argument, len(self.calls) - 1)

    def _whole_of(self, var: relax.Var) -> relax.Var:
        return self._whole.get(var, var)

    def _take(self, var: relax.Var, size: tuple[int, ...], bytes_: int) -> None:
        self._sizes[var] = size
        self._holders[var] = {var}
        self._pool.take(size, bytes_)

    def _let_go(self, var: relax.Var) -> None:
        for taken, holders in list(self._holders.items()):
            if var in holders:
                holders.remove(var)
                if not holders:
                    del self._holders[taken]
                    self._pool.give_back(self._sizes[taken])


def _vars(expr: relax.Expr) -> Iterator[relax.Var]:
    if isinstance(expr, relax.Var):
        yield expr
    for part in expr.fields if isinstance(expr, relax.Tuple) else expr.args if isinstance(expr, relax.Call) else ():
        yield from _vars(part)


def _paged(bytes_: int) -> int:
    return -(-bytes_ // _PAGE) * _PAGE
