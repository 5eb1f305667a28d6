"""The page's example of a search with a callback, as it can be pasted."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from support.docs.documents import blocks
from support.models.small_networks import NetworkBuilder


def test_it_ends_when_the_model_is_fast_enough(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two kernels of microseconds: the search ends with the first trial behind which each has one, long before 500."""
    g = NetworkBuilder({"x": (4, 16)})
    x = g.add("Relu", g.add("MatMul", "x", g.weight(16, 8)))
    onnx.save(g.model(g.add("MatMul", x, g.weight(8, 5))), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    (example,) = [b.text for b in blocks("python") if b.path.name == "tuning.md" and "callback=" in b.text]
    # The search is the same without a driver, in a fraction of the time.
    exec(example.replace('"opencl"', '"null"'), {})
    lines = capsys.readouterr().out.splitlines()
    trials = [line.split() for line in lines if re.match(r"\d+ ", line)]
    rows = [line.split() for line in lines if not re.match(r"\d+ ", line)]
    assert 2 <= len(trials) < 60
    is_known = [trial[-1] != "None" for trial in trials]
    assert is_known == [*[False] * (len(trials) - 1), True]
    assert float(trials[-1][-1]) < 10e-3
    assert {row[0] for row in rows} == {trial[1] for trial in trials}
    assert list((tmp_path / "records").iterdir())
