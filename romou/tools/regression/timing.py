"""Times of operators and models in rounds: one subject after the other, or two sides of each subject in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import relax

from romou.base.inputs import random_inputs
from romou.compiler.tir.expressions import module_of
from romou.runtime.module import Argument, BuiltModel, Summary, TunedModel
from romou.tools.regression.bench_data import Bench, OperatorBench, Rounds

# (launches of one repeat, repeats) -> milliseconds of a launch, for each repeat.
Timer = Callable[[int, int], list[float]]
# Makes a timer with new tensors. Their addresses are no property of the kernel, so every round has new ones.
Subject = Callable[[], Timer]
# Name of a subject -> its rounds before and after.
Pairs = dict[str, tuple[Rounds, Rounds]]

REPEATS = 3
# Length of one repeat. Short kernels are launched until it takes this long, because events and schedulers have a coarse
# resolution.
_REPEAT_MS = 1.0
_MOST_LAUNCHES = 1000
MODEL, _REFERENCE = "whole model", "reference model"


def subjects(model: TunedModel, operators: Collection[OperatorBench], seed: int) -> dict[str, Subject]:
    """Return the subjects that can be timed: the whole model and each operator, by name."""

    def whole() -> Timer:
        # Kernels are judged, and both sides must be launched in the same way, so no graph is captured.
        return lambda number, repeat: model.times(repeat=repeat, seed=seed, capture=False)

    return {MODEL: whole, **{o.name: operator_subject(model, o.function, o.arguments, seed) for o in operators}}


def operator_subject(model: TunedModel, function: str, arguments: Sequence[Argument], seed: int) -> Subject:
    """Return a function of the model with random inputs as a subject."""
    arrays = list(random_inputs({str(i): (a.shape, a.dtype) for i, a in enumerate(arguments)}, seed).values())
    return lambda: model.operator_timer(function, arguments, arrays)


def time_rounds(subjects: Mapping[str, Subject], rounds: int, *, seed: int) -> dict[str, Rounds]:
    """Return `rounds` samples of each subject. Each round runs all of them in random order."""
    rng = np.random.default_rng(seed)
    names = list(subjects)
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    launches: dict[str, int] = {}
    for _ in range(rounds):
        for name in rng.permutation(names):
            timer = subjects[name]()
            if name not in launches:
                launches[name] = launches_of(timer)
            samples[name].append(tuple(timer(launches[name], REPEATS)))
    return {name: tuple(times) for name, times in samples.items()}


def with_times(bench: Bench, model: TunedModel, rounds: int, *, seed: int) -> Bench:
    """Return a bench of `model` with the times of its operators, the whole model, and the reference.

    All of them are timed in the same rounds.
    """
    timed = subjects(model, bench.operators, seed)
    timed[_REFERENCE] = subjects(reference_model(model), (), seed)[MODEL]
    times = time_rounds(timed, rounds, seed=seed)
    operators = tuple(replace(o, times_ms=times[o.name]) for o in bench.operators)
    return replace(bench, operators=operators, model_times_ms=times[MODEL], reference_times_ms=times[_REFERENCE])


def time_in_turns(
    before: Bench,
    after: Bench,
    models: tuple[TunedModel, TunedModel],
    rounds: int,
    *,
    stages: int,
    is_open: Callable[[Pairs], Collection[str]],
    seed: int,
) -> Pairs:
    """Time the common operators of two benches, and the whole models.

    Both sides are timed one right after the other, so a slow moment affects both.

    rounds: pairs of the first stage. Each later stage doubles the number of pairs so far.
    is_open: all pairs so far -> names that the next stage continues with.
    """
    names = {o.name for o in before.operators} & {o.name for o in after.operators}
    both = [
        subjects(model, [o for o in bench.operators if o.name in names], seed)
        for bench, model in zip((before, after), models, strict=True)
    ]
    rng = np.random.default_rng(seed)
    pairs: dict[str, tuple[list[tuple[float, ...]], list[tuple[float, ...]]]] = {name: ([], []) for name in both[0]}
    launches: dict[str, int] = {}
    left, measured = list(pairs), {}
    for stage in range(stages):
        for _ in range(rounds << max(0, stage - 1)):
            for name in rng.permutation(left):
                timers = [side[name]() for side in both]
                # Both sides have the same number, because a shorter kernel with more launches would have warmer caches.
                if name not in launches:
                    launches[name] = max(map(launches_of, timers))
                for side in rng.permutation(2):
                    pairs[name][side].append(tuple(timers[side](launches[name], REPEATS)))
        measured = {name: (tuple(a), tuple(b)) for name, (a, b) in pairs.items()}
        still = set(is_open(measured))
        left = [name for name in left if name in still]
        if not left:
            break
    return measured


def launches_of(timer: Timer) -> int:
    """Return the number of launches that fill a repeat."""
    return min(_MOST_LAUNCHES, max(1, math.ceil(_REPEAT_MS / min(timer(1, 2)))))


_SIDE = 256


def reference_model(beside: TunedModel) -> TunedModel:
    """Return a model for the device of another model: an fp32 matrix product by TVM's own schedule."""
    summary = Summary.unmeasured(target=str(beside.target), rows=(), seconds=0.0)
    target, inputs = beside.target, dict.fromkeys(("a", "b"), ((_SIDE, _SIDE), "float32"))
    executable = tvm.compile(module_of(inputs, relax.op.matmul), target=target.tvm_target)
    built = BuiltModel(executable=executable, target=target, inputs=inputs, outputs=("c",))
    return TunedModel(built, summary, device_index=beside.device_index, remote=beside.remote)
