"""The template that fits a fused function."""

from __future__ import annotations

from tvm import tirx

from romou.schedules import FAMILIES
from romou.schedules.base import Template
from romou.schedules.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.schedules.template import ContractionTemplate


def template_of(func: tirx.PrimFunc) -> Template | None:
    """The template that fits a fused function; None where none does."""
    contraction = ContractionTemplate.of(func) or DepthwisePointwiseTemplate.of(func)
    others = (family.template_of(func) for family in FAMILIES.values() if hasattr(family, "template_of"))
    return contraction or next((template for template in others if template is not None), None)
