"""The scheduler: which task gets the next trials."""

from __future__ import annotations

import numpy as np
import pytest

from romou.tuner.search.scheduler import Progression, next_task


def spend(costs: np.ndarray, trials: int, batch: int = 4) -> list[Progression]:
    """Spend trials in batches on tasks with different calls. Their times fall from twice their best, steeply at first,
    as in the recorded spaces.
    """
    tasks = [Progression(calls=1 + index % 3) for index in range(len(costs))]
    while sum(len(task.times) for task in tasks) < trials:
        index = next_task(tasks, patience=48)
        assert index is not None
        count = batch if tasks[index].times else 1
        for trial in range(len(tasks[index].times), len(tasks[index].times) + count):
            # Every third trial is the fastest so far.
            tasks[index].times.append(costs[index] * (1 + (1 + trial) ** -0.8 if trial % 3 == 0 else 3))
    return tasks


def test_cheap_tasks_get_a_batch_before_dear_ones_have_all() -> None:
    costs = 10 ** np.random.default_rng(0).uniform(-6, -4, 43)
    tasks = spend(costs, 16 * len(costs))
    counts = np.asarray([len(task.times) for task in tasks])
    assert counts.min() >= 5
    # And still the dear ones get more.
    share = costs * [task.calls for task in tasks]
    assert counts[np.argsort(share)[-10:]].mean() > 2 * counts[np.argsort(share)[:10]].mean()
    left = sum(task.calls * ((task.best_s or 0) - cost) for task, cost in zip(tasks, costs, strict=True))
    # What evenly shared trials leave of it.
    evenly = sum(share * 16**-0.8)
    assert left < evenly


def test_every_task_once_before_any_twice() -> None:
    tasks = [Progression(5, [1.0]), Progression(1), Progression(9)]
    assert next_task(tasks, patience=10) == 1


def test_the_larger_share_of_the_model_goes_first() -> None:
    assert next_task([Progression(1, [1.0]), Progression(10, [1.0])], patience=10) == 1
    assert next_task([Progression(1, [5.0]), Progression(2, [1.0])], patience=10) == 0


def test_trials_without_improvement_make_room_for_others() -> None:
    stuck = Progression(1, [2.0] + [3.0] * 20)
    assert next_task([stuck, Progression(1, [1.5])], patience=100) == 1


def test_patience_ends_a_task_while_others_improve() -> None:
    stuck = Progression(1, [100.0] + [200.0] * 20)
    assert next_task([stuck, Progression(1, [0.1])], patience=20) == 1
    assert next_task([stuck], patience=20) == 0


def test_exhausted_tasks_get_nothing() -> None:
    assert next_task([Progression(1, [1.0], True), Progression(1, [], True)], patience=10) is None


def test_a_task_where_nothing_works_does_not_eat_the_budget() -> None:
    assert next_task([Progression(1, [None] * 5), Progression(1, [1.0])], patience=50) == 0
    assert next_task([Progression(1, [None] * 16), Progression(1, [1.0])], patience=50) == 1


def test_what_is_much_slower_than_its_parts_together_has_no_more_trials() -> None:
    """A joined task waits for the others' times. Then, the more trials it had, the closer it has to be."""
    joined = Progression(calls=1, times=[20.0])
    assert not joined.is_hopeless
    joined.others_s = 3.0
    assert not joined.is_hopeless
    joined.times += [None, 10.0, 12.0]
    assert joined.is_hopeless
    joined.times += [3.5]
    assert not joined.is_hopeless
    # What never worked is slower than anything.
    assert Progression(calls=1, times=[None], others_s=3.0).is_hopeless
    assert not Progression(calls=1, others_s=3.0).is_hopeless


def test_a_slower_joined_task_waits_for_the_kernels_that_it_competes_with() -> None:
    """It can save at most their time. A task of its own with the same time comes first."""
    joined, part = Progression(calls=1, times=[6.0], others_s=3.0), Progression(calls=1, times=[3.0])
    assert joined.gain() == pytest.approx(part.gain() / 4)
    assert next_task([joined, part], patience=16) == 1
    faster = Progression(calls=1, times=[2.0], others_s=3.0)
    assert faster.gain() == Progression(calls=1, times=[2.0]).gain()
