"""Which task gets the next trials."""

from __future__ import annotations

from romou.search.scheduler import Progression, next_task


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
