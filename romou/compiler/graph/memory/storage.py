"""Storage that tensors of a run share, by the greedy plan by size.

Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, section 4.

    largest tensor first: it gets the first storage whose tensors are never live together with it, or a new one

TVM's planner goes by the order of the calls, and gives a small tensor the large storage that the next large one needs.

A storage of images is one image. Tensors of its width and height share it and use its first layers, whatever their
number of layers. Width and height must be equal, because kernels rely on zeros outside of them. No kernel relies on a
read behind the last layer, which OpenCL clamps to that layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.primitives import LANES, image_extents, texel_shape
from romou.devices.backends.launch import SEPARATORS

_ALLOCATE = "relax.builtin.alloc_tensor"


def plan_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """Allocate all tensors of `main` in shared storages, except outputs. A graph with branches stays as it is.

    alloc_tensor(shape)      ->      alloc_tensor(storage, shape)
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If | relax.Function) for binding in bindings):
        return mod
    planned = tvm.IRModule(dict(mod.functions_items()), global_infos=dict(mod.global_infos))
    planned["main"] = _Allocator(planned, _storage_of(_tensors(main))).visit_expr(main)
    return planned


@dataclass(kw_only=True, eq=False)
class _Tensor:
    """An allocated tensor.

    call: its allocation.
    kind: must be equal for tensors that share a storage.
    first, last: bindings between which it is live.
    """

    call: relax.Call
    bytes: int
    kind: tuple[object, ...]
    first: int
    last: int
    leaves: bool = False


@dataclass(kw_only=True, eq=False)
class _Storage:
    """A storage and the tensors that share it, the largest first."""

    tensors: list[_Tensor]

    def has_room(self, tensor: _Tensor) -> bool:
        return self.tensors[0].kind == tensor.kind and all(
            other.last < tensor.first or tensor.last < other.first for other in self.tensors
        )

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


def _kind(shape: list[int], dtype: str, device: int, scope: str) -> tuple[object, ...]:
    return (scope, device, dtype, *image_extents(shape, scope)[:2]) if scope in SEPARATORS else (scope, device)


def _tensors(main: relax.Function) -> list[_Tensor]:
    """Return the tensors that `main` allocates, in order."""
    tensors: list[_Tensor] = []
    # A variable -> the tensors that it may share memory with, through other names, views and tuples.
    behind: dict[relax.Var, frozenset[_Tensor]] = {}
    # A tuple -> the tensors that each of its fields may share memory with. The reader of one field does not keep the
    # others live: it needs a kernel's output, but not its workspaces.
    fields: dict[relax.Var, list[frozenset[_Tensor]]] = {}

    def used(expr: relax.Expr) -> frozenset[_Tensor]:
        seen: set[_Tensor] = set()
        relax.analysis.post_order_visit(
            expr, lambda node: seen.update(behind.get(node, ())) if isinstance(node, relax.Var) else None
        )
        return frozenset(seen)

    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    for position, binding in enumerate(bindings):
        if op_name(binding.value) == _ALLOCATE:
            shape, dtype, device, scope = binding.value.args
            kind = _kind(
                [int(extent) for extent in shape.values], str(dtype.value), int(device.value), str(scope.value)
            )
            tensors.append(
                _Tensor(
                    call=binding.value,
                    bytes=bytes_of(shape.values, str(dtype.value)),
                    kind=kind,
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


def _storage_of(tensors: list[_Tensor]) -> list[_Storage | None]:
    """Return the storage of each tensor, None for outputs of the graph."""
    made: list[_Storage] = []
    chosen: dict[_Tensor, _Storage] = {}
    for tensor in sorted((tensor for tensor in tensors if not tensor.leaves), key=lambda tensor: -tensor.bytes):
        storage = next((storage for storage in made if storage.has_room(tensor)), None)
        if storage is None:
            storage = _Storage(tensors=[tensor])
            made.append(storage)
        else:
            storage.tensors.append(tensor)
        chosen[tensor] = storage
    return [chosen.get(tensor) for tensor in tensors]


@mutator
class _Allocator(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, storages: list[_Storage | None]) -> None:
        super().__init__(mod)
        self._storages = iter(storages)
        self._made: dict[_Storage, relax.Var] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace the next allocation by one in its storage."""
        call = super().visit_call_(call)
        storage = next(self._storages) if op_name(call) == _ALLOCATE else None
        if storage is None:
            return call
        shape, dtype, device, _ = call.args
        if storage not in self._made:
            self._made[storage] = self.builder_.emit(storage.allocation(), "storage")
        return relax.op.memory.alloc_tensor(self._made[storage], 0, shape, str(dtype.value), device)
