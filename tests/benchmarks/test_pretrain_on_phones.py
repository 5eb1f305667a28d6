"""A cost model of phones judged on layers that it did not see."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phone_judged import Judgement
from pretrain_on_phones import Layer, by_layer, by_name, choosing, judged, judged_by_own

KERNELS = 64


def layer(number: int) -> Layer:
    """Return a layer whose estimate is wrong by what its one feature says."""
    generator = np.random.default_rng(number)
    rows = generator.uniform(0, 8, (KERNELS, 1)).astype(np.float32)
    expected = generator.uniform(-1, 0, KERNELS).astype(np.float32)
    seconds = np.exp(rows[:, 0] / 4 - expected)
    recorded: Any = SimpleNamespace(
        task=SimpleNamespace(name=f"layer_{number}"), gpu="adreno660", template="conv2d.image2d", dtype="float16"
    )
    task: Any = SimpleNamespace(recorded=recorded, time_s=seconds, is_timed=np.isfinite(seconds))
    return Layer(task, ("tile_o",), rows, expected, seconds.tolist())


def test_a_judgement_of_an_order() -> None:
    times = np.array([3.0, 1.0, 2.0, 1.01])
    best = Judgement.of(-times, times)
    assert (best.correlation, best.first, best.ten, best.trials) == (pytest.approx(1), 1, 1, 1)
    worst = Judgement.of(times, times)
    assert (worst.correlation, worst.first, worst.ten, worst.trials) == (pytest.approx(-1), 3, 1, 3)


def test_layers_are_judged_by_models_of_other_layers() -> None:
    tables = judged(by_layer([layer(number) for number in range(12)], folds=3))
    assert list(tables) == ["adreno660 conv2d float16", "all"]
    grouped = judged(by_layer([layer(1), layer(2)], folds=2), lambda _: "others")
    assert grouped["others"] == grouped["all"]
    before, after = (np.mean([pair[side].correlation for pair in tables["all"]]) for side in (0, 1))
    assert len(tables["all"]) == 12
    assert after > before + 0.1


def test_the_same_layer_is_in_the_same_group() -> None:
    first = layer(5)
    operator = SimpleNamespace(name="layer_5_float32")
    recorded: Any = SimpleNamespace(task=operator, gpu="adreno740", template="conv2d.image2d", dtype="float32")
    other = dataclasses.replace(first, task=SimpleNamespace(recorded=recorded))  # type: ignore[arg-type]
    assert {each.fold(7) for each in (first, other)} == {first.fold(7)}


def test_a_model_that_saw_the_layer_is_no_worse() -> None:
    layers = [layer(number) for number in range(6)]
    own, others = judged_by_own(layers, folds=3)["all"], judged(by_layer(layers, folds=3))["all"]
    assert len(own) == len(others) == 6
    middle = [np.median([after.correlation for _, after in table]) for table in (own, others)]
    assert middle[0] > middle[1] - 0.05
    assert [before for before, _ in own] == [Judgement.of(each.expected, each.task.time_s) for each in layers]


def of_network(side: int, channels: tuple[int, int], kernel: tuple[int, int], *, is_depthwise: bool = False) -> Layer:
    work = SimpleNamespace(
        in_hw=(side, side), in_channels=channels[0], out_channels=channels[1], kernel=kernel, stride=(1, 1)
    )
    recorded: Any = SimpleNamespace(work=work, is_depthwise=is_depthwise)
    return dataclasses.replace(layer(1), task=SimpleNamespace(recorded=recorded))  # type: ignore[arg-type]


def test_layers_are_of_networks_and_a_network_is_judged_by_others() -> None:
    layers = [
        of_network(17, (768, 128), (1, 1)),
        of_network(52, (128, 256), (3, 3)),
        of_network(112, (64, 128), (3, 3)),
        of_network(14, (512, 512), (1, 1)),
        of_network(14, (512, 512), (3, 3), is_depthwise=True),
        of_network(14, (256, 256), (3, 3)),
        of_network(35, (64, 96), (3, 3)),
    ]
    names = ["inception", "yolo", "vgg", "mobilenet", "mobilenet", "resnet", "inception"]
    assert [each.network for each in layers] == names
    assert [choosing(each) for each in layers[:2]] == ["networks that chose", "networks that did not choose"]
    splits = list(by_name(layers, lambda layer: layer.network))
    assert len(splits) == 5
    for held, others in splits:
        assert not {each.network for each in held} & {each.network for each in others}
        assert len(held) + len(others) == len(layers)
