"""A knob: one decision that a schedule template leaves open.

A template declares its knobs once, in a table beside the code that uses them. Its spaces and default configs, the
features of the cost model, `romou space`, `romou inspect --knobs` and exported records are derived from that table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from romou.base.limits import Limits

Choice = int | str | bool


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A knob as it is declared for all operators. A space says which choices an operator has.

    name: in configs and records.
    choices: the values that it may have. Words are numbered in this order.
    default: the value that is tried first.
    help: one line for a person.
    devices: devices that have it, or some of its choices, in words.
    exists_on: whether spaces for a device with these limits have the knob.
    scales_outputs: whether the outputs of a work group are proportional to it.
    absent: value of the kernels whose configs lack the knob, as those of records that were written before it existed.
        None if every config has the knob.
    is_spelling: whether it only spells the same arithmetic, so that drivers often compile all choices to the same code.
    """

    name: str
    choices: tuple[Choice, ...]
    default: Choice
    help: str
    devices: str = "all"
    exists_on: Callable[[Limits], bool] = lambda _: True
    scales_outputs: bool = False
    absent: Choice | None = None
    is_spelling: bool = False

    def number(self, value: Choice) -> float:
        """Return the cost model's feature of a value: log2(1 + value) of a number, the index of a word."""
        if isinstance(value, str):
            return float(self.choices.index(value) if value in self.choices else len(self.choices))
        return math.log2(1 + value) if value >= 0 else -math.log2(1 - value)


def nearest(choices: Sequence[Any], wanted: Any) -> Any:
    """Return `wanted` if it is a choice, else the largest choice below it, else the first."""
    if wanted in choices:
        return wanted
    smaller = [c for c in choices if isinstance(c, int) and isinstance(wanted, int) and c < wanted]
    return max(smaller) if smaller else choices[0]
