"""The forms of all templates. Each of these modules registers its own with `form_of`."""

from romou.compiler.operators.costs import (
    attention_form,
    closed_form,
    depthwise_pointwise_form,
    integer_form,
    own_form,
    quantized_form,
    streaming_form,
)
from romou.compiler.operators.costs.form import form_of

__all__ = [
    "attention_form",
    "closed_form",
    "depthwise_pointwise_form",
    "form_of",
    "integer_form",
    "own_form",
    "quantized_form",
    "streaming_form",
]
