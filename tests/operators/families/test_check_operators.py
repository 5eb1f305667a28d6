"""check_operators.py --targets compares one config on several backends. Unavailable targets are reported, and
differences fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

import check_operators
import cross_backends
from kernel_references import fast_reference
from romou.compiler.task import TunableTask
from romou.compiler.typical import typical_tasks
from romou.devices.targets import Target
from romou.runtime.workers.calls import resolve
from support.kernels.operators import conv, task_of
from support.suite.exhaustive import exhaustive

WORK = conv(5, (7, 9), 6, (3, 2), padding=(1, 0, 1, 1))


@pytest.fixture(scope="module")
def places() -> Iterator[list[cross_backends.AttachedTarget]]:
    found, absent = cross_backends.places_of(["opencl", "vulkan"])
    assert not absent, absent
    yield found
    for place in found:
        place.close()


@pytest.fixture(scope="module")
def task() -> TunableTask:
    return task_of(WORK, has_epilogue=False).with_free_images()


def test_a_config_gives_the_same_on_both(places: list[cross_backends.AttachedTarget], task: TunableTask) -> None:
    found = list(cross_backends.cross(task, places, 1, 1))
    assert len(found) == 2
    for one in found:
        assert not one.problems
        assert set(one.errors) == {"opencl", "vulkan", "opencl and vulkan"}
        on_opencl, on_vulkan = one.configs
        shared = on_opencl.keys() & on_vulkan.keys()
        assert len(shared) > 10
        assert all(on_opencl[name] == on_vulkan[name] for name in shared)


def test_a_wrong_output_is_found_and_named(
    places: list[cross_backends.AttachedTarget], task: TunableTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = places[1].output

    def wrong(*arguments: object) -> object:
        output = outputs(*arguments)  # type: ignore[arg-type]
        assert isinstance(output, np.ndarray)
        output.flat[3] += 1.0
        return output

    monkeypatch.setattr(places[1], "output", wrong)
    (one,) = cross_backends.cross(task, places, 0, 1)
    assert [problem.partition(":")[0] for problem in one.problems] == ["vulkan", "opencl and vulkan"]


def test_a_target_without_a_device_is_said_and_one_alone_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--targets", "cuda,opencl -device=adreno640", "--only", "dense"]
    result = CliRunner().invoke(check_operators.main, asked)
    assert result.exit_code == 1
    assert "cuda is NOT HERE: no CUDA device" in result.output
    assert "nothing to compare" in result.output


def test_knobs_of_one_backend_alone_take_their_default_on_another(task: TunableTask) -> None:
    opencl, cuda = Target("opencl -device=adreno640"), Target("cuda -device=nvidia_h200")
    rng = np.random.default_rng(0)
    drawn = task.space(opencl).sample(rng, 64)
    carried = [(config, cross_backends.carried(config, task, cuda)) for config in drawn]
    kept = [(config, there) for config, there in carried if not isinstance(there, str)]
    assert kept
    default = task.space(cuda).default()
    for config, there in kept:
        assert set(there) == set(default)
        assert all(there[name] == config.get(name, default[name]) for name in there)


def test_sub_groups_take_the_size_that_they_have_there_and_what_is_left_out_is_counted() -> None:
    targets = (Target("vulkan -device=adreno740"), Target("cuda -device=nvidia_h200"))
    task = next(
        t
        for t in typical_tasks(targets[0], "float32")
        # All configs of an attention's sample fit both.
        if t.family != "attention" and all(len(t.space(one).knobs.get("sub_group", ())) == 2 for one in targets)
    )
    left_out: Counter[str] = Counter()
    found = cross_backends.common_configs(task, targets, 24, np.random.default_rng(0), left_out)
    sizes = {tuple(one.get("sub_group", 1) for one in several) for several in found}
    assert any(a != b and 1 not in (a, b) for a, b in sizes), sizes
    assert left_out
    assert all(reason.startswith(("vulkan ", "cuda ")) for reason in left_out)


def test_one_target_is_compared_with_the_fast_reference() -> None:
    assert resolve(check_operators.TOOLCHAIN.build_reference) is fast_reference


@exhaustive
def test_the_listed_operators_are_there_in_fp16() -> None:
    target = Target("vulkan -device=nvidia_h200")
    single, half = (
        check_operators.tasks_of(target, check_operators.Listed(only="5x528", skip="", dtype=dtype))
        for dtype in ("float32", "float16")
    )
    assert [task.name for task in half] == [task.name for task in single] != []
    assert {str(p.dtype) for task in half for p in task.func.params} == {"float16"}
    assert all("coopmat" in task.space(target).knobs["multiply_add"] for task in half)


@exhaustive
def test_a_choice_of_a_knob_is_drawn_for_all_that_have_it() -> None:
    target = Target("vulkan -device=nvidia_h200")
    tasks = check_operators.tasks_of(target, check_operators.Listed(only="pool", skip="", dtype="float16"))
    tasks += check_operators.tasks_of(target, check_operators.Listed(only="5x528", skip="", dtype="float16"))
    drawn = {task.name: check_operators.configs_of(task, target, 2, 0, ("multiply_add", "coopmat")) for task in tasks}
    assert {len(configs) for configs in drawn.values()} == {0, 2}
    assert all(config["multiply_add"] == "coopmat" for configs in drawn.values() for config in configs)


def test_a_choice_that_nothing_has_is_an_error() -> None:
    result = CliRunner().invoke(
        check_operators.main, ["--target", "opencl -device=host", "--only", "5x528", "--where", "multiply_add=coopmat"]
    )
    assert result.exit_code == 1
    assert "no listed operator has a config like that" in result.output
