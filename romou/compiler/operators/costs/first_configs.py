"""First configs: of a few hundred configs of an operator's space, the one that takes the least time by a cost model.

    tiles, groups and splits, other knobs fixed  --criteria-->  some hundred configs  --estimate-->       the fastest
    winners of other operators                   --validity-->  some hundred configs  --trained model-->  the fastest

The lattice has the default of each knob that tells how a kernel is spelled, because the estimate cannot tell spellings
apart. What decides was compared on data: on Adreno the estimate, whose picks are as good as a trained model's there, by
a number of the preset; elsewhere a trained model, for operators like those that it was trained on. Hand rules decide
for all others (docs/evidence/validation.md).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from romou.base.config_block import ConfigBlock
from romou.base.knob import nearest
from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.algorithms.algorithm import ALGORITHM, DIRECT, Algorithm
from romou.compiler.operators.algorithms.split_sum import PIECES
from romou.compiler.operators.analysis.form import Form, columns_of, tabulate
from romou.compiler.operators.contraction.defaults import type_of_sums
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.occupancy import lost_images
from romou.compiler.operators.contraction.registers import estimated_registers
from romou.compiler.operators.costs.criteria import choices_of, judge
from romou.compiler.operators.costs.estimate import can_estimate, estimable, estimate_seconds, spec_to_rank_by
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.pretrained import pretrained_for
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.schedule_template import Template
from romou.compiler.tir.expressions import FLOATS
from romou.compiler.tir.primitives import LANES, MemoryKind
from romou.devices.hardware import HardwareSpec
from romou.devices.targets import Target

# The knobs of the lattice. The others are fixed.
_FREE = frozenset({"tile_o", "tile_h", "tile_w", "wg_o", "wg_h", "wg_w", "split_k"})
# The knobs for the memory of tensors.
_MEMORY = ("data", "weight", "output")
# Share of the registers that a work-item may need by `estimated_registers`. Of 90 first configs under Mesa 25.0.7's
# compiler for Adreno 660, the three that spill need 76 to 82%.
_MOST_FILL = 0.75
# A trained model's pick is expected to be this much faster than the config of hand rules. Of 173 layers of 13 networks
# on an NVIDIA H200 that a model had not seen, those with less gained nothing.
_GAIN = 1.05
# Criteria that hold for every first config. The others give way if no config of the lattice passes them.
_FIRM = frozenset({"registers"})


def first_configs(template: Template, target: Target) -> list[Config]:
    """Return a decent config of each algorithm, the default config first."""
    if picks := estimated_starts(template, target):
        return picks
    starts = template.starts(target.limits)
    pick = trained_pick(template, target, starts)
    return starts if pick is None else [pick, *starts]


def trained_pick(template: Template, target: Target, starts: Sequence[Config]) -> Config | None:
    """Return the config that a trained model expects to be faster than the first of `starts`, which are hand rules'.

    It was the fastest config of another operator. None if there is no model of the device and of such operators, or if
    the model expects no config to be `_GAIN` times as fast.
    """
    limits = target.limits
    if not _is_single(template) or limits.variant is not None:
        return None
    spec, shipped = spec_to_rank_by(target), pretrained_for(target)
    model = None if shipped is None or not can_estimate(spec) else shipped.read()
    if model is None or not model.winners.are_of(template, target.kind):
        return None
    space, (usable, _) = template.space(limits), template.usable(limits)
    winners = filter(space.knows, dict.fromkeys(map(space.completed, model.winners.configs)))
    exact = [each for each in winners if usable[str(each.get("algorithm", DIRECT))].is_exact]
    valid = np.broadcast_to(space.admits(columns_of(exact)), len(exact)) if exact else ()
    tried = [*starts, *(each for each, is_valid in zip(exact, valid, strict=True) if is_valid and each not in starts)]
    scores = TaskFeatures(template, limits, spec, correct=model).expected(tried)
    best = int(np.argmax(scores))
    return tried[best] if scores[best] - scores[0] > math.log(_GAIN) else None


def estimated_starts(template: Template, target: Target) -> list[Config]:
    """Return the fastest config of each algorithm by the estimate, the fastest of all first.

    Empty if the device's preset leaves first configs to hand rules, if there is a single pixel, if windows lack
    different taps, if an operand has bytes, or if a sum in pieces is a choice. Algorithms that lose many digits come
    last.
    """
    limits = target.limits
    decides = limits.preset.estimate.most_first_sums > 0 and limits.variant is None
    if not decides or not _is_single(template):
        return []
    contraction = template.contraction(flat=True)
    # A single pixel's work-items come from splits, whose costs were not recorded. Nor were conversions of bytes, which
    # large tiles share: under Mesa's compilers the estimate's picks take up to 1.8 times the hand rules' instructions.
    is_of_floats = all(str(each.dtype) in FLOATS for each in contraction.inputs)
    if math.prod(contraction.extents[1:]) == 1 or contraction.has_tap is not None or not is_of_floats:
        return []
    is_in_buffers = target.backend.has_images and not limits.prefers_images
    if is_in_buffers and (with_images := target.with_options(images=None)) != target:
        return _in_buffers(template, estimated_starts(template, with_images), limits)
    usable, has_choice = template.usable(limits)
    if any(name in PIECES for name in usable):
        return []
    form, spec = template.form(limits), estimable(target).spec
    found: list[tuple[bool, float, Config]] = []
    for name, algorithm in usable.items():
        lattice = _lattice(algorithm, limits)
        space = lattice if lattice is None or not has_choice else Space.one_of(ALGORITHM, {name: lattice})
        pick = None if space is None else _fastest(form, space, target.spec, spec)
        if pick is None:
            return []
        found.append((not algorithm.is_exact, *pick))
    return [config for *_, config in sorted(found, key=lambda each: each[:2])]


def _is_single(template: Template) -> TypeGuard[ContractionTemplate]:
    """Return whether a template is of one contraction. A pair of convolutions has a space of its own."""
    return type(template) is ContractionTemplate


def _in_buffers(template: Template, starts: Sequence[Config], limits: Limits) -> list[Config]:
    """Return first configs of a target that allows images with all tensors in buffers. Empty if one is not valid."""
    space = template.space(limits)
    changed = [start.replace(**dict.fromkeys(_MEMORY, MemoryKind.BUFFER.value)) for start in starts]
    return changed if all(space.knows(each) and space.is_valid(each) for each in changed) else []


def _lattice(algorithm: Algorithm, limits: Limits) -> Space | None:
    """Return an algorithm's space with one choice of every knob but those in `_FREE`, and small tiles only.

    Sums are split only as far as the device has idle lanes: no recording has split sums, and the estimate does not know
    what adding them up costs.
    """
    space, most = algorithm.space(limits), limits.preset.estimate.most_first_sums
    memory = (MemoryKind.IMAGE if limits.prefers_images else MemoryKind.BUFFER).value
    has_lost_images = lost_images(space, limits)
    in_rows = nearest(space.knobs["data"], memory) == MemoryKind.IMAGE or has_lost_images
    contraction = algorithm.contraction(flat=not in_rows)
    fixed = space.default(
        data=memory,
        weight=memory,
        output=memory,
        pixels="rows" if in_rows else "flat",
        accumulate=type_of_sums(space, algorithm.contraction(flat=True), limits),
    )
    lattice = space.narrowed({name: (value,) for name, value in fixed.items() if name not in _FREE})

    @functools.cache
    def room(tile_o: int, tile_h: int, tile_w: int, split: int) -> int:
        tile = fixed.replace(tile_o=tile_o, tile_h=tile_h, tile_w=tile_w, split_k=split)
        return _most_work_items(contraction, tile, limits)

    def constraints(config: Columns) -> dict[str, Any]:
        sides = (config["tile_o"], config["tile_h"], config["tile_w"])
        tile, split = math.prod(sides), config["split_k"]
        items = math.prod(-(-extent // side) for extent, side in zip(contraction.extents, sides, strict=True))
        return {
            "few sums of a work-item": tile <= most,
            "split sums only for idle lanes": (split == 1) | (items * split <= limits.busy_work_items),
            "whole texels, as in images": (split <= tile) | (not has_lost_images),
            "registers, with the loads ahead": config["wg_o"] * config.get("wg_h", 1) * config["wg_w"] * split
            <= tabulate(room, *sides, split),
        }

    if lattice is not None:
        lattice.add_constraint(constraints)
    return lattice


def _most_work_items(contraction: Contraction, tile: Config, limits: Limits) -> int:
    """Return the most work-items of a group whose registers fit, as a compiler that loads ahead allocates them.

    The epilogue has an operand and an address for each texel of channels. A group with a barrier is resident as a
    whole. 0 if a single work-item would spill.
    """
    model = limits.preset.registers
    if model is None or limits.registers is None:
        return limits.max_work_group_size
    needed = estimated_registers(contraction, tile, limits)
    if needed + 2 * LANES * tile["tile_o"] > _MOST_FILL * limits.registers:
        return 0
    if tile["split_k"] == 1 or model.waiting is None:
        return limits.max_work_group_size
    return int(_MOST_FILL * model.waiting / needed)


def _fastest(form: Form, space: Space, own: HardwareSpec, priced: HardwareSpec) -> tuple[float, Config] | None:
    """Return the least estimated seconds in a space, and their config. None if nothing is valid or can be estimated.

    own: facts by which criteria judge
    priced: facts by which the estimate ranks
    """
    blocks = list(space.blocks())
    usages = [form.usage_of_valid(block) for block in blocks]
    seconds = [estimate_seconds(usage, priced) for usage in usages]
    if not blocks or any(of_block is None for of_block in seconds):
        return None
    choices = choices_of(form, space, own, usages)
    verdicts = [judge(usage, own, choices=choices) for usage in usages]
    for names in (frozenset(verdicts[0]), _FIRM, frozenset()):
        picks = [
            _fastest_of(block, np.asarray(of_block), [v.keep for name, v in judged.items() if name in names])
            for block, of_block, judged in zip(blocks, seconds, verdicts, strict=True)
        ]
        best = min(picks, key=lambda pick: pick[0])
        if math.isfinite(best[0]):
            return best
    return None


def _fastest_of(block: ConfigBlock, seconds: np.ndarray, keeps: Sequence[Any]) -> tuple[float, Config]:
    """Return the least seconds of a block's configs that all of `keeps` keep, and their config. inf without one."""
    shape = (len(block.places), *(len(block.digits[axis]) for axis in block.free))
    is_kept = functools.reduce(np.logical_and, keeps, np.ones(shape, dtype=bool))
    kept_s = np.where(is_kept, seconds, np.inf)
    place = np.unravel_index(int(np.argmin(kept_s)), shape)
    (columns,) = block.pick(block.columns)
    return float(kept_s[place]), Config(
        {name: np.broadcast_to(column, shape)[place].item() for name, column in columns.items()}
    )
