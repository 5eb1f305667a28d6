"""Halves of all elements: a family with a template of its own, whose form prunes its space."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.analysis.form import Form, loads_of_one
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.schedule_template import Template
from romou.compiler.scheduling.blocks import find_blocks
from romou.compiler.scheduling.rewrites import as_module
from romou.compiler.tir.expressions import bytes_of

BLOCK = "T_halves"
ITEMS = Knob(name="halves_items", choices=(16, 64, 256), default=64, help="work-items of a group")


class HalvesTemplate(Template):
    """The template of a function that halves each element."""

    family, knobs, sums_products = "halves", (ITEMS,), False

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func, self.elements = func, bytes_of(func.params[-1].shape, "int8")

    @property
    def name(self) -> str:
        return f"{self.family}_{self.elements}"

    @property
    def flops(self) -> int:
        return self.elements

    @property
    def names(self) -> Mapping[str, str]:
        data, output = self.func.params
        return {"data": str(data.name), "output": str(output.name)}

    @property
    def activations(self) -> set[str]:
        return set()

    def space(self, limits: Limits) -> Space:
        return Space.of(self.knobs, limits, {})

    def default_config(self, limits: Limits) -> Config:
        return self.space(limits).default()

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        sch = s_tir.Schedule(as_module(copy.deepcopy(self.func)))
        (block,) = (sch.get_sblock(each.name_hint) for each in find_blocks(self.func))
        group, item = sch.split(sch.fuse(*sch.get_loops(block)), [None, config[ITEMS.name]])
        sch.bind(group, "blockIdx.x")
        sch.bind(item, "threadIdx.x")
        return sch.mod

    def form(self, limits: Limits) -> HalvesForm:
        return HalvesForm(self)


class HalvesForm(Form):
    """The formulas of one function: each work-item reads and writes one element."""

    def __init__(self, template: HalvesTemplate) -> None:
        self._template = template

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        items, size, count = columns[ITEMS.name], self._template.element_bytes, self._template.elements
        groups = -(-count // items)
        return KernelUsage(
            registers=1,
            needed_registers=1,
            buffer_bytes=items * size,
            unshared_buffer_bytes=items * size,
            access_width=1,
            output_bytes=count * size,
            iterations=1,
            multiply_adds=1,
            work_group_size=items,
            work_groups=groups,
            images=dict.fromkeys(self._template.names, False),
            padding=groups * items / count - 1,
            element_bytes=size,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        return 1, loads_of_one(usage), 0, 1, 0


class HalvesFamily(Family):
    """Functions that halve each element."""

    name, precedence = "halves", -1

    def template_of(self, func: tirx.PrimFunc) -> HalvesTemplate | None:
        names = [block.name_hint for block in find_blocks(func)]
        return HalvesTemplate(func) if names == [BLOCK] else None

    @property
    def cases(self) -> Sequence[Case]:
        return [Case(name="17", inputs=[(1, 17)], build=_build, compute=lambda x: x / 2)]


def _build(x: relax.Expr) -> relax.Expr:
    def halves(data: Any) -> Any:
        return tvm.te.compute(data.shape, lambda *i: data[i] * tirx.const(0.5, data.dtype), name=BLOCK)

    return relax.BlockBuilder.current().call_te(halves, x)


FAMILY = HalvesFamily()
