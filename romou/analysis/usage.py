"""What a kernel uses of a device, read off its lowered TIR: registers, memory traffic of a work group, its size, local memory, images.

The traffic is found by evaluating every address for all work-items of a work group, so bytes that work-items share count once. No device is
needed and nothing is estimated but the registers (`inspection/registers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.analysis.estimates import TENSOR_CORE_DEPTH, dtype_of, lanes_of, multiply_adds_of, scope_of
from romou.analysis.evaluate import evaluate
from romou.analysis.registers import register_use
from romou.backends.dialect import dialect_of
from romou.tir.calls import (
    is_async_copy,
    is_conditional,
    is_half_load,
    is_half_store,
    is_tensor_core_fma,
    is_texel_load,
    op_name,
    texel_bytes,
    texels_for_tensor_cores,
)
from romou.tir.primitives import LANES

if TYPE_CHECKING:
    from romou.schedules.base import Template

_PRIVATE, _LOCAL = "local", ("shared", "shared.dyn")
# TVM's mark where copies are waited for: its value is how many groups of them may still be under way.
_UNDER_WAY = "async_wait_inflight_count"
# A GPU's local memory serves so many work-items at once, each with a vector of so many bytes out of a bank of its own.
SERVED, _VECTOR_BYTES = 8, 16


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """What one kernel uses; or what many do, where the fields are arrays that broadcast (`closed_form.py`).

    A turn is one pass through the innermost loop that both reads memory and multiplies; the kernel where no loop is left, and where the template
    sums no products (`Template.sums_products`): then everything it reads counts as data.

    registers: 32-bit registers that a compiler gives a work-item, estimated; needed_registers: those without which it would spill or stall
        (`RegisterUse`).
    buffer_bytes, image_bytes: distinct bytes of the operator's data and weight that a work group addresses in one turn, in buffers and in
        images. Of the first group in the middle turn; what a condition skips does not count, what an image gives as zero does.
    literal_buffer_bytes, literal_image_bytes: the same of one work-item, times the group's size (Romou paper, section 4.2): what
        work-items share counts for each of them. Where the group stages data in local memory: what one work-item carries there.
    access_width: lanes of the narrowest of these loads; a texel has 4.
    output_bytes: what the launch writes.
    turns, multiply_adds: how many turns a work-item takes, and the multiply-adds of one of them, each lane counted; without products one for each
        number that it loads.
    local_loads: bytes of staged data and weight that a work-item reads of local memory in one turn; of products each as often as local memory is
        asked: where neighbours want other words of the same bank, one after another.
    work_group_size, work_groups: work-items of a group, and groups of the launch.
    local_memory_bytes: of a work group.   is_staged: whether data or weight pass through local memory.
    turns_ahead: how many turns before their use copies to local memory begin; turns of copies or of use alone are not among `turns`.
    images: "data", "weight", "output" -> whether it lies in an image.
    has_copies: whether scalars are copied into vectors before they are multiplied.
    on_tensor_cores: whether warps sum up together.
    transform_bytes, transform_registers: what kernels before and after this one read and write, whose work is none of its multiply-adds, and the
        registers that one of their work-items needs at least (`Template.transform_bytes`, `Template.transform_registers`).
    is_prefetched: whether the next turn's share is on its way while a turn sums up: then only what takes longer is waited for.
    is_streamed: whether inputs are read through once, so that no cache has to hold what a work group reads.
    padding: numbers that are summed up divided by those that the operator gives, less 1: at 0.25 a fifth of the work is for nothing.
    """

    registers: Any
    needed_registers: Any
    buffer_bytes: Any
    image_bytes: Any
    literal_buffer_bytes: Any
    literal_image_bytes: Any
    access_width: Any
    output_bytes: Any
    turns: Any
    multiply_adds: Any
    local_loads: Any
    work_group_size: Any
    work_groups: Any
    local_memory_bytes: Any
    is_staged: Any
    images: Mapping[str, Any]
    has_copies: Any
    padding: Any
    on_tensor_cores: Any = False
    turns_ahead: Any = 0
    transform_bytes: Any = 0
    transform_registers: Any = 0
    is_streamed: Any = False
    is_prefetched: Any = False


def read_usage(kernels: Sequence[tirx.PrimFunc], template: Template, config: Mapping[str, Any]) -> KernelUsage:
    """Read the lowered device functions of a template under a config. Of several, the one that reads the weight counts: the others transform.

    Parameters
    ----------
    kernels
        As the code generator gets them (`InspectedKernel.lowered`).
    template
        That made it. It names data, weight and output (what the epilogue reads is no part of the reduction's traffic), and says how large a number
        is in memory (registers may hold halfs as single precision) and how many the operator gives, whole texels counted.

    Raises
    ------
    BuildError
        An address is made with an operation that is not known here.
    """
    names, outputs = template.names, template.outputs(config)
    (func,) = (f for f in kernels if len(kernels) == 1 or names["weight"] in map(_name, f.params))
    kernel = _Kernel(func, template.operands(config), names["output"])
    kernel.run(has_turns=template.sums_products)
    groups = math.prod(extent for tag, extent in kernel.extents.items() if tag.startswith("blockIdx"))
    size = kernel.group_size
    registers = register_use(func)
    return KernelUsage(
        registers=registers.allocated,
        needed_registers=registers.needed,
        buffer_bytes=kernel.distinct_bytes(is_image=False),
        image_bytes=kernel.distinct_bytes(is_image=True),
        literal_buffer_bytes=size * kernel.bytes_of_one(is_image=False),
        literal_image_bytes=size * kernel.bytes_of_one(is_image=True),
        access_width=min((a.lanes for a in kernel.accesses if template.sums_products or a.tensor == names["data"]), default=1),
        output_bytes=outputs * template.element_bytes,
        turns=kernel.turns,
        multiply_adds=kernel.multiply_adds if template.sums_products else kernel.numbers_of_one(),
        local_loads=kernel.local_loads,
        work_group_size=size,
        work_groups=groups,
        local_memory_bytes=kernel.local_memory_bytes,
        is_staged=kernel.is_staged,
        images={role: any(name in _images_of(f) for f in kernels) for role, name in names.items()},
        has_copies=kernel.has_copies,
        padding=(kernel.outputs if template.sums_products else groups * kernel.stored_by_a_group()) / outputs - 1,
        on_tensor_cores=kernel.on_tensor_cores,
        turns_ahead=kernel.turns_ahead,
        transform_bytes=template.transform_bytes(config),
        transform_registers=template.transform_registers(config),
        is_streamed=not template.sums_products,
        is_prefetched=kernel.is_prefetched,
    )


def work_group_size(func: tirx.PrimFunc) -> int:
    """Work-items of a group of a lowered device function."""
    sides: list[int] = []

    def visit(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent" and str(stmt.node.thread_tag).startswith("threadIdx"):
            sides.append(int(stmt.value))

    structural_walk(func.body, (tirx.AttrStmt, visit))
    return math.prod(sides)


@dataclass(frozen=True)
class _Access:
    """A load of the turn.

    times: how often loops inside the turn repeat it.
    places: element numbers in a buffer, or three coordinates of texels: of all work-items that get there, in all repetitions.
    places_of_one: of the first work-item, the first time.
    is_ahead: of the turn: each such load counts as it stands.
    """

    tensor: str
    is_image: bool
    lanes: int
    times: int
    places: tuple[np.ndarray, ...]
    places_of_one: tuple[np.ndarray, ...]
    is_ahead: bool


class _Kernel:
    """Walks to the turn and evaluates its addresses: arrays over (loops inside the turn, work-items of the group)."""

    def __init__(self, func: tirx.PrimFunc, operands: Mapping[str, int], output: str) -> None:
        self.func = func
        self.operands = operands
        self.output = output
        self.extents: dict[str, int] = {}
        self.accesses: list[_Access] = []
        self.stores: list[tuple[np.ndarray, ...]] = []
        self.is_staged = False
        self.is_prefetched = False
        self.has_copies = False
        self.on_tensor_cores = False
        self.turns_ahead = 0
        self.local_memory_bytes = 0
        self.turns = 1
        self.multiply_adds = 0
        self.local_loads = 0
        self._accumulators: dict[tuple[str, str], int] = {}
        # Registers that are something before anything is summed up.
        self._begun: set[str] = set()
        self._carrying: set[str] = set()
        self._has_turns = False
        self._env: dict[Any, Any] = {}
        self._depth = 0
        self._trips: list[int] = []

    @property
    def group_size(self) -> int:
        """Work-items of a group."""
        return math.prod(extent for tag, extent in self.extents.items() if tag.startswith("threadIdx"))

    @property
    def outputs(self) -> int:
        """Numbers that the whole launch sums up; the pieces of a split reduction, along z, sum up the same ones."""
        items = math.prod(extent for tag, extent in self.extents.items() if tag != "threadIdx.z")
        return items * sum(self._accumulators.values())

    def run(self, *, has_turns: bool) -> None:
        """Fill in everything; without turns, all of the kernel is one."""
        self._has_turns = has_turns
        structural_walk(self.func.body, (tirx.AttrStmt, self._extent))
        structural_walk(self.func.body, (tirx.BufferStore, self._start_of_sum))
        structural_walk(
            self.func.body, [(tirx.AllocBuffer, self._allocation), (tirx.BufferStore, self._store), (tvm.ir.Call, self._call), (tirx.Broadcast, self._copy)]
        )
        loops: list[tirx.For] = []
        structural_walk(self.func.body, (tirx.For, loops.append))
        loops.reverse()  # the walk tells inner ones first
        turns = [loop for loop in loops if has_turns and self._is_turn(loop) and not any(self._is_turn(inner) for inner in _loops_inside(loop))]
        turn = max(turns, key=_products, default=None)
        around = [loop for loop in loops if turn is not None and (loop.same_as(turn) or any(turn.same_as(inner) for inner in _loops_inside(loop)))]
        self.turns = math.prod(int(loop.extent) for loop in around)
        body = self.func.body if turn is None else turn.body
        self.multiply_adds = _products(body)
        if not has_turns:
            self.local_loads = _local_bytes(body) if self.is_staged else 0
        self._visit(self.func.body, around, in_turn=turn is None, active=np.True_)

    def distinct_bytes(self, *, is_image: bool) -> int:
        """Of all work-items' loads from images or from buffers."""
        mine = [a for a in self.accesses if a.is_image == is_image]
        return sum(self.operands[tensor] * _distinct([a.places for a in mine if a.tensor == tensor]) for tensor in {a.tensor for a in mine})

    def bytes_of_one(self, *, is_image: bool) -> int:
        """Of the first work-item's loads; those in a loop inside the turn count in each of its turns."""
        return sum(self.operands[tensor] * numbers for (tensor, is_from_image), numbers in self._numbers_of_one().items() if is_from_image == is_image)

    def numbers_of_one(self) -> int:
        """That the first work-item loads."""
        return sum(self._numbers_of_one().values())

    def _numbers_of_one(self) -> dict[tuple[str, bool], int]:
        found: dict[tuple[str, bool], int] = {}
        together: dict[tuple[str, bool, int, int], list[tuple[np.ndarray, ...]]] = {}
        for number, access in enumerate(self.accesses):
            together.setdefault((access.tensor, access.is_image, access.times, number if access.is_ahead else -1), []).append(access.places_of_one)
        for (tensor, is_image, times, _), places in together.items():
            found[tensor, is_image] = found.get((tensor, is_image), 0) + times * _distinct(places)
        return found

    def stored_by_a_group(self) -> int:
        """Numbers of the output that the first work group writes."""
        return _distinct(self.stores) if self.stores else 0

    # What is known before anything is evaluated

    def _extent(self, stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            self.extents[str(stmt.node.thread_tag)] = int(stmt.value)
        elif stmt.attr_key == _UNDER_WAY:
            # That of the turn itself is waited for.
            self.turns_ahead = max(self.turns_ahead, int(stmt.value) + 1)

    def _allocation(self, stmt: tirx.AllocBuffer) -> None:
        if str(stmt.buffer.scope()) in _LOCAL:
            kind = tvm.DataType(str(stmt.buffer.dtype))
            self.local_memory_bytes += math.prod(int(d) for d in stmt.buffer.shape) * int(kind.bits) * int(kind.lanes) // 8

    def _start_of_sum(self, stmt: tirx.BufferStore) -> None:
        value = stmt.value.value if isinstance(stmt.value, tirx.Broadcast) else stmt.value
        if str(stmt.buffer.scope()) == _PRIVATE and isinstance(value, tirx.FloatImm):
            self._begun.add(str(stmt.buffer.name))

    def _store(self, stmt: tirx.BufferStore) -> None:
        if str(stmt.buffer.scope()) in _LOCAL and self._has_loads(stmt.value):
            self.is_staged = True
        if str(stmt.buffer.scope()) in _LOCAL:
            # Registers on the way to local memory.
            structural_walk(stmt.value, (tvm.ir.TensorLoad, lambda load: self._carrying.add(str(load.source.name))))
        if self._accumulates(stmt):
            self._accumulators[str(stmt.buffer.name), str(stmt.indices[0])] = lanes_of(stmt.value)

    def _is_ahead(self, store: tirx.BufferStore) -> bool:
        """Whether it loads into registers what goes to local memory in a turn, and is no sum."""
        return self._has_turns and str(store.buffer.name) in self._carrying and not _products(store.value)

    def _copy(self, expr: tirx.Broadcast) -> None:
        # Without vector arithmetic (CUDA), a lane of a copy is the scalar itself.
        if "float" in dtype_of(expr) and not isinstance(expr.value, tirx.FloatImm) and dialect_of(self.func).has_vector_arithmetic:
            self.has_copies = True

    def _call(self, call: tvm.ir.Call) -> None:
        if is_async_copy(call):
            self.is_staged = True
        if is_tensor_core_fma(call):
            self.on_tensor_cores = True
            # A number from the first one on for each pixel and lane.
            self._accumulators[_name(call.args[2]), str(call.args[1])] = multiply_adds_of(call) // TENSOR_CORE_DEPTH

    def _has_loads(self, node: Any) -> bool:
        return any(True for _ in self._loads(node))

    def _is_turn(self, loop: tirx.For) -> bool:
        found: list[bool] = []
        stores = (tirx.BufferStore, lambda store: found.append(self._accumulates(store)))
        structural_walk(loop.body, [stores, (tvm.ir.Call, lambda call: found.append(is_tensor_core_fma(call)))])
        return any(found) and self._has_loads(loop.body)

    def _accumulates(self, store: tirx.BufferStore) -> bool:
        """Whether products are added to those of earlier turns."""
        return str(store.buffer.name) in self._begun and _products(store.value) > 0

    def _is_summed_at_once(self, store: tirx.BufferStore) -> bool:
        """Whether a register gets a sum of products that is whole: the window of a convolution that is staged next."""
        return str(store.buffer.scope()) == _PRIVATE and _products(store.value) > 0 and not self._accumulates(store)

    def _loads(self, node: Any) -> Iterator[tvm.ir.TensorLoad | tvm.ir.Call]:
        """Loads of data and weight, be it from buffers, images or, as halfs, through a pointer."""
        found: list[Any] = []
        structural_walk(node, ((tvm.ir.TensorLoad, tvm.ir.Call), found.append))
        # address_of takes a load and loads nothing.
        pointed = [e.args[0] for e in found if op_name(e) == "tirx.address_of"]
        for load in found:
            if any(load.same_as(p) for p in pointed):
                continue
            if isinstance(load, tvm.ir.TensorLoad):
                if str(load.source.scope()) != _PRIVATE and str(load.source.scope()) not in _LOCAL and _name(load.source) in self.operands:
                    yield load
            elif (is_texel_load(load) and _name(load.args[0]) in self.operands) or (_half_lanes(load) and _name(load.args[2]) in self.operands):
                yield load

    # Evaluation

    def _visit(self, stmt: Any, around: list[tirx.For], *, in_turn: bool, active: Any) -> None:
        match stmt:
            case tirx.SeqStmt():
                for child in stmt.seq:
                    self._visit(child, around, in_turn=in_turn, active=active)
            case tirx.AttrStmt():
                if stmt.attr_key == "thread_extent":
                    self._env[stmt.node.var] = self._id(str(stmt.node.thread_tag))
                self._visit(stmt.body, around, in_turn=in_turn, active=active)
            case tirx.For() if not in_turn:
                # Only the way to the turn matters; every loop on it is in its middle: the first one may be all padding.
                if any(stmt.same_as(loop) for loop in around):
                    self._env[stmt.loop_var] = int(stmt.min) + int(stmt.extent) // 2
                    self._visit(stmt.body, around, in_turn=stmt.same_as(around[-1]), active=active)
            case tirx.For():
                if self._has_loads(stmt.body) or self._stores(stmt.body) or (self.is_staged and _local_bytes(stmt.body)):
                    self._depth += 1
                    trips = int(stmt.extent)
                    self._trips.append(trips)
                    self._env[stmt.loop_var] = (int(stmt.min) + np.arange(trips)).reshape(-1, *[1] * self._depth)
                    self._visit(stmt.body, around, in_turn=True, active=active)
                    self._trips.pop()
                    self._depth -= 1
            case tirx.IfThenElse():
                condition = evaluate(stmt.condition, self._env)
                self._load_all(stmt.condition, in_turn, active)
                self._visit(stmt.then_case, around, in_turn=in_turn, active=active & condition)
                if stmt.else_case is not None:
                    self._visit(stmt.else_case, around, in_turn=in_turn, active=active & ~condition)
            case tirx.Bind():
                self._read_staged(stmt.value, in_turn)
                self._load_all(stmt.value, in_turn, active)
                if dtype_of(stmt.value).startswith(("int", "bool")):
                    self._env[stmt.var] = evaluate(stmt.value, self._env)
            case _:
                self._read_staged(stmt, in_turn)
                self._load_all(stmt, in_turn, active)
                for store in self._stores(stmt) if in_turn else ():
                    self._store_all(store, active)

    def _read_staged(self, node: Any, in_turn: bool) -> None:
        # The pieces of a split reduction are added up once, behind all turns.
        if not (in_turn and self.is_staged and self._has_turns):
            return
        loads: list[Any] = []
        structural_walk(node, ((tvm.ir.TensorLoad, tvm.ir.Call), loads.append))
        for load in loads:
            if size := _local_bytes_of(load):
                self.local_loads += math.prod(self._trips) * size * (1 if self.on_tensor_cores else self._rounds(load))

    def _rounds(self, load: tvm.ir.TensorLoad) -> int:
        kind = tvm.DataType(str(load.source.dtype))
        places = self._elements(load.indices[0], int(kind.lanes), 1)
        return bank_rounds(places.reshape(-1, self.group_size)[0, :SERVED] * (int(kind.bits) // 8))

    def _stores(self, node: Any) -> list[tirx.BufferStore | tvm.ir.Call]:
        """Stores of the output, be it into a buffer, an image or, as halfs, through a pointer."""
        found: list[Any] = []
        structural_walk(node, ((tirx.BufferStore, tvm.ir.Call), found.append))
        return [e for e in found if _stored_to(e) == self.output]

    def _store_all(self, store: tirx.BufferStore | tvm.ir.Call, active: Any) -> None:
        if isinstance(store, tirx.BufferStore):
            unit = int(tvm.DataType(str(store.buffer.dtype)).lanes)
            places = [self._elements(store.indices[0], unit, lanes_of(store.value))]
        elif op_name(store) == "tirx.texture2d_store":
            places = [evaluate(argument, self._env) for argument in store.args[1:4]]
        else:
            lanes, start = lanes_of(store.args[1]), _start(store.args[3])
            places = [self._elements(store.args[2], lanes, lanes) + (0 if start is None else evaluate(start, self._env))]
        self.stores.append(self._of_everyone(places, active))

    def _of_everyone(self, places: Sequence[Any], active: Any) -> tuple[np.ndarray, ...]:
        """Places of all work-items that get there, in all repetitions."""
        shape = (*reversed(self._trips), self.group_size)
        is_active = np.broadcast_to(active, shape)
        return tuple(np.broadcast_to(p, (*np.shape(p)[: max(0, np.ndim(p) - len(shape))], *shape))[..., is_active].reshape(-1) for p in places)

    def _id(self, tag: str) -> Any:
        if not tag.startswith("threadIdx"):
            return 0
        before = [self.extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"[: "xyz".index(tag[-1])]]
        return np.arange(self.group_size) // math.prod(before) % self.extents[tag]

    def _load_all(self, node: Any, in_turn: bool, active: Any) -> None:
        guards: list[tuple[list[Any], Any]] = []
        is_ahead = isinstance(node, tirx.BufferStore) and self._is_ahead(node)
        is_staging = isinstance(node, tirx.BufferStore) and (str(node.buffer.scope()) in _LOCAL or self._is_summed_at_once(node))
        is_carried = is_ahead or is_staging or is_async_copy(getattr(node, "value", None))

        def guard(call: tvm.ir.Call) -> None:
            if is_conditional(call):
                condition, then, otherwise = call.args
                guards.extend([(list(self._loads(then)), condition), (list(self._loads(otherwise)), tirx.Not(condition))])
            elif is_async_copy(call):
                guards.append(([call], call.args[5]))

        if in_turn:
            structural_walk(node, (tvm.ir.Call, guard))
        for load in self._loads(node) if in_turn else ():
            self.is_prefetched |= is_ahead
            if isinstance(load, tvm.ir.TensorLoad):
                tensor, is_image, lanes = _name(load.source), False, lanes_of(load)
                unit = int(tvm.DataType(str(load.source.dtype)).lanes)
                places = [self._elements(load.indices[0], unit, lanes)]
            elif _half_lanes(load):
                tensor, is_image, lanes = _name(load.args[2]), False, _half_lanes(load)
                start = _start(load.args[2])
                places = [self._elements(load.args[1], lanes, lanes) + (0 if start is None else evaluate(start, self._env))]
            else:
                tensor, is_image, lanes = _name(load.args[0]), True, lanes_of(load)
                places = [evaluate(argument, self._env) for argument in load.args[1:4]]
            shape = (*reversed(self._trips), self.group_size)
            is_active = np.broadcast_to(active, shape)
            for guarded, condition in guards:
                if any(load.same_as(one) for one in guarded):
                    is_active = is_active & (evaluate(condition, self._env) != 0)
            whole = [np.broadcast_to(p, (*np.shape(p)[: max(0, np.ndim(p) - len(shape))], *shape)) for p in places]
            everyone = self._of_everyone(places, is_active)
            # What loops repeat, or carry to local memory, counts as it stands in the code: the first time may be all padding.
            is_read = bool(self._trips) or is_carried or bool(is_active[0])
            first = tuple(p.reshape(*p.shape[: p.ndim - len(shape)], -1)[..., 0].reshape(-1)[: None if is_read else 0] for p in whole)
            self.accesses.append(_Access(tensor, is_image, lanes, math.prod(self._trips), everyone, first, is_ahead))

    def _elements(self, index: tirx.Expr, unit: int, lanes: int) -> np.ndarray:
        """Element numbers of a load, shape (lanes, ...): `index` counts units of so many elements, or is a ramp of elements."""
        shape = (*reversed(self._trips), self.group_size)
        first = np.broadcast_to(evaluate(index.base if isinstance(index, tirx.Ramp) else index, self._env), shape)
        step = int(index.stride) if isinstance(index, tirx.Ramp) else 1
        return np.asarray(first[None] * unit + step * np.arange(lanes).reshape(-1, *[1] * len(shape)))


def bank_rounds(places: np.ndarray) -> int:
    """How often local memory is asked until neighbouring work-items have what they load, from so many bytes on; whoever wants the same is served at once."""
    words = np.unique((places - places.min()) // _VECTOR_BYTES)
    return int(np.bincount(words % SERVED).max())


def _distinct(places: Sequence[tuple[np.ndarray, ...]]) -> int:
    """Different numbers among element numbers, or in the texels at triples of coordinates."""
    columns = [np.concatenate(axis) for axis in zip(*places, strict=True)]
    if len(columns) == 1:
        return len(np.unique(columns[0]))
    # Coordinates may be negative, where an image gives zero.
    x, y, layer = (c - c.min(initial=0) for c in columns)
    key = (x * (y.max(initial=0) + 1) + y) * (layer.max(initial=0) + 1) + layer
    return len(np.unique(key)) * LANES


def _loops_inside(loop: tirx.For) -> list[tirx.For]:
    inner: list[tirx.For] = []
    structural_walk(loop.body, (tirx.For, inner.append))
    return inner


def _images_of(func: tirx.PrimFunc) -> set[str]:
    """Names of the parameters that are read or written as images."""
    found: set[str] = set()

    def visit(call: tvm.ir.Call) -> None:
        if op_name(call) in ("tirx.texture2d_load", "tirx.texture2d_store"):
            found.add(_name(call.args[0]))

    structural_walk(func.body, (tvm.ir.Call, visit))
    return found


def _products(node: Any) -> int:
    """Multiply-adds by lanes."""
    return _weighted(node, multiply_adds_of, (tvm.ir.Call, tirx.Mul))


def _local_bytes(node: Any) -> int:
    """Bytes read of local memory."""
    return _weighted(node, _local_bytes_of, (tvm.ir.TensorLoad, tvm.ir.Call))


def _local_bytes_of(load: tvm.ir.TensorLoad | tvm.ir.Call) -> int:
    texels = texels_for_tensor_cores(load)
    if not (texels or isinstance(load, tvm.ir.TensorLoad)) or scope_of(load) not in _LOCAL:
        return 0
    return texels * texel_bytes(load) or lanes_of(load) * int(tvm.DataType(dtype_of(load)).bits) // 8


def _weighted(node: Any, count: Callable[[Any], int], kinds: Any) -> int:
    """The sum of `count` over the nodes of some kinds, each times the trips of the loops around it inside of `node`."""
    if isinstance(node, tirx.For):
        return int(node.extent) * _weighted(node.body, count, kinds)
    if isinstance(node, tirx.SeqStmt):
        return sum(_weighted(child, count, kinds) for child in node.seq)
    if isinstance(node, tirx.AttrStmt):
        return _weighted(node.body, count, kinds)
    if isinstance(node, tirx.IfThenElse):
        return _weighted(node.then_case, count, kinds) + (0 if node.else_case is None else _weighted(node.else_case, count, kinds))
    found: list[int] = []
    structural_walk(node, (kinds, lambda part: found.append(count(part))))
    return sum(found)


def _half_lanes(call: tvm.ir.Call) -> int:
    """Lanes of a call that reads halfs through a pointer, 0 for any other."""
    return LANES * texels_for_tensor_cores(call) or (lanes_of(call) if is_half_load(call) else 0)


def _stored_to(node: Any) -> str:
    """Name of what a store writes to; empty for anything else."""
    if isinstance(node, tirx.BufferStore):
        return str(node.buffer.name)
    if op_name(node) == "tirx.texture2d_store":
        return _name(node.args[0])
    return _name(node.args[3]) if is_half_store(node) else ""


def _name(var: Any) -> str:
    """Of the parameter that a buffer, a pointer, or a pointer made of one of them stands for."""
    if isinstance(var, tvm.ir.TensorLoad):
        return _name(var.source)
    return _name(var.args[-1]) if isinstance(var, tvm.ir.Call) else str(getattr(var, "name", var)).removesuffix("_ptr")


def _start(pointer: Any) -> Any:
    """The element that a pointer made by address_of points to; None where it points to the first one."""
    if isinstance(pointer, tvm.ir.TensorLoad):
        return pointer.indices[0]
    return _start(pointer.args[-1]) if isinstance(pointer, tvm.ir.Call) and pointer.args else None
