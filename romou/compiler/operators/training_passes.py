"""The three passes of training a convolution, as BEAST's paper measures them (its table 2): forward, backward by input,
backward by filter.
"""

from __future__ import annotations

from romou.compiler.operators.families.conv2d_backward_filter import Conv2dBackwardFilter, backward_filter
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose, backward_input
from romou.compiler.operators.workload import Conv2d


def training_passes(work: Conv2d) -> tuple[Conv2d, Conv2dTranspose, Conv2dBackwardFilter]:
    """A convolution and its gradients by input and filter: BEAST's three passes."""
    return work, backward_input(work), backward_filter(work)
