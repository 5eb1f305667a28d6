"""The choice of tuned kernels by times of the whole model.

A kernel of a few microseconds may be faster than another one in isolation, but slower in the model, where its launch
overlaps with its neighbours and they use the same caches. So models with some of the new kernels are compared: without
one group each, then without parts of the groups that help the least.
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
from romou.driver.ahead import assembled_in
from romou.driver.finalist import Built, Finalist, alternate_times
from romou.runtime.module import Timed

# Keys of tasks that have their new kernels.
Kept: TypeAlias = frozenset[str]
# (set, other sets) -> time of each of the others over the first one's. It is less than 1 only beyond the noise.
Compare: TypeAlias = Callable[[Kept, Sequence[Kept]], Mapping[Kept, float]]

GROUPS = 4
MOST_ROUNDS = 4


def with_what_helps(finalist: Finalist, layers: Mapping[str, Timed], has_time: Callable[[], bool]) -> Finalist:
    """Return the finalist with those new kernels that make the model faster.

    layers: task key -> times of the default and of the tuned kernel beside each other. These decide against a config
        that only seemed faster during the search.
    has_time: whether a round of compilations and timings may begin.
    """
    common = finalist.changed() & finalist.base.configs().keys()
    slower = {key for key in common & layers.keys() if layers[key].saved_ms <= 0}
    if slower:
        finalist = finalist.without(slower)
    helpful = frozenset(common & finalist.changed())
    if helpful and not finalist.deadline.is_over:
        calls = {task.key: task.calls for task in finalist.tuned.compilation.tasks}
        base_ms = {row.key: row.tuned_ms for row in finalist.base.model.summary().rows}
        saved_ms = {
            key: calls[key] * replace(layers[key], default_ms=base_ms.get(key) or layers[key].default_ms).saved_ms
            if key in layers
            else 0.0
            for key in helpful
        }
        variants = _Variants(finalist, helpful)
        finalist = variants.finalist(choose(saved_ms, variants.compare, has_time))
    return _not_slower_than_base(finalist)


def choose(saved_ms: Mapping[str, float], compare: Compare, has_time: Callable[[], bool]) -> Kept:
    """Return the tasks with whose new kernels the model is fastest, among few sets of tasks.

    The first round compares all new kernels with the half that saves the most, and with all but one group. Each later
    round leaves out together what made the model faster one by one, adds halves of what the fastest set lacks, and
    leaves out halves of the groups without which the model was the least slower.

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
        alone = [kept for kept in faster if kept < best and kept != most]
        sets = [frozenset.intersection(*alone)] if alone else []
        if faster:
            best = min(faster, key=lambda kept: shares[kept])
            sets += [best | part for part in _halves(ordered, everything - best)]
        if not has_time():
            break
        divisible = sorted((keys for keys in left_out if len(keys) > 1 and keys <= best), key=left_out.__getitem__)
        for keys in divisible[: 1 if faster else 2]:
            del left_out[keys]
            sets += [best - part for part in _halves(ordered, keys)]
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

    helpful: keys of the tasks that may have their new kernels or those of the finalist's base.
    """

    def __init__(self, finalist: Finalist, helpful: Kept) -> None:
        self._finalist, self._helpful = finalist, helpful
        self._built: dict[Kept, Built] = {helpful: finalist.tuned, frozenset(): finalist.base}

    def compare(self, best: Kept, sets: Sequence[Kept]) -> dict[Kept, float]:
        """Return the time of each model over that of the model of `best`. It is less than 1 if each round says so.

        Slower models are dropped, because each has its own weights on the device.
        """
        new = [kept for kept in sets if kept not in self._built]
        compiled = dict(zip(new, _assembled([self._without(kept) for kept in new]), strict=True))
        shares = {}
        for kept in sets:
            built = self._built[kept] if kept in self._built else self._finalist.built(compiled[kept])
            pair = alternate_times((built.model, self._built[best].model), self._finalist.site, self._finalist.deadline)
            shares[kept] = float(np.median(pair[0]) / np.median(pair[1]))
            if all(time < other for time, other in zip(*pair, strict=True)):
                self._built[kept] = built
            else:
                shares[kept] = max(shares[kept], 1.0)
        return shares

    def finalist(self, kept: Kept) -> Finalist:
        """Return the finalist with the new kernels of these tasks only."""
        if kept == self._helpful:
            return self._finalist
        return self._finalist.without(self._helpful - kept, self._built[kept])

    def _without(self, kept: Kept) -> Compilation:
        return self._finalist.compilation_without(self._helpful - kept)


def _assembled(compilations: Sequence[Compilation]) -> list[Compilation]:
    """Assemble models at the same time: NVRTC, which takes most of it, runs in parallel."""
    if not compilations:
        return []
    assemble = partial(assembled_in, tvm.transform.PassContext.current())
    with ThreadPoolExecutor(min(len(compilations), os.cpu_count() or 1)) as executor:
        return list(executor.map(assemble, compilations))


def _not_slower_than_base(finalist: Finalist) -> Finalist:
    """Return the finalist, with all kernels of its base if that is an earlier model and is faster."""
    base, tuned = finalist.base.model, finalist.tuned.model
    if base is finalist.default.model or base is tuned:
        return finalist
    times = alternate_times((base, tuned), finalist.site, finalist.deadline)
    return finalist if np.median(times[1]) < np.median(times[0]) else finalist.without(finalist.changed())
