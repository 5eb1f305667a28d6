"""A knob space less what the criteria exclude on a device, and the report of what each of them removed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from romou.errors import SpaceEmptyError, UsageError
from romou.hardware import HardwareSpec
from romou.pruning.criteria import Rules, Verdict, judge
from romou.pruning.forms import form_of
from romou.schedules.base import Template
from romou.schedules.contraction import Limits
from romou.space import Choice, Config, Space

# Below so many configs a search has nothing to choose from, and criteria give way.
LEAST_KEPT = 64
_SLACKS = (2.0, 4.0, 8.0, math.inf)
# A pruned space that is no larger is sampled by listing it.
_LISTED = 4096


@dataclass(frozen=True, kw_only=True)
class CriterionCount:
    """How a criterion did, in configs of the space before pruning.

    alone: removed by it, whatever the others say.   only: removed by it and by no other.
    source: of its limit.
    slack: how many times looser the limit was made, since too few configs would have been left; 1 where it was not, None where the criterion
        was dropped.
    """

    criterion: str
    alone: int
    only: int
    source: str
    slack: float | None


@dataclass(frozen=True, kw_only=True)
class PruningReport:
    """declared: configs by the knobs.   before: those that the template admits.   kept: those that also pass the criteria."""

    declared: int
    before: int
    kept: int
    criteria: tuple[CriterionCount, ...]

    @property
    def pruned_share(self) -> float:
        """Removed by criteria, 0 to 1 of `before`."""
        return 1 - self.kept / self.before if self.before else 0.0

    @property
    def relaxed(self) -> tuple[str, ...]:
        """Criteria that gave way, and how far: "l1_cache x2", "padding dropped"."""
        return tuple(f"{c.criterion} {'dropped' if c.slack is None else f'x{c.slack:g}'}" for c in self.criteria if c.slack != 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        counts = [dataclasses.asdict(c) for c in self.criteria]
        return {"declared": self.declared, "before": self.before, "kept": self.kept, "pruned_share": self.pruned_share, "criteria": counts}


class PrunedSpace(Space):
    """A space of which only some configs are valid; knobs, size and indices are those of the whole one, so records fit both.

    mask: which ones, over `Space.mesh`.
    """

    def __init__(self, space: Space, mask: np.ndarray, report: PruningReport) -> None:
        super().__init__()
        self.knobs = dict(space.knobs)
        self.divided_by = space.divided_by
        self.report = report
        # Places of those that are left: a few thousand out of many millions.
        self._shape, self._kept = mask.shape, np.flatnonzero(mask)
        self._digits = [{choice: digit for digit, choice in enumerate(choices)} for choices in self.knobs.values()]

    @property
    def kept(self) -> int:
        """Number of valid configs."""
        return len(self._kept) * self.size // math.prod(self._shape)

    def is_valid(self, config: Config) -> bool:
        """Whether the config is one of those that are left."""
        digits = (digit[config[name]] for name, digit in zip(self.knobs, self._digits, strict=True))
        place = np.ravel_multi_index([d if extent > 1 else 0 for d, extent in zip(digits, self._shape, strict=True)], self._shape)
        found = np.searchsorted(self._kept, place)
        return bool(found < len(self._kept) and self._kept[found] == place)

    def __iter__(self) -> Iterator[Config]:
        free = [len(c) if have == 1 else 1 for c, have in zip(self.knobs.values(), self._shape, strict=True)]
        return (self._config(int(place), list(rest)) for place in self._kept for rest in np.ndindex(*free))

    def sample(self, rng: np.random.Generator, count: int, exclude: Container[str] = (), where: Mapping[str, Choice] | None = None) -> list[Config]:
        """Up to `count` distinct valid configs whose keys are not in `exclude`, with the choices in `where`, each as likely as the next; fewer when no
        more are found."""
        found: dict[str, Config] = {}
        if self.kept <= max(4 * count, _LISTED):
            given = (where or {}).items()
            candidates: Iterator[Config] = (self._listed[int(i)] for i in rng.permutation(len(self._listed)) if self._listed[int(i)].items() >= given)
        else:
            candidates = self._drawn(rng, 50 * count + 200, where or {})
        for config in candidates:
            if len(found) == count:
                break
            if config.key not in exclude:
                found.setdefault(config.key, config)
        return list(found.values())

    def _drawn(self, rng: np.random.Generator, count: int, where: Mapping[str, Choice]) -> Iterator[Config]:
        """Random valid configs with the choices in `where`, some of them more than once."""
        kept = self._kept
        for axis, name in enumerate(self.knobs):
            if name in where and self._shape[axis] > 1:
                kept = kept[kept // math.prod(self._shape[axis + 1 :]) % self._shape[axis] == self._digits[axis][where[name]]]
        free = [len(c) if have == 1 else 1 for c, have in zip(self.knobs.values(), self._shape, strict=True)]
        for _ in range(count if len(kept) else 0):
            yield self._config(int(kept[rng.integers(len(kept))]), [int(rng.integers(extent)) for extent in free]).replace(**where)

    @functools.cached_property
    def _listed(self) -> list[Config]:
        return list(self)

    def _config(self, place: int, free: list[int]) -> Config:
        digits = np.unravel_index(place, self._shape)
        return Config({name: choices[int(d) + f] for (name, choices), d, f in zip(self.knobs.items(), digits, free, strict=True)})


def prune(template: Template, space: Space, spec: HardwareSpec, limits: Limits, *, rules: Rules | None = None, least_kept: int = LEAST_KEPT) -> PrunedSpace:
    """The configs of `space` that no criterion excludes on the device, by closed forms: nothing is lowered.

    Where fewer than `least_kept` are left (or than the space has), criteria give way in the order of CRITERIA: a limit is loosened 2, 4 and 8
    times, then the criterion is dropped and the next one loosened; those that turn out to be no hindrance come back. `PrunedSpace.report`
    tells which gave way.

    Parameters
    ----------
    space
        Of the template on the device, `template.space(limits)`.
    spec
        Facts of the device that kernels are made for; what is not known of it excludes nothing.

    Raises
    ------
    SpaceEmptyError
        The template itself admits no config.
    UsageError
        `least_kept` is below one.
    """
    if least_kept < 1:
        raise UsageError(f"least_kept must be at least 1, got {least_kept}")
    form = form_of(template, limits)
    valid, usage = form.usage_of_valid(space)
    before = space.count(valid)
    if not before:
        raise SpaceEmptyError(f"{template.name}: the template admits none of {space.size} configs on this device")
    # One number for each valid config and each combination of the knobs that anything depends on.
    verdicts = judge(usage, spec, rules=rules, choices=form.choices(space, spec, usage))
    count = int(np.count_nonzero(valid))
    verdicts = {name: _of_all(verdict, count) for name, verdict in verdicts.items()}
    each = before // count
    slacks = _slacks(verdicts, -(-min(least_kept, before) // each), count)
    mask = valid.copy()
    mask[valid] = _kept(verdicts, slacks, count)
    failed = {name: np.logical_not(verdict.keep) for name, verdict in verdicts.items()}
    failures = sum((f.astype(np.uint8) for f in failed.values()), start=np.uint8(0))
    counts = tuple(
        CriterionCount(
            criterion=name,
            alone=each * int(np.count_nonzero(failed[name])),
            only=each * int(np.count_nonzero(failed[name] & (failures == 1))),
            source=verdict.source,
            slack=None if math.isinf(slacks[name]) else slacks[name],
        )
        for name, verdict in verdicts.items()
    )
    report = PruningReport(declared=space.size, before=before, kept=space.count(mask), criteria=counts)
    return PrunedSpace(space, mask, report)


def _of_all(verdict: Verdict, count: int) -> Verdict:
    used, limit = (np.broadcast_to(number, count) for number in (verdict.used, verdict.limit))
    return dataclasses.replace(verdict, used=used, limit=limit)


def _kept(verdicts: Mapping[str, Verdict], slacks: Mapping[str, float], count: int) -> np.ndarray:
    kept = np.ones(count, dtype=bool)
    for name, verdict in verdicts.items():
        if not math.isinf(slacks[name]):
            kept &= verdict.keep_within(slacks[name])
    return kept


def _slacks(verdicts: Mapping[str, Verdict], least: int, count: int) -> dict[str, float]:
    """How far each criterion has to give way so that `least` of `count` configs are left."""
    slacks = dict.fromkeys(verdicts, 1.0)

    def is_enough(changed: Mapping[str, float]) -> bool:
        return bool(np.count_nonzero(_kept(verdicts, {**slacks, **changed}, count)) >= least)

    steps = ((name, slack) for name in verdicts for slack in _SLACKS)
    while not is_enough({}):
        name, slack = next(steps)
        slacks[name] = slack
    # The last one that gave way was needed; those before it perhaps were not.
    for name in [n for n, slack in slacks.items() if slack > 1]:
        slacks[name] = next(slack for slack in (1.0, *_SLACKS) if slack == slacks[name] or is_enough({name: slack}))
    return slacks
