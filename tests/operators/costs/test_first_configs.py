"""First configs by the estimate: valid, within the criteria, and the fastest of their lattice."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs import first_configs
from romou.compiler.operators.costs.estimate import estimable, estimate_seconds
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.first_configs import estimated_starts, trained_pick
from romou.compiler.operators.costs.pretrained import pretrained_for
from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.pruning.tasks import pruned_space
from support.kernels.operators import conv, task_of

SAME = (1, 1, 1, 1)
WORKS = (
    conv(64, (56, 56), 64, (3, 3), padding=SAME),
    conv(256, (14, 14), 256, (1, 1)),
    conv(64, (56, 56), 128, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2)),
    conv(96, (112, 112), 96, (3, 3), padding=SAME, stride=(2, 2), groups=96),
    conv(96, (17, 17), 64, (7, 1), padding=(3, 0, 3, 0)),
    conv(3, (224, 224), 32, (3, 3), padding=SAME, stride=(2, 2)),
    matmul((3,), 197, 64, 197),
)
GROUP = ("wg_o", "wg_h", "wg_w")


def seconds_of(task: TunableTask, config: Config, target: Target) -> float:
    return float(np.max(estimate_seconds(task.usage_of(config, target), estimable(target).spec)))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["adreno640", "adreno690", "adreno740"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_no_other_group_is_faster(work: Any, device: str) -> None:
    target = Target(f"opencl -device={device}")
    task = task_of(work).with_free_images()
    start, space = task.default_config(target), pruned_space(task, target)
    assert space.is_valid(start)
    assert math.prod(start[name] for name in ("tile_o", "tile_h", "tile_w")) <= 4
    least = seconds_of(task, start, target)
    for name in GROUP:
        for side in space.knobs[name]:
            other = start.replace(**{name: side})
            is_whole = start["split_k"] == 1
            assert not (is_whole and space.is_valid(other)) or seconds_of(task, other, target) >= least, other


@pytest.mark.parametrize(
    "types",
    [{"weight_type": "int8"}, {"weight_type": "int8", "data_type": "uint8", "data_zero": 128}],
    ids=["weight of bytes", "both of bytes"],
)
def test_conversions_of_bytes_are_shared_by_large_tiles(types: dict[str, Any]) -> None:
    """Under Mesa's compiler for Adreno 630 the estimate's pick for floats took 3.17 and 3.20 instructions a
    multiply-add of bytes, for 1.72 and 2.11.
    """
    target, sides = Target("opencl -device=adreno630"), ("tile_o", "tile_h", "tile_w")
    work = Conv2d(in_channels=256, in_hw=(28, 28), out_channels=256, kernel=(1, 1), has_integers=True)
    of_floats, of_bytes = (task_of(each).with_free_images() for each in (work, dataclasses.replace(work, **types)))
    assert estimated_starts(of_floats.template, target)
    assert not estimated_starts(of_bytes.template, target)
    small, large = (math.prod(task.default_config(target)[name] for name in sides) for task in (of_floats, of_bytes))
    assert small < large


def test_a_device_that_prefers_images_has_the_same_first_configs_with_the_option() -> None:
    task = task_of(WORKS[1]).with_free_images()
    starts = task.starts(Target("opencl -device=adreno740"))
    assert "image" in [starts[0][name] for name in ("data", "weight", "output")]
    assert task.starts(Target("opencl -device=adreno740 -images=prefer")) == starts


def test_algorithms_are_in_the_order_of_their_seconds_and_exact_ones_first() -> None:
    target = Target("opencl -device=adreno740")
    task = task_of(conv(64, (56, 56), 64, (3, 3), padding=SAME)).with_free_images()
    starts = task.starts(target)
    assert {start["algorithm"] for start in starts} == {"direct", "winograd2", "winograd4", "winograd6"}
    exact = [start for start in starts if start["algorithm"] != "winograd6"]
    assert exact == sorted(exact, key=lambda start: seconds_of(task, start, target))
    assert starts[-1]["algorithm"] == "winograd6"


def test_transforms_of_few_channels_take_longer_than_the_products_that_they_save() -> None:
    target = Target("opencl -device=adreno740")
    layers = [conv(channels, (56, 56), channels, (3, 3), padding=SAME) for channels in (16, 256)]
    chosen = [task_of(work).with_free_images().default_config(target)["algorithm"] for work in layers]
    assert chosen == ["direct", "winograd4"]


LAYERS_1X1 = (conv(528, (14, 14), 128, (1, 1)), conv(64, (27, 27), 256, (1, 1)))


@pytest.mark.parametrize("target", ["cuda -device=nvidia_h200", "vulkan -device=nvidia_h200"])
def test_a_winner_of_other_layers_is_the_default_if_a_gain_is_expected(target: str) -> None:
    given = Target(target)
    shipped = pretrained_for(given)
    model = None if shipped is None else shipped.read()
    assert model is not None
    template = task_of(conv(64, (56, 56), 64, (3, 3), padding=SAME)).with_free_images().template
    space, (picked, *others) = template.space(given.limits), first_configs.first_configs(template, given)
    assert picked in map(space.completed, model.winners.configs)
    assert space.is_valid(picked)
    assert others == template.starts(given.limits)
    first, hand = TaskFeatures(template, given.limits, given.spec, correct=model).expected([picked, others[0]])
    assert first - hand > math.log(1.05)


@pytest.mark.parametrize(
    ("target", "work"),
    [
        ("opencl -device=nvidia_h200", LAYERS_1X1[1]),
        ("cuda -device=nvidia_h200", conv(64, (27, 27), 256, (1, 1), "float16")),
        ("cuda -device=nvidia_h200", Dense(m=128, k=512, n=64)),
        ("cuda -device=nvidia_h200", matmul((), 64, 64, 64)),
        ("cuda -device=nvidia_h200 -variant=k1conv", LAYERS_1X1[1]),
        ("vulkan -device=adreno640", LAYERS_1X1[1]),
        ("opencl -device=host", LAYERS_1X1[1]),
    ],
    ids=str,
)
def test_a_model_speaks_only_of_what_it_was_measured_on(target: str, work: Any) -> None:
    template, given = task_of(work).with_free_images().template, Target(target)
    assert trained_pick(template, given, template.starts(given.limits)) is None


def test_a_layer_without_an_expected_gain_keeps_the_config_of_hand_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_configs, "_GAIN", 100.0)
    target, task = Target("cuda -device=nvidia_h200"), task_of(LAYERS_1X1[0]).with_free_images()
    assert trained_pick(task.template, target, task.template.starts(target.limits)) is None
    assert task.starts(target) == task.template.starts(target.limits)


@pytest.mark.parametrize("target", ["cuda -device=nvidia_h200", "opencl -device=adreno640", "opencl -device=host"])
@pytest.mark.parametrize("work", WORKS[:4], ids=lambda work: work.name)
def test_columns_of_configs_are_as_valid_as_each_config(work: Any, target: str) -> None:
    space, rng = task_of(work).with_free_images().space(Target(target)), np.random.default_rng(0)
    configs = [
        Config({name: choices[int(rng.integers(len(choices)))] for name, choices in space.knobs.items()})
        for _ in range(100)
    ]
    # Few random configs are valid.
    configs += space.sample(rng, 50)
    found = np.broadcast_to(space.admits(columns_of(configs)), len(configs)).tolist()
    assert found == [space.is_valid(config) for config in configs]
    assert 50 <= sum(found) < len(found)


@pytest.mark.parametrize("device", ["mali_g76", "nvidia_h200", "host"])
def test_hand_rules_decide_where_nothing_was_recorded(device: str) -> None:
    assert estimated_starts(task_of(WORKS[0]).template, Target(f"opencl -device={device}")) == []


@pytest.mark.parametrize("work", [conv(88, (1, 1), 24, (1, 1)), Dense(m=1, k=512, n=64)], ids=str)
def test_hand_rules_decide_for_a_single_pixel(work: Any) -> None:
    assert estimated_starts(task_of(work).template, Target("opencl -device=adreno640")) == []


def test_a_group_with_a_barrier_has_the_registers_of_all_its_work_items() -> None:
    """In groups of 128, the compiler would spill what needs more than 128 registers."""
    target = Target("opencl -device=adreno690")
    config = task_of(conv(96, (17, 17), 64, (7, 1), padding=(3, 0, 3, 0))).with_free_images().default_config(target)
    assert config["split_k"] == 1 or config["wg_o"] * config["wg_w"] * config["split_k"] <= 128
