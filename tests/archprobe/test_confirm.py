"""No number is claimed that a second run contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from archprobe import session
from archprobe.analysis.answer import Answer, answered, declined
from archprobe.cli import app
from archprobe.confirm import confirmed, unconfirmed
from archprobe.curve import Curve, Findings
from archprobe.devices import open_device
from archprobe.probes import all_probes
from archprobe.probes.overheads import difference
from archprobe.report.convert import converted
from archprobe.report.document import load_report

PIXEL4 = Path(__file__).parent / "data" / "pixel4"


def both(first: Answer, second: Answer) -> Answer:
    return confirmed(Findings(answers={"Key": first}), Findings(answers={"Key": second})).answers["Key"]


def rate(value: float, low: float | None = None, high: float | None = None) -> Answer:
    return answered(value, "GB/s", 0.9, "measured", low=low, high=high)


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="must not end below its start: 0 to -50.9 ns"):
        answered(0.0, "ns", 0.9, "measured", low=0.0, high=-50.9)


@pytest.mark.parametrize(("cost", "error"), [(-60.0, 9.1), (-5.0, 20.0), (3.0, 5.0), (30.0, 2.0)])
def test_a_barrier_costs_no_less_than_nothing(cost: float, error: float) -> None:
    found = difference(cost, error, 64)
    if cost + error <= 0:
        assert found.is_declined
    else:
        low, high = found.interval
        assert 0 <= low <= found.number() <= high


def test_runs_that_agree_keep_both_intervals() -> None:
    found = both(rate(100, 98, 102), rate(104, 101, 107))
    assert (found.value, found.low, found.high) == (100, 98, 107)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (rate(39.1), rate(19.5)),
        (answered(5, "count", 0.999, "stairs"), answered(2, "count", 0.999, "stairs")),
        (answered("SISD", "word", 0.9, "flat"), answered("SIMD", "word", 0.9, "steep")),
        (answered(True, "yes or no", 0.9, "fast"), answered(False, "yes or no", 0.9, "slow")),
    ],
)
def test_runs_that_contradict_each_other_claim_nothing(first: Answer, second: Answer) -> None:
    found = both(first, second)
    assert found.is_declined
    assert found.reason.startswith("two runs contradict each other: ")


def test_what_one_run_saw_is_less_sure() -> None:
    found = both(rate(100), declined("GB/s", "too much noise"))
    assert (found.value, found.confidence) == (100, 0.7)
    assert "too much noise" in found.notes[-1]


def test_before_the_second_run_an_answer_is_a_hint() -> None:
    first = Findings(answers={"Key": rate(100, 98, 102), "Other": declined("ns", "noise")})
    begun = unconfirmed(first)
    hint = begun.answers["Key"]
    assert (hint.value, hint.confidence, len(hint.notes)) == (100, 0.7, 1)
    assert begun.answers["Other"] == first.answers["Other"]
    # The second run says how sure it is now.
    found = confirmed(begun, Findings(answers={"Key": rate(101)})).answers["Key"]
    assert (found.value, found.confidence, found.notes) == (100, 0.9, ())
    lone = confirmed(begun, Findings(answers={"Key": declined("GB/s", "too much noise")})).answers["Key"]
    assert (lone.confidence, lone.notes) == (0.7, ("a second run did not see it: too much noise",))


def test_a_declined_answer_leaves_no_mark() -> None:
    curve = Curve(name="c", x_label="x", y_label="y", x=(1.0, 2.0), y=(1.0, 2.0), marks={"Key": 2.0, "Other": 1.0})
    first = Findings(answers={"Key": rate(1), "Other": rate(1)}, curves=(curve,))
    found = confirmed(first, Findings(answers={"Key": rate(9), "Other": rate(1)}))
    assert dict(found.curves[0].marks) == {"Other": 1.0}
    assert found.runs == 2


def test_three_runs_claim_alike(tmp_path: Path) -> None:
    """The runs use this machine's CPU under its present load."""
    probes = [p for p in all_probes() if p.name in ("limits", "cores", "barrier", "buffer_caches", "vector_width")]
    assert len(probes) >= 4
    reports = []
    for run in range(3):
        path = tmp_path / f"{run}.json"
        session.run(open_device("opencl:0"), probes, path, is_quick=True)
        reports.append(load_report(path))
    for report in reports:
        assert {f.runs for name, f in report.aspects.items() if f.state == "done" and name != "Conclusions"} == {2}
    claims = [{k: a for k, a in report.answers().items() if not a.is_declined} for report in reports]
    for one in claims:
        for other in claims:
            for key in one.keys() & other.keys():
                assert not both(one[key], other[key]).is_declined, (key, one[key], other[key])


def test_curves_of_microsofts_tool_become_a_report(tmp_path: Path) -> None:
    path = tmp_path / "pixel4.json"
    done = CliRunner().invoke(app, ["analyse", str(PIXEL4), "--output", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    report = load_report(path)
    assert report.device_name == "pixel4"
    answers = report.answers()
    assert answers["Device.CacheSize"].value == 131072
    assert answers["RegCount.RegType"].value == "Pooled"
    assert len(answers) > 30


def test_curves_of_microsofts_tool_are_drawn_with_their_knees() -> None:
    """Figures 6 to 8 of the paper from a real phone: the texture cache, warps by time and by order."""
    report = converted(PIXEL4, "pixel4")
    knees = {
        (aspect, curve.name): {key: x for key, (x, _) in curve.knees.items()}
        for aspect, findings in report.aspects.items()
        for curve in findings.curves
    }
    assert knees["ImageCacheHierarchyPChase", "ImageCacheHierarchyPChase"]["CachePixelCountLv1"] == 1024
    assert knees["WarpSizeMethodB", "WarpSizeMethodB"] == {"WarpThreadCount": 64}
    assert knees["WarpSizeMethodA", "WarpSizeMethodA"] == {"WarpThreadCount": 128}
    assert knees["ImageCachelineSize", "X"] == {"ImgMinTimeConcurThreadCountX": 64}
    assert knees["ImageCachelineSize", "Y"] == {"ImgMinTimeConcurThreadCountY": 32}
    assert 180 <= knees["RegCount", "RegCount"]["RegCount"] <= 183
    assert knees["BufferBandwidth", "BufferBandwidth"] == {}
    (chase,) = report.aspects["ImageCacheHierarchyPChase"].curves
    assert chase.y[chase.x.index(1024)] < 135 < 155 < chase.y[chase.x.index(2048)]
