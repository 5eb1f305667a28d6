"""The tuning loop: propose, build, run, record, until the budget is spent."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from romou.base.clock import timestamp
from romou.base.errors import SpaceEmptyError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.base.version import __version__
from romou.compiler.operators.costs.estimate import can_estimate, missing_facts, spec_to_rank_by
from romou.tuner.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner
from romou.tuner.records import Origin, Record, Records
from romou.tuner.records.database import ScheduleDatabase
from romou.tuner.search.pipeline import Pipeline
from romou.tuner.search.progress import MakeProgress, NoProgress, Status
from romou.tuner.search.scheduler import Progression, next_task
from romou.tuner.search.task_search import TaskResult, TaskSearch
from romou.tuner.search.transfer import TransferData
from romou.tuner.search.trial import Trial, TrialCallback
from romou.tuner.search.tuning_options import TuningOptions

if TYPE_CHECKING:
    from romou.compiler.operators.costs.features import Correction
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target

logger = logging.getLogger("romou")

# A task's transfer data is collected anew after 50% more measurements.
_REFIT_GROWTH = 1.5
# For each other device, this many of a task's fastest configs there are tried after the default config.
_STARTS_EACH = 2
# Trials of a task with an estimate before the default configs of its other algorithms. If its default algorithm was
# chosen well, the configs that the estimate ranks first save more than these do.
_ESTIMATED_FIRST = 4
# A task's configs in a batch, over its configs so far.
_GROWTH = 0.5
# Smallest speed-up of a task that counts as progress.
_PROGRESS = 1.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class PriorKnowledge:
    """Data on the tasks that a session has before the first trial.

    alternatives: task key -> keys of tasks that together compute the same. The task gets trials as long as it may still
        turn out faster than they are.
    learn_from: returns tasks outside of this session, given the number of records by task key. It is called at the
        start, and when another process adds records of new tasks. Their records are transfer data for the cost models.
    pretrained: corrects the estimate on the target's device
    is_stand_in: another device than the target's measures. Candidates that work are then judged by the estimate for the
        target's device, if there is one
    database: tuned schedules, tried right after the default configs
    """

    alternatives: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    learn_from: Callable[[Counter[str]], Sequence[TunableTask]] = lambda _: ()
    pretrained: Correction | None = None
    database: ScheduleDatabase | None = None
    is_stand_in: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionHooks:
    """Functions that a session calls while it runs.

    clock: as `time.monotonic`
    stop_at, confirm_until: times on the clock at which the search and the second measurement of winners end. None: no
        limit
    meanwhile: called as soon as candidates are being built
    callback: called with each finished trial after its record is kept. True or an exception ends the search.
    """

    clock: Callable[[], float] = time.monotonic
    meanwhile: Callable[[], None] = lambda: None
    callback: TrialCallback | None = None
    stop_at: float | None = None
    confirm_until: float | None = None


class TuningSession:
    """Tunes tasks on one device.

    Records of the same tasks count as done if device, driver, Romou and TVM are the same. This includes records that
    other processes append meanwhile. Their configs are never measured again, train the cost model, and use up the
    budget of trials. Configs that are excluded before code generation use up nothing, until their number is that of
    the budget. The reason why others do not count is logged. Records of the tuned tasks are transfer data for each
    other. Every finished trial is recorded before the next one starts, so a killed session resumes from its records.

    builder, runner: see `romou.tuner.measure`. The caller closes both.
    """

    def __init__(
        self,
        tasks: Sequence[TunableTask],
        target: Target,
        *,
        store: Records,
        builder: Builder,
        runner: Runner,
        options: TuningOptions,
        prior: PriorKnowledge = PriorKnowledge(),
        hooks: SessionHooks = SessionHooks(),
    ) -> None:
        self._prior = prior
        self._hooks = hooks
        self._is_stopped = False
        self._error: Exception | None = None
        self._target = target
        self._store = store
        self._builder = builder
        self._runner = runner
        self._options = options
        self._fingerprint = runner.fingerprint()
        self._device = self._fingerprint.to_dict()
        self._pipeline = Pipeline(builder, runner, self._measure, is_apart=not self._fingerprint.is_host_cpu)
        self._spec = spec_to_rank_by(target)
        _warn_of_missing_facts(self._spec)
        self._states = [self._search_of(task, index) for index, task in enumerate(tasks)]
        # Tasks of other models, used for their records.
        self._others: list[TaskSearch] = []
        self._by_key: dict[str, TaskSearch] = {}
        for state in self._states:
            self._add_keys_of(state)
        # Number of records read, and the keys passed to `learn_from`.
        self._seen = 0
        self._asked: set[str] = set()
        # Candidates of this session, and those of them that use up no budget.
        self._proposed = self._free = 0
        self._since_progress = 0
        self._stop_at = hooks.stop_at
        self._resume()

    def _search_of(self, task: TunableTask, index: int) -> TaskSearch:
        # The estimate for the target's device says nothing of times on another one.
        spec, is_stand_in = self._spec, self._prior.is_stand_in
        has_estimate = can_estimate(spec) and (is_stand_in or not self._fingerprint.is_host_cpu)
        search = TaskSearch(
            task,
            target=self._target,
            options=self._options,
            index=index,
            transfer_data=self._transfer_data,
            spec=spec if has_estimate and task.template.has_formulas else None,
            pretrained=self._prior.pretrained,
            is_by_estimate=is_stand_in and has_estimate,
        )
        if self._prior.database is not None:
            gpu = self._target.device_name
            starts = self._prior.database.starts(task, search.space, search.default, self._device, gpu)
            search.explorer.start_with(starts)
        return search

    def _resume(self) -> None:
        self._add_others(self._store)
        refusals = self._read_records()
        for state in self._states:
            for group in state.elsewhere.values():
                timed = sorted(((t, c) for c, t in group if t is not None), key=lambda pair: pair[0])
                state.explorer.start_with([config for _, config in timed[:_STARTS_EACH]])
            # The default config of each algorithm is measured, whatever the model predicts for it.
            after = _ESTIMATED_FIRST if state.features.has_estimate else 0
            state.explorer.start_with(state.task.starts(self._target)[1:], after=after)
        for reason, count in refusals.items():
            logger.warning("%d records of these kernels do not count: %s", count, reason)
        self._since_progress = 0

    def _add_others(self, records: Iterable[Record]) -> None:
        """Add the tasks of records with a new task."""
        unknown = Counter(record.task_key for record in records if self._is_unknown(record))
        self._asked.update(unknown)
        for task in self._prior.learn_from(unknown):
            self._others.append(self._search_of(task, len(self._states) + len(self._others)))
            self._add_keys_of(self._others[-1])

    def _add_keys_of(self, state: TaskSearch) -> None:
        """Find the records of a task by its key, and by the key that versions before 0.2.0 gave it."""
        self._by_key[state.task.key] = state
        self._by_key.setdefault(state.task.structure, state)

    def _is_unknown(self, record: Record) -> bool:
        return record.task_key not in self._by_key and record.task_key not in self._asked

    def _read_records(self) -> Counter[str]:
        """Read new records since the last call. Return the number of records that do not count, by reason."""
        fresh = list(itertools.islice(self._store, self._seen, None))
        self._seen += len(fresh)
        if any(map(self._is_unknown, fresh)):
            self._add_others(fresh)
        refusals: Counter[str] = Counter()
        origin = Origin.here(self._device)
        done = self.done
        for record in fresh:
            state = self._by_key.get(record.task_key)
            if state is None:
                continue
            reason = origin.refusal(Origin.of(record))
            config = Config(record.config)
            # The space may have changed since, or belong to a target with other limits.
            is_known = state.space.knows(config)
            config = state.space.completed(config) if is_known else config
            if reason is None and not is_known:
                reason = "made for other knobs than this version and target have"
            if reason is not None:
                refusals[reason] += 1
                if is_known and not record.is_again:
                    elsewhere = state.elsewhere.setdefault(f"{record.device} {record.romou} {record.tvm}", [])
                    elsewhere.append((config, record.time_s))
            elif record.is_again:
                state.confirm(config, record.outcome, record.time_s)
            elif config.key not in state.measured:
                state.add(config, record.outcome, record.time_s)
        self._proposed += self.done - done
        return refusals

    def _transfer_data(self, learner: TaskSearch) -> TransferData:
        states = (*self._states, *self._others)
        count = sum(len(state.measured) for state in states if state is not learner)
        if learner.transfer_data is not None and count < _REFIT_GROWTH * learner.transfer_data[1]:
            return learner.transfer_data[0]
        data = TransferData()
        learner.transfer_data = (data, max(count, 1))
        for state in states:
            state.add_to(data, is_own=state is learner)
        return data

    @property
    def done(self) -> int:
        """Number of finished trials that use up the budget, including the ones from the records."""
        excluded = sum(state.outcomes.get(Outcome.INVALID, 0) for state in self._states)
        return self._finished - min(excluded, self._options.trials)

    @property
    def _finished(self) -> int:
        return sum(len(state.measured) for state in self._states)

    def run(self, make_progress: MakeProgress = NoProgress) -> dict[str, TaskResult]:
        """Search until the budget is spent or all spaces are exhausted, and return task key -> result.

        Ctrl-C, or a callback that returns True, ends the search early, and the results so far are returned. An
        exception of the callback is raised here, after every finished trial is recorded.
        """
        progress = make_progress()
        progress.start(self.done, self._options.trials)
        if not self._fingerprint.is_host_cpu:
            self._runner.expect([state.task for state in self._untried(max(0, self._options.trials - self.done))])
        try:
            results = self._pipeline.search(
                self._propose,
                batch_size=self._options.batch_size,
                is_over=self._is_over,
                stop_at=self._stop_at,
                meanwhile=self._hooks.meanwhile,
            )
            for built, result in results:
                self._keep(built, result, progress.update)
            if self._error is not None:
                raise self._error
            if not self._is_stopped:
                self._confirm()
        except KeyboardInterrupt:
            logger.warning("interrupted: going on with the %d trials that are finished", self._finished)
        finally:
            progress.stop()
        return {state.task.key: state.result() for state in self._states}

    def _is_over(self) -> bool:
        patience = self._options.no_progress
        is_stuck = patience is not None and self._since_progress >= patience
        return self._is_stopped or is_stuck or (self._stop_at is not None and self._hooks.clock() >= self._stop_at)

    def _confirm(self) -> None:
        """Measure winners again, next to configs of about the same speed. The fastest one then is the result.

        A config that fails now, or whose output changes from run to run, is replaced by the next best.
        """
        self._stop_at = self._hooks.confirm_until
        is_going_on = True
        while is_going_on and (
            doubtful := [(state, config) for state in self._states for config in state.doubtful(self._options.confirm)]
        ):
            is_going_on = False
            for built, result in self._pipeline.measure(self._built_again(doubtful)):
                state = self._by_key[built.candidate.task.key]
                record = dataclasses.replace(self._record(state.task, result, built.seconds), is_again=True)
                self._store.append(record)
                if record.outcome == Outcome.UNSTABLE:
                    logger.warning("%s: the fastest config is not kept: %s", state.task.name, record.error)
                state.confirm(built.candidate.config, record.outcome, record.time_s)
                is_going_on = True

    def _built_again(self, winners: Sequence[tuple[TaskSearch, Config]]) -> list[BuildResult]:
        """Return the libraries of configs to be confirmed.

        Configs of resumed trials are built. The libraries of the others exist.
        """
        # All tasks are in one batch, because the few configs of one task would leave most build processes idle.
        missing = [
            Candidate(
                task=state.task, config=config, trial=self._proposed + number, is_winner=True, winners=len(winners)
            )
            for number, (state, config) in enumerate(winners)
            if config.key not in state.built
        ]
        self._proposed += len(winners)
        builds = self._builder.start(missing, stop_at=self._stop_at)
        batch = [built for future in builds if (built := future.result()) is not None]
        existing = [state.built[config.key] for state, config in winners if config.key in state.built]
        as_winner = functools.partial(dataclasses.replace, is_winner=True, winners=len(winners))
        return batch + [dataclasses.replace(built, candidate=as_winner(built.candidate)) for built in existing]

    def _propose(self) -> list[Candidate]:
        """Return the next batch: default configs of tasks without a trial, else configs of the most promising tasks."""
        self._read_records()
        # Enough for all devices while the next batch is built.
        left = self._options.trials + self._free - self._proposed
        room = min(max(self._options.batch_size, 2 * self._runner.width), left)
        if room <= 0 or self._is_over():
            return []
        candidates = [each for state in self._untried(room) for each in self._candidates(state, 1)]
        is_first = bool(candidates)
        while len(candidates) < room and not is_first:
            index = next_task([self._expected(state) for state in self._states], patience=self._options.patience)
            if index is None:
                break
            state = self._states[index]
            more = self._candidates(state, min(self._share(state, room), room - len(candidates)))
            candidates += more
            if not more:
                state.progression.is_exhausted = True
        return candidates

    def _share(self, state: TaskSearch, room: int) -> int:
        """Return how many configs of a batch of `room` a task gets at once.

        The first configs after the default one save the most, so every task gets some of them before one task gets
        many. Later a task's configs are proposed together, because each proposal takes time itself.
        """
        tried = len(state.measured) + state.waiting
        return max(1, int(tried * _GROWTH), room // len(self._states))

    def _candidates(self, state: TaskSearch, count: int) -> list[Candidate]:
        """Return the next candidates of a task, which waits for them from now on."""
        configs = self._configs(state, count)
        first, self._proposed = self._proposed, self._proposed + len(configs)
        state.waiting += len(configs)
        return [Candidate(task=state.task, config=c, trial=number) for number, c in enumerate(configs, first)]

    def _configs(self, state: TaskSearch, count: int) -> list[Config]:
        """Return the next configs of a task. The space is pruned here. If it turns out empty, there are none."""
        try:
            return state.explorer.propose(count, state.measured)
        except SpaceEmptyError as error:
            logger.warning("%s; only its default config is tried. %s", error.message, error.hint)
            return []

    def _untried(self, count: int) -> list[TaskSearch]:
        return [state for state in self._states if not state.measured and not state.waiting][:count]

    def _expected(self, state: TaskSearch) -> Progression:
        """Return the progression as if the unfinished candidates had failed.

        Otherwise one task would take every batch that is built ahead.
        """
        past = state.progression
        past.others_s = self._others_s(state)
        is_over = past.is_exhausted or past.is_hopeless
        if not state.waiting and not is_over:
            return past
        return Progression(past.calls, past.times + [None] * state.waiting, is_over, past.others_s)

    def _others_s(self, state: TaskSearch) -> float | None:
        """Return the best time of the tasks that together compute the same. None if there are none, or not all work."""
        keys = [key for key in self._prior.alternatives.get(state.task.key, ()) if key in self._by_key]
        times = [self._by_key[key].progression.best_s for key in keys]
        known = [time_s for time_s in times if time_s is not None]
        return sum(known) if known and len(known) == len(times) else None

    def _measure(self, built: BuildResult) -> MeasureResult | None:
        if built.outcome != Outcome.OK:
            return MeasureResult(candidate=built.candidate, outcome=built.outcome, error=built.error)
        best_s = self._by_key[built.candidate.task.key].progression.best_s
        return next(iter(self._runner.run([built], best_s=best_s, stop_at=self._stop_at)), None)

    def _keep(self, built: BuildResult, result: MeasureResult, show: Callable[[Status], None]) -> None:
        state = self._by_key[built.candidate.task.key]
        state.waiting -= 1
        record = self._record(state.task, result, built.seconds)
        self._read_records()
        if built.candidate.config.key in state.measured:
            # Another process measured it meanwhile: this trial does not count.
            self._free += 1
            return
        self._store.append(record)
        if record.outcome == Outcome.OK:
            state.built[built.candidate.config.key] = built
        before_s, done = state.progression.best_s, self.done
        state.add(built.candidate.config, record.outcome, record.time_s)
        self._free += done + 1 - self.done
        after_s = state.progression.best_s
        # The first time of a task is progress too.
        is_progress = after_s is not None and (before_s is None or before_s >= _PROGRESS * after_s)
        self._since_progress = 0 if is_progress else self._since_progress + self.done - done
        how = record.outcome if record.time_s is None else f"{1e3 * record.time_s:.4f} ms"
        logger.info("trial %d: %s, %s, %s", self._finished, record.task_name, how, built.candidate.config)
        show(self._status(state, record))
        self._call_back(record, after_s)

    def _call_back(self, record: Record, best_s: float | None) -> None:
        if self._hooks.callback is None or self._is_stopped:
            return
        trial = Trial(
            task=record.task_name,
            number=self._finished,
            config=record.config,
            outcome=record.outcome,
            time_s=record.time_s,
            best_s=best_s,
            model_s=self._total_s(),
            error=record.error,
        )
        try:
            self._is_stopped = self._hooks.callback(trial) is True
        except Exception as error:
            self._is_stopped, self._error = True, error

    def _record(self, task: TunableTask, result: MeasureResult, build_s: float) -> Record:
        expected_s = self._by_key[task.key].explorer.expected_s(result.candidate.config)
        return record_of(task, result, self._device, self._target, build_s=build_s, expected_s=expected_s)

    def _total_s(self) -> float | None:
        """Return the best times of all tasks, over all their calls. None until each task has a working kernel."""
        single = [s for s in self._states if s.task.key not in self._prior.alternatives]
        bests = [s.progression.best_s for s in single]
        if None in bests:
            return None
        return sum(b * s.task.calls for b, s in zip(bests, single, strict=True) if b is not None)

    def _status(self, state: TaskSearch, record: Record) -> Status:
        best_s, total_s = state.progression.best_s, self._total_s()
        return Status(
            task=state.task.name,
            outcome=record.outcome,
            best_ms=None if best_s is None else best_s * 1e3,
            gflops=None if best_s is None else state.task.flops / best_s / 1e9,
            model_ms=None if total_s is None else total_s * 1e3,
            done=self.done,
            total=self._options.trials,
            seconds_left=None if self._stop_at is None else max(0.0, self._stop_at - self._hooks.clock()),
        )


def _warn_of_missing_facts(spec: HardwareSpec) -> None:
    lacking = missing_facts(spec)
    if lacking and spec.nearest:
        text = (
            "%s: no config is estimated before it is measured, as the device file lacks %s; -facts=nearest in the"
            " target takes them from %s"
        )
        logger.warning(text, spec.name, ", ".join(lacking), spec.nearest)


def record_of(
    task: TunableTask,
    result: MeasureResult,
    device: dict[str, Any],
    target: Target,
    *,
    build_s: float,
    expected_s: float | None,
) -> Record:
    """Return the record of a measured candidate.

    device: `DeviceFingerprint.to_dict()`
    """
    import tvm

    return Record(
        task_key=task.key,
        task_name=task.name,
        config=dict(result.candidate.config),
        device=device,
        outcome=result.outcome,
        times_s=result.times_s,
        build_s=build_s,
        relative_l2_error=result.relative_l2_error,
        max_error=result.max_error,
        error=result.error,
        seed=result.seed,
        clock_ratio=result.clock_ratio,
        expected_s=expected_s,
        l1=task.l1,
        target=str(target),
        time=timestamp(),
        romou=__version__,
        tvm=tvm.__version__,
    )
