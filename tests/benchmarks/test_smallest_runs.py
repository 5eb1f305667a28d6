"""Every script of benchmarks/ runs in a smallest form: one operator, one config, a CPU device or recorded data.

Models are two nodes instead of a bundled network, and a peer that needs an NVIDIA GPU is left out.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

import record_spaces
import romou
from romou import models
from romou.api.decoder import Generated
from romou.compiler.single_operator import conv, task_of
from romou.devices.mobile_compilers import MobileCompilersMissingError, find_compilers
from searched_layers import SearchedLayer
from support.data.autotvm_logs import write_log
from support.data.recordings import TARGET, searched
from support.docs.documents import ROOT
from support.docs.smallest_runs import MESA_RUNS, RUNS, printed_by
from support.models.small_networks import NetworkBuilder

# Made-up winners of CLBlast: a vector's product with a matrix, one with two results of a work-item, and a copy.
CLBLAST_ROWS = [
    {"gpu": "QUALCOMM Adreno(TM) 740", "kernel": kernel, "precision": "Single", "config": config}
    for kernel, config in (
        ("XgemvFast", {"VW2": 4, "WGS2": 64, "WPT2": 4}),
        ("XgemvFast", {"VW2": 2, "WGS2": 64, "WPT2": 2}),
        ("Copy", {"COPY_DIMX": 8}),
    )
]


def generated(prompt: list[int], tokens: int) -> Generated:
    """Return what a decoder would. tests/api/test_decoder.py runs one."""
    return Generated(tokens=(1,) * tokens, prompt=len(prompt), prompt_s=0.5, tokens_s=0.25)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder with the inputs of the runs. A convolution with a ReLU replaces every bundled network."""
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    model = graph.model(graph.add("Relu", graph.conv("x", 8, 12)))
    monkeypatch.setattr(models, "load", lambda name: model)
    monkeypatch.setattr(models, "names", lambda: ("small",))
    monkeypatch.setitem(record_spaces.OPERATORS, "small", conv(16, (7, 7), 16, (1, 1)))
    onnx.save(model, tmp_path / "small.onnx")
    monkeypatch.setattr(romou, "Decoder", lambda model, **options: SimpleNamespace(generate=generated), raising=False)
    onnx.save(model, tmp_path / "decoder.onnx")
    (tmp_path / "spaces").mkdir()
    shutil.copy(ROOT / "benchmarks/data/spaces_pocl/dense.json.gz", tmp_path / "spaces")
    task = task_of(conv(16, (7, 7), 16, (1, 1)))
    searched(tmp_path / "search", [task])
    layer = SearchedLayer(task.template.workload.to_dict(), [task.default_config(TARGET)] * 4, [1e-6] * 4)
    (tmp_path / "searched.jsonl.gz").write_bytes(gzip.compress(layer.to_line().encode()))
    write_log(tmp_path / "phone.log")
    (tmp_path / "clblast.json").write_text(json.dumps({"rows": CLBLAST_ROWS}))
    return tmp_path


@pytest.mark.parametrize("script", RUNS)
def test_smallest_run(script: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, expected = RUNS[script]
    printed = printed_by(script, words, small, monkeypatch)
    assert re.search(expected, printed), printed


@pytest.mark.parametrize("script", MESA_RUNS)
def test_smallest_run_with_mesa(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_compilers()
    except MobileCompilersMissingError as error:
        pytest.skip(f"NOT TESTED, the mobile compilers are missing: {str(error).splitlines()[0]}")
    write_log(tmp_path / "phone.log")
    words, expected = MESA_RUNS[script]
    printed = printed_by(script, words, tmp_path, monkeypatch)
    assert re.search(expected, printed), printed


def test_every_script_has_a_smallest_run() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert scripts == {*RUNS, *MESA_RUNS}
