"""The explorer: chooses the configs of one task to measure next."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from romou.base.knob import Choice
from romou.base.space import Config, Space
from romou.compiler.operators.costs.features import TaskFeatures
from romou.tuner.search.cost_model import CostModel
from romou.tuner.search.strategies import EXPLORERS, Outlook, subspaces
from romou.tuner.search.transfer import TransferData
from romou.tuner.search.tuning_options import TuningOptions

# If a kernel is this many times slower than the best one, other spellings of the same arithmetic are tried last.
_HOPELESS = 1.05


class Explorer:
    """Proposes the default config, then the configs of `start_with`, then configs by `TuningOptions.explorer`.

    No config is proposed twice. A space without untried configs proposes nothing.

    A guided explorer begins with random configs. After `random_trials` it proposes the configs with the best
    predictions, mixed with a share of random ones. With an estimate or transfer data the model guides from the start.
    If the model predicts its uncertainty, none are drawn at random.

    default: None if there is none
    features: features of configs, for the model
    transfer_data: returns the measurements of other tasks so far
    """

    def __init__(
        self,
        space: Space,
        default: Config | None,
        options: TuningOptions,
        rng: np.random.Generator,
        *,
        features: TaskFeatures,
        transfer_data: Callable[[], TransferData] = TransferData,
    ) -> None:
        self._space = space
        self._default = default
        # The number of trials before each of them is proposed, and the config.
        self._first: list[tuple[int, Config]] = []
        self._options = options
        self._rng = rng
        self._features = features
        self._model = CostModel(self._features, options.seed, divided_by=space.divided_by)
        self._transfer_data = transfer_data
        self._trained_on: int | None = None
        self._proposed: dict[str, Config] = {}
        # Config key -> seconds that the model predicted when the config was proposed. Only after its first training.
        self._expected_s: dict[str, float | None] = {}

    def start_with(self, configs: Sequence[Config], *, after: int = 0) -> None:
        """Propose these configs right after the default config. Configs outside the valid space are skipped.

        after: other configs to propose before
        """
        self._first += [(after, config) for config in configs]

    def propose(self, count: int, measured: Mapping[str, tuple[Config, float | None]]) -> list[Config]:
        """Return up to `count` configs that were neither proposed nor measured before.

        measured: config key -> config and seconds. None if it failed
        """
        taken = self._proposed.keys() | measured.keys()
        chosen: dict[str, Config] = {}

        def add(configs: Iterator[Config]) -> None:
            new = (c for c in configs if c.key not in taken and c.key not in chosen)
            chosen.update((c.key, c) for c in itertools.islice(new, count - len(chosen)))

        # The first validity check prunes the space. A task that gets only its default config skips it.
        add(iter([] if self._default is None else [self._default]))
        add(
            config
            for after, config in self._first
            if len(taken) >= after and config.key not in taken and self._space.is_valid(config)
        )
        if self._options.explorer == "exhaustive":
            # One at a time: the iterator runs only once.
            while len(chosen) < count and (config := next(self._in_order, None)) is not None:
                add(iter([config]))
        else:
            add(iter(self._guided(count - len(chosen), measured, taken | chosen.keys())))
            spaces = subspaces(self._space)
            # If one subspace is exhausted, configs are drawn from all of them.
            for where in (spaces[int(self._rng.integers(len(spaces)))], None):
                missing = count - len(chosen)
                add(
                    iter(
                        self._space.sample(self._rng, missing, exclude=taken | chosen.keys(), where=where)
                        if missing
                        else ()
                    )
                )
        self._proposed |= chosen
        self._note_expectations(list(chosen.values()), measured)
        return list(chosen.values())

    def expected_s(self, config: Config) -> float | None:
        """Return the seconds predicted for a config when it was proposed. None if there was no prediction."""
        if config.key in self._expected_s:
            return self._expected_s[config.key]
        if (
            config.key not in self._proposed
            or EXPLORERS[self._options.explorer] is None
            or not self._features.has_estimate
        ):
            return None
        # Before the first training, the prediction is the estimate. It is computed late because XGBoost, which may
        # correct it, takes a second to import.
        return float(np.exp(-self._features.expected([config])[0]))

    def _note_expectations(self, chosen: list[Config], measured: Mapping[str, tuple[Config, float | None]]) -> None:
        if not chosen or not self._model.is_trained:
            return
        best_s = min((t for _, t in measured.values() if t is not None), default=None)
        expected = self._model.expected_s(chosen, best_s)
        self._expected_s |= dict(
            zip(
                (c.key for c in chosen), [None] * len(chosen) if expected is None else map(float, expected), strict=True
            )
        )

    def _guided(self, count: int, measured: Mapping[str, tuple[Config, float | None]], taken: set[str]) -> list[Config]:
        explore = EXPLORERS[self._options.explorer]
        if count <= 0 or explore is None:
            return []
        has_prior = self._features.has_estimate or len(self._transfer_data()) > 0
        if not has_prior and len(measured) < self._options.random_trials:
            return []
        if len(measured) != self._trained_on:
            self._model.fit([c for c, _ in measured.values()], [t for _, t in measured.values()], self._transfer_data())
            self._trained_on = len(measured)
        if not (self._features.has_estimate or self._model.is_trained):
            return []
        if not self._model.knows_doubt:
            count -= int(self._rng.binomial(count, min(1.0, self._options.random_share)))
        timed = sorted((item for item in measured.values() if item[1] is not None), key=lambda item: item[1] or 0.0)
        look = self._outlook([c for c, _ in timed], taken)
        return self._hopeful([c for c in explore(look) if c.key not in taken], measured)[:count]

    def _outlook(self, fastest: Sequence[Config], taken: set[str]) -> Outlook:
        return Outlook(
            space=self._space,
            every=lambda: self._every,
            score=self._model.predict,
            fastest=fastest,
            taken=taken,
            rng=self._rng,
        )

    @functools.cached_property
    def _in_order(self) -> Iterator[Config]:
        return iter(self._space)

    @functools.cached_property
    def _every(self) -> list[Config]:
        return list(self._space)

    def _hopeful(self, ranked: list[Config], measured: Mapping[str, tuple[Config, float | None]]) -> list[Config]:
        """Return the configs in the same order, except that repeated kernels come last.

        A kernel is repeated if another spelling of it is being measured, comes earlier in the order, or was slow.
        """
        best_s = min((t for _, t in measured.values() if t is not None), default=math.inf)
        tried = {self._kernel(c) for key, c in self._proposed.items() if key not in measured}
        tried |= {self._kernel(c) for c, t in measured.values() if t is None or t > _HOPELESS * best_s}
        first: list[Config] = []
        last: list[Config] = []
        for config in ranked:
            (last if self._kernel(config) in tried else first).append(config)
            tried.add(self._kernel(config))
        return first + last

    def _kernel(self, config: Config) -> tuple[Choice, ...]:
        """Return the choices of a config without the knobs that only change the spelling of its arithmetic."""
        return tuple(value for name, value in config.items() if not self._space.declared[name].is_spelling)
