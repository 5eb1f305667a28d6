"""Pairs of fp16 numbers and their bits, which TVM writes as C++ and through pointers."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal

from romou.compiler.passes.code_generator import name_pairs


def _unpacked(target: str) -> tirx.PrimFunc:
    """Return y[0] = pair(x[0], x[1]) * bits[0], stored as bits."""
    x, y = tirx.decl_buffer((2,), "float16", name="x"), tirx.decl_buffer((1,), "uint32", name="y")
    bits = tirx.decl_buffer((1,), "uint32", name="bits")
    pair = tirx.Shuffle([tirx.BufferLoad(x, [0]), tirx.BufferLoad(x, [1])], [0, 1])
    product = pair * tirx.reinterpret("float16x2", tirx.BufferLoad(bits, [0]))
    store = tirx.BufferStore(y, tirx.reinterpret("uint32", product), [0])
    return tirx.PrimFunc([x, bits, y], store).with_attr("target", tvm.target.Target(target))


@pytest.mark.parametrize(
    ("target", "texts", "count"),
    [("opencl", ["(half2)", "as_half2", "as_uint"], 0), ("vulkan", ["(half2)"], 2), ("cuda", [], 2)],
)
def test_pairs_have_the_languages_words(target: str, texts: list[str], count: int) -> None:
    """CUDA's text stays TVM's, GLSL names bits itself (`unpackFloat2x16`)."""
    text = str(name_pairs(tvm.IRModule({"main": _unpacked(target)}))["main"])
    assert all(word in text for word in texts), text
    assert text.count("reinterpret") == count
    assert ("half2" in text) == bool(texts)


def test_a_lane_of_a_pair_stays() -> None:
    x, y = tirx.decl_buffer((1,), "float16x2", name="x"), tirx.decl_buffer((1,), "float16", name="y")
    store = tirx.BufferStore(y, tirx.Shuffle([tirx.BufferLoad(x, [0])], [1]), [0])
    func = tirx.PrimFunc([x, y], store).with_attr("target", tvm.target.Target("opencl"))
    assert structural_equal(name_pairs(tvm.IRModule({"main": func}))["main"], func)
