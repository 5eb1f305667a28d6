"""Times of a model's kernels with default and with tuned configs, measured alternately in the two models."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

from romou.base.clock import Deadline
from romou.base.errors import RomouError
from romou.compiler.assembly.assemble import ScheduledFunction
from romou.compiler.compilation import Compilation
from romou.runtime.module import Argument, Timed, TunedModel
from romou.tools.regression.timing import REPEATS, Subject, launches_of, operator_subject

logger = logging.getLogger("romou")

# Each round times one side, then the other. A round is the median of REPEATS. Noisy times have more rounds.
ROUNDS, MOST_ROUNDS = 3, 9


def time_layers(
    default: tuple[Compilation, TunedModel],
    tuned: tuple[Compilation, TunedModel],
    deadline: Deadline,
) -> dict[str, Timed]:
    """Return task key -> times of one call of its kernels, for each task of the tuned model.

    A kernel that is the same in both models is timed once. A kernel that cannot be timed has a warning and no entry.
    After the deadline, the others have none either.
    """
    sides = [_functions_by_task(compilation) for compilation, _ in (default, tuned)]
    times: dict[str, Timed] = {}
    for key, after in sides[1].items():
        if deadline.is_over:
            break
        parts = (key,) if key in sides[0] else tuned[0].alternatives.get(key, ())
        # A kernel that only the tuned model has is its own default.
        before = [sides[0][part] for part in parts if part in sides[0]]
        is_same = not before or (len(before) == 1 and dict(before[0].config) == dict(after.config))
        try:
            subjects = [[_subject(tuned[1], after)]]
            if not is_same:
                subjects.insert(0, [_subject(default[1], function) for function in before])
            rounds = _alternately(subjects)
        except (RomouError, RuntimeError) as error:
            logger.warning("%s is not timed in the model: %s", after.name, str(error).splitlines()[0])
            continue
        times[key] = Timed.of(rounds[0], rounds[-1])
    return times


def _functions_by_task(compilation: Compilation) -> dict[str, ScheduledFunction]:
    functions = compilation.scheduled_functions()
    return {function.task.key: function for function in reversed(functions) if function.task is not None}


def _subject(model: TunedModel, function: ScheduledFunction) -> Subject:
    return operator_subject(model, function.name, Argument.of_parameters(function.func), seed=0)


def _alternately(sides: Sequence[Sequence[Subject]]) -> list[list[float]]:
    """Return the milliseconds of each round of each side, summed over the side's kernels."""
    launches: dict[tuple[int, int], int] = {}
    rounds: list[list[float]] = [[] for _ in sides]
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and not Timed.of(rounds[0], rounds[-1]).is_noisy:
            break
        # The order is reversed each round: drift hits both sides alike.
        for side in range(len(sides)) if number % 2 == 0 else reversed(range(len(sides))):
            total = 0.0
            for at, make in enumerate(sides[side]):
                timer = make()
                if (side, at) not in launches:
                    launches[side, at] = launches_of(timer)
                total += statistics.median(timer(launches[side, at], REPEATS))
            rounds[side].append(total)
    return rounds
