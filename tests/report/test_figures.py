"""The data of each figure: plain rows from synthetic records of a real task, and the text for unknown facts."""

from __future__ import annotations

import dataclasses

import pytest

from romou.base.model_bytes import MemoryUse
from romou.base.outcome import Outcome
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.hardware import load_device
from romou.devices.hardware.archprobe_report import Curve
from romou.devices.targets import Target
from romou.runtime.module import CallRow, LayerRow, Summary
from romou.tools.inspection.breakdown import operations_step_by_step
from romou.tools.report.evidence import Evidence, UnknownError
from romou.tools.report.figures import (
    FIGURES,
    convergence,
    device,
    funnel,
    histogram,
    knobs,
    layers,
    memory,
    passes,
    registers,
    roofline,
)
from romou.tools.report.figures.figure import ALL
from romou.tuner.pruning.tasks import pruned_space
from romou.tuner.records import Record

ADRENO = Target("opencl -device=adreno640")


@pytest.fixture(scope="module")
def task() -> TunableTask:
    return task_of(conv(16, (12, 12), 32, (3, 3)))


def record(task: TunableTask, config: dict[str, object], ms: float | None, second: int, **given: object) -> Record:
    outcome = Outcome.TIMEOUT if ms is None else Outcome.OK
    time = f"2026-01-01T00:00:{second:02d}+00:00"
    times = () if ms is None else (ms / 1e3,)
    return Record(
        task_key=task.key,
        task_name=task.name,
        config=config,
        device={},
        outcome=outcome,
        times_s=times,
        time=time,
        **given,
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evidence(task: TunableTask) -> Evidence:
    """Return four trials of one task on a device with known registers: 4 ms by default, 2 ms at best, one failed."""
    space = pruned_space(task, ADRENO)
    configs = [dict(c) for c in (task.default_config(ADRENO), *list(iter(space))[:3])]
    found = [
        record(task, configs[0], 4.0, 0),
        record(task, configs[1], None, 1),
        record(task, configs[2], 2.0, 3, expected_s=3e-3),
    ]
    found += [record(task, configs[3], 3.0, 10), record(task, configs[2], 1.0, 20, is_again=True)]
    curves = [("Gflops", Curve(name="rate", x=(1, 2), y=(3.0, 4.0), x_label="work", y_label="GFLOPS"))]
    operations = {task.key: operations_step_by_step(task.schedule(task.default_config(ADRENO), ADRENO)["main"], ADRENO)}
    spec = dataclasses.replace(load_device("adreno640"), fp32_peak_gflops=800.0, dram_bandwidth_gbps=20.0)
    known = {
        "records": found,
        "spaces": [(task, space)],
        "target": ADRENO,
        "spec": spec,
        "curves": curves,
        "operations": operations,
    }
    use = MemoryUse(weights=1 << 20, inputs=0, tensors=4 << 20, least=3 << 20, workspaces=0)
    plan = MemoryPlan(calls=("conv",), tensors=(), live=(3 << 20,), use=use)
    return Evidence(title="a test", memory=plan, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_is_not_known_is_said(figure: object) -> None:
    with pytest.raises(UnknownError, match=r"give|name the network"):
        figure.rows(Evidence(title="nothing"))  # type: ignore[attr-defined]


def test_layers_before_and_after(evidence: Evidence, task: TunableTask) -> None:
    found, _ = layers.rows(evidence)
    assert [(row["layer"], row["version"], row["ms"]) for row in found] == [
        (task.name, "default schedule", 4.0),
        (task.name, "tuned", 2.0),
    ]


def test_layers_of_a_saved_model_count_calls_and_name_what_was_not_timed() -> None:
    rows = [
        LayerRow(name=n, calls=3, trials=1, flops=1, default_ms=d, tuned_ms=t, config={})
        for n, d, t in (("a", 1.0, 0.5), ("b", None, None))
    ]
    summary = Summary.unmeasured(target="opencl", rows=tuple(rows), seconds=0.0)
    found, remark = layers.rows(Evidence(title="", summary=summary))
    assert [row["ms"] for row in found] == [3.0, 1.5]
    assert remark == "Not timed: b."


def test_two_kernels_of_one_name_are_told_apart(task: TunableTask) -> None:
    other = dataclasses.replace(task, key="f" * 16)
    found = Evidence(title="", records=[record(task, {}, 1.0, 0), record(other, {}, 1.0, 0)])
    assert sorted(found.labels.values()) == sorted([f"{task.name} ({task.key[:4]})", f"{task.name} (ffff)"])


def test_convergence_knows_the_best_so_far_and_leaves_pauses_out(evidence: Evidence, task: TunableTask) -> None:
    own = [row for row in convergence.rows(evidence)[0] if row["layer"] == task.name]
    assert [(row["trial"], row["ms"], row["best_ms"]) for row in own] == [
        (1, 4.0, 4.0),
        (2, None, 4.0),
        (3, 2.0, 2.0),
        (4, 3.0, 2.0),
    ]
    assert [row["seconds"] for row in own] == [0, 1, 3, 10]
    assert [row["expected_ms"] for row in own] == [None, None, 3.0, None]
    assert [row["best_ms"] for row in convergence.rows(evidence)[0] if row["layer"] == ALL] == [4.0, 4.0, 2.0, 2.0]
    late = dataclasses.replace(evidence.records[0], time="2026-01-01T09:00:00+00:00")
    resumed, remark = convergence.rows(Evidence(title="", records=[evidence.records[0], late]))
    assert max(row["seconds"] for row in resumed) == 0.0
    assert "No expectation was recorded" in remark


def test_roofline(evidence: Evidence, task: TunableTask) -> None:
    found, remark = roofline.rows(evidence)
    layer = next(row for row in found if "layer" in row)
    assert layer["gflops"] == pytest.approx(task.flops / 2e-3 / 1e9)
    # Data, packed weight, bias and output, 4 bytes each.
    assert task.moved_bytes == 4 * (16 * 144 + 16 * 32 * 9 + 32 + 32 * 100)
    assert layer["intensity"] == pytest.approx(task.flops / task.moved_bytes)
    for place, rate in (("memory", 20), ("L1 texture cache", 190)):
        slope = [row for row in found if row.get("roof") == f"{place}, {rate} GB/s"]
        assert len(slope) >= 2
        assert all(row["gflops"] == pytest.approx(min(800.0, rate * row["intensity"])) for row in slope)
    of_cpu = [dataclasses.replace(each, device={"name": "AMD EPYC", "is_host_cpu": True}) for each in evidence.records]
    on_cpu, of_other = roofline.rows(dataclasses.replace(evidence, records=of_cpu))
    assert not any("roof" in row for row in on_cpu)
    assert of_other == "The times are those of AMD EPYC, so the roofs of adreno640 are not drawn over them."
    assert remark == "Knees, in operations per byte: memory 40.0, L2 cache 8.3, L1 texture cache 4.2."
    unknown, remark = roofline.rows(dataclasses.replace(evidence, spec=load_device("host")))
    assert all("layer" in row for row in unknown)
    assert remark.startswith("Not known of host: peak, bandwidth, L1 texture bandwidth.")


def test_the_texture_roof_counts_every_load() -> None:
    """The example of the Romou paper, figures 10 and 11: a 1x1 convolution whose work-items compute 4x4 numbers
    has 4 operations for each number that is loaded, and at most 380 GFLOPS in fp16.
    """
    pointwise, spec = task_of(conv(64, (16, 16), 64, (1, 1))).with_free_images(), load_device("adreno640")
    config = dict(pointwise.default_config(ADRENO))
    config |= {"data": "image", "weight": "image", "tile_o": 1, "tile_h": 1, "tile_w": 4, "wg_w": 4, "split_k": 1}
    space = pointwise.space(ADRENO)
    assert space.knows(config)
    best = record(pointwise, config, 1.0, 0)
    found, _ = roofline.rows(
        Evidence(title="", records=[best], spaces=[(pointwise, space)], target=ADRENO, spec=spec)  # type: ignore[list-item]
    )
    memory, texture = (row for row in found if "layer" in row)
    assert (memory["bytes"], texture["bytes"]) == ("memory", "L1 texture cache")
    # 4x4x4 multiply-adds, of 2 operations, for 4x4 + 4x4 numbers of 4 bytes.
    assert texture["intensity"] == pytest.approx(4 / 4, rel=0.02)
    assert 190 * texture["intensity"] * 2 == pytest.approx(380, rel=0.02)
    in_buffers = record(pointwise, config | {"data": "buffer", "weight": "buffer"}, 1.0, 0)
    evidence = Evidence(title="", records=[in_buffers], spaces=[(pointwise, space)], target=ADRENO, spec=spec)  # type: ignore[list-item]
    assert [row["bytes"] for row in roofline.rows(evidence)[0] if "layer" in row] == ["memory"]


def test_funnel_narrows(evidence: Evidence) -> None:
    found = {row["stage"]: row["configs"] for row in funnel.rows(evidence)[0]}
    numbers = list(found.values())
    assert numbers[:-3] == sorted(numbers[:-3], reverse=True)
    assert (found["measured"], found["right and timed"]) == (4, 3)
    report = evidence.spaces[0][1].report
    assert found["kept"] == report.kept
    # If no criterion was relaxed, the configs left by all criteria are the kept ones.
    assert report.relaxed or report.criteria[-1].left == report.kept
    literal = dataclasses.replace(evidence, records=[dataclasses.replace(r, l1="paper") for r in evidence.records])
    assert "l1_cache counts every byte" in funnel.rows(literal)[1]
    assert "l1_cache counts every byte" not in funnel.rows(evidence)[1]


def test_histogram_counts_every_trial_that_worked(evidence: Evidence) -> None:
    found, remark = histogram.rows(evidence)
    assert sum(row["trials"] for row in found) == 3
    assert {row["slower_from"] for row in found} == {1.0, 2.0, 2**0.5}
    assert remark == "1 of 4 trials failed and have no time."


def test_any_two_knobs(evidence: Evidence) -> None:
    found, _ = knobs.rows(evidence)
    assert sorted(row["share"] for row in found) == [0.5, pytest.approx(2 / 3), 1.0]
    offered = knobs.menus(found)
    assert (
        set(offered["knob_x"]) == set(offered["knob_y"]) == {knobs.PREFIX + name for name in evidence.records[0].config}
    )
    assert offered["knob_x"][0] != offered["knob_y"][0]


def test_registers_and_their_limit(evidence: Evidence) -> None:
    found, remark = registers.rows(evidence)
    assert len(found) == 3
    assert all(row["registers"] > 0 and row["limit"] > 0 for row in found)
    assert remark == ""
    _, remark = registers.rows(dataclasses.replace(evidence, spec=load_device("host")))
    assert "registers are not known" in remark


def test_passes_take_operations_away(evidence: Evidence) -> None:
    found, _ = passes.rows(evidence)
    assert [row["passes"] for row in found] == ["none", "+ addresses", "+ broadcast", "+ vectors"]
    assert found[0]["share"] == 1
    assert found[-1]["share"] < 0.5


def test_memory_names_its_peak(evidence: Evidence) -> None:
    assert memory.rows(evidence) == (
        [{"call": 1, "function": "conv", "mib": 3.0}],
        "At most 3.00 MiB are live, in conv. 5.00 MiB of memory on the device: 1.00 weights, 0.00 inputs, 4.00"
        " activations, workspaces and outputs.",
    )


def test_memory_has_the_saved_models_figure_and_layers(evidence: Evidence) -> None:
    use = MemoryUse(weights=7 << 20, inputs=0, tensors=0, least=0, workspaces=0)
    calls = (CallRow(function="conv", layer="conv2d_a", nodes=()),)
    summary = dataclasses.replace(Summary.unmeasured(target="opencl", rows=(), seconds=0.0), memory=use, calls=calls)
    rows, remark = memory.rows(dataclasses.replace(evidence, summary=summary))
    assert [row["function"] for row in rows] == ["conv2d_a"]
    assert "7.00 MiB of memory on the device" in remark


def test_curves_are_thinned(evidence: Evidence) -> None:
    assert device.rows(evidence)[0][0] == {
        "curve": "Gflops: rate",
        "x": 1,
        "y": 3.0,
        "x_label": "work",
        "y_label": "GFLOPS",
    }
    long = Curve(name="long", x=tuple(range(1000)), y=(0.0,) * 1000, x_label="", y_label="")
    assert len(device.rows(Evidence(title="", curves=[("A", long)]))[0]) == 200


def test_curves_have_their_knees_and_the_page_what_is_not_known(evidence: Evidence) -> None:
    marked = Curve(name="chase", x=(1, 4), y=(1.0, 9.0), x_label="", y_label="", marks={"L1": 2, "L9": 8})
    spec = load_device("mali_g71")
    rows, remark = device.rows(dataclasses.replace(evidence, curves=[("Cache", marked)], spec=spec))
    assert [row for row in rows if "knee" in row] == [{"curve": "Cache: chase", "x": 2, "knee": "L1 = 2"}]
    named = remark.removeprefix("Not known of mali_g71: ").removesuffix(".").split(", ")
    assert named
    assert all(getattr(spec, fact) is None for fact in named)
