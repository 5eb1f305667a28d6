"""Einsum as matrix products."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

import romou
from romou.base.errors import ModelError
from support.models.nodes import model_of
from tvm_patches.onnx_converters.einsum import parse

EQUATIONS = {
    "ij,jk->ik": ((5, 7), (7, 3)),
    "ij,jk": ((5, 7), (7, 3)),
    "bqhd,bkhd->bhqk": ((2, 9, 3, 8), (2, 11, 3, 8)),
    "bhqk,bkhd->bqhd": ((2, 3, 9, 11), (2, 11, 3, 8)),
    "...ij,...jk->...ik": ((4, 1, 5, 7), (1, 3, 7, 2)),
    "i,j->ij": ((5,), (7,)),
    "ij,ij->": ((5, 7), (5, 7)),
    "ij,ij->i": ((5, 7), (5, 7)),
    "ijk,kl,l->ji": ((3, 4, 5), (5, 6), (6,)),
    "ijk->ki": ((3, 4, 5),),
    "abc,cd->abd": ((2, 3, 4), (4, 5)),
    "ii->i": ((5, 5),),
    "ij,kl->ik": ((3, 4), (5, 6)),
    "b...,c...->bc...": ((2, 3), (4, 3)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_as_numpy(equation: str, opencl_device: tvm.runtime.Device) -> None:
    rng = np.random.default_rng(len(equation))
    inputs = {f"x{i}": rng.standard_normal(shape).astype("float32") for i, shape in enumerate(EQUATIONS[equation])}
    model = model_of({"y": ("Einsum", " ".join(inputs), {"equation": equation})}, inputs)
    compiled = romou.compile(model, target="opencl", verify=False)
    assert not compiled.host_nodes
    expected = np.einsum(equation, *inputs.values())
    found = compiled.run(inputs)[0]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_products_have_a_family(opencl_device: tvm.runtime.Device) -> None:
    inputs = {f"x{i}": np.ones(shape, "float32") for i, shape in enumerate(EQUATIONS["bqhd,bkhd->bhqk"])}
    model = model_of({"y": ("Einsum", "x0 x1", {"equation": "bqhd,bkhd->bhqk"})}, inputs)
    rows = romou.compile(model, target="opencl", verify=False).summary().rows
    # What transposes its factors is part of how it reads them.
    assert [row.name.split("_")[:2] for row in rows] == [["batch", "matmul"]]


@pytest.mark.parametrize(
    ("equation", "ranks", "operands", "result"),
    [
        ("a...b,b->...a", (4, 1), ["acdb", "b"], "cda"),
        ("...,...", (2, 1), ["ab", "b"], "ab"),
        ("ba", (2,), ["ba"], "ab"),
    ],
)
def test_letters(equation: str, ranks: tuple[int, ...], operands: list[str], result: str) -> None:
    assert parse(equation, ranks) == (operands, result)


@pytest.mark.parametrize(("equation", "ranks"), [("ij,jk->ik", (2,)), ("ij->j", (3,)), ("ijk->j", (2,))])
def test_an_equation_that_does_not_fit(equation: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the equation"):
        parse(equation, ranks)


def test_a_model_with_one_is_refused(opencl_device: tvm.runtime.Device) -> None:
    x = {"x": np.ones((2, 3), "float32")}
    with pytest.raises(ModelError):
        romou.compile(model_of({"y": ("Einsum", "x", {"equation": "ijk->i"})}, x), target="opencl")
