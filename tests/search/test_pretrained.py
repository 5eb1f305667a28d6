"""Pretrained cost models: the files that ship fit this version, and correct the estimate."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tvm.relax import op

import pretrain_cost_model
from pretrain_cost_model import train
from pretrained_file import of_types, save, with_winners
from romou.base.errors import RecordError
from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs import pretrained
from romou.compiler.operators.costs.features import _FIRST, _SHARES, TYPES, Correction, TaskFeatures, kernel_types
from romou.compiler.operators.costs.pretrained import PretrainedModel, Trees, Winners, model_path, pretrained_for
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import PriorKnowledge, SessionHooks, TuningOptions, TuningSession
from romou.tuner.search.cost_model import boosted
from romou.tuner.search.task_search import TaskSearch
from romou.tuner.search.transfer import TransferData
from searched_layers import SearchedLayer, load_layers
from simulation import SimulatedDevice, SimulatedTask
from support.data.recordings import TARGET, recorded
from support.kernels.operators import relax_tasks

H200 = Target("opencl -device=nvidia_h200")
SPACES = Path(__file__).parents[2] / "benchmarks/data/spaces_h200"


def pretrained_on(slow: int) -> PretrainedModel:
    """Return a model of a recording. Configs that load `slow` numbers at a time take nine times as long in it."""
    made = recorded(400)
    space = made.space()
    for index, found in made.configs.items():
        seconds = 9e-6 if space.at(index)["vector_width"] == slow else 1e-6
        made.configs[index] = dataclasses.replace(found, outcome="ok", times_s=(seconds,))
    return train([SimulatedTask.of_recording(made)], H200)


def test_winners_are_saved_with_the_model(tmp_path: Path) -> None:
    winners = Winners(({"tile_o": 1, "split_k": 8}, {"tile_o": 2, "unroll": "lanes"}), frozenset({"cuda"}), frozenset())
    save(with_winners(pretrained_on(1), winners), tmp_path / "a.ubj.gz")
    assert PretrainedModel.load(tmp_path / "a.ubj.gz").winners == winners
    assert pretrained_on(1).winners.configs == ()


def test_few_winners_serve_most_layers() -> None:
    layers = load_layers(pretrain_cost_model.LAYERS)
    found = pretrain_cost_model.winners_of(layers)
    assert found.operators == {"conv2d float32", "depthwise float32"}
    shipped = PretrainedModel.load(model_path("opencl", "nvidia_h200")).winners
    assert set(map(Config, shipped.configs)) == set(map(Config, found.configs))
    known = [layer for layer in layers if f"{layer.task.family} float32" in found.operators]

    def is_served(layer: SearchedLayer) -> bool:
        least = min(time for time in layer.times_s if time is not None)
        times = zip(layer.configs, layer.times_s, strict=True)
        return any(
            time is not None and time <= 1.05 * least and dict(config) in found.configs for config, time in times
        )

    assert len(found.configs) < 100
    assert sum(map(is_served, known)) > 0.8 * len(known)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    model, path = pretrained_on(1), tmp_path / "a.ubj.gz"
    save(model, path)
    # The statistics of the training are left out.
    assert path.stat().st_size < 0.9 * len(gzip.compress(bytes(model.booster.save_raw("ubj"))))
    task = SimulatedTask.of_recording(recorded())
    features = TaskFeatures(task.template, TARGET.limits, H200.spec)
    configs = list(task.space(TARGET))
    rows, expected = features(configs), features.expected(configs)
    corrected = PretrainedModel.load(path)(rows, features.columns, expected)
    assert np.array_equal(corrected, model(rows, features.columns, expected))
    is_slow = np.asarray([c["vector_width"] == 1 for c in configs])
    # The opposite of the estimate.
    assert (corrected - expected)[~is_slow].mean() - (corrected - expected)[is_slow].mean() > 1
    again = tmp_path / "b.ubj.gz"
    save(pretrained_on(1), again)
    assert path.read_bytes() == again.read_bytes()


def test_a_file_for_other_features_is_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "a.ubj.gz", pretrained_on(1)
    save(PretrainedModel(model.booster, (*model.columns[:-1], "another")), path)
    with pytest.raises(RecordError, match=r"features that this version does not have: another\n.*pretrain_cost_model"):
        PretrainedModel.load(path)


def test_a_damaged_model_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """XGBoost would abort the process on some of them, or raise an error of its own."""
    path = tmp_path / "a.ubj.gz"
    save(pretrained_on(1), path)
    data = path.read_bytes()
    content = gzip.decompress(data)
    for damaged in (
        b"", data[:500], b"x" * 99, data[:-8] + bytes(8), gzip.compress(b""), gzip.compress(b"{}"),
        gzip.compress(content[: len(content) // 2]), gzip.compress(content[:-64]), gzip.compress(content[9:]),
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=f"{path}: no cost model: damaged(?s:.*)pretrain_cost_model"):
            PretrainedModel.load(path)
        assert pretrained.ShippedModel(path).read() is None
        assert "configs are chosen without a pretrained cost model" in caplog.text
        caplog.clear()


def test_a_search_goes_on_without_a_model_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = pretrained_on(1)
    save(PretrainedModel(model.booster, ("another", *model.columns[1:])), tmp_path / "opencl_nvidia_h200.ubj.gz")
    monkeypatch.setattr(pretrained, "_FOLDER", tmp_path)
    known, expected = pretrained_for(H200), np.zeros(2)
    assert known is not None
    assert not caplog.records
    assert known(np.zeros((2, 1)), ("knob",), expected) is known(np.zeros((2, 1)), ("knob",), expected) is expected
    assert known.read() is None
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert re.search(
        r"without a pretrained cost model: .*does not have: another\nbenchmarks/pretrain_cost_model.py and "
        r"benchmarks/pretrain_on_phones.py make such models anew",
        warning.getMessage(),
    )


def test_a_model_looks_at_its_own_features_alone() -> None:
    """A feature that was added since changes nothing."""
    model, task = pretrained_on(1), SimulatedTask.of_recording(recorded())
    features = TaskFeatures(task.template, TARGET.limits, H200.spec)
    configs = list(task.space(TARGET))
    rows, expected = features(configs), features.expected(configs)
    more = np.column_stack([np.arange(len(rows), dtype=np.float32), rows])
    assert np.array_equal(model(more, ("added", *features.columns), expected), model(rows, features.columns, expected))


def test_the_first_columns_are_those_of_the_models_that_ship() -> None:
    paths = sorted(pretrained._FOLDER.glob("*.ubj.gz"))
    assert paths
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (16, 64))
    features = TaskFeatures(task.template, TARGET.limits)
    for path in paths:
        trained = PretrainedModel.load(path).columns
        # A model of phones has more: knobs of its tasks, and features that only pretrained models see.
        shared = min(len(trained), len(_FIRST))
        assert features.columns[:shared] == trained[:shared]


def test_a_pretrained_model_sees_loops_and_shares() -> None:
    work = conv(16, (12, 12), 32, (3, 3))
    task = task_of(work)
    seen: list[tuple[np.ndarray, Sequence[str]]] = []

    def correct(rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        seen.append((rows, columns))
        return expected

    features = TaskFeatures(task.template, TARGET.limits, H200.spec, correct)
    default = task.default_config(H200)
    configs = [default.replace(unroll=choice) for choice in ("lanes", "window")]
    features.expected(configs)
    ((rows, columns),) = seen
    by_name = dict(zip(columns, np.round(2**rows.T - 1), strict=True))
    assert by_name["unrolled_steps"].tolist() == [1, 9]
    assert (by_name["inner_rows"].tolist(), by_name["inner_steps"].tolist()) == ([3, 3], [9, 9])
    assert by_name["is_unrolled"].tolist() == [1, 1]
    shares = np.stack([rows[:, list(columns).index(name)] for name in _SHARES])
    # Logarithms of shares: none is above the whole, and one of six is at least 1 / sqrt(6).
    assert (shares <= 0).all()
    assert (shares.max(axis=0) > -1.3).all()
    # The search's own model does not see them.
    assert features(configs).shape == (2, len(features.columns))


def test_a_type_of_kernels_has_trees_of_its_own(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = generator.uniform(0, 8, (400, 1)).astype(np.float32)
    how = ({"max_depth": 3, "eta": 0.3}, 20)
    shared, own = (
        Trees(boosted(rows, sign * rows[:, 0], np.zeros(400), (how[0], count)), ("registers",))
        for sign, count in ((1, how[1]), (-3, 7))
    )
    fp16, depthwise = 1, 4
    save(of_types(shared, {depthwise: shared, fp16: own}), tmp_path / "a.ubj.gz")
    model = PretrainedModel.load(tmp_path / "a.ubj.gz")
    columns = ("registers", *TYPES)
    types = np.repeat(np.eye(4, 3, k=0, dtype=np.float32)[[0, 1, 2, 3]], 100, axis=0)
    both = np.column_stack([rows, types])
    assert np.unique(kernel_types(both, columns)).tolist() == [0, fp16, 2, depthwise]
    corrected, expected = (part(both, columns, np.ones(400)) for part in (model, shared))
    averaged = (expected + own(both, columns, np.ones(400))) / 2
    is_fp16 = kernel_types(both, columns) == fp16
    np.testing.assert_allclose(corrected, np.where(is_fp16, averaged, expected), atol=1e-5)
    assert abs(averaged - expected)[is_fp16].mean() > 1


def test_a_pretrained_model_sees_the_type_of_kernels() -> None:
    def type_of(dtype: str, accumulate: str, groups: int) -> int:
        task = task_of(conv(16, (12, 12), 16, (3, 3), groups=groups, dtype=dtype))
        features = TaskFeatures(task.template, TARGET.limits, H200.spec)
        config = task.default_config(H200).replace(accumulate=accumulate)
        columns = columns_of([config])
        usage = task.template.form(TARGET.limits).usage(columns)
        rows = features.model_rows(features([config]), columns, usage)
        return int(kernel_types(rows, features.model_columns)[0])

    assert type_of("float32", "float32", 1) == 0
    assert type_of("float16", "float32", 1) == 1
    assert type_of("float16", "float16", 1) == 3
    assert type_of("float16", "float32", 16) == 5


def test_a_search_begins_with_what_is_known_of_the_device() -> None:
    made = recorded(200, name="NVIDIA H200")
    task = SimulatedTask.of_recording(made)

    def slow(model: PretrainedModel) -> int:
        """Return how many of the first configs load single numbers."""
        device, store = SimulatedDevice([task]), []
        options = TuningOptions(trials=21, confirm=0, random_share=0)
        TuningSession(
            [task],
            H200,
            store=store,
            builder=device,
            runner=device,
            options=options,
            prior=PriorKnowledge(pretrained=model),
            hooks=SessionHooks(clock=device.clock),
        ).run()
        # Up to then the task's own measurements say little.
        return sum(record.config["vector_width"] == 1 for record in list(store)[:9])

    assert slow(pretrained_on(1)) < slow(pretrained_on(4))


def test_a_model_ships_for_a_device() -> None:
    assert all(
        pretrained_for(Target(f"{kind} -device=nvidia_h200")) is not None for kind in ("opencl", "vulkan", "cuda")
    )
    assert all(pretrained_for(Target(text)) is None for text in ("opencl -device=mali_g76", "opencl -device=host"))


def test_a_model_of_one_adreno_is_not_believed_on_others() -> None:
    """A model without Adreno 740's layers had first picks that took 1.25x as long there as the estimate's."""
    models = {
        text: pretrained_for(Target(text))
        for text in ("opencl -device=adreno660", "vulkan -device=adreno660", "opencl -device=adreno740")
    }
    own, through_vulkan, other = models.values()
    assert other is None
    assert own is through_vulkan
    assert own is not None
    assert own.path == model_path("opencl", "adreno660")
    assert own.read() is not None


def test_default_configs_do_not_wait_for_xgboost() -> None:
    """Importing XGBoost takes a second, and a candidate's prediction is computed only when it is recorded."""
    made = recorded(9, name="NVIDIA H200")
    task, asked = SimulatedTask.of_recording(made), []

    def correct(rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return expected + 1

    device, store = SimulatedDevice([task]), []
    events: list[int] = []
    session = TuningSession(
        [task],
        H200,
        store=store,
        builder=device,
        runner=device,
        options=TuningOptions(trials=1, confirm=0),
        prior=PriorKnowledge(pretrained=correct),
        hooks=SessionHooks(clock=device.clock, meanwhile=lambda: events.append(len(asked))),
    )
    session.run()
    assert events == [0]
    assert asked == [1]
    (record,) = store
    estimated = TaskFeatures(task.template, H200.limits, H200.spec).expected([Config(record.config)])[0]
    assert record.expected_s == pytest.approx(float(np.exp(-estimated - 1)), rel=1e-5)


def test_a_space_with_tensor_cores_is_not_corrected() -> None:
    target = Target("cuda -device=nvidia_h200")

    def is_corrected(dtype: str) -> bool:
        task = task_of(conv(64, (14, 14), 64, (1, 1), dtype))
        found = [
            TaskSearch(task, target, TuningOptions(), 0, lambda _: TransferData(), target.spec, model)
            for model in (None, pretrained_for(target))
        ]
        estimates = [search.features.expected([search.default])[0] for search in found]
        return bool(estimates[0] != estimates[1])

    assert is_corrected("float32")
    assert not is_corrected("float16")


def rank_correlation(path: Path, target: Target, model: Correction | None) -> float:
    """Return how well a model ranks the configs of a recording."""
    task = SimulatedTask.of_recording(RecordedSpace.load(path))
    space, configs = task.recorded.space(), list(task.space(target))
    seconds = [task.recorded.configs[space.index_of(c)].time_s for c in configs]
    return correlation(TaskFeatures(task.template, target.limits, target.spec, model).expected(configs), seconds)


def correlation(expected: np.ndarray, seconds: Sequence[float | None]) -> float:
    """Return the rank correlation of expected scores with measured times, of the configs that ran."""
    ran = np.asarray([s is not None for s in seconds])
    ranks = [
        np.argsort(np.argsort(values)) for values in (-expected[ran], np.asarray([s for s in seconds if s is not None]))
    ]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("name", ["conv1x1", "dense"])
def test_what_ships_fits_what_this_version_makes_of_the_recordings(name: str) -> None:
    path = RecordedSpace.path_in(SPACES, name)
    # Otherwise features or estimate have changed their meaning: python benchmarks/pretrain_cost_model.py.
    assert rank_correlation(path, H200, pretrained_for(H200)) > max(0.9, rank_correlation(path, H200, None) + 0.02)


@pytest.mark.parametrize("name", ["conv3x3_grouped", "conv3x3_stride2", "conv7x1_prime", "conv7x7_stride2"])
def test_what_ships_fits_through_cuda(name: str) -> None:
    target = Target("cuda -device=nvidia_h200")
    path = RecordedSpace.path_in(SPACES.with_name("spaces_h200_cuda"), name)
    assert rank_correlation(path, target, pretrained_for(target)) > rank_correlation(path, target, None) + 0.05


def test_what_ships_ranks_configs_with_and_without_tensor_cores() -> None:
    target, found = Target("cuda -device=nvidia_h200"), []
    for layer in load_layers(pretrain_cost_model.LAYERS):
        if len(layer.configs) > 50 and len({config["multiply_add"] for config in layer.configs}) > 1:
            task = layer.task
            ranked = [
                correlation(
                    TaskFeatures(task.template, task.limits(target), target.spec, model).expected(layer.configs),
                    layer.times_s,
                )
                for model in (pretrained_for(target), None)
            ]
            found.append(ranked)
    trained, estimated = np.mean(found, axis=0)
    assert len(found) > 50
    assert trained > max(0.7, estimated + 0.3)


def test_what_is_only_trained_on_is_none_of_the_operators_that_searches_are_compared_on() -> None:
    paths = [path for folder in pretrain_cost_model.SPACES for path in sorted(folder.glob("*.json.gz"))]
    assert len(paths) == 24
    # This version makes the same kernels of them, on the same device.
    tasks = [SimulatedTask.of_recording(RecordedSpace.load(path)) for path in paths]
    assert len({task.key for task in tasks}) == 24
    assert len({task.recorded.device["name"] for task in tasks}) == 1


def test_the_command_makes_a_file(tmp_path: Path) -> None:
    made = recorded()
    path = RecordedSpace.path_in(tmp_path, "made_up")
    made.start(path)
    made.append(path, list(made.configs.values()))
    out = tmp_path / "out.ubj.gz"
    with gzip.open(pretrain_cost_model.LAYERS, "rt", encoding="utf-8") as file:
        (tmp_path / "layers.gz").write_bytes(gzip.compress("".join(itertools.islice(file, 9)).encode()))
    options = ["--spaces", str(tmp_path), "--layers", str(tmp_path / "layers.gz"), "--out", str(out)]
    result = CliRunner().invoke(pretrain_cost_model.main, options)
    assert result.exit_code == 0, result.output
    assert "1 recordings and 9 layers" in result.output
    PretrainedModel.load(out)
    assert model_path("opencl", "nvidia_h200").is_file()
