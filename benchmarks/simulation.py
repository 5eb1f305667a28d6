"""Simulation: a recorded space in place of a device. The search runs unchanged, but its clock adds up recorded seconds.

Only recorded configs have a result, so they are the whole space of a simulated task. Random draws pick among them, and
a mutation is one of the recorded neighbours of a config. So session, explorer and cost model are the same as for a
device.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from romou.base.errors import RecordError
from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.outcome import Outcome
from romou.base.space import Config, Space
from romou.compiler.operators.families import workload_of
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.devices.presets import load_preset
from romou.devices.targets import Target
from romou.tuner.measure.fingerprint import DeviceFingerprint
from romou.tuner.measure.types import BuildResult, Candidate, MeasureResult
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace

# A mutation changes one or two knobs of some 15. In a sparse recording few configs are that near, so a mutation picks
# one of this many nearest ones.
_NEIGHBOURS = 24
# Recordings keep the former names of fields of `Limits`.
_FORMER_NAMES = {"has_half_arithmetic": "has_fp16_arithmetic"}


class SimulatedSpace(Space):
    """The recorded configs as a space.

    declared: the knobs of the task's template.
    allowed: indices of the configs that a search may try. None: all. Other configs still have allowed neighbours.
    """

    def __init__(
        self, recorded: RecordedSpace, declared: Iterable[Knob] = (), allowed: Collection[int] | None = None
    ) -> None:
        super().__init__()
        named = {knob.name: knob for knob in declared}
        for name, choices in recorded.knobs.items():
            self.define_knob(named.get(name, name), choices)
        self._all = [self.at(index) for index in sorted(recorded.configs)]
        self._position = {config.key: position for position, config in enumerate(self._all)}
        inside = set(recorded.configs if allowed is None else allowed)
        self._inside = np.array(
            [position for position, index in enumerate(sorted(recorded.configs)) if index in inside], dtype=np.int64
        )
        self._valid = {self._all[position].key for position in self._inside}

    def __len__(self) -> int:
        return len(self._inside)

    def is_valid(self, config: Config) -> bool:
        return config.key in self._valid

    def __iter__(self) -> Iterator[Config]:
        return (self._all[position] for position in self._inside)

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        exclude: Container[str] = (),
        where: Mapping[str, Choice] | None = None,
    ) -> list[Config]:
        configs: list[Config] = []
        for position in rng.permutation(self._inside):
            if len(configs) == count:
                break
            config = self._all[position]
            if config.key not in exclude and config.items() >= (where or {}).items():
                configs.append(config)
        return configs

    def mutated(self, parents: Sequence[Config], rng: np.random.Generator) -> list[Config]:
        """Return one of the nearest allowed configs of each parent, or the parent if there is no other.

        The nearest config has the fewest changed knobs, then the fewest steps along their choices.
        """
        nearest = [self._neighbours[self._position[config.key]] for config in parents]
        return [
            self._all[near[int(rng.integers(len(near)))]] if len(near) else config
            for config, near in zip(parents, nearest, strict=True)
        ]

    @cached_property
    def _neighbours(self) -> list[np.ndarray]:
        """The indices of the nearest allowed configs, for each recorded config."""
        shape = [len(choices) for choices in self.knobs.values()]
        digit_of = [{choice: digit for digit, choice in enumerate(choices)} for choices in self.knobs.values()]
        digits = np.array(
            [[digit[config[name]] for name, digit in zip(self.knobs, digit_of, strict=True)] for config in self._all]
        )
        near = []
        for position, own in enumerate(digits):
            steps = np.abs(digits[self._inside] - own)
            distance = np.count_nonzero(steps, axis=1) + (steps / shape).sum(axis=1) / (len(shape) + 1)
            distance[self._inside == position] = np.inf
            nearest = np.argsort(distance, kind="stable")[:_NEIGHBOURS]
            near.append(self._inside[nearest[np.isfinite(distance[nearest])]])
        return near


@dataclass(frozen=True)
class SimulatedTask(TunableTask):
    """The task of a recording, with the recorded configs for its space.

    allowed: indices of the configs that a search may try beside the default. None: all recorded configs.
    """

    recorded: RecordedSpace
    allowed: frozenset[int] | None = None

    @classmethod
    def of_recording(cls, recorded: RecordedSpace, allowed: Collection[int] | None = None) -> SimulatedTask:
        """Return the task of a recording.

        RecordError if this version of Romou makes another kernel of the recorded operator, or the default config was
        not recorded.
        """
        task = task_of(workload_of(recorded.task["workload"])).with_free_images()
        if recorded.task["key"] not in (task.key, task.structure):
            raise RecordError(
                f"{recorded.name}: recorded for kernel {recorded.task['key']}, this version makes {task.key}",
                hint="Record the space anew.",
            )
        if recorded.context["default"] not in recorded.configs:
            raise RecordError(f"{recorded.name}: the default config was not recorded; a search starts with it")
        # The first choice of a new knob is the behaviour of kernels before the knob existed. A knob appended at the end
        # with one choice does not change the numbers of configs.
        knobs = task.template.space(_limits(recorded)).knobs
        later = {name: choices[:1] for name, choices in knobs.items() if name not in recorded.knobs}
        recorded = replace(recorded, knobs={**recorded.knobs, **later})
        return task.as_kind(cls, recorded=recorded, allowed=None if allowed is None else frozenset(allowed))

    def space(self, target: Target) -> SimulatedSpace:
        return self._space

    def limits(self, target: Target) -> Limits:
        """Return the limits of the recorded device, whatever the target."""
        return _limits(self.recorded)

    def default_config(self, target: Target) -> Config:
        return self._space.at(self.recorded.context["default"])

    @cached_property
    def _space(self) -> SimulatedSpace:
        return SimulatedSpace(self.recorded, self.template.knobs, self.allowed)


def _limits(recorded: RecordedSpace) -> Limits:
    limits = {_FORMER_NAMES.get(name, name): value for name, value in recorded.context["limits"].items()}
    without = tuple((knob, choice) for knob, choice in limits.get("without", ()))
    max_image = limits["max_image"] and tuple(limits["max_image"])
    preset = load_preset(limits.get("preset", {"name": "gpu"})["name"])
    return Limits(**{**limits, "max_image": max_image, "without": without, "preset": preset})


class SimulatedDevice:
    """`Builder` and `Runner` in one, with a clock that adds up the recorded seconds.

    Use it as `TuningSession(builder=d, runner=d, clock=d.clock, ...)`.

    Builds go to `workers` processes in the order of the batch. The device runs built configs one at a time while the
    next batch is being built. The clock depends only on the tried configs, so a seed gives the same run and the same
    seconds every time. The time that the search itself takes is not included.

    RecordError if the tasks were recorded on several devices.

    tasks: tasks recorded on one device.
    """

    def __init__(self, tasks: Sequence[SimulatedTask], *, workers: int = 8) -> None:
        self._recorded = {task.key: task.recorded for task in tasks}
        self._spaces = {task.key: task.recorded.space() for task in tasks}
        devices = [recorded.device for recorded in self._recorded.values()]
        if any(device != devices[0] for device in devices):
            raise RecordError(
                "spaces of several devices cannot be simulated as one device:"
                f" {sorted({str(d['name']) for d in devices})}"
            )
        self._device = devices[0]
        self.workers = workers
        self._batches: list[list[float]] = []
        self._batch_of: dict[int, int] = {}
        # End times in seconds of the build of each batch, and of the last measurement of one of its configs so far.
        self._built: list[float] = []
        self._measured: list[float] = []
        self._now = 0.0

    def clock(self) -> float:
        """Seconds since the search began, up to the last measured config."""
        return self._now

    @property
    def width(self) -> int:
        return 1

    def expect(self, tasks: Sequence[TunableTask]) -> None:
        """Do nothing: everything is recorded."""

    def fingerprint(self) -> DeviceFingerprint:
        """Return the fingerprint of the device that the spaces were recorded on."""
        return DeviceFingerprint.from_dict(self._device)

    def start(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[Future[BuildResult | None]]:
        """Return the recorded build results at once."""
        results: list[Future[BuildResult | None]] = []
        build_s = []
        for candidate in batch:
            recorded = self._config(candidate)
            outcome = recorded.outcome if recorded.outcome in (Outcome.INVALID, Outcome.BUILD_ERROR) else Outcome.OK
            library = candidate.config.key if outcome == Outcome.OK else None
            results.append(Future())
            results[-1].set_result(
                BuildResult(
                    candidate=candidate,
                    outcome=outcome,
                    library=library,
                    seconds=recorded.build_s,
                    error=recorded.error,
                )
            )
            build_s.append(recorded.build_s)
            self._batch_of[candidate.trial] = len(self._batches)
        self._batches.append(build_s)
        return results

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        """Yield the recorded results and advance the clock. Stop before a config that would end after `stop_at`."""
        for built in batch:
            recorded = self._config(built.candidate)
            number = self._batch_of[built.candidate.trial]
            self._count_builds(number)
            end = max(self._now, self._built[number]) + recorded.run_s
            if stop_at is not None and end > stop_at:
                self._now = stop_at
                return
            self._now = self._measured[number] = end
            times = (recorded.again_s or recorded.times_s) if recorded.outcome == Outcome.OK else ()
            yield MeasureResult(
                candidate=built.candidate,
                outcome=recorded.outcome,
                times_s=times,
                error=recorded.error,
                run_s=recorded.run_s,
            )

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _config(self, candidate: Candidate) -> RecordedConfig:
        return self._recorded[candidate.task.key].configs[self._spaces[candidate.task.key].index_of(candidate.config)]

    def _count_builds(self, last: int) -> None:
        """Compute the end times of builds up to the batch `last`.

        A batch starts after the previous batch is built and the batch before that is measured. On a host CPU, it starts
        after the previous batch is measured.
        """
        for number in range(len(self._built), last + 1):
            start = self._built[-1] if self._built else 0.0
            before = number - (1 if self._device["is_host_cpu"] else 2)
            if before >= 0:
                start = max(start, self._measured[before])
            free = [start] * self.workers
            for seconds in self._batches[number]:
                heapq.heapreplace(free, free[0] + seconds)
            self._built.append(max(free))
            # The end of the build, until one of its configs is measured.
            self._measured.append(self._built[-1])
