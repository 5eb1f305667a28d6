"""Flat buffers: addresses of every form are the same numbers before and after. TVM's pass does not ensure that."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import TensorLoad

from romou.compiler.passes.flat_buffers import flatten_buffers, with_truncated_quotients
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.traversal import nodes_in
from support.models.nodes import assert_as_onnxruntime, model_of
from support.suite.exhaustive import exhaustive

SEED = 5


def kernel_of(index: tirx.Expr, loops: dict[tirx.Var, int]) -> tvm.IRModule:
    """Return a function that reads one number, at `index`, in each iteration of some loops."""
    (i, _), (j, columns) = loops.items()
    source, target = tirx.decl_buffer([1024], "float32", "source"), tirx.decl_buffer([1024], "float32", "target")
    body: tirx.Stmt = tirx.BufferStore(target, tirx.BufferLoad(source, [index]), [i * columns + j])
    for var, extent in reversed(loops.items()):
        body = tirx.For(var, tirx.const(0, var.ty), tirx.const(extent, var.ty), tirx.ForKind.SERIAL, body)
    return tvm.IRModule({"main": tirx.PrimFunc([source, target], body)})


def is_kept(index: tirx.Expr, loops: dict[tirx.Var, int], flatten: tvm.transform.Pass) -> bool:
    """Return whether a pass preserves the numbers of an index."""
    values = dict(zip(loops, np.meshgrid(*map(np.arange, loops.values()), indexing="ij"), strict=True))
    (load,) = nodes_in(flatten(kernel_of(index, loops))["main"].body, TensorLoad)
    return bool(np.all(evaluate(index, values) == evaluate(load.indices[0], values)))


def random_index(rng: np.random.Generator, i: tirx.Var, j: tirx.Var, depth: int) -> tirx.Expr:
    """Draw nested sums of loop variables of either sign, and quotients and remainders of them."""

    def line() -> tirx.Expr:
        return i * int(rng.integers(-3, 4)) + j * int(rng.integers(-3, 4)) + int(rng.integers(-4, 12))

    if depth == 0:
        return line()
    inner, divisor = random_index(rng, i, j, depth - 1), int(rng.integers(2, 7))
    remainder, quotient = tirx.floormod(inner, divisor), tirx.floordiv(inner, divisor)
    forms = [remainder, quotient, int(rng.integers(0, 9)) - remainder, remainder * int(rng.integers(-2, 3)) + line()]
    forms += [
        tirx.floordiv(tirx.floormod(inner, 3 * divisor), divisor),
        quotient * divisor + tirx.floormod(line(), divisor),
    ]
    return forms[int(rng.integers(0, len(forms)))]


@tirx.transform.prim_func_pass(opt_level=0)
def truncate(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    return with_truncated_quotients(func)


OF_TVM = tvm.transform.Sequential([truncate, tirx.transform.FlattenBuffer()])


@pytest.mark.parametrize("flatten", [flatten_buffers, OF_TVM], ids=["hidden", "truncated"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=exhaustive)])
def test_indices_of_every_form_are_kept(dtype: str, count: int, flatten: tvm.transform.Pass) -> None:
    rng = np.random.default_rng(SEED)
    i, j = tirx.Var("i", dtype), tirx.Var("j", dtype)
    for _ in range(count):
        index = random_index(rng, i, j, int(rng.integers(1, 4)))
        loops = {i: int(rng.integers(2, 13)), j: int(rng.integers(2, 7))}
        if not isinstance(index, tirx.IntImm):
            assert is_kept(index, loops, flatten), (index, loops)


def test_tvm_needs_the_work_around() -> None:
    """If this fails, TVM's pass keeps indices: drop `romou/compiler/passes/flat_buffers.py`."""
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    forms = [tirx.floormod(1 - i, 3), tirx.floordiv(8 - i, 3), tirx.floordiv(tirx.floormod(i * 2 + j + 5, 6), 2)]
    assert [is_kept(form, {i: 5, j: 3}, tirx.transform.FlattenBuffer()) for form in forms] == [False] * 3


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "opencl -device=mali_g76", "vulkan"])
def test_repeated_tensors_backwards(target: str) -> None:
    """Tiles and wrapped pads, reversed, in another shape, and the last of equal numbers found in them."""
    inputs = {"x": np.random.default_rng(SEED).standard_normal((2, 3), dtype=np.float32)}
    constants = {
        "times": [2, 3],
        "pads": [0, 2, 1, 3],
        "starts": [-1, -1],
        "ends": [-1000, -1000],
        "axes": [0, 1],
        "steps": [-1, -1],
        "shape": [6, 6],
    }
    nodes = {
        "tiled": ("Tile", "x times"),
        "tiled_back": ("Slice", "tiled starts ends axes steps"),
        "tiled_flat": ("Reshape", "tiled_back shape"),
        "padded": ("Pad", "x pads", {"mode": "wrap"}),
        "padded_back": ("Slice", "padded starts ends axes steps"),
        "last": ("ArgMax", "padded", {"axis": 1, "select_last_index": 1, "keepdims": 0}),
    }
    model = model_of(nodes, inputs, {name: np.asarray(value) for name, value in constants.items()})
    model.opset_import[0].version = 19
    assert_as_onnxruntime(model, inputs, target=target)
