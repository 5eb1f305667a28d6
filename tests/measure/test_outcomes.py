"""Every outcome of a candidate, with real kernels on the OpenCL device. The next candidate is fine after each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tvm

from romou.base.errors import DeviceError, UsageError
from romou.compiler.assembly.kernel import build_task
from romou.devices.targets import Target
from romou.tuner.measure import (
    BuildResult,
    Candidate,
    ChildBugError,
    LocalBuilder,
    LocalRunner,
    MeasureOptions,
    MeasureResult,
    Toolchain,
)
from romou.tuner.measure.runner import run_spec
from support.devices import faulty_kernels

TARGET = Target("opencl")
TOOLCHAIN = Toolchain(build="support.devices.faulty_kernels:build")
OPTIONS = MeasureOptions(build_workers=1, build_timeout_s=10, run_timeout_s=30, min_repeat_ms=1)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    with contextlib.closing(LocalBuilder(TARGET, OPTIONS, toolchain=TOOLCHAIN)) as made:
        yield made


@pytest.fixture(scope="module")
def runner(opencl_device: tvm.runtime.Device) -> Iterator[LocalRunner]:
    with contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN)) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(opencl_device: tvm.runtime.Device) -> Iterator[LocalRunner]:
    """Return a runner for hanging candidates, which take a whole core."""
    with contextlib.closing(
        LocalRunner("opencl:0", dataclasses.replace(OPTIONS, run_timeout_s=3), toolchain=TOOLCHAIN)
    ) as made:
        yield made


def measure(builder: LocalBuilder, runner: LocalRunner, fault: str) -> BuildResult | MeasureResult:
    (built,) = builder.build(
        [
            Candidate(
                task=faulty_kernels.task(),
                config=faulty_kernels.config(fault),
                trial=faulty_kernels.FAULTS.index(fault),
            )
        ]
    )
    if built.outcome != "ok":
        return built
    (result,) = runner.run([built])
    return result


@pytest.mark.parametrize(
    ("fault", "outcome", "text"),
    [
        ("invalid", "invalid", "this config has no schedule"),
        ("build_crash", "build_error", "killed by SIGABRT"),
        ("build_hang", "build_error", "longer than build_timeout_s = 10 s"),
        ("no_build", "build_error", "MemoryError"),
        ("bad_source", "run_error", "no_such_function"),
        ("crash", "run_error", "killed by SIGABRT"),
        ("wrong", "wrong_result", "relative L2 error"),
        ("unwritten", "wrong_result", "4 of 100 elements are NaN"),
        ("adds_up", "wrong_result", "right in the first run, wrong after"),
    ],
)
def test_each_fault_ends_as_itself(
    builder: LocalBuilder, runner: LocalRunner, fault: str, outcome: str, text: str
) -> None:
    result = measure(builder, runner, fault)
    assert result.outcome == outcome
    assert text in (result.error or "")
    assert not getattr(result, "times_s", ())
    after = measure(builder, runner, "none")
    assert after.outcome == "ok", after.error


def test_a_hang_ends_at_the_limit(builder: LocalBuilder, runner: LocalRunner, impatient: LocalRunner) -> None:
    result = measure(builder, impatient, "hang")
    assert result.outcome == "timeout"
    assert "run_timeout_s = 3 s" in (result.error or "")
    assert not getattr(result, "times_s", ())
    assert measure(builder, runner, "none").outcome == "ok"


def test_a_candidate_with_tf32_is_held_to_what_tf32_allows(builder: LocalBuilder, runner: LocalRunner) -> None:
    def outcome(trial: int, fault: str, **knobs: str) -> str:
        chosen = faulty_kernels.config(fault).replace(**knobs)
        (built,) = builder.build([Candidate(task=faulty_kernels.task(), config=chosen, trial=trial)])
        (result,) = runner.run([built])
        return result.outcome

    assert outcome(200, "rounded") == "wrong_result"
    assert outcome(201, "rounded", multiply_add="tf32") == "ok"
    assert outcome(202, "off", multiply_add="tf32") == "wrong_result"


def test_a_right_candidate_is_timed(builder: LocalBuilder, runner: LocalRunner) -> None:
    result = measure(builder, runner, "none")
    assert isinstance(result, MeasureResult)
    assert result.outcome == "ok"
    assert len(result.times_s) == OPTIONS.repeat
    assert all(0 < t < 1 for t in result.times_s)
    assert result.relative_l2_error is not None
    assert result.relative_l2_error < 1e-6


def test_a_slow_candidate_is_timed_once(builder: LocalBuilder, runner: LocalRunner) -> None:
    (built,) = builder.build([Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=100)])
    (result,) = runner.run([built], best_s=1e-12)
    assert len(result.times_s) == 1


def test_several_processes_share_the_device(builder: LocalBuilder, opencl_device: tvm.runtime.Device) -> None:
    """The driver compiles in each process. A process that dies costs only its own candidate."""
    faults = ["none", "crash", "bad_source", "wrong", "none", "none"]
    built = builder.build(
        [
            Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(fault), trial=200 + i)
            for i, fault in enumerate(faults)
        ]
    )
    with (
        contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN, processes=2)) as several,
        ThreadPoolExecutor(3) as pool,
    ):
        results = list(pool.map(lambda one: next(iter(several.run([one]))), built))
    assert [r.outcome for r in results] == ["ok", "run_error", "run_error", "wrong_result", "ok", "ok"]
    assert all(r.run_s > 0 for r in results)


def test_a_bug_of_ours_stops_the_run(builder: LocalBuilder, runner: LocalRunner) -> None:
    with pytest.raises(ChildBugError, match="a bug of ours"):
        measure(builder, runner, "build_bug")
    assert measure(builder, runner, "none").outcome == "ok"


def test_time_limits_cut_off_without_a_result(builder: LocalBuilder, runner: LocalRunner) -> None:
    candidate = Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=101)
    assert builder.build([candidate], stop_at=0.0) == []
    (built,) = builder.build([candidate])
    with contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN)) as fresh:
        assert list(fresh.run([built], stop_at=0.0)) == []
        assert fresh._references._child.starts == 0, (
            "a search that is over starts no process for what is left of its batch"
        )


def test_references_are_computed_ahead(
    builder: LocalBuilder, opencl_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    (built,) = builder.build([Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=102)])
    with contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN, folder=tmp_path)) as ahead:
        ahead.expect([faulty_kernels.task(), faulty_kernels.task()])
        references = ahead._references
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        (result,) = ahead.run([built])
        assert result.outcome == "ok"
        assert references._child.starts == 0, "the one that was begun is waited for"


def test_a_runner_that_is_closed_leaves_no_reference_under_way(tmp_path: Path) -> None:
    runner = LocalRunner(
        "opencl:0",
        OPTIONS,
        toolchain=dataclasses.replace(TOOLCHAIN, build_reference="support.devices.faulty_kernels:endless_reference"),
        folder=tmp_path,
    )
    runner.expect([faulty_kernels.task()])
    child = runner._references._others[0]
    while child.starts == 0:
        time.sleep(0.01)
    start = time.monotonic()
    # The runner may have started, or be starting.
    runner.close()
    assert time.monotonic() - start < 5
    assert all(begun.done() for begun in runner._references._ahead.values())


def test_winners_of_many_kernels_share_their_pause(builder: LocalBuilder) -> None:
    (built,) = builder.build(
        [Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=103, is_winner=True)]
    )
    many = dataclasses.replace(built, candidate=dataclasses.replace(built.candidate, winners=100))
    assert run_spec(built, "", "opencl:0", 1.0, OPTIONS).trust_pause_s == 0.2
    assert run_spec(many, "", "opencl:0", 1.0, OPTIONS).trust_pause_s == pytest.approx(0.05)


def test_fingerprint_names_the_device(runner: LocalRunner, opencl_device: tvm.runtime.Device) -> None:
    found = runner.fingerprint()
    assert (found.kind, found.name) == ("opencl", opencl_device.device_name)
    assert found.driver


def test_no_such_device() -> None:
    with (
        contextlib.closing(LocalRunner("opencl:99")) as runner,
        pytest.raises(DeviceError, match="no OpenCL device 99"),
    ):
        runner.fingerprint()


def test_no_file_is_left(tmp_path: Path) -> None:
    with contextlib.closing(LocalBuilder(TARGET, OPTIONS, toolchain=TOOLCHAIN, folder=tmp_path)) as builder:
        candidates = [
            Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(fault), trial=i)
            for i, fault in enumerate(("invalid", "no_build"))
        ]
        assert [b.outcome for b in builder.build(candidates)] == ["invalid", "build_error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("repeat", 0), ("run_timeout_s", -1), ("build_workers", 1.5), ("skip_ratio", float("nan"))]
)
def test_options_are_checked(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        MeasureOptions(**{name: value})
    with pytest.raises(UsageError, match="repeet"):
        MeasureOptions.from_dict({"repeet": 3})


def test_kernels_are_compiled_ahead_for_a_device(opencl_device: tvm.runtime.Device, runner: LocalRunner) -> None:
    """The driver's compiler runs in the worker. Kernels that it rejects are still found and recorded at the run."""
    with contextlib.closing(LocalBuilder(TARGET, OPTIONS, toolchain=TOOLCHAIN, compile_for="opencl:0")) as builder:
        assert measure(builder, runner, "none").outcome == "ok"
        assert measure(builder, runner, "bad_source").outcome == "run_error"


def test_all_kernels_of_a_module_are_compiled(opencl_device: tvm.runtime.Device) -> None:
    task = faulty_kernels.task()
    module = build_task(task, task.default_config(TARGET), TARGET)
    live = json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_kernels"]
    tvm.get_global_func("romou.opencl.compile")(module, 0)
    assert json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_kernels"] == live + 1
