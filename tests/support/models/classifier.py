"""A small network of pictures, as the samples of apps take it: a picture for it, and a check of what they print."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import romou
from support.models.small_networks import NetworkBuilder


def classifier() -> onnx.ModelProto:
    """Return a network of pictures with ten classes."""
    graph = NetworkBuilder({"picture": (1, 3, 12, 10)})
    first = graph.add("Relu", graph.conv("picture", 3, 5, pads=[1, 1, 1, 1]))
    return graph.model(graph.add("Flatten", graph.add("GlobalAveragePool", graph.conv(first, 5, 10, kernel=(1, 1)))))


def picture(folder: Path) -> tuple[np.ndarray, Path]:
    """Write a picture as a PPM of the network's size, and return the network's input for it."""
    pixels = np.random.default_rng(5).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    (folder / "picture.ppm").write_bytes(b"P6\n10 12\n255\n" + pixels.tobytes())
    mean, deviation = (np.array(v, "float32") for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    values = (pixels.astype("float32") / np.float32(255) - mean) / deviation
    return values.transpose(2, 0, 1)[None].copy(), folder / "picture.ppm"


def top_classes(printed: str) -> list[tuple[int, float]]:
    return [(int(c), float(s)) for c, s in re.findall(r"^class +(\d+)  (\S+)$", printed, re.MULTILINE)]


def check_classes(printed: str, model: Path, values: np.ndarray) -> None:
    """Check that the sample printed the five best classes of the saved model in Python."""
    scores = romou.load(model).run({"picture": values})[0][0]
    expected = [(int(c), float(scores[c])) for c in np.argsort(-scores)[:5]]
    found = top_classes(printed)
    assert [c for c, _ in found] == [c for c, _ in expected]
    assert [s for _, s in found] == pytest.approx([s for _, s in expected], rel=1e-5)
