"""benchmarks/bench_memory.py: the size of images that serve tensors of smaller width and height."""

from __future__ import annotations

from bench_memory import image_bytes
from romou.compiler.graph.memory.memory import PlannedTensor


def image(channels: int, side: int, first: int) -> PlannedTensor:
    shape = (1, channels, side, side, 4)
    size = 16 * channels * side * side
    return PlannedTensor(
        function="f", shape=shape, dtype="float32", scope="global.texture", bytes=size, first=first, last=first
    )


def test_an_image_is_shared_where_that_takes_less_than_two() -> None:
    large, small, deep = image(2, 8, 0), image(2, 4, 1), image(4, 4, 1)
    assert image_bytes([large, small], is_larger=False) == large.bytes + small.bytes
    assert image_bytes([large, small], is_larger=True) == large.bytes
    # One image for both would have the width of the one and the layers of the other.
    assert image_bytes([large, deep], is_larger=True) == large.bytes + deep.bytes
    # Never one that is live.
    assert image_bytes([large, image(2, 4, 0)], is_larger=True) == large.bytes + small.bytes
