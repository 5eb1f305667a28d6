"""The choice of tuned kernels by times of the whole model.

A kernel of a few microseconds may be faster than another one in isolation, but slower in the model, where its launch
overlaps with its neighbours and they use the same caches. So models with some of the new kernels are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import tvm

from romou.compiler.compilation import Compilation
from romou.driver.choice.finalist import Built, Finalist, alternate_times
from romou.driver.search.ahead import assembled_in

# Keys of tasks that have their new kernels.
Kept: TypeAlias = frozenset[str]
# (set, other sets) -> time(other) / time(set) of each other set, 1 or more if that is within the noise.
Compare: TypeAlias = Callable[[Kept, Sequence[Kept]], Mapping[Kept, float]]

GROUPS = 4
MOST_ROUNDS = 4


def choose_kernels(finalist: Finalist) -> Finalist:
    """Return the finalist with those new kernels that make the model faster, or with an earlier model's if it is."""
    finalist = _with_base(finalist)
    common = finalist.changed() & finalist.base.configs().keys()
    # Beside their defaults, these only seemed faster during the search.
    slower = {key for key in common & finalist.layers.keys() if finalist.layers[key].saved_ms <= 0}
    if slower:
        finalist = finalist.without(slower)
    new = frozenset(common & finalist.changed())
    if new and not finalist.course.deadline.is_over:
        calls = {task.key: task.calls for task in finalist.tuned.compilation.tasks}
        layers = finalist.layers
        saved_ms = {key: calls[key] * layers[key].saved_ms if key in layers else 0.0 for key in new}
        variants = _Variants(finalist, new)
        finalist = variants.finalist(best_by_model_time(saved_ms, variants.compare, finalist.has_time))
    base, tuned = finalist.base.model, finalist.tuned.model
    if base not in (finalist.default.model, tuned):
        times = alternate_times((base, tuned), finalist.site, finalist.course.deadline)
        if np.median(times[0]) <= np.median(times[1]):
            return finalist.without(finalist.changed())
    return finalist


def _with_base(finalist: Finalist) -> Finalist:
    """Return the finalist with the model of the earlier choice as its base. A choice of other knobs is left out."""
    choice, compilation = finalist.before, finalist.tuned.compilation
    if not choice:
        return finalist
    spaces = {task.key: task.space(finalist.site.target) for task in compilation.candidates}
    if not all(key in spaces and (config is None or spaces[key].knows(config)) for key, config in choice.items()):
        return finalist
    for built in (finalist.tuned, finalist.default):
        if built.configs() == choice:
            return replace(finalist, base=built)
    chosen = compilation.joined_where(choice.__contains__).with_configs(choice).within(finalist.max_memory)
    return replace(finalist, base=Built.of(chosen, finalist.site))


def best_by_model_time(saved_ms: Mapping[str, float], compare: Compare, has_time: Callable[[], bool]) -> Kept:
    """Return the tasks with whose new kernels the model is fastest, among few sets of tasks, by delta debugging.

    The first round compares all new kernels with the half that saves the most, and with all but one group. Each later
    round compares the fastest set so far with three kinds of others:

    1. Without all groups together that slow the model down one by one.
    2. With one half of the kernels that it lacks.
    3. Without one half of a group that helps the least.

    saved_ms: task key -> time that the new kernel saves in isolation.
    """
    ordered = sorted(saved_ms, key=lambda key: (-saved_ms[key], key))
    everything, most = frozenset(ordered), frozenset(ordered[: (len(ordered) + 1) // 2])
    sets = [most]
    if has_time():
        sets += [everything - group for group in _groups(ordered, saved_ms)]
    elif compare(frozenset(), [everything])[everything] < 1:
        return everything
    best, compared, left_out = everything, {frozenset[str](), everything}, dict[Kept, float]()
    for _ in range(MOST_ROUNDS):
        sets = [kept for kept in dict.fromkeys(sets) if kept not in compared]
        if not sets:
            break
        compared.update(sets)
        shares = compare(best, sets)
        left_out |= {best - kept: shares[kept] for kept in sets if kept < best}
        faster = [kept for kept in sets if shares[kept] < 1]
        one_by_one = [kept for kept in faster if kept < best and kept != most]
        sets = [frozenset.intersection(*one_by_one)] if one_by_one else []  # 1
        if faster:
            best = min(faster, key=lambda kept: shares[kept])
            sets += [best | half for half in _halves(ordered, everything - best)]  # 2
        if not has_time():
            break
        divisible = sorted((keys for keys in left_out if len(keys) > 1 and keys <= best), key=left_out.__getitem__)
        for keys in divisible[: 1 if faster else 2]:
            del left_out[keys]
            sets += [best - half for half in _halves(ordered, keys)]  # 3
    return best


def _halves(ordered: Sequence[str], keys: Kept) -> list[Kept]:
    inside = [key for key in ordered if key in keys]
    return [frozenset(inside[: len(inside) // 2]), frozenset(inside[len(inside) // 2 :])]


def _groups(ordered: Sequence[str], saved_ms: Mapping[str, float]) -> list[Kept]:
    """Return up to `GROUPS` groups of tasks that save about the same time each."""
    positive = {key: max(saved_ms[key], 0.0) for key in ordered}
    total, before = sum(positive.values()), 0.0
    groups: dict[int, set[str]] = {}
    for number, key in enumerate(ordered):
        share = before / total if total else number / len(ordered)
        groups.setdefault(min(GROUPS - 1, int(GROUPS * share)), set()).add(key)
        before += positive[key]
    return [frozenset(group) for group in groups.values()]


class _Variants:
    """Models of a finalist with some of its new kernels.

    new: keys of the tasks that may have their new kernels or those of the finalist's base.
    """

    def __init__(self, finalist: Finalist, new: Kept) -> None:
        self._finalist, self._new = finalist, new
        self._built: dict[Kept, Built] = {new: finalist.tuned, frozenset(): finalist.base}

    def compare(self, best: Kept, sets: Sequence[Kept]) -> dict[Kept, float]:
        """Return the time of each model over that of the model of `best`. It is less than 1 if each round says so.

        Slower models are dropped, because each has its own weights on the device.
        """
        missing = [kept for kept in sets if kept not in self._built]
        compilations = [self._finalist.compilation_without(self._new - kept) for kept in missing]
        compiled = dict(zip(missing, _assembled(compilations), strict=True))
        shares = {}
        for kept in sets:
            built = self._built[kept] if kept in self._built else self._finalist.built(compiled[kept])
            models, deadline = (built.model, self._built[best].model), self._finalist.course.deadline
            pair = alternate_times(models, self._finalist.site, deadline)
            shares[kept] = float(np.median(pair[0]) / np.median(pair[1]))
            if all(time < other for time, other in zip(*pair, strict=True)):
                self._built[kept] = built
            else:
                shares[kept] = max(shares[kept], 1.0)
        return shares

    def finalist(self, kept: Kept) -> Finalist:
        """Return the finalist with the new kernels of these tasks only."""
        if kept == self._new:
            return self._finalist
        return self._finalist.without(self._new - kept, self._built[kept])


def _assembled(compilations: Sequence[Compilation]) -> list[Compilation]:
    """Assemble models at the same time: NVRTC, which takes most of it, runs in parallel."""
    if not compilations:
        return []
    assemble = partial(assembled_in, tvm.transform.PassContext.current())
    with ThreadPoolExecutor(min(len(compilations), os.cpu_count() or 1)) as executor:
        return list(executor.map(assemble, compilations))
