"""Storage that tensors of a run share, by the greedy plan by size.

Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, section 4.

    largest tensor first: it gets the first storage whose tensors are never live together with it, or a new one

TVM's planner goes by the order of the calls, and gives a small tensor the large storage that the next large one needs.

A storage of images is one image. Tensors of its width and height share it and use its first layers, whatever their
number of layers. Width and height must be equal, because kernels rely on zeros outside of them. No kernel relies on a
read behind the last layer, which OpenCL clamps to that layer.

If the driver makes images over buffers (cl_ext_image_from_buffer), all tensors may share one buffer, the arena. Each is
a view at an offset, an image with its own width and height:

    largest tensor first: the smallest gap that holds it between tensors live together with it, or the bytes behind

Rows of such an image have a pitch, so narrow images take several times their bytes. Images of one width and height are
left out of the arena if the model takes fewer bytes then.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES, image_extents, texel_shape
from romou.compiler.tir.traversal import copy_of
from romou.devices.backends.launch import SEPARATORS

if TYPE_CHECKING:
    from romou.devices.targets import Target

_ALLOCATE = "relax.builtin.alloc_tensor"
# The runtime's function that returns a tensor in bytes of a storage: (storage, offset, bytes, shape, type, scope).
VIEW = "romou.opencl.view"
# Bytes that offsets are multiples of: a page, which meets every driver's alignment of slices and of images.
_ALIGNMENT = 4096


def plan_storage(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Allocate all tensors of `main` in shared storages, except outputs. A graph with branches stays as it is.

    alloc_tensor(shape)      ->      alloc_tensor(storage, shape)      or      romou.opencl.view(arena, offset, ...)
    """
    main = mod["main"]
    bindings = bindings_of(main)
    if any(isinstance(binding.value, relax.If | relax.Function) for binding in bindings):
        return mod
    planned = copy_of(mod)
    tensors = _tensors(main, target)
    planned["main"] = _Allocator(planned, tensors, _storages(tensors, target)).visit_expr(main)
    return planned


@dataclass(kw_only=True, eq=False)
class _Tensor:
    """An allocated tensor.

    call: its allocation.
    kind: must be equal for tensors that share a storage, but not for those in the arena.
    pitched_bytes: its bytes in the arena.
    first, last: bindings between which it is live.
    """

    call: relax.Call
    bytes: int
    pitched_bytes: int
    kind: tuple[object, ...]
    first: int
    last: int
    leaves: bool = False

    def is_live_with(self, other: _Tensor) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(kw_only=True, eq=False)
class _Arena:
    """A buffer with tensors at offsets in bytes."""

    offsets: Mapping[_Tensor, int]

    @property
    def bytes(self) -> int:
        return max((offset + tensor.pitched_bytes for tensor, offset in self.offsets.items()), default=0)

    def allocation(self) -> relax.Call:
        # The first device is that of buffers.
        return relax.op.memory.alloc_storage(relax.ShapeExpr([self.bytes]), 0, "global", "uint8")

    def tensor(self, tensor: _Tensor, storage: relax.Var) -> relax.Call:
        shape, dtype, _, scope = tensor.call.args
        place = (relax.prim_value(self.offsets[tensor]), relax.prim_value(tensor.pitched_bytes))
        return relax.Call(relax.ExternFunc(VIEW), [storage, *place, shape, dtype, scope], None, [tensor.call.ty])


@dataclass(kw_only=True, eq=False)
class _Storage:
    """A storage and the tensors that share it, the largest first."""

    tensors: list[_Tensor]

    def has_room(self, tensor: _Tensor) -> bool:
        return self.tensors[0].kind == tensor.kind and not any(map(tensor.is_live_with, self.tensors))

    @property
    def bytes(self) -> int:
        return self.tensors[0].bytes

    def allocation(self) -> relax.Call:
        """Return the allocation, in bytes.

        A storage of images has the shape of the largest one in texels, and the bytes of a texel.
        """
        shape, dtype, device, scope = self.tensors[0].call.args
        size = [self.tensors[0].bytes]
        if str(scope.value) in SEPARATORS:
            size = [
                *texel_shape([*map(int, shape.values)], str(scope.value)),
                LANES * tvm.DataType(str(dtype.value)).itemsize,
            ]
        return relax.op.memory.alloc_storage(relax.ShapeExpr(size), device, scope, "uint8")

    def tensor(self, tensor: _Tensor, storage: relax.Var) -> relax.Call:
        shape, dtype, device, _ = tensor.call.args
        return relax.op.memory.alloc_tensor(storage, 0, shape, str(dtype.value), device)


def _kind(shape: list[int], dtype: str, device: int, scope: str) -> tuple[object, ...]:
    return (scope, device, dtype, *image_extents(shape, scope)[:2]) if scope in SEPARATORS else (scope, device)


def _pitched_bytes(shape: list[int], dtype: str, scope: str, pitch: int | None) -> int:
    if scope not in SEPARATORS or pitch is None:
        # A slice of a buffer has at least one byte.
        return max(bytes_of(shape, dtype), 1)
    width, height, layers = image_extents(shape, scope)
    return layers * height * -(-width // pitch) * pitch * LANES * int(tvm.DataType(dtype).itemsize)


def _tensors(main: relax.Function, target: Target) -> list[_Tensor]:
    """Return the tensors that `main` allocates, in order."""
    tensors: list[_Tensor] = []
    # A variable -> the tensors that it may share memory with, through other names, views and tuples.
    behind: dict[relax.Var, frozenset[_Tensor]] = {}
    # A tuple -> the tensors that each of its fields may share memory with. The reader of one field does not keep the
    # others live: it needs a kernel's output, but not its workspaces.
    fields: dict[relax.Var, list[frozenset[_Tensor]]] = {}

    def used(expr: relax.Expr) -> frozenset[_Tensor]:
        return frozenset().union(*(behind.get(var, ()) for var in relax.analysis.free_vars(expr)))

    bindings = bindings_of(main)
    for position, binding in enumerate(bindings):
        if op_name(binding.value) == _ALLOCATE:
            shape, dtype = [int(extent) for extent in binding.value.args[0].values], str(binding.value.args[1].value)
            device, scope = int(binding.value.args[2].value), str(binding.value.args[3].value)
            tensors.append(
                _Tensor(
                    call=binding.value,
                    bytes=bytes_of(shape, dtype),
                    pitched_bytes=_pitched_bytes(shape, dtype, scope, target.limits.image_pitch_texels),
                    kind=_kind(shape, dtype, device, scope),
                    first=position,
                    last=position,
                )
            )
            behind[binding.var] = frozenset(tensors[-1:])
            continue
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            behind[binding.var] = fields[value.tuple_value][value.index]
        else:
            behind[binding.var] = used(value)
            if isinstance(value, relax.Tuple):
                fields[binding.var] = [used(field) for field in value.fields]
        for tensor in behind[binding.var]:
            tensor.last = position
    for tensor in used(main.body.body):
        tensor.leaves = True
    return tensors


def _storages(tensors: list[_Tensor], target: Target) -> dict[_Tensor, _Storage | _Arena]:
    """Return the storage of each tensor but the outputs of the graph."""
    inner = [tensor for tensor in tensors if not tensor.leaves]
    plan = _shared(inner)
    if target.limits.image_pitch_texels is None or not any(tensor.kind[0] in SEPARATORS for tensor in inner):
        return plan
    kinds = list(dict.fromkeys(tensor.kind for tensor in inner if tensor.kind[0] in SEPARATORS))
    apart: set[tuple[object, ...]] = set()
    best = _with_arena(inner, apart)
    while trials := [(kind, _with_arena(inner, {*apart, kind})) for kind in kinds if kind not in apart]:
        kind, trial = min(trials, key=lambda each: _bytes(each[1]))
        if _bytes(trial) >= _bytes(best):
            break
        apart.add(kind)
        best = trial
    most = target.limits.max_buffer_bytes
    fits = most is None or all(storage.bytes <= most for storage in best.values())
    return best if fits and _bytes(best) < _bytes(plan) else plan


def _bytes(plan: Mapping[_Tensor, _Storage | _Arena]) -> int:
    return sum(storage.bytes for storage in set(plan.values()))


def _with_arena(tensors: list[_Tensor], apart: Container[tuple[object, ...]]) -> dict[_Tensor, _Storage | _Arena]:
    """Return the plan with all tensors but those of some kinds in an arena."""
    arena = _Arena(offsets=offsets_of([tensor for tensor in tensors if tensor.kind not in apart]))
    return {**_shared([tensor for tensor in tensors if tensor.kind in apart]), **dict.fromkeys(arena.offsets, arena)}


def offsets_of(tensors: Iterable[_Tensor]) -> dict[_Tensor, int]:
    """Return the offset in bytes of each tensor in one buffer. No two tensors that are live together overlap."""
    offsets: dict[_Tensor, int] = {}
    for tensor in sorted(tensors, key=lambda tensor: -tensor.pitched_bytes):
        free, gaps = 0, []
        taken = [(offset, other.pitched_bytes) for other, offset in offsets.items() if other.is_live_with(tensor)]
        for offset, length in sorted(taken):
            if offset - free >= tensor.pitched_bytes:
                gaps.append((offset - free, free))
            free = max(free, -(-(offset + length) // _ALIGNMENT) * _ALIGNMENT)
        offsets[tensor] = min(gaps)[1] if gaps else free
    return offsets


def _shared(tensors: list[_Tensor]) -> dict[_Tensor, _Storage | _Arena]:
    """Return the storage of each tensor if only tensors of one kind share one."""
    made: list[_Storage] = []
    chosen: dict[_Tensor, _Storage | _Arena] = {}
    for tensor in sorted(tensors, key=lambda tensor: -tensor.bytes):
        storage = next((storage for storage in made if storage.has_room(tensor)), None)
        if storage is None:
            storage = _Storage(tensors=[tensor])
            made.append(storage)
        else:
            storage.tensors.append(tensor)
        chosen[tensor] = storage
    return chosen


@mutator
class _Allocator(PyExprMutator):
    def __init__(
        self, mod: tvm.IRModule, tensors: list[_Tensor], storages: Mapping[_Tensor, _Storage | _Arena]
    ) -> None:
        super().__init__(mod)
        self._tensors = iter(tensors)
        self._storages = storages
        self._made: dict[_Storage | _Arena, relax.Var] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace the next allocation by one in its storage."""
        call = super().visit_call_(call)
        tensor = next(self._tensors) if op_name(call) == _ALLOCATE else None
        if tensor is None or tensor not in self._storages:
            return call
        storage = self._storages[tensor]
        if storage not in self._made:
            self._made[storage] = self.builder_.emit(storage.allocation(), "storage")
        return storage.tensor(tensor, self._made[storage])
