"""Which depthwise convolutions could share a kernel with the pointwise one that reads them, and the graph in which some
do.

    y = depthwise(x, w);  z = conv2d(y, v)      ->      z = depthwise_conv2d(x, w, v)

Whether that is faster is measured, so both ways stay open until a model is put together: fused functions as they are,
and the joined ones beside them as tasks of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, tirx

from romou.compiler.graph.rewrite import Walker, outputs_of, rebuild_main
from romou.compiler.operators.families import template_of
from romou.compiler.operators.families.depthwise_pointwise import is_pair, join
from romou.compiler.operators.template import ContractionTemplate
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask, key_of, plain_form
from romou.compiler.tir.calls import op_name


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two functions of a fused module of which the second one alone reads what the first one gives.

    first, second: their names.   position: of the parameter of the second one that is the result of the first one.
    task: of the joined function, with the calls of the second one that have the first one before them.
    keys: of the tasks of both by themselves.
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
    """A call of the depthwise convolution, and that of the pointwise one which reads it as its argument `position`."""

    first: relax.Call
    second: relax.Call
    position: int

    @property
    def key(self) -> tuple[str, str, int]:
        return str(self.first.args[0].name_hint), str(self.second.args[0].name_hint), self.position


def find_pairs(mod: tvm.IRModule, most_buffers: int | None = None) -> list[Pair]:
    """The pairs of a fused module, in the order of their first call, without those whose kernel would bind more than
    `most_buffers`.
    """
    found: dict[tuple[str, str, int], Pair] = {}
    for calls in _calls_in_pairs(mod):
        first, second, position = key = calls.key
        known = found.get(key)
        task = (
            TunableTask.of(join(mod[first], mod[second], position))
            if known is None
            else replace(known.task, calls=known.task.calls + 1)
        )
        # None where the epilogue of the second one reads what lies between once more.
        if task is not None and (most_buffers is None or len(task.func.params) <= most_buffers):
            keys = (key_of(plain_form(mod[first])), key_of(plain_form(mod[second])))
            found[key] = Pair(first=first, second=second, position=position, task=task, keys=keys)
    return list(found.values())


def tasks_of(pairs: Sequence[Pair]) -> list[TunableTask]:
    """The joined functions as tasks, those of equal structure once."""
    found: dict[str, TunableTask] = {}
    for pair in pairs:
        known = found.get(pair.task.key)
        found[pair.task.key] = replace(known, calls=known.calls + pair.task.calls) if known else pair.task
    return list(found.values())


def join_pairs(mod: tvm.IRModule, pairs: Sequence[Pair]) -> tvm.IRModule:
    """Return the module with these of its pairs joined, wherever they are called."""
    if not pairs:
        return mod
    chosen = {(pair.first, pair.second, pair.position): pair.name for pair in pairs}
    calls = {one.second: one for one in _calls_in_pairs(mod) if one.key in chosen}

    class Joiner(Walker):
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
                rest = [field for place, field in enumerate(pair.second.args[1].fields) if place != pair.position]
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
        # Each argument by itself: a function may read one tensor twice.
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
    """The template of the convolution that a call calls; None for anything else."""
    func = mod[value.args[0]] if op_name(value) == "relax.call_tir" else None
    template = template_of(func) if isinstance(func, tirx.PrimFunc) else None
    return template if isinstance(template, ContractionTemplate) and isinstance(template.workload, Conv2d) else None


def _work(template: ContractionTemplate) -> Conv2d:
    assert isinstance(template.workload, Conv2d), "only convolutions are asked for"
    return template.workload
