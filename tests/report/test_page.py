"""The page of a report in a real browser: it draws every figure, fits a phone, and makes no requests.
`report_picture.check` finds the faults.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import onnx
import pytest
import vl_convert
from click.testing import CliRunner

import romou
from report_picture import EMPTY, check
from romou.base.errors import UsageError
from romou.base.model_bytes import MemoryUse
from romou.base.outcome import Outcome
from romou.cli import main
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.devices.hardware.archprobe_report import Curve
from romou.devices.targets import Target
from romou.runtime.module import LayerRow, Summary
from romou.tools.report.evidence import Evidence
from romou.tools.report.figures import FIGURES
from romou.tools.report.page import altair_charts, write_page
from romou.tuner.records import Origin, Record, RecordStore
from romou.tuner.records.store import FILE_NAME
from support.data.benches import bench, operator
from support.models.small_networks import residual_net, short_net

NAME = "conv</script><b>2d"
LONG = "1x64x56x56_256_1x1_s1"
LONG_NODE = f"Conv (/{'stage/' * 8}of/a/long/path/Conv_0)"
AXES = {"x_label": "work", "y_label": "GFLOPS"}
CURVES = [("Gflops", Curve(name="rate", x=(1, 2), y=(3.0, 4.0), marks={"Knee": 1.5, "Peak": 4.0}, **AXES))]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a saved model's times and memory, and a device's curves, without a search. A name that would
    end a script is only text.
    """
    rows = [
        LayerRow(
            name=f"{NAME} {LONG} {n}" if n else f"{NAME} {n} {LONG} 4",
            calls=1,
            trials=1,
            flops=1,
            default_ms=2.0 + n,
            tuned_ms=1.0,
            config={},
            nodes=(f"Conv (/{'stage/' * 8}{n}/of/a/long/path/Conv)" if n else LONG_NODE,),
            key=f"key {n}",
        )
        for n in range(5)
    ]
    summary = dataclasses.replace(
        Summary.unmeasured(target="opencl", rows=tuple(rows), seconds=0.0), default_ms=9.0, tuned_ms=5.0
    )
    use = MemoryUse(weights=1 << 20, inputs=0, tensors=4 << 20, least=2 << 20, workspaces=0)
    memory = MemoryPlan(calls=("f", "g"), tensors=(), live=(1 << 20, 2 << 20), use=use)
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_page(Evidence(title="a <test>", summary=summary, memory=memory, curves=CURVES), path)


# Titles of axes that cover a name of the same drawing.
TITLES_OVER_NAMES = """[...document.querySelectorAll('.role-axis-title text')].filter(title => {
  const a = title.getBoundingClientRect();
  return [...title.closest('svg').querySelectorAll('.role-axis-label text')].some(name => {
    const b = name.getBoundingClientRect();
    return b.width && a.left < b.right && b.left < a.right && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  });
}).map(title => title.textContent)"""


def texts(of: str) -> str:
    return f"[...document.querySelectorAll('{of}')].map(element => element.textContent)"


def test_a_page_is_right_on_a_phone(page: Path) -> None:
    """Names that differ only in their middle, or at their end, stay distinct. A layer's time is seen beside it."""
    rights = (
        "[...document.querySelectorAll('#overview table')]"
        ".map(table => table.rows[1].cells[1].getBoundingClientRect().right)"
    )
    problems, (labels, ends) = check(page, 400, [texts("#layers-figure .role-axis-label text"), rights])
    assert problems == []
    assert len(ends) == 2
    assert max(ends) <= 400
    names = [label for label in labels if "Conv" in label]
    assert len(set(names)) == len(names) == 5
    assert max(map(len, names)) <= 21


def test_a_page_is_right_on_a_desk(page: Path) -> None:
    bars = "document.querySelectorAll('#layers-figure .mark-rect.role-mark path').length"
    drawn = "[...document.querySelectorAll('main section')].filter(s => s.querySelector('svg'))"
    table, menu = "document.querySelector('#layers-figure details')", "document.getElementById('layers')"
    paper = "getComputedStyle(document.body).backgroundColor"
    expressions = {
        "title": "document.title",
        "unknown": "[...document.querySelectorAll('.unknown')].map(p => p.parentElement.id.replace('-figure', ''))",
        "bars": bars,
        "knees": texts("#device-figure .mark-text text"),
        "rules": "document.querySelectorAll('#device-figure .mark-rule.role-mark line').length",
        "described": f"{drawn}.map(s => ['role', 'aria-label'].map(n => s.querySelector('.plot').getAttribute(n)))",
        "axes": f"{drawn}.map(s => [...s.querySelectorAll('.role-axis-title text')].map(t => t.textContent))",
        "open": f"{table}.open = true, new Promise(r => setTimeout(r, 200))",
        "cells": f"[...{table}.querySelectorAll('tr')].map(r => [...r.children].map(c => c.textContent))",
        "first": "[...document.querySelectorAll('#overview tbody tr')].map(r => r.children[0].textContent)",
        "aligned": "[...document.querySelectorAll('#overview table')[1].rows[1].cells].map((c, i, all) =>"
        " [c.closest('table').rows[0].cells[i].textContent, getComputedStyle(c).textAlign.replace('start', 'left')])",
        "titles over names": TITLES_OVER_NAMES,
        "headings": texts("main h2"),
        "choose": f"{menu}.selectedIndex = 1, {menu}.dispatchEvent(new Event('change')), new Promise(r => setTimeout(r,"
        " 300))",
        "bars of a layer": bars,
        "paper": paper,
        "click": "document.getElementById('theme').click()",
        "other paper": paper,
        "remove": "document.querySelector('#memory-figure svg').remove()",
        "empty": EMPTY,
    }
    problems, values = check(page, 1280, list(expressions.values()))
    assert problems == []
    found = dict(zip(expressions, values, strict=True))
    assert found["title"] == "a <test>"
    assert found["unknown"] == ["roofline", "convergence", "funnel", "histogram", "knobs", "registers", "passes"]
    # A knee is a dashed line with its name. A mark beyond the curve is no knee.
    assert "Knee = 1.5" in found["knees"]
    assert "Peak = 4" not in found["knees"]
    assert found["rules"] == 1
    # Every figure that is drawn has a name for screen readers, names on its axes, and a table.
    assert {role for role, _ in found["described"]} == {"graphics-document"}
    assert found["described"][1][1].startswith("Memory. Activations and workspaces that are live during each call")
    assert found["axes"] == [["ms of a run", "layer"], ["call", "MiB"], ["work", "GFLOPS"]]
    head, *lines = found["cells"]
    assert head == ["layer", "version", "calls", "ms_of_call", "ms", "kernel"]
    assert len(lines) == 10
    assert lines[0][1:] == ["default schedule", "1", "6", "6", f"{NAME} {LONG} 4"]
    # The first screen, above the figures, then the two parts of the page, in order.
    assert found["first"][1] == LONG_NODE
    # Numbers are set to the right, names to the left.
    numbers = ("ms of all calls", "share", "faster", "calls")
    assert found["aligned"] == [["layer", "left"], *([name, "right"] for name in numbers), ["kernel", "left"]]
    assert found["titles over names"] == []
    order = [found["headings"].index(heading) for heading in ("Memory", "The search and its space", "Search")]
    assert order == sorted(order)
    # The menu of layers leaves one. The two themes differ in their paper. The checks must find an emptied figure.
    assert (found["bars"], found["bars of a layer"]) == (10, 2)
    assert found["paper"] != found["other paper"]
    assert found["empty"] == ["memory-figure"]


@pytest.mark.parametrize("title", ["{{ library }}", "{% raw %} & {{ about }}", "{# title"])
def test_a_title_that_looks_like_a_part_of_the_page_is_only_text(title: str, page: Path, tmp_path: Path) -> None:
    """A page is as long as another one except for its title, which occurs twice."""
    short, long = (
        write_page(Evidence(title=one, summary=None, memory=None), tmp_path / "report.html").read_text()
        for one in ("x", title)
    )
    escaped = title.replace("&", "&amp;")
    assert long == short.replace("<title>x<", f"<title>{escaped}<").replace("<h1>x<", f"<h1>{escaped}<")
    assert long.count(escaped) == 2


def test_the_command_takes_a_bench(tmp_path: Path) -> None:
    path, output = tmp_path / "bench.json", tmp_path / "out" / "report.html"
    path.write_text(bench(operator("conv")).to_json(), encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(output), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"report": str(output)}
    assert '"version":"bench"' in output.read_text(encoding="utf-8")


def test_sources_may_be_a_list(tmp_path: Path) -> None:
    path, output = tmp_path / "bench.json", tmp_path / "report.html"
    path.write_text(bench(operator("conv")).to_json(), encoding="utf-8")
    assert '"version":"bench"' in romou.write_report([path], output=output).read_text(encoding="utf-8")
    for wrong, message in (([], "nothing to report on"), ([[path]], "must be a path"), ([3], "must be a path")):
        with pytest.raises(UsageError, match=message):
            romou.write_report(wrong, output=output)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no folder of records, saved model, bench or ArchProbe report"),
        ("[]", "expected a JSON object"),
        ('{"kind": "romou bench"}', "schema None"),
    ],
)
def test_what_is_no_source_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        romou.write_report(path, output=tmp_path / "report.html")


def test_a_report_follows_the_precision_that_the_model_was_tuned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are others in fp16, so records of one precision are of none of the kernels of another."""
    monkeypatch.setattr("romou.api.report._BROKEN_DOWN", 1)
    model, target = tmp_path / "net.onnx", Target("opencl -device=host")
    onnx.save(residual_net(), model)
    in_fp32 = {task.key for task in Compilation.of(import_model(model, None), target).with_default_kernels().tasks}
    found = (
        Compilation.of(import_model(model, None, Precision.checked("float16", None, None)), target)
        .with_default_kernels()
        .tasks
    )
    # Sums over the output of a global pool stay in fp32.
    tasks = [task for task in found if task.key not in in_fp32]
    assert len(tasks) > 1
    origin = dataclasses.asdict(
        Origin.here({"name": "made up", "kind": "opencl", "driver": "1", "platform": "p", "is_host_cpu": True})
    )
    with RecordStore(tmp_path / "records") as store:
        for task in tasks:
            config = dict(task.default_config(target))
            store.append(
                Record(
                    task_key=task.key,
                    task_name=task.name,
                    config=config,
                    outcome=Outcome.OK,
                    times_s=(1e-3,),
                    target=str(target),
                    **origin,
                )
            )
    asked = ["report", str(tmp_path / "records"), "-o", str(tmp_path / "report.html"), "--model", str(model)]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code != 0
    assert "--precision" in refused.output, refused.output
    drawn = CliRunner().invoke(main, [*asked, "--precision", "float16"])
    assert drawn.exit_code == 0, drawn.output


def test_no_source_and_no_target_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to report on"):
        romou.write_report()
    path = tmp_path / "device.json"
    path.write_text(
        (Path(romou.__file__).parent / "devices/hardware/devices/adreno640.json").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    path = path.rename(path.with_name("adreno640.json"))
    with pytest.raises(UsageError, match="do not say the target"):
        romou.write_report(path, output=tmp_path / "report.html", model="none.onnx")


def test_tune_draws_its_own_report(tmp_path: Path) -> None:
    """The page has the search, what bounds each layer, and onnxruntime's time beside the device's."""
    path = tmp_path / "net.onnx"
    onnx.save(short_net(), path)
    words = ["tune", str(path), "--target", "opencl -device=host", "--trials", "2", "--work-dir", str(tmp_path / "r")]
    words += ["-o", str(tmp_path / "net.romou"), "--report", str(tmp_path / "report.html"), "-q"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    overview = text[text.index('<section id="overview">') : text.index("</section>")]
    assert '<th scope="row">net</th>' in overview
    assert "onnxruntime, as given</th>" in overview
    assert "<td>this machine&#39;s CPU</td></tr>" in overview
    assert "onnxruntime" in overview[overview.index("What next") :]
    charts = romou.charts(tmp_path / "r", tmp_path / "net.romou", model=path)
    assert list(charts) == [figure.name for figure in FIGURES if figure.name != "device"]
    data = text.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    rows = {figure["name"]: figure["rows"] for figure in json.loads(data)["figures"]}
    for name, chart in charts.items():
        assert chart.data.values == rows[name]
        assert vl_convert.vegalite_to_svg(chart.to_dict()).count("<path") > 1


def test_the_chart_of_a_curve_names_its_axes_in_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vega-Lite's schema, by which Altair checks charts, has no titles of axes that follow a menu."""
    evidence = Evidence(title="curves", curves=CURVES)
    ((name, chart),) = altair_charts(evidence).items()
    assert name == "device"
    drawn = vl_convert.vegalite_to_svg(chart.to_dict())
    assert "Device, x: work, y: GFLOPS" in drawn
    assert "Knee = 1.5" in drawn
    monkeypatch.setitem(sys.modules, "altair", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="altair is not installed"):
        altair_charts(evidence)


def test_saved_models_stand_side_by_side(tmp_path: Path) -> None:
    """Each has its row and its layers. A search is of one model, so records beside two models are refused."""
    model = romou.compile(residual_net(), target="null", verify=False)
    paths = [model.save(tmp_path / name) for name in ("a.romou", "b.romou")]
    text = romou.write_report(*paths, output=tmp_path / "r.html").read_text(encoding="utf-8")
    overview = text[text.index('<section id="overview">') : text.index("</section>")]
    assert overview.count('<tr><th scope="row">a</th>') == overview.count('<tr><th scope="row">b</th>') == 1
    assert "No model was timed: `romou tune` times one." in overview
    assert "No records: give the folder" not in text
    with pytest.raises(UsageError, match="a report on several saved models takes no model"):
        romou.write_report(*paths, output=tmp_path / "r.html", model="bundled:resnet18")
    (tmp_path / "records").mkdir()
    RecordStore(tmp_path / "records").close()
    (tmp_path / "records" / FILE_NAME).touch()
    with pytest.raises(UsageError, match="are 1 folders of records and 2 saved models; a search is of one model"):
        romou.write_report(*paths, tmp_path / "records", output=tmp_path / "r.html")
