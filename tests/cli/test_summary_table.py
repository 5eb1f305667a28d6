"""The table of a tuned model: sums count calls, and a dash marks an unmeasured value."""

from __future__ import annotations

import dataclasses
import io
import sys
import types
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from romou.base.errors import UsageError
from romou.base.model_bytes import MemoryUse
from romou.runtime.module import LayerRow, Summary
from romou.runtime.module.summary import HostRow
from romou.tools.report.table import layer_table, print_summary


def layer(name: str, calls: int, default_ms: float | None, tuned_ms: float | None, **fields: Any) -> LayerRow:
    more = {"trials": 3, "flops": 12_500_000, "config": {}} | fields
    return LayerRow(name=name, calls=calls, default_ms=default_ms, tuned_ms=tuned_ms, **more)


def summary_of(
    rows: Sequence[LayerRow], default_ms: float | None, tuned_ms: float | None, error: float | None, **fields: Any
) -> Summary:
    made = Summary.unmeasured(target="opencl", rows=tuple(rows), seconds=0.0)
    return dataclasses.replace(made, default_ms=default_ms, tuned_ms=tuned_ms, relative_l2_error=error, **fields)


def text_of(summary: Summary) -> str:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=120))
    return out.getvalue()


def test_memory_is_told_where_it_is_known() -> None:
    use = MemoryUse(weights=3 << 20, inputs=0, tensors=1 << 19, least=1, workspaces=0)
    text = text_of(summary_of([], None, None, 1e-6, memory=use))
    assert "3.50 MiB of memory on the device: 3.00 weights, 0.00 inputs, 0.50 activations, workspaces and out" in text


def test_sums_and_order() -> None:
    text = text_of(summary_of([layer("small", 1, 1.0, 0.5), layer("[big]", 3, 2.0, 1.0)], 8.0, 4.0, 1.5e-6))
    lines = text.splitlines()
    assert text.index("[big]") < text.index("small")
    footer = next(line for line in lines if "all calls" in line)
    assert [cell.strip() for cell in footer.split("│")[1:-1]] == [
        "all calls",
        "4",
        "8.000",
        "4.000",
        "2.00x",
        "",
        "6",
    ]
    # The kernels' own times are 3.5 ms, those of the model 4 ms: the calls add up to the model.
    assert "Its tuned time is divided among the calls, in the ratio of the kernels' own times." in text
    assert "Whole model: 8.000 ms with default schedules, 4.000 ms tuned: 2.00x." in text
    assert "Against onnxruntime: relative L2 error 1.50e-06." in text


def test_own_times_stay_if_they_are_not_all_of_the_run() -> None:
    rows, host = [layer("a", 2, 1.0, 0.5)], (HostRow(nodes=("n",), ms=3.0),)
    text = text_of(summary_of(rows, 8.0, 4.0, 1e-6, host=host))
    assert "1.000" in next(line for line in text.splitlines() if "all calls" in line)
    assert "is divided" not in text


def test_noise_is_beside_times() -> None:
    text = text_of(summary_of([layer("a", 1, 2.0, 1.0, noise=0.034)], 2.5, 1.0, 1e-6, noise=0.12))
    line = next(line for line in text.splitlines() if line.startswith("│ a"))
    assert [cell.strip() for cell in line.split("│")[2:6]] == ["1", "2.000", "1.000", "±3%"]
    assert "1.000 ms tuned: 2.50x (±12%)." in text


def test_a_search_that_found_nothing_says_so() -> None:
    assert "Whole model: 4.000 ms with default schedules; no faster configs found." in text_of(
        summary_of([], 4.0, 4.0, 1e-6)
    )


def test_what_was_not_measured_is_a_dash() -> None:
    table = layer_table([layer("a", 1, 1.0, None), layer("b", 1, 1.0, 1.0)])
    assert table.columns[2].footer == "2.000"
    assert table.columns[3].footer == "-"
    text = text_of(summary_of([], None, None, None))
    assert "Against onnxruntime: not checked: no reason is kept." in text
    assert "Whole model" not in text


def test_wrong_outputs_are_called_wrong() -> None:
    text = text_of(summary_of([layer("a", 1, 1.0, 0.5)], 1.0, 0.5, 0.25, tolerance=1e-4))
    assert "relative L2 error 2.50e-01: TOO LARGE" in text


def measured() -> Summary:
    rows = [
        LayerRow(
            name=name, calls=2, trials=3, flops=10**6, default_ms=2.0, tuned_ms=ms, config={}, nodes=(f"Conv ({name})",)
        )
        for name, ms in (("a<b", 0.5), ("slow", 1.0))
    ]
    times = {"default_ms": 8.0, "tuned_ms": 4.0, "relative_l2_error": 1.5e-6}
    return dataclasses.replace(Summary.unmeasured(target="opencl", rows=tuple(rows), seconds=0.0), **times)


def test_a_summary_is_a_line_a_table_and_data() -> None:
    summary = measured()
    assert repr(summary) == (
        "Summary(opencl; 2 layers, 8.000 ms with default schedules, 4.000 ms tuned: 2.00x, relative L2 error 1.5e-06)"
    )
    assert [(row["layer"], row["onnx_nodes"], row["speedup"]) for row in summary.table()] == [
        ("slow", "Conv (slow)", 2.0),
        ("a<b", "Conv (a<b)", 4.0),
    ]
    page = summary._repr_html_()
    assert page.count("<tr>") == 3
    assert "<th>tuned, ms</th>" in page
    assert page.count('<td style="text-align: right">') == 2 * 6
    assert "2.00x" in page
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "not measured, not checked" in repr(Summary.unmeasured(target="opencl", rows=(), seconds=0.0))


def test_a_data_frame_needs_pandas_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = types.SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", frames)  # type: ignore[arg-type]
    rows, columns = measured().to_dataframe()
    assert [list(row) for row in rows] == [columns, columns]
    monkeypatch.setitem(sys.modules, "pandas", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="pandas is not installed"):
        measured().to_dataframe()


def test_a_plot_is_a_chart_of_altair_and_says_if_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Altair checks it against Vega-Lite's schema. What differs by no more than the noise has one bar."""
    summary = measured()
    chart = summary.plot().to_dict()
    (bars,) = [data["values"] for data in (chart["data"], *chart.get("datasets", {}).values()) if "values" in data]
    assert [(bar["layer"], bar["schedule"]) for bar in bars] == [
        (layer, schedule) for layer in ("Conv (slow)", "Conv (a<b)") for schedule in ("default", "tuned")
    ]
    times = {
        (row["onnx_nodes"], name): row["calls"] * row[f"{name}_ms"]
        for row in summary.table()
        for name in ("default", "tuned")
    }
    assert {(bar["layer"], bar["schedule"]): bar["ms"] for bar in bars} == times
    noisy = dataclasses.replace(
        summary, rows=tuple(dataclasses.replace(row, default_ms=row.tuned_ms) for row in summary.rows)
    )
    assert [bar["schedule"] for bar in noisy.plot().to_dict()["data"]["values"]] == ["tuned"] * 2
    with pytest.raises(UsageError, match="no layer was timed"):
        Summary.unmeasured(target="opencl", rows=(), seconds=0.0).plot()
    monkeypatch.setitem(sys.modules, "altair", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="altair is not installed"):
        summary.plot()
