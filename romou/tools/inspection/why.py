"""The reason for a default config: the terms of its estimate beside those of the best other configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.errors import UsageError
from romou.base.space import Config
from romou.compiler.operators.algorithms.algorithm import ALGORITHM, DIRECT
from romou.compiler.operators.costs.estimate import estimable, estimate_cycles, missing_facts
from romou.tuner.pruning.tasks import pruned_space

if TYPE_CHECKING:
    from romou.base.knob import Choice
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class PricedConfig:
    """A config and its estimate.

    changed: knobs with another choice than the default has. Empty for the default.
    cycles: term of the estimate -> cycles (`estimate_cycles`). "all" is the whole estimate.
    us: term -> microseconds.
    """

    config: Config
    changed: Mapping[str, Choice]
    cycles: Mapping[str, float]
    us: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class DefaultReasons:
    """The default config of a layer beside the best others by the estimate.

    name: the layer. nodes: names of its ONNX nodes.
    neighbour: the best config of the pruned space with one knob changed. None if the space has no other.
    other: the best first config of another algorithm. None if the layer has one algorithm.
    """

    name: str
    nodes: tuple[str, ...]
    default: PricedConfig
    neighbour: PricedConfig | None
    other: PricedConfig | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        configs = {role: getattr(self, role) for role in ("default", "neighbour", "other")}
        return {
            "layer": self.name,
            "nodes": list(self.nodes),
            **{
                role: priced and {field: dict(value) for field, value in vars(priced).items()}
                for role, priced in configs.items()
            },
        }


def reasons_for_default(task: TunableTask, target: Target, nodes: tuple[str, ...] = ()) -> DefaultReasons:
    """Return the terms of the default config's estimate beside those of the best others.

    Raises
    ------
    UsageError
        Nothing is estimated for the target's device.
    """
    spec = estimable(target).spec
    if spec.is_cpu or missing_facts(spec):
        lacking = "times of CPUs are not" if spec.is_cpu else f"not known are {', '.join(missing_facts(spec))}"
        raise UsageError(
            f"why {task.name} has its default config is only known where its time is estimated; {lacking}: {target}",
            hint='Name a GPU whose facts are known: --target "opencl -device=adreno640". `romou devices` lists them.',
        )
    default, space = task.default_config(target), pruned_space(task, target)
    neighbours = [
        config
        for knob, choices in space.knobs.items()
        if knob != ALGORITHM.name
        for choice in choices
        if (config := default.replace(**{knob: choice})) != default and bool(space.is_valid(config))
    ]
    own = default.get(ALGORITHM.name, DIRECT)
    others = [config for config in task.starts(target) if config.get(ALGORITHM.name, DIRECT) != own]

    def priced(config: Config) -> PricedConfig:
        return _priced(task, target, spec, config, default)

    def best(configs: Sequence[Config]) -> PricedConfig | None:
        return min(map(priced, configs), key=lambda each: each.cycles["all"], default=None)

    return DefaultReasons(
        name=task.name, nodes=nodes, default=priced(default), neighbour=best(neighbours), other=best(others)
    )


def _priced(task: TunableTask, target: Target, spec: HardwareSpec, config: Config, default: Config) -> PricedConfig:
    terms = estimate_cycles(task.usage_of(config, target), spec)
    assert terms is not None, "the caller knows that the device has an estimate"
    assert spec.clock_mhz is not None, "an estimate needs the clock"
    cycles = {term: float(np.asarray(value)) for term, value in terms.items()}
    return PricedConfig(
        config=config,
        changed={knob: choice for knob, choice in config.items() if choice != default.get(knob)},
        cycles=cycles,
        us={term: value / spec.clock_mhz for term, value in cycles.items()},
    )
