"""Kernels of models executed as Adreno's machine code: equal to the unscheduled functions, and faults are found."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import romou
from romou.api import inspect as api
from romou.base.errors import BuildError, UsageError
from romou.cli import main
from romou.compiler.compilation import Compilation, import_model
from romou.devices.mobile_compilers import (
    KernelStatistics,
    MobileCompilersMissingError,
    compiler_for,
    find_compilers,
    mobile_gpu,
)
from romou.devices.targets import Target
from romou.tools.inspection.execute import ExecutedFunction, execute_function, parameter_kinds
from romou.tools.inspection.kernels import inspect_function
from support.models.small_networks import NetworkBuilder, residual_net, short_net

Answers = list[list[KernelStatistics] | BuildError]


@pytest.fixture
def change(
    compile_once: Callable[[Sequence[str], str], Answers], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[str], str]], None]:
    """Return a function that sets how machine code is changed before it is executed. Without it, code stays."""

    def use(changed: Callable[[str], str] = str) -> None:
        def compile_changed(sources: Sequence[str], gpu: str) -> Answers:
            return [_changed(answer, changed) for answer in compile_once(sources, gpu)]

        monkeypatch.setattr(api, "compile_all", compile_changed)

    use()
    return use


def _changed(
    answer: list[KernelStatistics] | BuildError, changed: Callable[[str], str]
) -> list[KernelStatistics] | BuildError:
    if isinstance(answer, BuildError):
        return answer
    return [dataclasses.replace(kernel, machine_code=changed(kernel.machine_code)) for kernel in answer]


SHORT = "opencl -device=adreno640"


def problems(executed: Sequence[ExecutedFunction]) -> dict[str, str]:
    return {function.name: function.problem for function in executed if function.problem is not None}


@pytest.mark.usefixtures("change")
@pytest.mark.parametrize("gpu", ["a740", "a830"])
def test_default_kernels_are_equal(gpu: str) -> None:
    """Images, buffers, local memory, sums in fp16, aliases of a7xx: every element is written and right."""
    try:
        find_compilers(mesa=mobile_gpu(gpu).mesa)
    except MobileCompilersMissingError as error:
        pytest.skip(f"NOT TESTED, {str(error).splitlines()[0]}")
    executed = romou.simulate(residual_net(), target=f"opencl -device=adreno{gpu[1:]}", precision="float16")
    assert problems(executed) == {}
    assert len(executed) >= 5
    for function in executed:
        assert function.gpu == gpu
        assert function.comparison is not None
        assert [kernel.groups for kernel in function.kernels] == [kernel.all_groups for kernel in function.kernels]
        assert all(kernel.counts.instructions > 0 for kernel in function.kernels)


def test_planted_faults_are_found(change: Callable[[Callable[[str], str]], None]) -> None:
    """A wrong register, a dropped instruction and a changed constant in the first convolution of a model."""
    executed = romou.simulate(short_net(), target=SHORT)
    assert problems(executed) == {}
    first = next(f.name for f in executed if "relu" in f.name)

    def drop_last_store(code: str) -> str:
        at = code.rindex("stib.")
        return code[:at] + code[code.index("\n", at) + 1 :]

    faults: dict[str, Callable[[str], str]] = {
        "wrong register": lambda code: _once(code, r"(\bmad\.f32 r\d+)\.[xyzw]", r"\1.x", skip=".x,"),
        "dropped instruction": drop_last_store,
        "changed constant": lambda code: code.replace(", (0.0)", ", (1.0)"),
    }
    for name, fault in faults.items():
        change(fault)
        (function,) = romou.simulate(short_net(), target=SHORT, kernel=first)
        assert function.problem is not None, name


def _once(code: str, pattern: str, replacement: str, skip: str) -> str:
    match = next(m for m in re.finditer(pattern, code) if not code[m.start() : m.end() + 1].endswith(skip))
    return code[: match.start()] + re.sub(pattern, replacement, match[0]) + code[match.end() :]


@pytest.mark.usefixtures("change")
def test_some_work_groups_are_compared_if_not_all_run() -> None:
    whole = romou.simulate(short_net(), target=SHORT)[-1]
    part = romou.simulate(short_net(), target=SHORT, work_items=1, kernel=whole.name)[0]
    assert part.problem is None
    assert part.kernels[-1].groups == 1
    assert part.compared <= whole.compared
    assert math.isclose(part.kernels[-1].counts.lanes, whole.kernels[-1].counts.lanes, rel_tol=1)


def test_an_unknown_instruction_is_the_reason(change: Callable[[Callable[[str], str]], None]) -> None:
    change(lambda code: code.replace("add.u ", "bfrev.b "))
    (function, *_) = romou.simulate(short_net(), target=SHORT)
    assert "does not know bfrev.b" in str(function.problem)
    assert function.comparison is None


def test_only_adreno_is_executed() -> None:
    with pytest.raises(UsageError, match="executes Adreno's machine code only, not that of Mali-G76"):
        romou.simulate(short_net(), target=SHORT, gpu="g76")


def test_the_command_prints_a_line_for_each_kernel(
    change: Callable[[Callable[[str], str]], None], tmp_path: Path
) -> None:
    import onnx

    onnx.save(short_net(), tmp_path / "net.onnx")
    arguments = ["inspect", str(tmp_path / "net.onnx"), "--device", "adreno640", "--execute"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    kernels = [line for line in lines if line.startswith("a630 ") and ": equal" in line]
    assert any(" wave instructions on " in line and " KiB from l1, " in line for line in kernels)
    assert all(" KiB from memory, " in line for line in kernels)
    assert any(re.search(r"^(\d+) of \1 functions have equal outputs: \d+ kernels in \d+ s\.$", line) for line in lines)
    assert "not the vendors'" in done.output
    data = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert data["executed"][0]["kernels"][0]["counts"]["waves"] > 0
    change(lambda code: code.replace("add.u ", "bfrev.b "))
    assert "does not know bfrev.b" in CliRunner().invoke(main, arguments).output


def test_kinds_of_parameters() -> None:
    source = (
        "__kernel void f(__write_only image2d_array_t a, __read_only image2d_t b, __global float4* restrict c, int n) {"
    )
    assert parameter_kinds(source) == ["image", "texture", "buffer", "scalar"]


@pytest.mark.parametrize("device", ["adreno640", "adreno740"])
def test_neighbouring_lanes_of_a_vector_times_a_matrix_read_neighbouring_texels(
    compile_once: Callable[[Sequence[str], str], Answers], device: str
) -> None:
    """A wave touches no more than half of the lines that it would if work-items had neighbouring columns."""
    target, gpu = Target(f"opencl -device={device}"), compiler_for(device)
    network = NetworkBuilder({"x": (1, 1024)})
    weight = np.random.default_rng(5).standard_normal((1024, 1000), np.float32)
    model = network.model(network.add("MatMul", "x", network.constant(weight)))
    lowered = Compilation.of(import_model(model, None), target).lowered()
    (task,) = lowered.tasks
    default = task.default_config(target)
    assert (default["weight"], default["arrangement"]) == ("image", "striped")
    lines = {}
    for config in (default, default.replace(arrangement="blocked")):
        (function,) = lowered.with_configs({task.key: config}).scheduled_functions()
        kernels = inspect_function(function.func, target, name=function.name, config=config)
        sources = [kernel.source for kernel in kernels]
        compiled = dict(zip(sources, compile_once(sources, gpu), strict=True))
        executed = execute_function(function, kernels, compiled, gpu, spec=target.spec, most_items=2048)
        assert executed.problem is None
        lines[config["arrangement"]] = executed.kernels[-1].counts.lines["image"]
    assert 2 * lines["striped"] <= lines["blocked"], lines
