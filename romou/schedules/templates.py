"""The template that fits a fused function."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx

from romou.core.knob import Knob
from romou.schedules import FAMILIES
from romou.schedules.base import Template
from romou.schedules.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.schedules.template import ContractionTemplate


def template_of(func: tirx.PrimFunc) -> Template | None:
    """The template that fits a fused function; None where none does."""
    contraction = ContractionTemplate.of(func) or DepthwisePointwiseTemplate.of(func)
    others = (family.template_of(func) for family in FAMILIES.values() if hasattr(family, "template_of"))
    return contraction or next((template for template in others if template is not None), None)


def declared_knobs() -> dict[str, Knob]:
    """Return the knobs of all families, by name."""
    return {knob.name: knob for template in _templates(Template) for knob in template.__dict__.get("knobs", ())}


def _templates(base: type[Template]) -> Iterator[type[Template]]:
    for template in base.__subclasses__():
        yield template
        yield from _templates(template)
