"""The search for the best config of each task of a model."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.compiler.compilation import Compilation
from romou.compiler.operators.costs.pretrained import pretrained_for
from romou.driver.options import TuneOptions
from romou.driver.search.ahead import DefaultKernels, DeferredThread
from romou.driver.search.course import Course
from romou.driver.search.records import open_records
from romou.driver.site import TimingSite
from romou.tuner.measure import Builder, LocalBuilder, Runner
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records.database import ScheduleDatabase
from romou.tuner.records.task_files import keep_tasks, other_tasks
from romou.tuner.search import (
    PriorKnowledge,
    SessionHooks,
    TaskResult,
    TrialCallback,
    TuningSession,
    progress_of,
)

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask


@dataclass(frozen=True, kw_only=True)
class SearchedModel:
    """A model with default kernels, and the best configs of its tasks.

    results: task key -> result. Empty without trials.
    records: folder of the records, None if no records are kept.
    """

    compilation: Compilation
    results: Mapping[str, TaskResult]
    records: Path | None


class ModelSearch:
    """The search for the best config of each task of a model, on one device.

    later: starts as soon as the first candidates are being built.
    """

    def __init__(self, site: TimingSite, runner: Runner, options: TuneOptions, later: DeferredThread) -> None:
        self._site, self._runner, self._options, self._later = site, runner, options, later
        self._pretrained = pretrained_for(site.target)
        if self._pretrained is not None and self.compiles_ahead:
            later.submit(self._pretrained.read)

    @property
    def compiles_ahead(self) -> bool:
        """True if default kernels may be compiled while candidates are measured.

        A CPU's kernels are timed on the cores that compile, and a budget of memory is checked before the search.
        """
        return self._options.trials > 0 and self._options.max_memory is None and self._site.has_own_cores

    def run(self, kernels: DefaultKernels, course: Course, trials: int | None = None) -> SearchedModel:
        """Search the best config of each task. trials: another number than that of the options.

        If some default kernels cannot be compiled, their nodes fall back, and the search goes on with the tasks of the
        new model. Most of these have records by then.
        """
        options = self._options if trials is None else replace(self._options, trials=trials)
        kernels.lowered.check_variant()
        try:
            results, records = self._tune(kernels.lowered, options, kernels.ending_early(options.callback), course)
        except Exception:
            self._later.start()
            # A kernel that cannot be compiled may have no reference either.
            if not kernels.has_failed:
                raise
        self._later.start()
        compilation = kernels.compiled()
        if kernels.has_failed:
            results, records = self._tune(compilation, options, options.callback, course)
        return SearchedModel(compilation=compilation, results=results, records=records)

    def _tune(
        self, compilation: Compilation, options: TuneOptions, callback: TrialCallback | None, course: Course
    ) -> tuple[Mapping[str, TaskResult], Path | None]:
        """Return the results by task key, and the folder of the records."""
        site = self._site
        # Parts of a joined kernel are timed even if they are small, because their sum decides.
        parts = {key for keys in compilation.alternatives.values() for key in keys}
        tasks = [task for task in compilation.candidates if not task.is_small or task.key in parts]
        if not tasks or not options.trials:
            return {}, None
        with (
            open_records(options.work_dir, compilation, site.named) as (store, folder),
            contextlib.closing(_builder(site, options)) as builder,
        ):
            tasks = [pruned_task(task, site.target, options.rules()) for task in tasks] if options.prune else tasks
            if folder is not None:
                keep_tasks(folder, tasks)
            session = TuningSession(
                tasks,
                site.target,
                store=store,
                builder=builder,
                runner=self._runner,
                options=options.search_options(site.named),
                prior=PriorKnowledge(
                    alternatives=compilation.alternatives,
                    learn_from=_other_models(folder if options.work_dir else None),
                    pretrained=self._pretrained,
                    database=ScheduleDatabase() if options.database else None,
                    is_stand_in=bool(site.stands_in_for),
                ),
                hooks=SessionHooks(
                    callback=callback,
                    meanwhile=self._later.start,
                    stop_at=course.deadline.before(course.left_for_finish_s),
                    confirm_until=course.deadline.before(course.left_for_finish_s / 2),
                ),
            )
            return session.run(lambda: progress_of(options.progress)), folder


def _other_models(folder: Path | None) -> Callable[[Counter[str]], Sequence[TunableTask]]:
    """Return a function that finds the tasks of other models in a folder that the user named."""
    return (lambda _: ()) if folder is None else functools.partial(other_tasks, folder)


def _builder(site: TimingSite, options: TuneOptions) -> Builder:
    if options.builders is None:
        return LocalBuilder(site.target, options.measure_options(), compile_for=site.compile_for)
    from romou.tuner.measure.dask_builder import DaskBuilder

    return DaskBuilder(options.builders, site.target, options.measure_options(), is_trusted=options.trust_builders)
