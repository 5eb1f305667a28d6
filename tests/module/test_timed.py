"""A speedup is claimed beyond the noise only, and noisy times are ranges: wherever a summary is shown or stored."""

from __future__ import annotations

import dataclasses
import io
import json
import random

import pytest
from rich.console import Console

from romou.runtime.module import LayerRow, ShapeRow, Summary, Timed
from romou.runtime.module.timed import NOTHING_FOUND, median_range
from romou.tools.report.evidence import Evidence
from romou.tools.report.figures import layers
from romou.tools.report.overview import models_table, next_steps, slowest_table
from romou.tools.report.page import _about
from romou.tools.report.table import print_summary

QUIET, NOISY = (1.0, 1.01, 1.02, 1.03, 1.04), (0.2, 0.5, 1.0, 1.5, 1.7)


def scaled(samples: tuple[float, ...], by: float) -> list[float]:
    return [by * sample for sample in samples]


CASES = {
    "the same kernels": (Timed.of(QUIET, QUIET), None, f"1.020 ms with default schedules; {NOTHING_FOUND} (±2%)"),
    "faster": (
        Timed.of(scaled(QUIET, 2), QUIET),
        2.0,
        "2.040 ms with default schedules, 1.020 ms tuned: 2.00x (±2%)",
    ),
    "faster within the noise": (
        Timed.of(scaled(QUIET, 1.03), QUIET),
        None,
        f"1.051 ms with default schedules, 1.020 ms tuned: {NOTHING_FOUND} beyond the noise (±2%)",
    ),
    "noise only": (
        Timed.of(scaled(NOISY, 1.1), NOISY),
        None,
        "between 0.220 and 1.870 ms with default schedules, between 0.200 and 1.700 ms tuned:"
        f" {NOTHING_FOUND} beyond the noise",
    ),
    "faster than any noise": (
        Timed.of(scaled(NOISY, 30), NOISY),
        6.0 / 1.7,
        "between 6.000 and 51.000 ms with default schedules, between 0.200 and 1.700 ms tuned: at least 3.53x",
    ),
    "slower": (
        Timed.of(QUIET, scaled(QUIET, 2)),
        0.5,
        "1.020 ms with default schedules, 2.040 ms tuned: 0.50x (±2%)",
    ),
    "of an older version": (
        Timed(default_ms=2.0, tuned_ms=1.8, noise=0.2),
        None,
        f"2.000 ms with default schedules, 1.800 ms tuned: {NOTHING_FOUND} beyond the noise (±20%)",
    ),
    "not measured": (Timed(default_ms=None, tuned_ms=None), None, "not measured"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_says_what_the_times_say(name: str) -> None:
    times, speedup, sentence = CASES[name]
    assert times.speedup == (None if speedup is None else pytest.approx(speedup))
    assert times.sentence == sentence


def test_outliers_are_outside_of_the_range_of_a_median() -> None:
    assert median_range(QUIET) == (1.0, 1.04)
    busy = [1.0 + number / 100 for number in range(12)] + [30.0, 40.0, 50.0]
    assert median_range(busy)[1] < 1.2
    assert median_range([4.0]) == (4.0, 4.0)


def test_equal_kernels_are_seldom_taken_for_faster_ones() -> None:
    rng = random.Random(7)

    def samples(count: int) -> list[float]:
        return [1.0 + rng.expovariate(2.0) for _ in range(count)]

    claims = [Timed.of(samples(count), samples(count)).speedup is not None for count in (5, 15, 35) for _ in range(200)]
    assert sum(claims) <= 0.02 * len(claims)
    found = [Timed.of(scaled(tuple(samples(15)), 3), samples(15)).speedup is not None for _ in range(200)]
    assert sum(found) >= 0.9 * len(found)


def summary_with(times: Timed) -> Summary:
    fields = vars(times)
    row = LayerRow(name="conv", key="k", calls=2, trials=3, flops=10**6, config={}, nodes=("/conv",), **fields)
    shape = ShapeRow(shapes={"x": (1, 2)}, relative_l2_error=None, memory=None, **fields)
    made = Summary.unmeasured(target="opencl", rows=(row,), seconds=0.0, shapes=(shape,))
    return dataclasses.replace(made, device="a CPU", **fields)


def shown(summary: Summary) -> dict[str, str]:
    """Return every text that shows the summary's times."""
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200))
    evidence = Evidence(title="net", summary=summary)
    return {
        "terminal": out.getvalue(),
        "repr": repr(summary),
        "notebook": summary._repr_html_(),
        "header": _about(evidence),
        "models": str(models_table(evidence)),
        "layers": str(slowest_table(evidence, summary)),
    }


@pytest.mark.parametrize("name", CASES)
def test_every_surface_claims_the_same(name: str) -> None:
    times, speedup, _ = CASES[name]
    summary = summary_with(times)
    again = Summary.from_dict(json.loads(json.dumps(summary.to_dict())))
    assert again == summary
    stored = summary.to_dict()
    assert stored["speedup"] == stored["rows"][0]["speedup"] == times.speedup
    for where, text in shown(summary).items():
        least = 2 if where == "notebook" else 1  # the headline and the layer
        has_claim = text.count(times.speedup_text) >= least
        assert has_claim if speedup is not None else ("x (" not in text and "0x" not in text), where
        if times.is_noisy:
            assert "±" not in text, where
    versions = (
        {row["version"] for row in layers.rows(Evidence(title="net", summary=summary))[0]} if times.tuned_ms else {}
    )
    assert ("default schedule" in versions) is (speedup is not None)


def test_onnxruntime_is_compared_only_if_the_noise_lets_it() -> None:
    def step(times: Timed, cpu_ms: float) -> str:
        made = dataclasses.replace(summary_with(times), rows=())
        return next_steps(Evidence(title="net", summary=made, cpu_ms=cpu_ms))[0]

    noisy, quiet = Timed.of(NOISY, NOISY), Timed.of(QUIET, QUIET)
    assert "too noisy to compare" in step(noisy, 0.5)
    assert "less than the 0.200 to 1.700 ms here" in step(noisy, 0.1)
    assert step(noisy, 4.0).endswith("takes 4.00x as long.")
    assert step(quiet, 1.01) == "onnxruntime takes as long on this machine's CPU, within the noise of ±2%."
