"""The command line: exit codes, printed text, and pictures of a report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from archprobe.analysis.answer import answered, declined
from archprobe.cli import app, select
from archprobe.curve import Curve, Findings, not_applicable
from archprobe.errors import UsageError
from archprobe.report.document import Report, load_report

DRIVER = {"name": "A GPU", "vendor": "V", "driver": "1.2", "platform": "P", "version": "OpenCL 3.0", "is_cpu": False}
HEADER = {
    "Format": 1,
    "Version": "0.1.0",
    "Date": "2026-01-01",
    "IsQuick": False,
    "IsComplete": True,
    "Driver": DRIVER,
    "Software": {},
}


def a_report(warp: int, latency: float) -> Report:
    curve = Curve(
        name="warp by time",
        x_label="work-items",
        y_label="ns",
        x=tuple(range(1, 70)),
        y=tuple(1 + (i // warp) for i in range(69)),
    )
    found = {"WarpThreadCount": answered(warp, "work-items", 0.99, "stairs")}
    sizes = Curve(
        name="chase", x_label="bytes", y_label="ns", x=(1024, 2048, 4096, 2**30), y=(1, 2, 80, 90), is_log_x=True
    )
    cache = {
        "CacheVectorCountLv1": answered(2048, "bytes", 0.9, "bend"),
        "CacheVectorCountLv2": answered(8 * 2**20, "bytes", 0.9, "bend"),
        "LatencyLv1": answered(latency, "ns", 0.9, "flat", low=latency * 0.99, high=latency * 1.01),
        "CacheVectorCountLv3": declined("bytes", "end of the sweep <here>"),
    }
    aspects = {
        "WarpSizeMethodB": Findings(answers=found, curves=(curve.marked(found),), method="m"),
        "BufferCacheHierarchyPChase": Findings(answers=cache, curves=(sizes.marked(cache),), method="m"),
        "ImageBandwidth": not_applicable("no texture units"),
    }
    return Report(header=HEADER, aspects=aspects)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    a_report(32, 20.0).save(one)
    a_report(64, 20.1).save(other)
    return one, other


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_show(files: tuple[Path, Path]) -> None:
    text = invoke("show", files[0])
    assert "A GPU, driver 1.2" in text
    assert re.search(r"WarpThreadCount\W+32\W", text)
    assert "undecided" in text
    assert "not applicable" in text
    assert "no texture units" in invoke("show", files[0], "--reasons")


def test_show_names_knees_and_unknowns(files: tuple[Path, Path]) -> None:
    text = " ".join(invoke("show", files[0]).split())
    assert re.search(r"WarpSizeMethodB: warp by time: knee at WarpThreadCount = 32 \(.+\), where .+ is \d", text), text
    unknowns = {
        "BufferCacheHierarchyPChase.CacheVectorCountLv3": "end of the sweep <here>",
        "ImageBandwidth": "not applicable: no texture units",
    }
    assert load_report(files[0]).unknowns() == unknowns
    assert text.endswith(" ".join(["Not known of this device:", *(f"{key}: {why}" for key, why in unknowns.items())]))


def test_compare_names_what_differs_by_more_than_the_intervals(files: tuple[Path, Path]) -> None:
    lines = invoke("compare", *files).splitlines()
    assert ["differs" in line for line in lines if "WarpThreadCount" in line] == [True]
    assert ["differs" in line for line in lines if "LatencyLv1" in line] == [False]


def test_plot_draws_every_curve_and_one_page(files: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    assert "index.html" in invoke("plot", files[0], "-o", folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "index.html",
        "architecture.svg",
        "WarpSizeMethodB_warp_by_time.svg",
        "BufferCacheHierarchyPChase_chase.svg",
    }
    page = (folder / "index.html").read_text()
    assert page.count("<svg") == 3
    assert "color-scheme: light dark" in page
    assert "end of the sweep &lt;here&gt;" in page
    listed = page.partition("<h2>Not known of this device</h2>")[2].partition("</ul>")[0]
    assert "<li>ImageBandwidth: not applicable: no texture units</li>" in listed
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions == [
        "warp by time: knee at WarpThreadCount = 32 (work-items), where ns is 1.",
        # The second level is between two points, the third is undecided.
        "chase: knee at CacheVectorCountLv1 = 2K (bytes), where ns is 2; CacheVectorCountLv2 = 8M (bytes), where ns is"
        " 80.08.",
    ]
    # Inner names of the pictures must not meet on the page.
    names_inside = re.findall(r'\bid="([^"]+)"', page)
    assert len(names_inside) == len(set(names_inside))


def test_analyse_doubts_what_curves_do_not_support() -> None:
    text = " ".join(invoke("analyse", Path(__file__).parent / "data" / "pixel4").split())
    assert "Pooled" in text
    assert "doubtful: ImageBandwidth.MinBandwidth is 68.174, which the curve does not support" in text


def test_probes_are_chosen_by_name() -> None:
    assert [probe.name for probe in select("barrier, limits")] == ["limits", "barrier"]
    with pytest.raises(UsageError, match="there is no probe 'speed'; the probes are limits, launch"):
        select("speed")


def test_a_run_of_one_probe_from_the_shell(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    command = [sys.executable, "-m", "archprobe", "run", "--quick", "--only", "limits", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 aspects of" in done.stdout
    bad = subprocess.run([*command[:4], "--device", "opencl:77"], capture_output=True, text=True, timeout=120)
    assert bad.returncode == 3
    assert "there is no OpenCL device 77" in bad.stderr
    assert "Traceback" not in bad.stderr
