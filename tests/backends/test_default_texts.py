"""Texts of all default kernels of two bundled networks have the form that phones' drivers compile well.

Their compilers keep private arrays whose address is taken in memory, and do not always join scalar accesses.
"""

from __future__ import annotations

import re

import pytest

import romou
from support.suite.exhaustive import in_turn

_ARRAY = re.compile(r"^ +(?P<local>__local )?(?P<kind>\w+?)(?P<lanes>\d*) (?P<name>\w+)\[\d+\]", re.MULTILINE)


@in_turn
@pytest.mark.parametrize("device", ["adreno640", "adreno740", "adreno830", "mali_g76"])
@pytest.mark.parametrize("network", ["squeezenet1_0", "bert_2layer"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_registers_are_named_and_memory_is_accessed_in_vectors(device: str, network: str, precision: str) -> None:
    kernels = romou.inspect(f"bundled:{network}", target=f"opencl -device={device}", precision=precision)
    assert len(kernels) >= 13
    for kernel in kernels:
        body = kernel.source[kernel.source.rindex("__kernel") :]
        arrays = list(_ARRAY.finditer(body))
        assert [array["name"] for array in arrays if not array["local"]] == [], body
        # No address of a variable.
        assert re.search(r"[^&]&[^& ]", body) is None, body
        # Local memory has elements of the width that is accessed, or is accessed through a cast pointer.
        for name in (array["name"] for array in arrays):
            assert re.search(rf"\bv(?:load|store)\d+\([^;]*\b{name}\b", body) is None, body
        # What was computed in fp16 is not converted to be written.
        assert re.search(r"(?i)write_(?:plain_)?imagef\([^;]*convert_float4\(", body) is None, body
        # Matrices and weights in images have two coordinates.
        assert re.search(r"image2d_array_t (?:param_\d+|weight)_ptr", body) is None, body
