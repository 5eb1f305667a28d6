"""The paper's figures 5, 6 and 8: analyses of synthetic curves, and pictures of several curves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from archprobe.analysis.registers import register_pool
from archprobe.analysis.warp import parallel_work_items
from archprobe.curve import Curve, Findings
from archprobe.devices import open_device
from archprobe.errors import KernelError
from archprobe.meter import Meter
from archprobe.plots.page import write_page
from archprobe.probes import registers
from archprobe.probes.caches import image_strides
from archprobe.probes.probe import Probe
from archprobe.probes.registers import register_sweep
from archprobe.report.document import Report, load_report, new_report

ARITHMETIC_NS = 1.0


def alternating(warps: int, warp: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the ranks of a group that runs `warps` warps at a time, each lane in its turn, as in figure 8."""
    ranks = np.empty(size, int)
    rank = 0
    for first in range(0, size, warps * warp):
        running = range(first, min(first + warps * warp, size), warp)
        for lane in range(warp):
            for begin in rng.permutation(running):
                ranks[begin + lane] = rank
                rank += 1
    return ranks


@pytest.mark.parametrize(("warps", "warp"), [(3, 128), (2, 128), (4, 64), (8, 8)])
def test_work_items_that_run_at_once(warps: int, warp: int) -> None:
    rng = np.random.default_rng(3)
    order = np.array([alternating(warps, warp, 6 * warps * warp, rng) for _ in range(8)])
    found = parallel_work_items(order, warp)
    assert found.value == warps * warp
    assert found.confidence > 0.8


def test_warps_that_draw_as_a_whole_show_nothing() -> None:
    rng = np.random.default_rng(3)
    order = np.array([np.argsort(np.argsort(np.repeat(rng.permutation(16), 32), kind="stable")) for _ in range(8)])
    assert "one after another" in parallel_work_items(order, 32).reason
    assert parallel_work_items(np.zeros((4, 64), int), 32).is_declined


def figure_5(pool: int, sizes: tuple[int, ...], *, is_shared: bool) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    counts = np.arange(16.0, 260.0, 8.0)
    sweeps = {}
    for size in sizes:
        needed = counts * (size if is_shared else 1)
        rounds = np.ceil(needed / pool) if is_shared else np.where(needed > pool, 5, 1)
        sweeps[size] = (counts, counts * ARITHMETIC_NS * rounds)
    return sweeps


def test_a_pool_is_seen_in_groups_of_several_sizes() -> None:
    found = register_pool(figure_5(384 * 181, (64, 128, 384, 512, 768, 1024), is_shared=True), {})
    low, high = found.interval
    assert low <= 384 * 181 <= high
    assert high < 1.3 * low


def test_small_groups_that_reach_the_limit_of_a_work_item_show_no_pool() -> None:
    small = figure_5(190, (64, 128, 256), is_shared=False)
    pooled = figure_5(48 * 1024, (384, 512, 768, 1024), is_shared=True)
    low, high = register_pool(small | pooled, {}).interval
    assert low <= 48 * 1024 <= high < 1.2 * low
    # One small group may be the first of the pool's, and contradicts the others.
    assert register_pool({64: small[64]} | pooled, {}).is_declined


def test_registers_of_a_work_item_s_own_are_no_pool() -> None:
    found = register_pool(figure_5(64, (64, 128, 256), is_shared=False), {})
    assert found.is_declined
    assert "64 work-items at 72" in found.reason


class PoolOf65536Registers:
    """A device that refuses groups with more registers, as NVIDIA's driver does. All its kernels take equally long."""

    def __init__(self) -> None:
        self.facts = SimpleNamespace(max_work_group_size=1024, timer_step_ns=1.0)

    def kernel(self, source: str, _name: str) -> int:
        return source.count("  float r")

    def buffer(self, _data: object) -> None:
        return None

    def launch(self, count: int, size: int, _local: int, n: int, *_buffers: object) -> float:
        if count * size > 65536:
            raise KernelError("OUT_OF_RESOURCES")
        return 1e-9 * count * int(n)


def test_a_group_that_the_driver_refuses_ends_its_curve() -> None:
    device: Any = PoolOf65536Registers()
    findings = register_sweep.measure(Meter(device=device, is_quick=False, least_s=1e-6, budget_s=0.1, max_repeats=2))
    last = {curve.name: curve.x[-1] for curve in findings.curves}
    assert last["256 work-items"] == 256
    assert last["512 work-items"] == 128
    assert last["1024 work-items"] == 64
    low, high = findings.answers["PoolByGroups"].interval
    assert low <= 65536 <= high < 1.2 * low


def test_curves_of_one_picture_are_drawn_together(tmp_path: Path) -> None:
    curves = [
        Curve(name=f"{n} work-items", x_label="registers", y_label="ns", x=(16.0, 32.0), y=(1.0, n), picture="figure")
        for n in (64, 128)
    ]
    header = {
        "Format": 1,
        "Version": "1",
        "Date": "2026-01-01",
        "IsQuick": False,
        "IsComplete": True,
        "Software": {},
        "Driver": dict.fromkeys(("name", "vendor", "driver", "platform", "version"), "x") | {"is_cpu": False},
    }
    report = Report(header=header, aspects={"RegisterSweep": Findings(curves=tuple(curves))})
    report.save(tmp_path / "r.json")
    page = write_page(load_report(tmp_path / "r.json"), tmp_path / "plots")
    assert [path.name for path in sorted(page.parent.glob("RegisterSweep*"))] == ["RegisterSweep_figure.svg"]
    assert page.read_text().count("no knee. Its answers are levels or ratios.") == 2
    text = (page.parent / "RegisterSweep_figure.svg").read_text()
    assert text.count("work-items") >= 2


@pytest.mark.parametrize(
    ("probe", "names"),
    [
        (register_sweep, ("64 work-items", "128 work-items")),
        (image_strides, tuple(f"stride {16 * stride} bytes" for stride in (1, 2, 4, 8, 16))),
    ],
    ids=["figure 5", "figure 6"],
)
def test_families_of_curves_are_measured_and_drawn(
    probe: Probe, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures 5 and 6 are of a GPU, and a run leaves them out on a CPU. Their kernels run there, too."""
    monkeypatch.setattr(registers, "_GROUP_SIZES", (64, 128))
    monkeypatch.setattr(registers, "_VALUES", (16, 64))
    device = open_device("opencl:0")
    meter = Meter(device=device, is_quick=True, least_s=1e-4, budget_s=0.2, max_repeats=2)
    findings = probe.measure(meter)
    assert tuple(curve.name for curve in findings.curves) == names
    for curve in findings.curves:
        assert len(curve.x) >= 3
        assert all(y > 0 for y in curve.y)
    assert all(answer.is_declined for answer in findings.answers.values())
    report = new_report(device.facts, is_quick=True).with_aspect(probe.aspect, findings)
    report.save(tmp_path / "r.json")
    page = write_page(load_report(tmp_path / "r.json"), tmp_path / "plots")
    (picture,) = page.parent.glob(f"{probe.aspect}_*.svg")
    assert all(name in picture.read_text() for name in names)
