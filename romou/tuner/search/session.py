"""The tuning loop: propose, build, run, record, until the budget is spent."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from romou.base.errors import SpaceEmptyError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.base.version import __version__
from romou.tuner.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner
from romou.tuner.pruning.estimate import can_estimate, missing_facts
from romou.tuner.records import Origin, Record, Records
from romou.tuner.search.options import TuningOptions
from romou.tuner.search.pipeline import Pipeline
from romou.tuner.search.progress import MakeProgress, NoProgress, Status
from romou.tuner.search.scheduler import Progression, next_task
from romou.tuner.search.task_search import TaskResult, TaskSearch
from romou.tuner.search.transfer import TransferData
from romou.tuner.search.trial import Trial, TrialCallback

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask
    from romou.devices.targets import Target
    from romou.tuner.search.features import Correction

logger = logging.getLogger("romou")

# A task's transfer data is collected anew when there are so many times more measurements than last time.
_MORE_DATA = 1.5
# Of a task on each other device, so many of the fastest configs are tried right after the default one.
_STARTS_EACH = 2
# A trial that makes its task less than this faster is no progress.
_PROGRESS = 1.01


def _trial(record: Record, number: int, best_s: float | None) -> Trial:
    return Trial(
        task=record.task_name,
        number=number,
        config=record.config,
        outcome=record.outcome,
        time_s=record.time_s,
        best_s=best_s,
        error=record.error,
    )


class TuningSession:
    """Tunes tasks on one device.

    Records of the same tasks on the same device, with the same versions of driver, Romou and TVM, count as done: they
    are never measured again, train the cost model, and use up the budget of trials; why others do not count is logged.
    So do those that other processes append to the same records meanwhile. Every finished trial is recorded before the
    next one starts, so a session that is killed resumes where it was.

    builder, runner: see `romou.tuner.measure`. Both are closed by the caller.
    clock: seconds by which the budget of seconds is kept; that of builder and runner.
    alternatives: key of a task

            ->  keys of tasks that together do the same: it is worth trials while it may still turn out faster than they are.
    learn_from: returns tasks that are not tuned; their records are transfer data for the cost models, as are those of
    the tuned tasks for each other, and
        of other devices. It gets the keys of such tasks with how many records they have: at the start, and when another
        process brings new ones.
    callback: called with each finished trial after its record is kept; True, or an exception, ends the search.
    pretrained: corrects the estimate on the target's device; None: the estimate as it is.
    meanwhile: called as soon as candidates are being built, so that what can wait until then takes no time from the
    first of them.
    """  # noqa: E501

    def __init__(
        self,
        tasks: Sequence[TunableTask],
        target: Target,
        *,
        store: Records,
        builder: Builder,
        runner: Runner,
        options: TuningOptions,
        clock: Callable[[], float] = time.monotonic,
        alternatives: Mapping[str, Sequence[str]] | None = None,
        learn_from: Callable[[Counter[str]], Sequence[TunableTask]] = lambda _: (),
        pretrained: Correction | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        callback: TrialCallback | None = None,
    ) -> None:
        self._alternatives = alternatives or {}
        self._clock = clock
        self._callback = callback
        self._meanwhile = meanwhile
        self._is_stopped = False
        self._error: Exception | None = None
        self._target = target
        self._store = store
        self._builder = builder
        self._runner = runner
        self._options = options
        self._fingerprint = runner.fingerprint()
        self._pipeline = Pipeline(builder, runner, self._measure, is_apart=not self._fingerprint.is_host_cpu)
        lacking = missing_facts(target.spec)
        if lacking and target.spec.nearest:
            text = (
                "%s: no config is estimated before it is measured, as the device file lacks %s; -facts=nearest in the"
                " target takes them from %s"
            )
            logger.warning(text, target.spec.name, ", ".join(lacking), target.spec.nearest)
        # What is expected of the target's device says nothing of a CPU that stands in for it.
        spec = target.spec if can_estimate(target.spec) and not self._fingerprint.is_host_cpu else None
        self._search_of = functools.partial(
            TaskSearch,
            target=target,
            options=options,
            transfer_data=self._transfer_data,
            spec=spec,
            pretrained=pretrained,
        )
        self._states = [self._search_of(task, index=index) for index, task in enumerate(tasks)]
        self._others: list[TaskSearch] = []
        self._by_key = {state.task.key: state for state in self._states}
        self._learn_from = learn_from
        # How many records were taken over, and the tasks that `learn_from` was asked for.
        self._seen = 0
        self._asked: set[str] = set()
        self._device = self._fingerprint.to_dict()
        self._proposed = 0
        self._stop_at: float | None = None
        self._resume()

    def _resume(self) -> None:
        self._add_others(self._store)
        refusals = self._read_records()
        for state in self._states:
            for group in state.elsewhere.values():
                timed = sorted(((t, c) for c, t in group if t is not None), key=lambda pair: pair[0])
                state.explorer.start_with([config for _, config in timed[:_STARTS_EACH]])
        for reason, count in refusals.items():
            logger.warning("%d records of these kernels do not count: %s", count, reason)
        self._since_progress = 0

    def _add_others(self, records: Iterable[Record]) -> None:
        """Ask for the tasks of records that are new."""
        unknown = Counter(
            record.task_key
            for record in records
            if record.task_key not in self._by_key and record.task_key not in self._asked
        )
        self._asked.update(unknown)
        for task in self._learn_from(unknown):
            self._others.append(self._search_of(task, index=len(self._states) + len(self._others)))
            self._by_key[task.key] = self._others[-1]

    def _read_records(self) -> Counter[str]:
        """Take over the records that are there since the last time; why some of them do not count."""
        fresh = list(itertools.islice(self._store, self._seen, None))
        self._seen += len(fresh)
        if any(record.task_key not in self._by_key and record.task_key not in self._asked for record in fresh):
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
            # A space that has changed since, or is that of a target that allows less, does not know the config.
            is_known = state.space.knows(config)
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
        count = sum(len(state.measured) for state in (*self._states, *self._others) if state is not learner)
        if learner.transfer_data is not None and count < _MORE_DATA * learner.transfer_data[1]:
            return learner.transfer_data[0]
        data = TransferData()
        learner.transfer_data = (data, max(count, 1))
        for state in (*self._states, *self._others):
            state.add_to(data, is_own=state is learner)
        return data

    @property
    def done(self) -> int:
        """Finished trials, those from the records included."""
        return sum(len(state.measured) for state in self._states)

    def run(self, make_progress: MakeProgress = NoProgress) -> dict[str, TaskResult]:
        """Search until the budget is spent or all spaces are exhausted; task key -> result.

        Ctrl-C, or a callback that returns True, ends the search early; what was measured stays and is returned. An
        exception of the callback comes out of here, after every finished trial has its record.
        """
        self._stop_at = None if self._options.seconds is None else self._clock() + self._options.seconds
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
                meanwhile=self._meanwhile,
            )
            for built, result in results:
                self._keep(built, result, progress.update)
            if self._error is not None:
                raise self._error
            if not self._is_stopped:
                self._confirm()
        except KeyboardInterrupt:
            logger.warning("interrupted: going on with the %d trials that are finished", self.done)
        finally:
            progress.stop()
        return {state.task.key: state.result() for state in self._states}

    def _is_over(self) -> bool:
        patience = self._options.no_progress
        is_stuck = patience is not None and self._since_progress >= patience
        return self._is_stopped or is_stuck or (self._stop_at is not None and self._clock() >= self._stop_at)

    def _confirm(self) -> None:
        """Measure winners once more, and those that are about equally fast right after each other; what is fastest then
        is the result.

        One that fails now, or whose output changes from run to run, gives way to the next best.
        """
        self._stop_at = None
        is_going_on = True
        while is_going_on and (
            doubtful := [(state, config) for state in self._states for config in state.doubtful(self._options.confirm)]
        ):
            is_going_on = False
            # Built all at once: by themselves, the few of a task would leave most build processes idle.
            missing = [
                Candidate(
                    task=state.task, config=config, trial=self._proposed + place, is_winner=True, winners=len(doubtful)
                )
                for place, (state, config) in enumerate(doubtful)
                if config.key not in state.built
            ]
            self._proposed += len(doubtful)
            batch = [built for future in self._builder.start(missing) if (built := future.result()) is not None]
            there = [state.built[config.key] for state, config in doubtful if config.key in state.built]
            kept = functools.partial(dataclasses.replace, is_winner=True, winners=len(doubtful))
            batch += [dataclasses.replace(built, candidate=kept(built.candidate)) for built in there]
            for built, result in self._pipeline.measure(batch):
                state = self._by_key[built.candidate.task.key]
                record = dataclasses.replace(self._record(state.task, result, built.seconds), is_again=True)
                self._store.append(record)
                if record.outcome == Outcome.UNSTABLE:
                    logger.warning("%s: the fastest config is not kept: %s", state.task.name, record.error)
                state.confirm(built.candidate.config, record.outcome, record.time_s)
                is_going_on = True

    def _propose(self) -> list[Candidate]:
        """The next batch: the default configs of tasks without a trial together, then configs of the most promising
        task.
        """
        self._read_records()
        # Of several devices none waits for the others while the next batch is built.
        room = min(max(self._options.batch_size, 2 * self._runner.width), self._options.trials - self._proposed)
        if room <= 0 or self._is_over():
            return []
        batch = [(state, config) for state in self._untried(room) for config in self._configs(state, 1)]
        while not batch:
            index = next_task([self._expected(state) for state in self._states], patience=self._options.patience)
            if index is None:
                return []
            state = self._states[index]
            batch = [(state, config) for config in self._configs(state, room)]
            if not batch:
                state.progression.is_exhausted = True
        candidates = []
        for state, config in batch:
            state.waiting += 1
            candidates.append(Candidate(task=state.task, config=config, trial=self._proposed))
            self._proposed += 1
        return candidates

    def _configs(self, state: TaskSearch, count: int) -> list[Config]:
        """The next configs of a task; none where its space, which is pruned only now, turns out to be empty: the
        default config stays.
        """
        try:
            return state.explorer.propose(count, state.measured)
        except SpaceEmptyError as error:
            logger.warning("%s; only its default config is tried. %s", error.message, error.hint)
            return []

    def _untried(self, count: int) -> list[TaskSearch]:
        return [state for state in self._states if not state.measured and not state.waiting][:count]

    def _expected(self, state: TaskSearch) -> Progression:
        """The progression as if what is under way had brought nothing: one task must not take every batch that is built
        ahead.
        """
        past, others = (
            state.progression,
            [
                self._by_key[key].progression
                for key in self._alternatives.get(state.task.key, ())
                if key in self._by_key
            ],
        )
        is_over = past.is_exhausted or past.is_hopeless_beside(others)
        return (
            Progression(past.calls, past.times + [None] * state.waiting, is_over) if state.waiting or is_over else past
        )

    def _measure(self, built: BuildResult) -> MeasureResult | None:
        if built.outcome != Outcome.OK:
            return MeasureResult(candidate=built.candidate, outcome=built.outcome, error=built.error)
        best_s = self._by_key[built.candidate.task.key].progression.best_s
        return next(iter(self._runner.run([built], best_s=best_s, stop_at=self._stop_at)), None)

    def _keep(self, built: BuildResult, result: MeasureResult, tell: Callable[[Status], None]) -> None:
        state = self._by_key[built.candidate.task.key]
        state.waiting -= 1
        record = self._record(state.task, result, built.seconds)
        self._read_records()
        if built.candidate.config.key in state.measured:
            # Another process was faster; this trial is not one.
            self._proposed -= 1
            return
        self._store.append(record)
        if record.outcome == Outcome.OK:
            state.built[built.candidate.config.key] = built
        before_s = state.progression.best_s
        state.add(built.candidate.config, record.outcome, record.time_s)
        after_s = state.progression.best_s
        # The first time of a task is progress too.
        is_progress = after_s is not None and (before_s is None or before_s >= _PROGRESS * after_s)
        self._since_progress = 0 if is_progress else self._since_progress + 1
        tell(self._status(state, record))
        if self._callback is not None and not self._is_stopped:
            try:
                self._is_stopped = self._callback(_trial(record, self.done, after_s)) is True
            except Exception as error:
                self._is_stopped, self._error = True, error

    def _record(self, task: TunableTask, result: MeasureResult, build_s: float) -> Record:
        import tvm

        return Record(
            task_key=task.key,
            task_name=task.name,
            config=dict(result.candidate.config),
            device=self._device,
            outcome=result.outcome,
            times_s=result.times_s,
            build_s=build_s,
            relative_l2_error=result.relative_l2_error,
            max_error=result.max_error,
            error=result.error,
            seed=result.seed,
            clock_ratio=result.clock_ratio,
            expected_s=self._by_key[task.key].explorer.expected_s(result.candidate.config),
            target=str(self._target),
            time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            romou=__version__,
            tvm=tvm.__version__,
        )

    def _status(self, state: TaskSearch, record: Record) -> Status:
        best_s = state.progression.best_s
        apart = [s for s in self._states if s.task.key not in self._alternatives]
        bests = [s.progression.best_s for s in apart]
        total_s = (
            None if None in bests else sum(b * s.task.calls for b, s in zip(bests, apart, strict=True) if b is not None)
        )
        return Status(
            task=state.task.name,
            outcome=record.outcome,
            best_ms=None if best_s is None else best_s * 1e3,
            gflops=None if best_s is None else state.task.flops / best_s / 1e9,
            model_ms=None if total_s is None else total_s * 1e3,
            done=self.done,
            total=self._options.trials,
            seconds_left=None if self._stop_at is None else max(0.0, self._stop_at - self._clock()),
        )
