"""The form of templates without formulas: nothing is known of a config before it is lowered.

Every config is kept. Registers and the work group are judged when the kernel is built (`PrunedTask.check`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form, form_of
from romou.compiler.operators.kernels.row_functions.template import RowFunctionTemplate
from romou.compiler.operators.kernels.user_schedule import OwnTemplate
from romou.compiler.operators.schedule_template import Template
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.primitives import LANES

# More work groups than any device has cores.
_MANY = 1 << 20


class OwnForm(Form):
    """A usage that no criterion excludes."""

    def __init__(self, template: Template) -> None:
        self._template = template

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        return {}

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template, output = self._template, self._template.func.params[-1]
        zero = np.asarray(0)
        return KernelUsage(
            registers=zero,
            needed_registers=zero,
            buffer_bytes=zero,
            image_bytes=zero,
            unshared_buffer_bytes=zero,
            unshared_image_bytes=zero,
            access_width=LANES,
            output_bytes=bytes_of(output.shape, str(output.dtype)),
            iterations=1,
            multiply_adds=zero,
            local_loads=zero,
            work_group_size=np.asarray(1),
            work_groups=_MANY,
            local_memory_bytes=0,
            is_staged=np.asarray(False),
            images=dict.fromkeys(template.names, False),
            has_copies=np.asarray(False),
            padding=np.asarray(0.0),
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        return 0, 0, 0, 0, 0


@form_of.register(OwnTemplate)
@form_of.register(RowFunctionTemplate)
def _(template: Template, _limits: Limits) -> Form:
    return OwnForm(template)
