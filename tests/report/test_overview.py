"""The first screen of a report: figures of each model, slowest layers, what bounds them, and what to do next."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archprobe.pages import render
from romou.base.outcome import Outcome
from romou.compiler.frontend.reference import time_onnxruntime
from romou.runtime.module import LayerRow, Summary
from romou.tools.regression import Bench
from romou.tools.report.evidence import Evidence
from romou.tools.report.figures import layers
from romou.tools.report.overview import TEXTS, models_table, next_steps, slowest_table, tables
from romou.tools.report.page import write_page
from romou.tuner.records import Origin, Record
from support.data.benches import bench
from support.models.small_networks import short_net

ORIGIN = dataclasses.asdict(
    Origin.here({"name": "made up", "kind": "opencl", "driver": "1", "platform": "p", "is_host_cpu": True})
)


def layer(name: str, ms: float, *, trials: int = 5, calls: int = 1) -> LayerRow:
    return LayerRow(
        name=name,
        key=f"key of {name}",
        calls=calls,
        trials=trials,
        flops=1,
        default_ms=2 * ms,
        tuned_ms=ms,
        config={},
        nodes=(f"/{name}", "/Relu"),
    )


def summary(*rows: LayerRow, tuned_ms: float) -> Summary:
    made = Summary.unmeasured(target="opencl", rows=rows, seconds=0.0)
    return dataclasses.replace(made, device="a GPU", default_ms=2 * tuned_ms, tuned_ms=tuned_ms, launching="one by one")


def test_the_slowest_layers_come_first() -> None:
    of_model = summary(layer("small", 1.0), layer("often", 2.0, calls=4), layer("large", 3.0), tuned_ms=12.0)
    evidence = Evidence(title="net", summary=of_model, limits={"key of often": "L2 cache"})
    columns, rows = slowest_table(evidence, of_model)
    assert columns == ("layer", "ms of all calls", "share", "faster", "bound by", "calls", "kernel")
    assert rows == [
        ("/often +1", "8.000", "67%", "2.00x", "L2 cache", "4", "often"),
        ("/large +1", "3.000", "25%", "2.00x", "-", "1", "large"),
        ("/small +1", "1.000", "8%", "2.00x", "-", "1", "small"),
    ]
    # Columns without a value are left out of the page.
    caption, (shown, _), _ = list(tables(dataclasses.replace(evidence, limits={})))[1]
    assert (caption, shown) == ("Slowest layers", tuple(name for name in columns if name != "bound by"))


def test_layers_of_one_node_stay_distinct() -> None:
    pack, conv = (dataclasses.replace(layer(name, 1.0), nodes=("Conv (/a)",)) for name in ("pack", "conv"))
    again = dataclasses.replace(conv, key="f" * 16)
    evidence = Evidence(title="net", summary=summary(pack, conv, again, layer("b", 1.0), tuned_ms=4.0))
    assert list(evidence.labels.values()) == [
        "Conv (/a) (pack)",
        "Conv (/a) (conv) (key )",
        "Conv (/a) (conv) (ffff)",
        "/b +1",
    ]


def test_layers_of_two_models_are_matched_by_node() -> None:
    """One model packs by a kernel, fuses the residual and calls one kernel twice, where the other has two."""

    def of(name: str, ms: float | None, *nodes: str, calls: int = 1) -> LayerRow:
        return dataclasses.replace(layer(name, 1.0, calls=calls), tuned_ms=ms, nodes=nodes, key=f"{name} {ms}", flops=9)

    pack = dataclasses.replace(of("pack", 0.5, "Conv (/stem)"), flops=0)
    one = summary(pack, of("conv", 1.5, "Conv (/stem)", "Relu"), of("dw", 2.0, "/x", "/y", calls=2), tuned_ms=6.0)
    two = summary(
        of("conv", 1.0, "Conv (/stem)", "Relu"),
        of("u", 3.0, "/y"),
        of("v", 2.0, "/x"),
        of("w", None, "/z"),
        tuned_ms=6.0,
    )
    evidence = Evidence(title="both", compared=[("fp32", one), ("fp16", two)])
    assert evidence.matched == [
        ("/x +1", [4.0, 5.0]),
        ("Conv (/stem) +1", [2.0, 1.0]),
        ("/z", [None, None]),
    ]
    _, (columns, rows), _ = list(tables(evidence))[1]
    assert columns == ("layer", "fp32, ms", "fp16, ms", "fp16 over fp32")
    assert rows[:2] == [("/x +1", "4.000", "5.000", "1.25x"), ("Conv (/stem) +1", "2.000", "1.000", "0.50x")]
    drawn, remark = layers.rows(evidence)
    assert [tuple(row.values()) for row in drawn][:2] == [("/x +1", "fp32", 4.0), ("/x +1", "fp16", 5.0)]
    assert remark == "Not timed: /z."
    # Partly timed layers have no time.
    partly = Evidence(title="", compared=[("a", summary(of("p", 1.0, "n"), of("q", None, "n"), tuned_ms=1.0))])
    assert partly.matched == [("n", [None])]


def test_onnxruntime_has_a_row_and_a_sentence() -> None:
    evidence = Evidence(title="net", summary=summary(layer("a", 4.0), tuned_ms=4.0), cpu_ms=1.0)
    assert [row[0] for row in models_table(evidence)[1]] == ["net", "onnxruntime, as given"]
    slow = "onnxruntime takes 1.000 ms on this machine's CPU, less than the 4.000 ms here: this device is the slower"
    assert next_steps(evidence)[0].startswith(slow)
    fast = next_steps(dataclasses.replace(evidence, cpu_ms=8.0))
    assert fast == ["onnxruntime on this machine's CPU takes 2.00x as long."]


def test_what_next() -> None:
    of_model = summary(layer("tried", 2.0), layer("untried", 2.0, trials=0), tuned_ms=8.0)
    evidence = Evidence(title="net", summary=of_model, limits={"key of tried": "L2 cache, 3% of peak"})
    assert next_steps(evidence) == [
        "No config was tried of /untried +1, each more than 10% of the time: raise --trials.",
        "50% of the model's time is outside its layers, each timed with warm caches: launches (one by one), cold"
        " caches, nodes on the host.",
        "The slowest layers wait for data: --precision float16 halves their bytes. The error is checked.",
    ]
    # In fp16, with calls that fill the run, and with arithmetic as the limit, nothing is left to say.
    done = dataclasses.replace(of_model, rows=of_model.rows[:1], tuned_ms=2.1, precision="float16")
    assert next_steps(dataclasses.replace(evidence, summary=done)) == []


def test_a_search_that_still_gains_is_told_from_one_that_does_not() -> None:
    def steps(*times: float) -> list[str]:
        records = [
            Record(
                task_key="key of a",
                task_name="a",
                config={},
                outcome=Outcome.OK,
                times_s=(time,),
                target="opencl",
                **ORIGIN,
            )
            for time in times
        ]
        return next_steps(Evidence(title="net", summary=summary(layer("a", 4.0), tuned_ms=4.0), records=records))

    little = "The last fifth of the search made the layers 0% faster: more trials will gain little."
    assert steps(*[1.0] * 25) == steps(*[1.0] * 17, *[0.5] * 8) == [little]
    gained = "The last fifth of the search made the layers 50% faster: more trials may gain more."
    assert steps(*[1.0] * 24, 0.5) == [gained]
    assert steps(*[1.0] * 5, 0.5) == []


def test_names_are_only_text() -> None:
    evidence = Evidence(title="<b>", summary=summary(layer("<i>", 1.0), tuned_ms=1.0))
    parts = {"title": "<b>", "about": "", "steps": [], "library": "", "data": {}, "version": ""}
    page = render("report.html", package="romou.tools.report", tables=list(tables(evidence)), texts=TEXTS, **parts)
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
    assert list(tables(Evidence(title="nothing"))) == []


def test_onnxruntime_is_timed() -> None:
    model = short_net()
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    time_ms = time_onnxruntime(model, {name: np.zeros(shape, "float32") for name, shape in shapes.items()})
    assert time_ms is not None
    assert 0 < time_ms < 1e4
    assert time_onnxruntime(model, {}) is None


def test_a_bench_of_an_app_shows_all_that_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has a table instead of the headings of figures, which such a bench has no data for."""
    about = {"variant": "opencl", "programs": {"cached": 2, "compiled": 11, "notes": []}, "left": ["vulkan: no device"]}
    steps = {"read": 1.5, "programs": 300.25, "weights": 8.0}
    data = {
        **json.loads(bench(model_times_ms=((1.0, 2.0), (17.0, 3.0))).to_json()),
        "about": {**about, "ms": steps, "kind": "opencl"},
        "open_ms": 310.5,
        "first_run_ms": 40.125,
        "inputs_ms": [0.5, 0.25],
        "outputs_ms": [0.125],
    }
    app = Bench.from_json(json.dumps(data))
    assert Bench.from_json(app.to_json()) == app
    [(caption, (columns, rows), notes)] = list(tables(Evidence(title="phone", bench=app)))
    assert (caption, columns[:2], notes) == ("model.onnx on A GPU", ("step", "ms"), ["Left: vulkan: no device."])
    assert rows == [
        ("open the model", "310.500", "310.500", "310.500", "1"),
        ("open: files", "1.500", "1.500", "1.500", "1"),
        ("open: programs, 2 loaded, 11 compiled", "300.250", "300.250", "300.250", "1"),
        ("open: weights to the device", "8.000", "8.000", "8.000", "1"),
        ("first run", "40.125", "40.125", "40.125", "1"),
        ("inputs to the device", "0.375", "0.250", "0.500", "2"),
        ("a run", "2.500", "1.000", "17.000", "4"),
        ("outputs from the device", "0.125", "0.125", "0.125", "1"),
    ]
    drawn: dict[str, Any] = {}
    monkeypatch.setattr("romou.tools.report.page.write_html", lambda name, path, **parts: drawn.update(parts))
    write_page(Evidence(title="phone", bench=app), tmp_path / "p.html")
    assert [caption for caption, _, _ in drawn["tables"]] == ["model.onnx on A GPU"]
    assert drawn["data"]["figures"] == []
