"""Join functions of a chain into one kernel: convolutions, the parts of an attention, and a norm with a product.

    conv2d(depthwise(x, w), v)                      ->      depthwise_conv2d(x, w, v)
    matmul(softmax(matmul(q, k) + mask), v)         ->      attention(q, k, mask, v)
    packed_product(rms_norm(x, g), w)               ->      normalized_product(x, g, w)

Measurement decides whether a joined kernel is faster. Until the model is assembled, both forms are kept: the fused
functions as they are, and the joined functions as additional tasks.

    mean(x * x) * x                                 ->      one row reduction

Terms of a reduction, and the reductions of one norm, are joined without a question: they save a tensor, and no other
kernel reads it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, tirx

from romou.base.rung import Rung
from romou.compiler.graph.origins import Rungs, nodes_from
from romou.compiler.graph.relax_rewriter import MainRewriter, outputs_of, rebuild_main
from romou.compiler.operators.families import template_of
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.families.depthwise_pointwise import is_pair
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.compiler.operators.families.row_reduction import RowReduction
from romou.compiler.operators.kernels.quantized.row_classes import MOST_FEW
from romou.compiler.operators.workload import Conv2d
from romou.compiler.scheduling.blocks import (
    find_blocks,
    is_elementwise_of,
    is_regular,
    is_view,
    read_buffers,
    reductions_of,
)
from romou.compiler.scheduling.rewrites import inlined, join, without_repeats
from romou.compiler.task import TunableTask, key_of, plain_form
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import extents_of
from romou.compiler.tir.origin import Origin, bindings_of, origins_of
from romou.compiler.tir.traversal import nodes_in, substitute, with_fields

# Functions of an attention: both products, softmax, and a mask and reshapes between them.
_MOST_FUNCTIONS = 6


@dataclass(frozen=True, kw_only=True)
class ChainGroup:
    """The chains that begin with the same call. They are joined together, or not at all.

    joined: task keys of the joined functions.
    separate: task keys of all functions of the chains.
    """

    joined: tuple[str, ...]
    separate: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Functions of a fused module. Each is the only reader of the result of the one before.

    Several products may read one norm. Each is the end of a chain, whose kernel computes the norm again.

    functions: their names.
    positions: for each function but the first, index of the parameter that receives the result of the one before.
    task: the joined function. Its calls are the calls of this chain.
    keys: task keys of the separate functions. A reshape has none, because it is a view. Of chains that begin with the
        same call, the first has the key of its function.
    """

    functions: tuple[str, ...]
    positions: tuple[int, ...]
    task: TunableTask
    keys: tuple[str, ...]
    group: ChainGroup

    @property
    def name(self) -> str:
        """Name of the joined function."""
        return _name_of(self.functions)


@dataclass(frozen=True)
class _Calls:
    """The calls of a chain, in order, and the positions of `Chain`."""

    calls: tuple[relax.Call, ...]
    positions: tuple[int, ...]

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        return tuple(str(call.args[0].name_hint) for call in self.calls), self.positions

    @property
    def name(self) -> str:
        """Name of the joined function."""
        return _name_of(self.key[0])

    @property
    def fields(self) -> list[relax.Expr]:
        """Arguments of the joined function."""
        first, *others = (list(call.args[1].fields) for call in self.calls)
        for fields, position in zip(others, self.positions, strict=True):
            first += [field for index, field in enumerate(fields) if index != position]
        return first


def _name_of(functions: Sequence[str]) -> str:
    return "_".join([functions[0], *(name.removeprefix("fused_") for name in functions[1:])])


def find_chains(mod: tvm.IRModule, most_buffers: int | None = None) -> list[Chain]:
    """Return the chains of a fused module in the order of their last call.

    most_buffers: a chain is left out if its joined kernel would bind more buffers.
    """
    chains: dict[tuple[tuple[str, ...], tuple[int, ...]], Chain] = {}
    for calls_of_group in _Graph(mod).chains():
        tasks = [_task_of(mod, calls, most_buffers) for calls in calls_of_group]
        if None in tasks:
            continue
        keys = [_keys_of(mod, calls.key[0]) for calls in calls_of_group]
        keys[1:] = [of_chain[1:] for of_chain in keys[1:]]
        group = ChainGroup(
            joined=tuple(task.key for task in tasks if task is not None),
            separate=tuple(key for of_chain in keys for key in of_chain),
        )
        for calls, task, of_chain in zip(calls_of_group, tasks, keys, strict=True):
            if (chain := chains.get(calls.key)) is not None:
                chains[calls.key] = replace(chain, task=replace(chain.task, calls=chain.task.calls + 1))
            elif task is not None:
                functions, positions = calls.key
                chains[calls.key] = Chain(
                    functions=functions, positions=positions, task=task, keys=of_chain, group=group
                )
    return list(chains.values())


def _task_of(mod: tvm.IRModule, calls: _Calls, most_buffers: int | None) -> TunableTask | None:
    """Return the joined function of a chain as a task, or None if no family takes it or it binds too many buffers.

    No family takes it if the epilogue of a later function reads an intermediate result as well.
    """
    task = TunableTask.of(_joined(mod, *calls.key))
    return task if task is not None and (most_buffers is None or len(task.func.params) <= most_buffers) else None


def _keys_of(mod: tvm.IRModule, functions: Sequence[str]) -> tuple[str, ...]:
    templates = ((mod[name], template_of(mod[name])) for name in functions)
    return tuple(key_of(plain_form(func), template) for func, template in templates if template is not None)


def tasks_of(chains: Sequence[Chain]) -> list[TunableTask]:
    """Return the joined functions as tasks, de-duplicated by structure."""
    tasks: dict[str, TunableTask] = {}
    for chain in chains:
        task = tasks.get(chain.task.key)
        tasks[chain.task.key] = replace(task, calls=task.calls + chain.task.calls) if task else chain.task
    return list(tasks.values())


def join_chains(mod: tvm.IRModule, chains: Sequence[Chain]) -> tvm.IRModule:
    """Return `mod` with each of `chains` joined in all places that call it."""
    if not chains:
        return mod
    chosen = {(chain.functions, chain.positions): chain.name for chain in chains}
    calls = {found.calls[-1]: found for group in _Graph(mod).chains() for found in group if found.key in chosen}

    class Joiner(MainRewriter):
        def visit(self, binding: relax.VarBinding) -> None:
            chain = calls.get(binding.value)
            if chain is None:
                super().visit(binding)
            else:
                function = self.variant(chosen[chain.key], (), lambda: _joined(mod, *chain.key))
                fields = [self.plain_expr(field) for field in chain.fields]
                self.plain[binding.var] = self.bb.emit(
                    relax.call_tir(function, fields, out_ty=outputs_of(binding.var.ty))
                )

    return rebuild_main(mod, Joiner())


def join_terms(mod: tvm.IRModule, rungs: Rungs) -> tvm.IRModule:
    """Return `mod` with sums, differences, products and row reductions in the row reductions that alone read them.

    y = multiply(x, x), z = mean_divide(y, x)      ->      z = multiply_mean_divide(x)
    y = variance_sqrt(x), z = mean_divide(x, y)    ->      z = variance_sqrt_mean_divide(x)

    TVM fuses nothing into a reduction that has an epilogue.
    """
    failed, has_changed = nodes_from(rungs, Rung.APART), True
    # A joined function may be the only reader of another result.
    while has_changed:
        joiner = _TermJoiner(mod, failed)
        mod, has_changed = rebuild_main(mod, joiner), joiner.has_changed
    return mod


class _TermJoiner(MainRewriter):
    has_changed = False

    def __init__(self, mod: tvm.IRModule, failed: Origin) -> None:
        super().__init__()
        self._graph, self._failed, self._origins = _Graph(mod), failed, origins_of(mod["main"])
        self._taken = {var.name_hint for var in mod.get_global_vars()}

    def visit(self, binding: relax.VarBinding) -> None:
        joined = None if self._origins[binding.var] & self._failed else self._graph.with_terms(binding.value)
        if joined is None:
            super().visit(binding)
            return
        calls, func, fields = joined
        self.has_changed = True
        self.bb.origin |= self._origins[self._graph.results[calls.calls[0]]]
        # Calls of the same functions may share other arguments.
        key = calls.key, tuple(map(calls.fields.index, calls.fields))
        name = calls.name
        while name in self._taken:
            name += "_again"
        function = self.variant(name, key, lambda: func)
        self.plain[binding.var] = self.bb.emit(
            relax.call_tir(function, list(map(self.plain_expr, fields)), out_ty=outputs_of(binding.var.ty))
        )


def _is_term(func: tirx.PrimFunc, shape: Sequence[int]) -> bool:
    """Return whether a function adds, subtracts and multiplies the elements of tensors that have the shape."""
    if not is_regular(func) or reductions_of(func):
        return False
    func = inlined(func)
    block, *others = find_blocks(func)
    return (
        not others
        and all(extents_of(buffer.shape) == shape and is_elementwise_of(block, buffer) for buffer in func.params[:-1])
        and not nodes_in(block.body, tvm.ir.Call, tirx.Div)
    )


def _with_shared_parameters(
    func: tirx.PrimFunc, fields: Sequence[relax.Expr]
) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """Return a function in which all parameters that get one tensor are one parameter, and its arguments."""
    *inputs, output = func.params
    first: dict[relax.Expr, tirx.Buffer] = {}
    same = {parameter: first.setdefault(field, parameter) for parameter, field in zip(inputs, fields, strict=True)}
    body = substitute(func.body, same)
    return with_fields(func, params=[*first.values(), output], body=body), list(first)


def _joined(mod: tvm.IRModule, functions: Sequence[str], positions: Sequence[int]) -> tirx.PrimFunc:
    func = mod[functions[0]]
    for name, position in zip(functions[1:], positions, strict=True):
        func = join(func, mod[name], position)
    return func


class _Graph:
    """The calls of a fused module.

    made: variable -> the expression that it is bound to. `results` is its reverse.
    uses: number of reads of each variable.
    readers: variable -> the calls that read it.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        main = mod["main"]
        bindings = bindings_of(main)
        self.made: Mapping[relax.Var, relax.Expr] = {binding.var: binding.value for binding in bindings}
        self.results = {value: var for var, value in self.made.items()}
        self.uses: Counter[relax.Var] = Counter()
        self.readers: dict[relax.Var, list[relax.Call]] = defaultdict(list)
        for value in (*self.made.values(), main.body.body):
            # Arguments are counted one by one, because a function may read one tensor twice.
            for part in value.args[1].fields if op_name(value) == "relax.call_tir" else [value]:
                relax.analysis.post_order_visit(
                    part, lambda expr: self.uses.update([expr] if isinstance(expr, relax.Var) else [])
                )
                if isinstance(part, relax.Var):
                    self.readers[part].append(value)

    def chains(self) -> Iterator[list[_Calls]]:
        """Yield the calls that may share a kernel, with other chains that begin with the same call."""
        for var, call in self.made.items():
            yield from self._norms(var, call)
            template = self._contraction(call)
            if template is None:
                continue
            position = [str(p.name) for p in self._function(call).params].index(template.names["data"])
            if isinstance(template.workload, Conv2d):
                yield from ([pair] for pair in self._pairs(call, template.workload, position))
            elif not template.contracted.operator.has_constant_weight:
                yield from ([chain] for chain in self._attentions(_Calls((call,), ()), position))

    def _norms(self, var: relax.Var, call: relax.Call) -> Iterator[list[_Calls]]:
        """Yield the chains from a norm, the result of `call`, to all of its readers, if these are packed products."""
        func = self._function(call) if op_name(call) == "relax.call_tir" else None
        if not isinstance(func, tirx.PrimFunc) or not isinstance(template_of(func), RowReduction):
            return
        chains = list(self._to_products(var, _Calls((call,), ())))
        if chains and None not in chains:
            yield [chain for chain in chains if chain is not None]

    def _to_products(self, var: relax.Var, calls: _Calls) -> Iterator[_Calls | None]:
        """Yield `calls` with each reader of their result `var`, behind reshapes. None for a reader of another kind."""
        if self.uses[var] != len(self.readers[var]):
            yield None
        for reader in self.readers[var]:
            func = self._function(reader) if op_name(reader) == "relax.call_tir" else None
            places = [at for at, field in enumerate(reader.args[1].fields) if field.same_as(var)] if func else []
            if not isinstance(func, tirx.PrimFunc) or len(places) != 1:
                yield None
                continue
            longer = _Calls((*calls.calls, reader), (*calls.positions, *places))
            template = template_of(func)
            if isinstance(template, QuantizedTemplate):
                is_data = str(func.params[places[0]].name) == template.names["data"]
                yield longer if is_data and template.workload.m <= MOST_FEW else None
            elif is_view(func):
                yield from self._to_products(self.results[reader], longer)
            else:
                yield None

    def with_terms(self, call: relax.Expr) -> tuple[_Calls, tirx.PrimFunc, list[relax.Expr]] | None:
        """Return a row reduction with a term that only one of its passes reads, or with another reduction, or None."""
        func = self._function(call) if op_name(call) == "relax.call_tir" else None
        if not isinstance(func, tirx.PrimFunc) or not isinstance(template_of(func), RowReduction):
            return None
        for position, parameter in enumerate(func.params[:-1]):
            source = self._source(call, position)
            if source is None:
                continue
            made = self._function(source)
            reads = sum(any(parameter.same_as(read) for read in read_buffers(block)) for block in find_blocks(func))
            is_term = reads == 1 and _is_term(made, extents_of(parameter.shape))
            if not is_term and not isinstance(template_of(made), RowReduction):
                continue
            calls = _Calls((source, call), (position,))
            joined, fields = _with_shared_parameters(_joined(self._mod, *calls.key), calls.fields)
            joined = without_repeats(joined)
            if isinstance(template_of(joined), RowReduction):
                return calls, joined, fields
        return None

    def _pairs(self, call: relax.Call, work: Conv2d, position: int) -> Iterator[_Calls]:
        source = self._source(call, position)
        first = None if source is None else self._contraction(source)
        if source is None or first is None or not isinstance(first.workload, Conv2d):
            return
        if is_pair(first.workload, work):
            yield _Calls((source, call), (position,))

    def _attentions(self, calls: _Calls, position: int) -> Iterator[_Calls]:
        """Yield the chains from a product of two computed matrices to `calls`, whose first call reads it there."""
        source = self._source(calls.calls[0], position)
        if source is None or len(calls.calls) == _MOST_FUNCTIONS:
            return
        longer = _Calls((source, *calls.calls), (position, *calls.positions))
        template = template_of(self._function(source))
        if isinstance(template, ContractionTemplate):
            if not template.contracted.operator.has_constant_weight and len(longer.calls) > 2:
                yield longer
            return
        for at in range(len(source.args[1].fields)):
            yield from self._attentions(longer, at)

    def _source(self, call: relax.Call, position: int) -> relax.Call | None:
        """Return the call that only this argument of `call` reads, or None."""
        var = call.args[1].fields[position]
        value = self.made.get(var) if isinstance(var, relax.Var) and self.uses[var] == 1 else None
        return value if value is not None and op_name(value) == "relax.call_tir" else None

    def _function(self, call: relax.Call) -> tirx.PrimFunc:
        return self._mod[call.args[0]]

    def _contraction(self, value: relax.Expr) -> ContractionTemplate | None:
        """Return the template of the contraction that `value` calls, or None."""
        func = self._function(value) if op_name(value) == "relax.call_tir" else None
        template = template_of(func) if isinstance(func, tirx.PrimFunc) else None
        return template if isinstance(template, ContractionTemplate) else None
