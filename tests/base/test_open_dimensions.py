"""A model with open dimensions is one error with a line to paste, before TVM is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import romou
from romou.base.errors import UsageError
from romou.base.open_dimensions import check_closed
from romou.cli.click_options import parse_dims, parse_shapes
from romou.compiler.frontend.shape_sets import shape_sets
from romou.compiler.importing import import_onnx
from support.models.open_networks import encoder, recogniser
from support.models.small_networks import NetworkBuilder

CODE = """
import sys
from romou.cli import main
try:
    main([sys.argv[1], sys.argv[2], "--dim", "batch=1"])
finally:
    print("tvm" in sys.modules)
"""


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_the_error_comes_before_tvm_is_loaded(command: str, tmp_path: Path) -> None:
    onnx.save(recogniser(), tmp_path / "m.onnx")
    line = [sys.executable, "-c", CODE, command, str(tmp_path / "m.onnx")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "False\n"
    assert "input 'image' has the dynamic shape (batch, 1, 8, width); fix it\nhint: Add --dim width=224 " in done.stderr


def unnamed() -> onnx.ModelProto:
    g = NetworkBuilder({"x": ("batch", 3, "?", "?"), "y": ("batch", "?")})
    for value in g.inputs:
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param == "?":
                d.Clear()
    return g.model(g.add("Relu", "x"), g.add("Relu", "y"))


@pytest.mark.parametrize("model", [recogniser(), encoder(), unnamed()], ids=["recogniser", "encoder", "unnamed"])
def test_the_line_can_be_pasted(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="has the dynamic shape") as raised:
        import_onnx(model)
    hint = str(raised.value.hint)
    dims, shapes = (tuple(re.findall(rf"--{option} (\S+)", hint)) for option in ("dim", "shape"))
    (wanted,) = shape_sets(model, parse_shapes(shapes), parse_dims(dims))
    assert set(import_onnx(model, wanted).inputs) == {value.name for value in model.graph.input}
    values = eval("dict(" + re.findall(r"\(in Python: (.*)\)", hint)[0] + ")")
    (also,) = shape_sets(model, values.get("shapes"), values.get("dims"))
    assert also == wanted


def test_what_is_given_is_closed() -> None:
    check_closed(encoder(), given=(), dims=("batch", "tokens"))
    check_closed(encoder(), given=("ids", "mask"))
    with pytest.raises(UsageError, match="input 'mask' has the dynamic shape"):
        check_closed(encoder(), given=("ids",), dims=("batch",))


def growing() -> onnx.ModelProto:
    """Return keys that are joined to those of the past, under a mask over both."""
    g = NetworkBuilder({"k": (1, "seq", 8), "mask": (1, "total"), "past": (1, "past", 8)})
    keys = g.add("Concat", "past", "k", axis=1)
    return g.model(g.add("Mul", g.add("ReduceSum", keys, g.constant(np.array([2])), keepdims=0), "mask"))


def test_the_line_to_paste_does_not_contradict_itself() -> None:
    model = growing()
    with pytest.raises(UsageError) as raised:
        import_onnx(model)
    assert "--dim seq=128 --dim total=256 --dim past=128 " in str(raised.value.hint)
    assert "In this model total is seq + past." in str(raised.value.hint)
    (shapes,) = shape_sets(model, None, {"seq": 128, "total": 256, "past": 128})
    assert import_onnx(model, shapes).inputs["mask"][0] == (1, 256)


@pytest.mark.parametrize("total", ["past + seq", "past+1"])
def test_a_name_may_be_a_sum(total: str, opencl_device: object) -> None:
    """Exporters name the length of a mask so."""
    model = growing()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = total
    with pytest.raises(
        UsageError, match=re.escape(f"input 'mask' has the dynamic shape (1, {total}); fix it")
    ) as raised:
        import_onnx(model, {"k": (1, 1, 8), "past": (1, 5, 8)})
    names = "--dim past=128 --dim seq=128 " if "seq" in total else "--dim past=128 "
    assert f"Add {names}" in str(raised.value.hint)
    (shapes,) = shape_sets(model, None, {"seq": 1, "past": 5})
    assert shapes == {"k": (1, 1, 8), "mask": (1, 6), "past": (1, 5, 8)}
    dims = {"seq": 1, "past": range(1, 9)}
    compiled = romou.compile(model, dims=dims, target="opencl -device=host", verify=False)
    given = {name: np.ones((1, *shape), "float32") for name, shape in (("k", (1, 8)), ("mask", (4,)), ("past", (3, 8)))}
    np.testing.assert_array_equal(compiled.run(given)[0], np.full((1, 4), 8))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {"seq": 128, "total": 128, "past": 256},
            "total=128, seq=128, past=256: in this model total is seq + past, so 384",
        ),
        ({"seq": 1, "total": range(2, 18), "past": range(1, 17)}, "in this model total is seq + past, so 17"),
    ],
    ids=["sizes", "ranges"],
)
def test_sizes_that_contradict_are_one_line(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        romou.compile(growing(), dims=dims, target="opencl -device=host", verify=False)
    assert "\n" not in raised.value.message
    assert "give a list of shapes" in str(raised.value.hint)
