"""The operators of a scheduled model, as a bench lists them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from romou.inspection.kernels import inspect_function
from romou.module import Argument
from romou.regression.bench import OperatorBench
from romou.regression.measures import source_mark, stable_measures
from romou.tasks.tunable import key_of, plain_form

if TYPE_CHECKING:
    from romou.module import ScheduledFunction
    from romou.target import Target


def operators_of(functions: Iterable[ScheduledFunction], calls: Mapping[str, int], target: Target) -> tuple[OperatorBench, ...]:
    """Each distinct function, untimed; those of one structure once, with the sum of their calls.

    calls: name of a function in the fused graph -> how often the model calls it.
    """
    found: dict[str, OperatorBench] = {}
    for one in functions:
        key = one.task.key if one.task is not None else key_of(plain_form(one.plain))
        if key in found:
            found[key] = replace(found[key], calls=found[key].calls + calls.get(one.hint, 0))
            continue
        kernels = inspect_function(one.func, target, name=one.name)
        sha256, size = source_mark(kernels)
        arguments = [Argument(shape=tuple(int(d) for d in p.shape), dtype=str(p.dtype), scope=str(p.scope())) for p in one.func.params]
        found[key] = OperatorBench(
            name=one.task.name if one.task is not None else _name(one.hint, arguments[-1]),
            key=key,
            function=one.name,
            calls=calls.get(one.hint, 0),
            config=dict(one.config),
            arguments=tuple(arguments),
            source_sha256=sha256,
            source_bytes=size,
            measures=stable_measures(kernels, one.task.template if one.task is not None else None, one.config),
        )
    return _with_unique_names(list(found.values()))


def _name(hint: str, output: Argument) -> str:
    """ "max_pool2d1" with an output of (1, 16, 7, 7, 4) -> "max_pool2d_1x16x7x7x4": TVM numbers functions of one kind in the order of a model."""
    return re.sub(r"(?<=[a-z])\d+(?=_|$)", "", hint) + "_" + "x".join(map(str, output.shape))


def _with_unique_names(operators: list[OperatorBench]) -> tuple[OperatorBench, ...]:
    """Operators that have a name in common, as they differ in their epilogue alone, get some digits of their key."""
    counts = Counter(o.name for o in operators)
    return tuple(o if counts[o.name] == 1 else replace(o, name=f"{o.name}#{o.key[:6]}") for o in operators)
