"""Tasks with a pruned knob space, and the usage of their configs by formulas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tvm import tirx

from romou.base.errors import InvalidConfigError
from romou.base.space import Config
from romou.compiler.operators.analysis.registers import estimate_registers
from romou.compiler.operators.costs.criteria import BOUNDED, L1_RULES, Rules, judge
from romou.compiler.task import TunableTask
from romou.devices.backends.launch import launch_size, thread_extents
from romou.devices.presets import preset_for
from romou.tuner.pruning.prune import LEAST_KEPT, PrunedSpace, prune

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Factors on the limits of a lowered kernel's registers: if Mesa has its GPU's compiler, and for others. The first one
# keeps Winograd's first configs for Mali-G610, which count 60 of 57 registers and do not spill.
_COMPARED, _UNCERTAINTY = 1.1, 2.0
_FLOAT_BYTES = 4
# Fewest configs that criteria leave of a space of a few hundred.
_LEAST_OF_FEW = 12


def pruned_task(task: TunableTask, target: Target, rules: Rules = L1_RULES["reread"]) -> PrunedTask:
    """Return the task with the pruned space for `target` as its space.

    Pruning waits until a config's validity is first needed.
    """
    made = task.as_kind(PrunedTask, rules=rules)
    # Copied, so that they are not computed again.
    vars(made)["template"], vars(made)["_starts"] = task.template, task._starts
    made.spaces[target] = pruned_space(task, target, rules, is_later=True)
    return made


def pruned_space(
    task: TunableTask, target: Target, rules: Rules | None = None, *, is_later: bool = False
) -> PrunedSpace:
    """Return the knob space without the configs that the criteria exclude by the facts of `target`'s device.

    is_later: see `prune`
    """
    limits = task.limits(target)
    least_kept = LEAST_KEPT if task.template.sums_products else _LEAST_OF_FEW
    return prune(
        task.template,
        task.template.space(limits),
        target.spec,
        limits,
        rules=rules,
        least_kept=least_kept,
        is_later=is_later,
        default=task.default_config(target),
    )


def load_task(text: str) -> TunableTask:
    """Return the task that `TunableTask.to_json` wrote, pruned if it was."""
    task, data = TunableTask.from_json(text), json.loads(text)
    if "slacks" not in data:
        return task
    return task.as_kind(PrunedTask, given_slacks=data["slacks"], rules=L1_RULES[data["l1"]])


@dataclass(frozen=True, repr=False)
class PrunedTask(TunableTask):
    """A task with a pruned space on every target.

    given_slacks: `slacks`, if the space was pruned in another process.
    rules: parameters of the criteria
    """

    given_slacks: Mapping[str, float] | None = field(default=None, hash=False)
    rules: Rules = L1_RULES["reread"]

    @property
    def l1(self) -> str:
        return self.rules.l1

    @property
    def slacks(self) -> Mapping[str, float]:
        """Loosening factor of each criterion's limit. Dropped criteria are missing."""
        if self.given_slacks is not None:
            return self.given_slacks
        report = next(iter(self.spaces.values())).report
        return {count.criterion: count.slack for count in report.criteria if count.slack is not None}

    def space(self, target: Target) -> PrunedSpace:
        if target not in self.spaces:
            self.spaces[target] = pruned_space(self, target, self.rules)
        return self.spaces[target]

    @cached_property
    def spaces(self) -> dict[Target, PrunedSpace]:
        """Pruned spaces that were made, by target."""
        return {}

    def check(self, kernel: tirx.PrimFunc, config: Config, target: Target) -> None:
        """Judge the registers of the lowered kernel, which formulas only bound from below. The default config passes.

        Raises
        ------
        InvalidConfigError
            A criterion excludes the kernel.
        """
        super().check(kernel, config, target)
        if config == self.default_config(target):
            return
        registers = estimate_registers(kernel)
        # One kernel of several. Their groups differ in size.
        counts = {
            "registers": registers.live,
            "needed_registers": registers.needed,
            "registers_as_written": registers.as_written,
        }
        usage = replace(self.usage_of(config, target), **counts, work_group_size=launch_size(thread_extents(kernel))[1])
        verdicts = judge(usage, target.spec, rules=self.rules)
        factors = dict.fromkeys(BOUNDED, _UNCERTAINTY)
        if preset_for(target.spec).registers is not None:
            factors["registers"] = _COMPARED
        for name in BOUNDED & verdicts.keys() & self.slacks.keys():
            if not verdicts[name].keep_within(factors[name] * self.slacks[name]):
                raise InvalidConfigError(f"excluded before code generation: {verdicts[name]}")

    def to_json(self) -> str:
        # Without slacks `check` lets everything pass: before a space is pruned, only the default config is proposed,
        # which passes anyway.
        is_known = self.given_slacks is not None or any(space.is_pruned for space in self.spaces.values())
        pruning = {"slacks": dict(self.slacks) if is_known else {}, "l1": self.l1}
        return json.dumps({**json.loads(super().to_json()), **pruning})
