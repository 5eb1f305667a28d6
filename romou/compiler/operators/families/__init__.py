"""The operator families, one file each, and who takes what: to add a family, add a file here whose `FAMILY` is a
`Family`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from tvm import tirx

from romou.base.knob import Knob
from romou.compiler.operators.base import Template
from romou.compiler.operators.contraction_family import ContractionFamily
from romou.compiler.operators.family import Family
from romou.compiler.operators.workload import Workload


@functools.cache
def families() -> tuple[Family, ...]:
    """All families, in the order in which they are asked whether an operator is theirs."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.FAMILY for module in modules), key=lambda family: (family.precedence, family.name)))


# Attribute of a function that no family is to schedule: its `romou.base.rung.Rung`.
RUNG = "romou.rung"


@functools.lru_cache(maxsize=512)
def template_of(func: tirx.PrimFunc) -> Template | None:
    """The schedule template of a fused function; None where no family takes it. Several stages ask, and most families
    look at all blocks.
    """
    if func.attrs and RUNG in func.attrs:
        return None
    return next((template for family in families() if (template := family.template_of(func)) is not None), None)


def declared_knobs() -> dict[str, Knob]:
    """The knobs of all schedule templates, by name."""
    families()  # imports them
    return {knob.name: knob for template in _templates(Template) for knob in template.__dict__.get("knobs", ())}


def _templates(base: type) -> Iterator[type]:
    found: list[type] = base.__subclasses__()
    for template in found:
        yield template
        yield from _templates(template)


def family_of(work: Workload) -> ContractionFamily[Any]:
    """The family that takes a workload."""
    return next(family for family in _contractions() if type(work) is family.workload and family.is_mine(work))


def workload_of(values: dict[str, Any]) -> Workload:
    """The workload that `Workload.to_dict` wrote, also after a way through JSON: it is known by its fields."""
    kinds: Iterator[type[Workload]] = (family.workload for family in _contractions())
    return next(kind for kind in kinds if kind.field_names() == values.keys()).from_dict(values)


def _contractions() -> list[ContractionFamily[Any]]:
    return [family for family in families() if isinstance(family, ContractionFamily)]
