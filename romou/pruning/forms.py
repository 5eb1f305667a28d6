"""Which formulas go with which template."""

from __future__ import annotations

from romou.core.limits import Limits
from romou.pruning.closed_form import ClosedForm
from romou.pruning.depthwise_pointwise_form import DepthwisePointwiseForm
from romou.pruning.form import Form
from romou.pruning.streaming_form import StreamingForm
from romou.schedules.base import Template
from romou.schedules.families.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.schedules.streaming import StreamingTemplate
from romou.schedules.template import ContractionTemplate


def form_of(template: Template, limits: Limits) -> Form:
    """Return the formulas of a template on a device with these limits."""
    if isinstance(template, StreamingTemplate):
        return StreamingForm(template)
    if isinstance(template, DepthwisePointwiseTemplate):
        return DepthwisePointwiseForm(template, limits)
    assert isinstance(template, ContractionTemplate), f"{template.name}: a template without formulas"
    return ClosedForm(template, limits)
