"""Pruned spaces: a knob space without the configs that the criteria exclude on a device, and a report of these."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from romou.base.config_block import ConfigBlock
from romou.base.errors import SpaceEmptyError, UsageError
from romou.base.knob import Choice
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.criteria import Choices, Rules, Verdict, choices_of, judge
from romou.compiler.operators.schedule_template import Template
from romou.devices.hardware import HardwareSpec

# Criteria give way so that a search has at least this many configs.
LEAST_KEPT = 64
_SLACKS = (2.0, 4.0, 8.0, math.inf)
# A pruned space of at most this size is listed to be sampled.
_LISTED = 4096


@dataclass(frozen=True, kw_only=True)
class CriterionCount:
    """Numbers of configs that a criterion removed from the space before pruning.

    alone: removed by it, perhaps by others too
    only: removed by it and by no other
    left: removed neither by it nor by the criteria before it
    source: origin of its limit
    slack: factor by which its limit was loosened because too few configs would be left. None if it was dropped
    """

    criterion: str
    alone: int
    only: int
    left: int
    source: str
    slack: float | None


@dataclass(frozen=True, kw_only=True)
class PruningReport:
    """Numbers of configs before and after pruning.

    declared: product of the knobs' choices
    before: configs that the template admits
    kept: configs that the template admits and that also pass the criteria
    """

    declared: int
    before: int
    kept: int
    criteria: tuple[CriterionCount, ...]

    @property
    def pruned_share(self) -> float:
        """Share of `before` that the criteria removed, 0 to 1."""
        return 1 - self.kept / self.before if self.before else 0.0

    @property
    def relaxed(self) -> tuple[str, ...]:
        """Criteria that gave way, with their slack: "l1_cache x2", "padding dropped"."""
        return tuple(
            f"{c.criterion} {'dropped' if c.slack is None else f'x{c.slack:g}'}" for c in self.criteria if c.slack != 1
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        counts = [dataclasses.asdict(c) for c in self.criteria]
        return {
            "declared": self.declared,
            "before": self.before,
            "kept": self.kept,
            "pruned_share": self.pruned_share,
            "criteria": counts,
        }


@dataclass(frozen=True, kw_only=True)
class _Left:
    """The result of pruning.

    shape: number of choices of each knob. 1 if validity does not depend on it
    kept: sorted flat indices of the valid configs in this shape
    """

    shape: tuple[int, ...]
    kept: np.ndarray
    report: PruningReport
    choices: Choices


class PrunedSpace(Space):
    """A space with only the configs that pass the criteria.

    Knobs, size and indices are the same as in the whole space, so records fit both.

    space: the whole space.
    prune: returns the valid configs. It is called when validity is first needed.
    """

    def __init__(self, space: Space, prune: Callable[[], _Left]) -> None:
        super().__init__()
        self.knobs, self.declared = dict(space.knobs), space.declared
        self.divided_by = space.divided_by
        # The template's constraints: `blocks` still covers the whole space.
        self._spaces, self._constraints = space._spaces, space._constraints
        self._prune = prune

    @functools.cached_property
    def left(self) -> _Left:
        """The result of pruning, computed on first use."""
        return self._prune()

    @property
    def is_pruned(self) -> bool:
        """True if the criteria were applied."""
        return "left" in self.__dict__

    @property
    def report(self) -> PruningReport:
        """The numbers of configs that each criterion removed."""
        return self.left.report

    @property
    def choices(self) -> Choices:
        """The best values among all configs of the whole space."""
        return self.left.choices

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.left.shape

    @property
    def _kept(self) -> np.ndarray:
        return self.left.kept

    @property
    def kept(self) -> int:
        """Number of valid configs."""
        return len(self._kept) * self.size // math.prod(self._shape)

    def is_valid(self, config: Config) -> bool:
        return bool(self._are_valid(self._digits_of([config]))[0])

    def _are_valid(self, digits: np.ndarray) -> np.ndarray:
        pitches = [math.prod(self._shape[axis + 1 :]) if extent > 1 else 0 for axis, extent in enumerate(self._shape)]
        places = digits @ np.asarray(pitches, dtype=np.int64)
        ranks = np.minimum(np.searchsorted(self._kept, places), len(self._kept) - 1)
        valid: np.ndarray = self._kept[ranks] == places
        return valid

    def __iter__(self) -> Iterator[Config]:
        free = [len(c) if have == 1 else 1 for c, have in zip(self.knobs.values(), self._shape, strict=True)]
        return (self._config(int(place), list(rest)) for place in self._kept for rest in np.ndindex(*free))

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        exclude: Container[str] = (),
        where: Mapping[str, Choice] | None = None,
    ) -> list[Config]:
        configs: dict[str, Config] = {}
        if self.kept <= max(4 * count, _LISTED):
            required = (where or {}).items()
            candidates: Iterator[Config] = (
                self._listed[int(i)]
                for i in rng.permutation(len(self._listed))
                if self._listed[int(i)].items() >= required
            )
        else:
            candidates = self._drawn(rng, 50 * count + 200, where or {})
        for config in candidates:
            if len(configs) == count:
                break
            if config.key not in exclude:
                configs.setdefault(config.key, config)
        return list(configs.values())

    def _drawn(self, rng: np.random.Generator, count: int, where: Mapping[str, Choice]) -> Iterator[Config]:
        """Yield random valid configs with the choices in `where`, perhaps with repetitions."""
        kept = self._kept
        for axis, name in enumerate(self.knobs):
            if name in where and self._shape[axis] > 1:
                kept = kept[
                    kept // math.prod(self._shape[axis + 1 :]) % self._shape[axis]
                    == self.knobs[name].index(where[name])
                ]
        free = [len(c) if have == 1 else 1 for c, have in zip(self.knobs.values(), self._shape, strict=True)]
        for _ in range(count if len(kept) else 0):
            yield self._config(
                int(kept[rng.integers(len(kept))]), [int(rng.integers(extent)) for extent in free]
            ).replace(**where)

    @functools.cached_property
    def _listed(self) -> list[Config]:
        return list(self)

    def _config(self, place: int, free: list[int]) -> Config:
        digits = np.unravel_index(place, self._shape)
        return Config(
            {name: choices[int(d) + f] for (name, choices), d, f in zip(self.knobs.items(), digits, free, strict=True)}
        )


def prune(
    template: Template,
    space: Space,
    spec: HardwareSpec,
    limits: Limits,
    *,
    rules: Rules | None = None,
    least_kept: int = LEAST_KEPT,
    is_later: bool = False,
    default: Config | None = None,
) -> PrunedSpace:
    """Return the configs of `space` that no criterion excludes on the device, by closed forms: nothing is lowered.

    If fewer than `least_kept` (or all of a smaller space) are left, criteria give way in the order of CRITERIA. A limit
    is loosened 2, 4 and 8 times, then the criterion is dropped and the next one is loosened. Criteria that turn out not
    to matter are restored. `PrunedSpace.report` has the slack of each.

    space: `template.space(limits)`
    spec: facts of the device. Unknown facts exclude nothing
    is_later: apply the criteria, and raise SpaceEmptyError, only when validity is first needed
    default: the default config, whose estimate shows the estimate's error. None: the template's by hand rules

    Raises
    ------
    SpaceEmptyError
        The template admits no config.
    UsageError
        `least_kept` is below one.
    """

    def now() -> PrunedSpace:
        (pruned,) = prune_each(
            template, space, spec, limits, (rules or Rules(),), least_kept=least_kept, default=default
        )
        return pruned

    return PrunedSpace(space, lambda: now().left) if is_later else now()


def prune_each(
    template: Template,
    space: Space,
    spec: HardwareSpec,
    limits: Limits,
    rules: Sequence[Rules],
    *,
    least_kept: int = LEAST_KEPT,
    default: Config | None = None,
) -> list[PrunedSpace]:
    """Return the pruned space for each of several rules. The usage of the kernels is computed once. See `prune`."""
    if least_kept < 1:
        raise UsageError(f"least_kept must be at least 1, got {least_kept}")
    form, blocks = template.form(limits), list(space.blocks())
    if not blocks:
        room = (
            f"work groups of at most {limits.max_work_group_size} work-items and {limits.local_memory_bytes} bytes of"
            " local memory"
        )
        hint = "Raise -max_num_threads and -max_shared_memory_per_block in the target, or leave them out."
        raise SpaceEmptyError(
            f"{template.name}: none of {space.size} configs is valid with {room}", hint=hint, task=template.name
        )
    usages = [form.usage_of_valid(block) for block in blocks]
    choices = choices_of(form, space, spec, usages, default or template.default_config(limits))
    pruned = []
    for each in rules:
        parts = [
            _judged(block, judge(usage, spec, rules=each, choices=choices), usage)
            for block, usage in zip(blocks, usages, strict=True)
        ]
        pruned.append(_pruned(space, parts, choices, least_kept))
    return pruned


@dataclass(frozen=True)
class _Part:
    """A block of a space and the verdicts on its valid configs.

    failed: bit mask of the criteria that exclude each config, over (places, *free axes of the block). An axis has
        extent 1 if nothing depends on its knob.
    """

    block: ConfigBlock
    verdicts: Mapping[str, Verdict]
    failed: np.ndarray

    @property
    def weight(self) -> int:
        """Number of configs that each element of `failed` represents."""
        return math.prod(
            len(self.block.digits[axis])
            for axis, extent in zip(self.block.free, self.failed.shape[1:], strict=True)
            if extent == 1
        )

    def is_kept(self, slacks: Mapping[str, float]) -> np.ndarray:
        """Return, in the shape of `failed`, whether a config is left with these slacks."""
        unchanged = sum(1 << bit for bit, name in enumerate(self.verdicts) if slacks[name] == 1)
        kept: np.ndarray = self.failed & np.uint32(unchanged) == 0
        for name, verdict in self.verdicts.items():
            if 1 < slacks[name] < math.inf:
                kept &= verdict.keep_within(slacks[name])
        return kept


def _judged(block: ConfigBlock, verdicts: Mapping[str, Verdict], usage: KernelUsage) -> _Part:
    numbers = [
        *usage.images.values(),
        *(getattr(usage, field.name) for field in dataclasses.fields(usage) if field.name != "images"),
    ]
    failed = np.zeros(
        np.broadcast_shapes((len(block.places), *(1 for _ in block.free)), *map(np.shape, numbers)), dtype=np.uint32
    )
    for bit, verdict in enumerate(verdicts.values()):
        failed |= np.logical_not(verdict.keep).astype(np.uint32) << np.uint32(bit)
    return _Part(block, verdicts, failed)


def _pruned(space: Space, parts: Sequence[_Part], choices: Choices, least_kept: int) -> PrunedSpace:
    before = sum(part.weight * part.failed.size for part in parts)
    slacks = _slacks(parts, min(least_kept, before))
    counts = []
    for bit, (name, verdict) in enumerate(parts[0].verdicts.items()):
        alone, only = (
            sum(part.weight * int(np.count_nonzero(combine(part.failed, 1 << bit))) for part in parts)
            for combine in (np.bitwise_and, np.equal)
        )
        left = sum(part.weight * int(np.count_nonzero(part.failed & np.uint32((2 << bit) - 1) == 0)) for part in parts)
        slack = None if math.isinf(slacks[name]) else slacks[name]
        counts.append(
            CriterionCount(criterion=name, alone=alone, only=only, left=left, source=verdict.source, slack=slack)
        )
    shape, kept = _places(parts, slacks, [len(every) for every in space.knobs.values()])
    report = PruningReport(declared=space.size, before=before, kept=_count(parts, slacks), criteria=tuple(counts))
    left_over = _Left(shape=shape, kept=kept, report=report, choices=choices)
    return PrunedSpace(space, lambda: left_over)


def _count(parts: Sequence[_Part], slacks: Mapping[str, float]) -> int:
    return sum(part.weight * int(np.count_nonzero(part.is_kept(slacks))) for part in parts)


def _places(
    parts: Sequence[_Part], slacks: Mapping[str, float], extents: Sequence[int]
) -> tuple[tuple[int, ...], np.ndarray]:
    """Return `_Left.shape`, and the sorted flat indices in this shape of the configs left."""

    def depends(part: _Part, axis: int) -> bool:
        block = part.block
        return (
            axis not in block.free
            or len(block.digits[axis]) < extents[axis]
            or part.failed.shape[1 + block.free.index(axis)] > 1
        )

    shape = tuple(extent if any(depends(part, axis) for part in parts) else 1 for axis, extent in enumerate(extents))
    return shape, np.sort(np.concatenate([part.block.places_in(shape, part.is_kept(slacks)) for part in parts]))


def _slacks(parts: Sequence[_Part], least: int) -> dict[str, float]:
    """Return the smallest relaxation of each criterion that keeps `least` configs."""
    names = list(parts[0].verdicts)
    slacks = dict.fromkeys(names, 1.0)

    def is_enough(changed: Mapping[str, float]) -> bool:
        return _count(parts, {**slacks, **changed}) >= least

    steps = ((name, slack) for name in names for slack in _SLACKS)
    while not is_enough({}):
        name, slack = next(steps)
        slacks[name] = slack
    # The last slack was needed. The earlier ones perhaps were not.
    for name in [n for n, slack in slacks.items() if slack > 1]:
        slacks[name] = next(slack for slack in (1.0, *_SLACKS) if slack == slacks[name] or is_enough({name: slack}))
    return slacks
