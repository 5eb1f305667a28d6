"""OpenCL kernels whose work groups, and work-items in a group, run in reverse order.

PoCL runs the work-items of a group one after the other. If two of them store to one element, the last one wins, as on
no GPU. Both orders give the same outputs unless work-items depend on one another without a barrier.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from romou.devices.backends.opencl import source_attributes

_PLACES = (
    (re.compile(r"\bget_group_id\((\d)\)"), r"(get_num_groups(\1) - 1 - get_group_id(\1))"),
    (re.compile(r"\bget_local_id\((\d)\)"), r"(get_local_size(\1) - 1 - get_local_id(\1))"),
)


@contextlib.contextmanager
def reversed_for(target: str) -> Iterator[None]:
    """Reverse both orders of kernels for Adreno that are compiled in the block."""
    with pytest.MonkeyPatch.context() as patch:
        if "adreno" in target:
            reverse_kernels(patch)
        yield


def reverse_kernels(patch: pytest.MonkeyPatch) -> None:
    """Reverse both orders of all OpenCL kernels that are compiled from now on."""
    extended = source_attributes._extended_module

    def reversed_module(source: str, kernels: Mapping[str, Any]) -> str:
        text = extended(source, kernels)
        for pattern, reverse in _PLACES:
            text = pattern.sub(reverse, text)
        return text

    patch.setattr(source_attributes, "_extended_module", reversed_module)
