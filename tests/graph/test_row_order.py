"""Products read rows of windows in place: in any order of windows, rolled, before and behind the product."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import romou
from romou.compiler.operators.families.bases.window_partition import CUT, JOINED, RowOrder
from romou.compiler.operators.families.dense import Dense
from support.kernels.operators import error_of, random_arrays, reference, task_of
from support.models.blocks import Net
from support.suite.exhaustive import few

WINDOWS, GRID = (0, 1, 3, 2, 4), (0, 2, 4, 1, 3)


def layers(model: onnx.ModelProto, target: str) -> list[str]:
    """Return the names of the kernels, after a comparison with onnxruntime on the device."""
    summary = romou.compile(model, target=target).summary()
    assert summary.is_right
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < 1e-6
    return [str(row["layer"]) for row in summary.table()]


def rolled(net: Net, x: str, shifts: tuple[int, int], sides: tuple[int, int]) -> str:
    for axis, shift, side in zip((1, 2), shifts, sides, strict=True):
        if shift:
            parts = [
                net.add("Slice", x, *(net.const([at]) for at in (a, b, axis))) for a, b in ((shift, side), (0, shift))
            ]
            x = net.add("Concat", *parts, axis=axis)
    return x


def windows_and_back(
    batch: int, axes: tuple[int, ...], shifts: tuple[int, int], others: tuple[int, int]
) -> onnx.ModelProto:
    """Return a sum of a map and of a product of its windows, each as Swin and MaxViT write them.

    others: the shifts of the way back.
    """
    net, channels = Net("windows_and_back"), 12
    tiles, sides = (batch, 2, 3, 3, 4), (6, 12)
    x = net.input((batch, *sides, channels))
    y = net.add("Reshape", rolled(net, net.add("Tanh", x), shifts, sides), net.const([*tiles, channels]))
    y = net.add("Transpose", y, perm=[*axes, 5])
    y = net.linear(net.add("Reshape", y, net.const([-1, 12, channels])), channels, channels)
    y = net.linear(net.add("Softmax", y, axis=-1), channels, channels)
    y = net.add("Reshape", y, net.const([*(tiles[axis] for axis in axes), channels]))
    y = net.add("Transpose", y, perm=[*np.argsort(axes).tolist(), 5])
    y = rolled(net, net.add("Reshape", y, net.const([batch, *sides, channels])), others, sides)
    return net.block(net.add("Add", x, y)).model


CASES = [
    (1, WINDOWS, (0, 0), (0, 0)),
    (1, WINDOWS, (2, 5), (4, 7)),
    (2, WINDOWS, (0, 3), (1, 0)),
    (1, GRID, (0, 0), (0, 0)),
    (3, GRID, (5, 11), (1, 1)),
]
TARGETS = few(["opencl", "opencl -device=adreno640", "vulkan"], 0, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "axes", "shifts", "others"), few(CASES, 1, 4))
def test_windows_need_no_kernel(
    batch: int, axes: tuple[int, ...], shifts: tuple[int, int], others: tuple[int, int], target: str
) -> None:
    names = layers(windows_and_back(batch, axes, shifts, others), target)
    assert len(names) == 4, names
    assert len([name for name in names if name.startswith("dense")]) == 2, names


def test_rows_that_others_read_stay() -> None:
    """A product with two readers is computed once, in the order that it has."""
    net = Net("two_readers")
    y = net.linear(net.input((24, 12)), 12, 12)
    moved = net.add("Transpose", net.add("Reshape", y, net.const([2, 2, 3, 2, 12])), perm=[0, 2, 1, 3, 4])
    both = net.add("Concat", net.add("Reshape", moved, net.const([24, 12])), net.add("Exp", y), axis=0)
    names = layers(net.block(both).model, "opencl")
    assert len([name for name in names if name.startswith("dense")]) == 1, names
    assert not [name for name in names if "_cut" in name or "_joined" in name], names


@pytest.mark.parametrize("kind", [CUT, JOINED])
def test_references_read_the_rows(kind: str) -> None:
    """TVM's own pipeline, which lowers references, would lose a part of the shifts."""
    order = {"rows": kind, "tiles": (2, 3, 2, 3), "axes": (0, 2, 1, 3), "shift": (5, 4)}
    work = Dense(m=36, k=12, n=10, **order)
    task = task_of(work, has_epilogue=False)
    arrays = random_arrays(task, np.random.default_rng(3))
    right = arrays[0][work.row(np.arange(36))] @ arrays[1].reshape(12, -1)[:, :10]
    assert error_of(reference(task, arrays), right) < 1e-6


@pytest.mark.parametrize("kind", [CUT, JOINED])
def test_an_order_is_found_from_its_rows(kind: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        tiles = tuple(rng.integers(1, 5, rng.integers(2, 7)).tolist())
        sides = [
            *tiles[: len(tiles) % 2],
            *(a * b for a, b in zip(tiles[len(tiles) % 2 :: 2], tiles[len(tiles) % 2 + 1 :: 2], strict=True)),
        ]
        shift = tuple(int(rng.integers(0, side)) for side in sides)
        order = RowOrder(kind=kind, tiles=tiles, axes=tuple(rng.permutation(len(tiles)).tolist()), shift=shift)
        rows = order.source(np.arange(np.prod(tiles)))
        assert sorted(rows) == [*range(rows.size)]
        found = RowOrder.of(rows, tiles, order.axes)
        assert found is not None
        assert np.array_equal(found.source(np.arange(rows.size)), rows)
    assert RowOrder.of(rng.permutation(36), (2, 3, 3, 2), (0, 2, 1, 3)) is None
