"""Transfer data: features that mean the same for every task, and records of other tasks and devices that make a model
before the first trial.
"""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax import op

from romou.base.outcome import Outcome
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tuner.records import Origin, Record
from romou.tuner.search import PriorKnowledge, SessionHooks, TuningOptions, TuningSession, cost_model
from romou.tuner.search.cost_model import CostModel
from romou.tuner.search.transfer import TransferData, scores
from simulation import SimulatedDevice, SimulatedTask
from support.data.recordings import recorded
from support.kernels.operators import relax_tasks, small_tasks

TARGET = Target("opencl -device=host")


def test_features_are_finite_and_do_not_depend_on_the_order() -> None:
    for task in small_tasks():
        features = TaskFeatures(task.template, TARGET.limits)
        configs = task.space(TARGET).sample(np.random.default_rng(0), 9)
        rows = features(configs)
        assert np.isfinite(rows).all()
        assert np.array_equal(features(configs[::-1]), rows[::-1])
        assert rows.shape == (9, len(features.columns))


def test_features_of_a_known_device_say_what_bounds_a_kernel() -> None:
    known, task = Target("opencl -device=nvidia_h200"), task_of(conv(256, (28, 28), 256, (1, 1)))
    limits = known.limits
    configs = task.space(known).sample(np.random.default_rng(0), 40)
    form = task.template.form(limits)
    usage = form.usage(columns_of(configs))
    features = TaskFeatures(task.template, limits, known.spec)
    named = dict(zip(features.columns, 2 ** features(configs).T.astype(float) - 1, strict=True))
    # The norm of all parts is at least each of them, and no kernel of this one is transformed or spills that much.
    assert all((named["cycles"] >= 0.99 * named[part]).all() for part in ("issuing", "waiting", "l2"))
    groups = np.broadcast_to(usage.work_groups, len(configs))
    assert named["groups_of_core"] == pytest.approx(groups / 132, rel=1e-3)
    assert named["last_round"] == pytest.approx(groups / (132 * np.ceil(groups / 132)), rel=1e-3)
    unknown = TaskFeatures(task.template, limits)
    blind = dict(zip(unknown.columns, unknown(configs).T, strict=True))
    assert not any(
        blind[name].any() for name in ("cycles", "issuing", "groups_of_core", "last_round", "bytes_in_flight")
    )


def test_scores() -> None:
    assert scores([2.0, 1.0, None, 1000.0]) == pytest.approx(-np.log([2, 1, 32, 32]))
    assert scores([None]) == pytest.approx([-np.log(32)])


def test_too_few_measurements_are_no_data() -> None:
    task = small_tasks()[0]
    features = TaskFeatures(task.template, TARGET.limits)
    configs, data = task.space(TARGET).sample(np.random.default_rng(0), 8), TransferData()
    data.add(features, configs[:3], [1.0, 2.0, 3.0])
    data.add(features, configs, [None] * 7 + [1.0])
    assert data.joined() is None


def test_tasks_with_other_knobs_are_joined_by_name() -> None:
    (softmax,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (16, 64))
    data, rows = TransferData(), []
    for task in (small_tasks()[0], softmax):
        features = TaskFeatures(task.template, TARGET.limits)
        configs = task.space(TARGET).sample(np.random.default_rng(0), 8)
        data.add(features, configs, [1.0 + i for i in range(8)])
        rows.append(dict(zip(features.columns, features(configs).T, strict=True)))
    joined = data.joined()
    assert joined is not None
    named = dict(zip(data.columns, joined[0].T, strict=True))
    assert {"tile_w", "threads", "registers"} <= named.keys()
    for name, column in named.items():
        assert np.array_equal(column, np.concatenate([some.get(name, np.zeros(8)) for some in rows]))


def test_a_model_knows_the_data_of_other_tasks() -> None:
    task = small_tasks()[0]
    features = TaskFeatures(task.template, TARGET.limits)
    configs = task.space(TARGET).sample(np.random.default_rng(0), 80)
    data = TransferData()
    data.add(features, configs[:60], [float(c["tile_w"]) for c in configs[:60]])
    model = CostModel(features)
    model.fit([], [], data)
    predicted, wide = model.predict(configs[60:]), np.array([float(c["tile_w"]) for c in configs[60:]])
    assert np.corrcoef(predicted, -np.log(wide))[0, 1] > 0.8


def test_a_few_own_measurements_correct_the_transfer_data() -> None:
    task = small_tasks()[0]
    features = TaskFeatures(task.template, TARGET.limits)
    configs = task.space(TARGET).sample(np.random.default_rng(0), 100)
    wide = np.array([float(c["tile_w"]) for c in configs])
    data = TransferData()
    data.add(features, configs[:40], list(wide[:40]))
    # Trees, or a Gaussian process if there is an estimate, even one as wrong as this.
    for has_estimate, least in ((False, 0.8), (True, 0.5)):
        features.has_estimate = has_estimate
        model = CostModel(features)
        model.fit([], [], data)
        assert np.corrcoef(model.predict(configs[70:]), np.log(wide[70:]))[0, 1] < -0.8
        model.fit(configs[40:70], list(1 / wide[40:70]), data)
        assert np.corrcoef(model.predict(configs[70:]), np.log(wide[70:]))[0, 1] > least


def test_transfer_data_is_learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_tasks()[0]
    features = TaskFeatures(task.template, TARGET.limits)
    configs = task.space(TARGET).sample(np.random.default_rng(0), 40)
    data = TransferData()
    data.add(features, configs[:30], [float(c["tile_w"]) for c in configs[:30]])
    features.has_estimate = True
    model = CostModel(features)
    trained: list[int] = []
    train = cost_model.boosted
    monkeypatch.setattr(
        cost_model, "boosted", lambda rows, *rest, **named: trained.append(len(rows)) or train(rows, *rest, **named)
    )
    for count in (5, 10):
        model.fit(configs[30:][:count], [1.0] * count, data)
    assert trained == [30]


def test_transfer_data_is_collected_anew_when_there_is_half_as_much_more() -> None:
    tasks = [SimulatedTask.of_recording(recorded(40))]
    others = small_tasks()[:1]
    device = SimulatedDevice(tasks)
    session = TuningSession(
        tasks,
        TARGET,
        store=[],
        builder=device,
        runner=device,
        options=TuningOptions(),
        prior=PriorKnowledge(learn_from=lambda _: others),
        hooks=SessionHooks(clock=device.clock),
    )
    (learner,), (other,) = session._states, session._others
    configs = iter(others[0].space(TARGET).sample(np.random.default_rng(0), 40))

    def after(count: int) -> TransferData:
        for seconds in range(count):
            other.add(next(configs), Outcome.OK, 1.0 + seconds)
        return session._transfer_data(learner)

    first = after(20)
    assert len(first) == 1
    assert after(9) is first
    assert after(1) is not first


@pytest.mark.parametrize(
    ("knobs", "lines"),
    [
        # Texels of 16 bytes side by side in lines of 128; weights of one channel are one texel for all pixels.
        ({"wg_w": 8, "wg_o": 1, "tile_w": 1}, (1, 1)),
        ({"wg_w": 16, "wg_o": 2, "tile_w": 1}, (2, 1)),
        ({"wg_w": 8, "wg_o": 4, "tile_w": 4}, (4, 1)),
        ({"wg_w": 4, "wg_o": 8, "tile_w": 1, "tile_o": 4}, (1, 4)),
        # No more than a warp counts.
        ({"wg_w": 32, "wg_o": 4, "tile_w": 1}, (4, 1)),
        # Pieces of a split are apart in memory.
        ({"wg_w": 4, "wg_o": 2, "tile_w": 1, "split_k": 4}, (4, 4)),
        # Staged: neighbours load neighbours.
        ({"wg_w": 4, "wg_o": 8, "tile_w": 4, "local": 2}, (4, 4)),
    ],
)
def test_cache_lines_of_a_warp(knobs: dict[str, int], lines: tuple[int, int]) -> None:
    task = task_of(conv(64, (16, 16), 128, (1, 1)))
    space, form = task.space(TARGET), task.template.form(TARGET.limits)
    plain = {"tile_o": 1, "tile_h": 1, "split_k": 1, "local": 0, "vector_width": 4, "pixels": "flat"}
    config = task.default_config(TARGET).replace(**{**plain, **knobs})
    assert all(config[name] in space.knobs[name] for name in config)
    assert tuple(int(n[0]) for n in form.lines(columns_of([config]), 32, 128)) == lines


def test_records_of_another_device_are_where_the_search_begins() -> None:
    made = recorded(200)
    task = SimulatedTask.of_recording(made)
    best = min((i for i, c in made.configs.items() if c.time_s), key=lambda i: made.configs[i].time_s or 0.0)
    elsewhere = Origin.here({**made.device, "name": "another"})

    def tried(store: list[Record]) -> list[int]:
        device, before = SimulatedDevice([task]), len(list(store))
        options = TuningOptions(trials=40, confirm=0)
        TuningSession(
            [task],
            TARGET,
            store=store,
            builder=device,
            runner=device,
            options=options,
            hooks=SessionHooks(clock=device.clock),
        ).run()
        return [made.space().index_of(r.config) for r in list(store)[before:]]

    warm = []
    for index, found in made.configs.items():
        if found.outcome == "ok":
            config = dict(made.space().at(index))
            warm.append(
                Record(
                    task_key=task.key,
                    task_name="",
                    config=config,
                    outcome="ok",
                    times_s=found.times_s,
                    device=elsewhere.device,
                    romou=elsewhere.romou,
                    tvm=elsewhere.tvm,
                )
            )
    cold = tried([])
    found = tried(warm)
    assert len(found) == len(cold) == 40
    assert best in found
