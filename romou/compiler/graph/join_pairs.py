"""Join depthwise convolutions with the pointwise convolution behind them, one kernel for chosen pairs.

    conv2d(depthwise(x, w), v)      ->      depthwise_conv2d(x, w, v)

Measurement decides whether a joined kernel is faster. Until the model is assembled, both forms are kept: the fused
functions as they are, and the joined functions as additional tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, tirx

from romou.compiler.graph.relax_rewriter import MainRewriter, outputs_of, rebuild_main
from romou.compiler.operators.families import template_of
from romou.compiler.operators.families.depthwise_pointwise import is_pair, join
from romou.compiler.operators.template import ContractionTemplate
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask, key_of, plain_form
from romou.compiler.tir.calls import op_name


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two functions of a fused module, if only the second reads the first one's result.

    first, second: names of the functions.
    position: index of the second function's parameter that receives the first one's result.
    task: the joined function. Its calls are the calls of this pair.
    keys: task keys of the two separate functions.
    """

    first: str
    second: str
    position: int
    task: TunableTask
    keys: tuple[str, str]

    @property
    def name(self) -> str:
        """Name of the joined function."""
        return f"{self.first}_{self.second.removeprefix('fused_')}"


@dataclass(frozen=True)
class _Calls:
    """The call of a depthwise convolution, and the call of the pointwise convolution that reads it as `position`."""

    first: relax.Call
    second: relax.Call
    position: int

    @property
    def key(self) -> tuple[str, str, int]:
        return str(self.first.args[0].name_hint), str(self.second.args[0].name_hint), self.position


def find_pairs(mod: tvm.IRModule, most_buffers: int | None = None) -> list[Pair]:
    """Return the pairs of a fused module in the order of their first call.

    most_buffers: a pair is left out if its joined kernel would bind more buffers.
    """
    pairs: dict[tuple[str, str, int], Pair] = {}
    for calls in _calls_in_pairs(mod):
        first, second, position = key = calls.key
        pair = pairs.get(key)
        task = (
            TunableTask.of(join(mod[first], mod[second], position))
            if pair is None
            else replace(pair.task, calls=pair.task.calls + 1)
        )
        # None if the second function's epilogue reads the intermediate result as well.
        if task is not None and (most_buffers is None or len(task.func.params) <= most_buffers):
            keys = (key_of(plain_form(mod[first])), key_of(plain_form(mod[second])))
            pairs[key] = Pair(first=first, second=second, position=position, task=task, keys=keys)
    return list(pairs.values())


def tasks_of(pairs: Sequence[Pair]) -> list[TunableTask]:
    """Return the joined functions as tasks, de-duplicated by structure."""
    tasks: dict[str, TunableTask] = {}
    for pair in pairs:
        task = tasks.get(pair.task.key)
        tasks[pair.task.key] = replace(task, calls=task.calls + pair.task.calls) if task else pair.task
    return list(tasks.values())


def join_pairs(mod: tvm.IRModule, pairs: Sequence[Pair]) -> tvm.IRModule:
    """Return `mod` with each of `pairs` joined in all places that call it."""
    if not pairs:
        return mod
    chosen = {(pair.first, pair.second, pair.position): pair.name for pair in pairs}
    calls = {pair_calls.second: pair_calls for pair_calls in _calls_in_pairs(mod) if pair_calls.key in chosen}

    class Joiner(MainRewriter):
        def visit(self, binding: relax.Binding) -> None:
            pair = None if isinstance(binding, relax.MatchCast) else calls.get(binding.value)
            if isinstance(binding, relax.MatchCast):
                self.match_cast(binding)
            elif pair is None:
                self.plain[binding.var] = self.bb.emit(self.plain_expr(binding.value))
            else:
                function = self.variant(
                    chosen[pair.key], (), lambda: join(mod[pair.key[0]], mod[pair.key[1]], pair.position)
                )
                rest = [field for index, field in enumerate(pair.second.args[1].fields) if index != pair.position]
                fields = [self.plain_expr(field) for field in (*pair.first.args[1].fields, *rest)]
                self.plain[binding.var] = self.bb.emit(
                    relax.call_tir(function, fields, out_ty=outputs_of(binding.var.ty))
                )

    return rebuild_main(mod, Joiner())


def _calls_in_pairs(mod: tvm.IRModule) -> Iterator[_Calls]:
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    uses: Counter[relax.Var] = Counter()
    for value in (*(binding.value for binding in bindings), main.body.body):
        # Arguments are counted one by one, because a function may read one tensor twice.
        for part in value.args[1].fields if op_name(value) == "relax.call_tir" else [value]:
            relax.analysis.post_order_visit(
                part, lambda expr: uses.update([expr] if isinstance(expr, relax.Var) else [])
            )
    made = {binding.var: binding.value for binding in bindings}
    for call in made.values():
        second = _convolution(mod, call)
        if second is None:
            continue
        position = [str(p.name) for p in mod[call.args[0]].params].index(second.names["data"])
        data = call.args[1].fields[position]
        first = _convolution(mod, made[data]) if data in made and uses[data] == 1 else None
        if first is not None and is_pair(_work(first), _work(second)):
            yield _Calls(made[data], call, position)


def _convolution(mod: tvm.IRModule, value: relax.Expr) -> ContractionTemplate | None:
    """Return the template of the convolution that `value` calls, or None."""
    func = mod[value.args[0]] if op_name(value) == "relax.call_tir" else None
    template = template_of(func) if isinstance(func, tirx.PrimFunc) else None
    return template if isinstance(template, ContractionTemplate) and isinstance(template.workload, Conv2d) else None


def _work(template: ContractionTemplate) -> Conv2d:
    assert isinstance(template.workload, Conv2d), "_convolution returns only templates of convolutions"
    return template.workload
