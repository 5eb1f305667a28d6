"""Kernels for any number of rows up to a bound: compiled for the bound, and launched for the rows of a run.

    launch(kernel, x, w, y, groups=16)      ->      launch(kernel, x, w, y, groups=min(16, ceil(16 * rows / 512)))

Rows are the outermost axis of the tensors that have them, so those of a run are the first elements. A group without
them is not launched. Elements behind them are computed in part, from whatever memory holds, and never read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax, s_tir, sym, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map

from romou.base.errors import ModelError, as_build_error
from romou.base.pages import page_of
from romou.compiler.assembly.build import Kept, Lowered, build_executable
from romou.compiler.scheduling.blocks import is_view, substitute
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import CHECKS_ARGUMENTS
from romou.compiler.tir.traversal import nodes_in

if TYPE_CHECKING:
    from romou.compiler.assembly.assemble import CompiledModel

_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
# Field of an argument that holds its value, in TVM's packed calls.
_VALUE = 15
HINT = f"Give sizes instead of a range: each gets kernels of its own ({page_of('shapes')})."
_GET, _SET = "tirx.tvm_struct_get", "tirx.tvm_struct_set"


def with_rows(fused: tvm.IRModule, smaller: tvm.IRModule, rows: int, fewer: int) -> dict[str, str]:
    """Return the functions whose tensors have rows, and why they are not by rows, or "".

    A function by rows computes a row of its outputs from the same row of its inputs.

    fused, smaller: fused functions of the model with `rows` and with `fewer` rows. What differs has rows.
    """
    others = {var.name_hint: func for var, func in smaller.functions_items() if isinstance(func, tirx.PrimFunc)}
    reasons = {}
    for var, func in fused.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_view(func):
            continue
        other = others.get(var.name_hint)
        if other is None:  # nothing calls it
            continue
        if shapes_in(func) != shapes_in(other) or _numbers(func) != _numbers(other):
            reasons[str(var.name_hint)] = _difference(func, other, rows, fewer)
    return reasons


def check_constants(main: relax.Function, smaller: relax.Function, sizes: str) -> None:
    """Raise ModelError unless the constants for smaller sizes are the first elements of those for larger ones."""
    mine, theirs = (
        [const.value.numpy() for binding in bindings(each) for const in _constants(binding.value)]
        for each in (main, smaller)
    )
    is_prefix = len(mine) == len(theirs) and all(
        one.ndim == two.ndim and np.array_equal(one.reshape(-1)[: two.size], two.reshape(-1))
        for one, two in zip(mine, theirs, strict=True)
    )
    if not is_prefix:
        raise ModelError(f"a constant of the model depends on the size: it is another one with {sizes}", hint=HINT)


def _constants(value: relax.Expr) -> list[Any]:
    """Return the tensors in an expression. A tensor of no elements has a constant dtype, too."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.GenericConst) and isinstance(node.value, tvm.runtime.Tensor):
            found.append(node)

    relax.analysis.post_order_visit(value, visit)
    return found


def _buffers(func: tirx.PrimFunc) -> list[Any]:
    return [*func.params, *(buffer for block in nodes_in(func.body, s_tir.SBlock) for buffer in block.alloc_buffers)]


def shapes_in(func: tirx.PrimFunc) -> list[list[int]]:
    """Return the shapes of a function's tensors."""
    return [[int(extent) for extent in buffer.shape] for buffer in _buffers(func)]


def _numbers(func: tirx.PrimFunc) -> list[str]:
    """Return the numbers of a function, but for extents."""
    blocks = [block for block in nodes_in(func.body, s_tir.SBlock) if not nodes_in(block.body, s_tir.SBlock)]
    parts = [part for block in blocks for part in (block.init, block.body) if part is not None]
    integers = [str(int(number)) for part in parts for number in nodes_in(part, tirx.IntImm)]
    return [repr(float(number.value)) for number in nodes_in(func.body, tirx.FloatImm)] + integers


def _difference(func: tirx.PrimFunc, other: tirx.PrimFunc, rows: int, fewer: int) -> str:
    """Return why a function is not by rows, or ""."""
    mine, theirs = _buffers(func), _buffers(other)
    if len(mine) != len(theirs):
        return "the graph has other kernels for fewer rows"
    with_rows = set()
    for one, two in zip(mine, theirs, strict=True):
        shape, smaller = ([int(extent) for extent in each.shape] for each in (one, two))
        if shape == smaller:
            continue
        if not _is_outermost(shape, smaller, rows, fewer) or str(one.scope()) != "global":
            return f"a tensor of the shape {shape} has its rows elsewhere than outermost"
        with_rows.add(one)
    if _numbers(func) != _numbers(other):
        return "a number in it depends on the number of rows"
    axis_of = {buffer: next(axis for axis, size in enumerate(buffer.shape) if int(size) != 1) for buffer in with_rows}
    blocks = [block for block in nodes_in(func.body, s_tir.SBlock) if not nodes_in(block.body, s_tir.SBlock)]
    return next((reason for block in blocks if (reason := _mixed_rows(block, axis_of))), "")


def _is_outermost(shape: Sequence[int], other: Sequence[int], rows: int, fewer: int) -> bool:
    """Return whether two shapes differ in their first axis above 1 only, which has the rows."""
    axis = next((axis for axis, size in enumerate(shape) if size != 1), 0)
    return shape[axis] == rows and [*shape[:axis], fewer, *shape[axis + 1 :]] == list(other)


def _mixed_rows(block: s_tir.SBlock, axis_of: Mapping[Any, int]) -> str:
    """Return why a block does not compute a row from the same row, or ""."""
    parts = [part for part in (block.init, block.body) if part is not None]
    stores = [store for part in parts for store in nodes_in(part, tirx.BufferStore)]
    loads = [load for part in parts for load in nodes_in(part, TensorLoad)]
    if any(nodes_in(index, TensorLoad) for access in (*stores, *loads) for index in access.indices):
        return "it reads at computed positions"
    analyzer = sym.Analyzer()
    for iter_var in block.iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)
    simple = analyzer.simplify
    written = [simple(store.indices[axis_of[store.buffer]]) for store in stores if store.buffer in axis_of]
    read = [simple(load.indices[axis_of[load.source]]) for load in loads if load.source in axis_of]
    if not written and not read:
        return ""
    spatial = [iter_var.var for iter_var in block.iter_vars if iter_var.iter_type == tirx.IterVar.DataPar]
    if not written or len(written) < len(stores) or not any(written[0].same_as(var) for var in spatial):
        return "it combines rows"
    if not all(each.same_as(written[0]) for each in (*written, *read)):
        return "it reads other rows than it writes"
    return ""


def by_rows(
    model: CompiledModel, most: Sequence[int], rows_of: Mapping[str, int], others: Collection[str]
) -> tuple[dict[Hashable, Lowered], tuple[str, ...]]:
    """Return lowered functions that launch groups for the number of rows in one of their last arguments.

    Also return the names of functions by rows that launch all groups for any number.

    most: the sizes that the model was compiled for, the most that a run may have.
    rows_of: function by rows -> place of the dimension that is its rows.
    others: functions that take sizes otherwise.
    """
    lowered: dict[Hashable, Lowered] = {}
    whole = []
    names = {str(var.name_hint) for var in model.scheduled.get_global_vars()}
    called = set(launches(model.scheduled))
    for key, kernel in model.kept.lowered.items():
        assert isinstance(key, tuple)
        name = str(key[0])
        if name not in names or name in others:
            continue
        place = rows_of.get(name)
        steps = {} if place is None else _steps(model.scheduled[name], most[place])
        lowered[key], is_shrunk = _launched_by_rows(kernel, steps or {}, place or 0)
        if name in called and not is_shrunk and steps != {}:
            whole.append(name)
    return lowered, tuple(whole)


def with_run_time_rows(
    model: CompiledModel, lowered: Mapping[Hashable, Lowered], general: Mapping[str, tirx.PrimFunc], count: int
) -> CompiledModel:
    """Return a program whose `main` takes sizes as its last arguments.

    lowered: functions by rows.
    general: function name -> scheduled kernel that takes the sizes itself. It precedes.
    count: the number of sizes.
    """
    scheduled = _with_sizes(model.scheduled, count)
    for name, func in general.items():
        # Checks of arguments compare shapes with those of the largest sizes.
        symbol = model.scheduled[name].attrs["global_symbol"]
        scheduled[name] = func.without_attr(CHECKS_ARGUMENTS).with_attr("global_symbol", symbol)
    with as_build_error("the model"), model.target.backend.keeping_programs():
        kept = Kept(lowered=dict(lowered))
        executable, host = build_executable([(scheduled, model.target)], kept)
    return replace(model, executable=executable, host=host, scheduled=scheduled, kept=kept)


def launches(scheduled: tvm.IRModule) -> list[str]:
    """Return the functions that `main` launches, in order. Views are not launched."""
    return [str(b.value.op.name_hint) for b in bindings(scheduled["main"]) if _is_launch(b.value)]


def bindings(main: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a function, in order."""
    return [binding for block in main.body.blocks for binding in block.bindings]


def _is_launch(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def _with_sizes(scheduled: tvm.IRModule, count: int) -> tvm.IRModule:
    """Return the module with sizes as arguments of `main`, and of each kernel behind its tensors."""
    main = scheduled["main"]
    sizes = [relax.Var(f"size{place or ''}", tvm.ir.PrimType("int64")) for place in range(count)]

    def binding_of(binding: relax.Binding) -> relax.Binding:
        call = binding.value
        if not _is_launch(call):
            return binding
        with_sizes = relax.Call(call.op, [*call.args, *sizes], call.attrs, call.ty_args, ret_ty=call.ty)
        return relax.VarBinding(binding.var, with_sizes)

    blocks = [type(block)([binding_of(binding) for binding in block.bindings]) for block in main.body.blocks]
    changed = tvm.IRModule(dict(scheduled.functions_items()), global_infos=dict(scheduled.global_infos))
    body = relax.SeqExpr(blocks, main.body.body)
    changed["main"] = relax.Function([*main.params, *sizes], body, main.ret_ty, main.is_pure, main.attrs)
    return changed


def _steps(func: tirx.PrimFunc, rows: int) -> dict[str, tuple[int, int]] | None:
    """Return axis of the grid -> least elements of rows before a group's first, and elements of a row.

    Empty if each group has elements of the first row. None if a store's position is not linear in the loops, or the
    function has several kernels.
    """
    loops = nodes_in(func.body, tirx.For)
    tags = [tag for loop in loops if (tag := _tag(loop)) in _GRID]
    realizes = nodes_in(func.body, s_tir.SBlockRealize)
    if len(tags) != len(set(tags)) or not tags:
        return None
    values = {v.var: value for r in realizes for v, value in zip(r.block.iter_vars, r.iter_values, strict=True)}
    analyzer = sym.Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, loop.extent))
    least: dict[str, tuple[int, int]] = {}
    for store in nodes_in(func.body, tirx.BufferStore):
        if not any(store.buffer.same_as(param) for param in func.params):
            continue
        shape = [int(extent) for extent in store.buffer.shape]
        if next((extent for extent in shape if extent != 1), 1) != rows:
            return None
        flat: Any = 0
        for index, extent in zip(store.indices, shape, strict=True):
            flat = flat * extent + (index.base if isinstance(index, tirx.Ramp) else index)
        for _ in range(8):
            flat = substitute(flat, values)
        variables = [loop.loop_var for loop in loops]
        coefficients = sym.detect_linear_equation(analyzer.simplify(flat), variables)
        if len(coefficients) == 0 or not all(isinstance(c, tirx.IntImm) and int(c) >= 0 for c in coefficients):
            return None
        elements = 1
        for extent in shape:
            elements *= extent
        for loop, coefficient in zip(loops, coefficients, strict=False):
            tag = _tag(loop)
            if tag in _GRID and int(coefficient):
                # The store that needs most groups decides.
                step = (int(coefficient), elements // rows)
                known = least.get(tag, step)
                least[tag] = min(step, known, key=lambda each: each[0] / each[1])
            elif tag in _GRID:
                least[tag] = (0, 1)
    return {tag: step for tag, step in least.items() if step[0]}


def _tag(loop: tirx.For) -> str:
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def _launched_by_rows(lowered: Lowered, steps: Mapping[str, tuple[int, int]], rows: int) -> tuple[Lowered, bool]:
    """Return a function that launches groups for its rows, and whether that may be fewer.

    rows: place of the number of rows behind the tensors.
    """
    kernels = [func for _, mod in lowered.device.values() for _, func in mod.functions_items()]
    places: dict[int, tuple[int, int]] = {}
    if len(kernels) == 1 and steps:
        tags = list(map(str, kernels[0].attrs["tirx.kernel_launch_params"]))
        places = {len(kernels[0].params) + place: steps[tag] for place, tag in enumerate(tags) if tag in steps}
    tensors = len(kernels[0].params) if kernels else 0
    count = 0

    def launched(func: tirx.PrimFunc) -> tirx.PrimFunc:
        # Checks of arguments count them. The inputs are Romou's own tensors.
        unchecked = structural_map(func.body, (tirx.AssertStmt, lambda _: tirx.Evaluate(0)))
        number = tirx.call_intrin("int64", _GET, func.params[1], tensors + rows, _VALUE)

        def by_rows(call: tvm.ir.Call) -> Any:
            nonlocal count
            if op_name(call) != _SET or int(call.args[2]) != _VALUE or int(call.args[1]) not in places:
                return call
            groups = _constant(call.args[3])
            if groups is None:
                return call
            count += 1
            step, elements = places[int(call.args[1])]
            needed = tirx.truncdiv(number * elements + (step - 1), tirx.IntImm("int64", step))
            fewest = tirx.Select(needed < groups, needed, tirx.IntImm("int64", groups))
            return tirx.call_intrin("int32", _SET, *call.args[:3], fewest)

        return func.with_body(structural_map(unchecked, (tvm.ir.Call, by_rows)) if places else unchecked)

    functions = {var: launched(func) for var, func in lowered.host.functions_items()}
    return replace(lowered, host=tvm.IRModule(functions, attrs=lowered.host.attrs)), count > 0


def _constant(value: Any) -> int | None:
    value = value.value if isinstance(value, tirx.Cast) else value
    return int(value) if isinstance(value, tirx.IntImm) else None
