"""The operators that `romou phone record` measures, and the configs of each.

They are real layers of MobileNetV1 to V3, ResNet-18, and of an encoder of 128 tokens with 12 heads: first layers, 1x1,
3x3 and depthwise convolutions, dense layers, and attention's products. A file without one of them is unfinished, so a
change of the list needs no other file format.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from romou.base.space import Config
from romou.compiler.operators.costs.estimate import can_estimate
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.compiler.single_operator import conv
from romou.tuner.search import TuningOptions
from romou.tuner.search.explorer import Explorer

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask
    from romou.devices.targets import Target

CONFIGS = 30
# Configs that the estimate expects to be the fastest.
_ESTIMATED = 10

_SIDES = (1, 1, 1, 1)
_FP32: dict[str, Workload] = {
    "first3x3": conv(3, (224, 224), 32, (3, 3), stride=(2, 2), padding=_SIDES),
    "conv1x1_56": conv(64, (56, 56), 128, (1, 1)),
    "conv1x1_14": conv(512, (14, 14), 512, (1, 1)),
    "conv1x1_narrow": conv(144, (56, 56), 24, (1, 1)),
    "conv3x3_56": conv(64, (56, 56), 64, (3, 3), padding=_SIDES),
    "conv3x3_14": conv(256, (14, 14), 256, (3, 3), padding=_SIDES),
    "depthwise3x3_56": conv(144, (56, 56), 144, (3, 3), padding=_SIDES, groups=144),
    "depthwise3x3_stride2": conv(96, (112, 112), 96, (3, 3), stride=(2, 2), padding=_SIDES, groups=96),
    "depthwise5x5_14": conv(240, (14, 14), 240, (5, 5), padding=(2, 2, 2, 2), groups=240),
    "dense": Dense(m=1, k=1280, n=1000, dtype="float32"),
    "attention_scores": matmul((1, 12), 128, 64, 128, lhs_axes=(0, 2, 1, 3), rhs_axes=(0, 2, 3, 1)),
    "attention_mix": matmul((1, 12), 128, 128, 64, rhs_axes=(0, 2, 1, 3), out_axes=(0, 2, 1, 3)),
}
_IN_FP16 = (
    "first3x3",
    "conv1x1_56",
    "conv1x1_14",
    "conv3x3_56",
    "conv3x3_14",
    "depthwise3x3_56",
    "dense",
    "attention_scores",
)


def operators(target: Target) -> dict[str, Workload]:
    """Return the operators by name. Those in fp16 are left out if the target does not compute in fp16."""
    fp16 = {f"{name}_fp16": dataclasses.replace(_FP32[name], dtype="float16") for name in _IN_FP16}
    return _FP32 | (fp16 if target.limits.has_fp16_arithmetic else {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenConfig:
    """A config to measure.

    chosen_by: "default", "estimate" or "random"
    expected_s: the estimate in seconds. Only its ratios are meaningful. None if there is no estimate
    """

    config: Config
    chosen_by: str
    expected_s: float | None


def choose(task: TunableTask, target: Target, count: int, seed: int) -> list[ChosenConfig]:
    """Return the default config, the ten that the estimate ranks first, and random ones of the space.

    The same seed chooses the same configs. Without an estimate, all but the default are random.
    """
    spec, space, default = target.spec, task.space(target), task.default_config(target)
    is_estimated = can_estimate(spec)
    features = TaskFeatures(task.template, task.limits(target), spec if is_estimated else None)
    rng = np.random.default_rng([seed, int(task.key, 16)])
    explorer = Explorer(space, default, TuningOptions(seed=seed), rng, features=features)
    first = explorer.propose(min(count, 1 + _ESTIMATED) if is_estimated else 1, {})
    drawn = space.sample(rng, count - len(first), exclude={config.key for config in first})
    configs = [*first, *drawn]
    expected = np.exp(-features.expected(configs)).tolist() if is_estimated else [None] * len(configs)
    origins = ["default", *["estimate"] * (len(first) - 1), *["random"] * len(drawn)]
    return [
        ChosenConfig(config=config, chosen_by=origin, expected_s=seconds)
        for config, origin, seconds in zip(configs, origins, expected, strict=True)
    ]
