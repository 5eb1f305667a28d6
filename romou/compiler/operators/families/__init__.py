"""The operator families, and the lookup of the family that takes a function.

To add a family, add a file here whose `FAMILY` is a `Family`. Families that share a file are its `FAMILIES`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from tvm import tirx

from romou.base.knob import Knob
from romou.base.schema import shown
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.family import Family
from romou.compiler.operators.kernels.user_schedule import OWN, OwnTemplate
from romou.compiler.operators.schedule_template import Template
from romou.compiler.operators.workload import Workload


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all families in the order of their precedence."""
    modules = [
        importlib.import_module(f"{__name__}.{module_info.name}")
        for module_info in pkgutil.iter_modules(__path__)
        if not module_info.ispkg
    ]
    every = [family for module in modules for family in getattr(module, "FAMILIES", None) or (module.FAMILY,)]
    return tuple(sorted(every, key=lambda family: (family.precedence, family.name)))


# Attribute of a function that no family may schedule: its `romou.base.rung.Rung`.
RUNG = "romou.rung"


@functools.lru_cache(maxsize=512)
def template_of(func: tirx.PrimFunc) -> Template | None:
    """Return the schedule template of a fused function, or None if no family takes it.

    Cached, because several stages call it and most families read all blocks.
    """
    if func.attrs and RUNG in func.attrs:
        return None
    if func.attrs and OWN in func.attrs:
        return OwnTemplate(func)
    return next((template for family in families() if (template := family.template_of(func)) is not None), None)


def declared_knobs() -> dict[str, Knob]:
    """Return the knobs of all schedule templates, by name."""
    families()  # imports them
    return {knob.name: knob for template in _templates(Template) for knob in template.__dict__.get("knobs", ())}


def _templates(base: type) -> Iterator[type]:
    # By name: classes are in the order of their imports, which differs from process to process.
    subclasses: list[type] = base.__subclasses__()
    for template in sorted(subclasses, key=lambda each: (each.__module__, each.__qualname__)):
        yield template
        yield from _templates(template)


def family_of(work: Workload) -> ContractionFamily[Any]:
    return next(family for family in _contractions() if type(work) is family.workload and family.is_mine(work))


def workload_of(values: dict[str, Any]) -> Workload:
    """Return the workload that `Workload.to_dict` wrote, also after a round trip through JSON.

    Its type is the one with the same field names. ValueError if there is none, or for values of other types.
    """
    for family in _contractions():
        if family.workload.has_fields(values.keys()):
            work: Workload = family.workload.from_dict(values)
            return work
    raise ValueError(f"{shown(sorted(values))} are the numbers of no operator")


def _contractions() -> list[ContractionFamily[Any]]:
    return [family for family in families() if isinstance(family, ContractionFamily)]
