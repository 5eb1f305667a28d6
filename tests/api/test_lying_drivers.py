"""A driver that returns wrong results ends in a right model or in one clear error."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import onnx

from romou.tuner.records import FILE_NAME
from support.devices import standin
from support.models.small_networks import NetworkBuilder
from support.servers import forked

_RUN = """
import sys
import romou
from romou.base.errors import RomouError
try:
    print(eval(sys.argv[1], {"romou": romou, "model": sys.argv[2], "work_dir": sys.argv[3]}))
except RomouError as error:
    print(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def with_flaw(flaw: str, call: str, model: onnx.ModelProto, folder: Path) -> str:
    """Return the output of `call` on a driver with the flaw, in a separate process."""
    onnx.save(model, str(folder / "model.onnx"))
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": str(standin.library()), "STANDIN": flaw}
    done = forked.run("-c", _RUN, call, folder / "model.onnx", folder / "records", env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_kernels_that_are_wrong_at_times_are_no_winners(tmp_path: Path) -> None:
    """Each 50th launch computes nothing: every winner is found out, and in the end the model as a whole."""
    graph = NetworkBuilder({"x": (1, 5, 13, 11)})
    call = (
        "romou.tune(model, target='opencl -device=host', trials=3, work_dir=work_dir, measure={'repeat': 1,"
        " 'min_repeat_ms': 0})"
    )
    text = with_flaw("wrong each 50th time", call, graph.model(graph.conv("x", 5, 7)), tmp_path)
    assert text.startswith("DeviceError: the device's results change from run to run: output "), text
    records = [json.loads(line) for line in (tmp_path / "records" / FILE_NAME).read_text().splitlines()]
    again = [record for record in records if record["is_again"]]
    assert again
    assert {record["outcome"] for record in again} == {"unstable"}
    assert all("its output changed in run" in record["error"] for record in again)
    assert len(again) == sum(record["outcome"] == "ok" for record in records if not record["is_again"])


def test_a_tensor_above_the_largest_allocation_is_one_error(tmp_path: Path) -> None:
    graph = NetworkBuilder({"x": (1, 4200)})
    model = graph.model(graph.add("MatMul", "x", graph.weight(4200, 4200)))
    text = with_flaw("small allocations", "romou.compile(model, target='opencl -device=host').run", model, tmp_path)
    assert text.startswith("DeviceError: "), text
    assert re.search(
        r"CL_INVALID_BUFFER_SIZE.* 7056\d{4} bytes asked; the device has \d+ bytes and allows \d+ a buffer", text
    ), text
