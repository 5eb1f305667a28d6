"""Schedule templates, one file per operator family. To add one: write its file and put it in FAMILIES."""

from __future__ import annotations

from types import ModuleType

from romou.schedules import batch_matmul, conv2d, conv2d_transpose, dense, depthwise, group_conv2d

# Order matters for convolutions: the first family whose `is_mine` holds takes the operator.
FAMILIES: dict[str, ModuleType] = {m.FAMILY: m for m in (conv2d, depthwise, group_conv2d, dense, batch_matmul, conv2d_transpose)}
