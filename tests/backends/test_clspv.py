"""OpenCL C through clspv, which phones without an OpenCL driver compile with: kernels pass, and networks are right."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import check_clspv
import check_kernels
import clspv_kernels as clspv
from graph_cases import reference
from random_graphs import case
from romou.base.errors import BrokenFunctionsError
from romou.base.space import Config
from romou.compiler.frontend.precision import TOLERANCE
from romou.compiler.task import TunableTask
from romou.compiler.typical import typical_tasks
from romou.devices.targets import Target
from romou.driver.options import PrecisionName
from romou.tools.inspection.kernels import inspect_function
from support.models.small_networks import attention_net, residual_net

pytestmark = pytest.mark.skipif(not clspv.is_installed(), reason=f"NOT TESTED: {clspv.NOT_INSTALLED}")

TYPES = """
__kernel void f(__global half* a, __read_only image2d_array_t b, float scale, __global float4* c, int n) {
  const sampler_t sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  int i = get_global_id(0);
  if (i < n) c[i] = scale * vload_half4(i, a) + read_imagef(b, sampler, (int4)(i - 1, 0, 0, 0));
}
"""


def test_a_refused_kernel_gives_the_compilers_words() -> None:
    assert "unknown type name 'flot'" in str(clspv.fault_of("__kernel void f(__global flot* a) { a[0] = 1; }"))
    with pytest.raises(clspv.ClspvError, match="End of input"):
        clspv.validate(clspv.compile_spirv(TYPES)[:-8])


def test_reflection_says_where_arguments_lie() -> None:
    spirv = clspv.compile_spirv(TYPES, clspv.RUN_OPTIONS)
    found = clspv.arguments_of(spirv)
    # A literal sampler takes the first set.
    assert found == clspv.Arguments({"a": (1, 0), "b": (1, 1), "c": (1, 2)}, {"scale": 0, "n": 4})
    bound = clspv.for_runtime(spirv, ["a", "b", "c"])
    clspv.validate(bound)
    assert clspv.arguments_of(bound) == clspv.Arguments()
    assert clspv.for_runtime(spirv, ["c", "b", "a"]) != bound


DRAW = functools.cache(check_kernels.drawer)


def faults_of(number: int) -> list[str | None]:
    """Return the fault of each kernel of a drawn config."""
    drawn = DRAW(0, "", None)(number)
    return faults_of_config(drawn.task, drawn.config, drawn.target, drawn.without)


def faults_of_config(
    task: TunableTask, config: Config, target: Target, without: Collection[str] = ()
) -> list[str | None]:
    kernels = inspect_function(task.schedule(config, target)["main"], target, config=config, without=without)
    assert kernels
    return [clspv.fault_of(kernel.source) for kernel in kernels]


def first_number(name: str) -> int:
    """Return the first number of a task in fp32."""
    draw = DRAW(0, "", None)
    drawn = ((number, draw(number)) for number in itertools.count())
    return next(number for number, each in drawn if (each.task.name, each.dtype) == (name, "float32"))


@pytest.mark.parametrize("number", range(1, 480, 67))
def test_drawn_configs_pass(number: int) -> None:
    """Of many operator families: default and random configs, fp32 and fp16, buffers and images."""
    assert set(faults_of(number)) == {None}


@pytest.mark.parametrize("name", ["batch_matmul_2x13x31_10", "batch_matmul_1x1x37_31_t"])
def test_vectors_at_a_pointer_that_a_loop_moves_pass(name: str) -> None:
    """See `romou/devices/backends/opencl/functions.py`."""
    assert set(faults_of(first_number(name))) == {None}


@pytest.mark.parametrize(
    ("name", "device", "knobs", "without", "fault"),
    [
        # LLVM joins two branches that load from one buffer, and one of them leaves the pointer undefined ("phi ptr
        # addrspace(1) [..., poison]"). clspv has no type for that.
        (
            "group_conv2d_1x12x6x5_9_3x2_s1_g3",
            "adreno640",
            {"pixels": "flat", "tile_w": 1, "wg_o": 4, "wg_w": 16, "multiply_add": "mad"},
            (),
            "clspv crashed",
        ),
        # clspv gives a loop inside a loop with barriers a merge block outside of it.
        (
            "conv3d_1x8x5x9x7_12_3x3x3_s1",
            "host",
            {
                "tile_o": 2,
                "tile_h": 2,
                "tile_w": 2,
                "wg_o": 1,
                "wg_w": 4,
                "pixels": "rows",
                "arrangement": "striped",
                "local": 2,
                "multiply_add": "plain",
            },
            ("share_loads",),
            "Header block .* is contained in the loop construct .* but its merge block .* is not",
        ),
    ],
)
def test_clspvs_own_faults(name: str, device: str, knobs: dict[str, Any], without: tuple[str, ...], fault: str) -> None:
    """Valid OpenCL C that clspv crashes on or makes invalid SPIR-V of. A newer clspv may delete these."""
    target = Target(f"opencl -device={device}")
    task = next(each for each in typical_tasks(target) if each.name == name)
    first = {knob: choices[0] for knob, choices in task.space(target).knobs.items()}
    config = Config({**first, "vector_width": task.space(target).knobs["vector_width"][-1], **knobs})
    (said,) = faults_of_config(task, config, target, without)
    assert re.search(fault, str(said))


@pytest.mark.parametrize("device", ["adreno640", "mali_g76"])
@pytest.mark.parametrize(("model", "precision"), [(residual_net(), "float32"), (attention_net(), "float16")])
def test_a_network_of_clspvs_kernels_is_right(
    model: onnx.ModelProto, precision: PrecisionName, device: str, vulkan_device: object
) -> None:
    compilation, kernels = clspv.opencl_kernels(model, device, precision)
    error = clspv.run_error(model, clspv.vulkan_model(compilation, kernels))
    assert error <= (1e-5 if precision == "float32" else TOLERANCE)


@pytest.mark.parametrize("number", range(4))
def test_random_graphs_are_right(number: int, vulkan_device: object) -> None:
    """A graph in each way. `check_clspv.py --graphs` runs more."""
    device, precision = list(itertools.product(check_clspv.DEVICES, check_clspv.LIMITS))[number]
    graph = case(20261130, number, special=precision == "float32", dtypes=("float32",))
    assert check_clspv.outcome_of(graph, device, precision) == ("right", "")


def test_only_wrong_numbers_of_graphs_are_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = case(20261130, 0, special=False, dtypes=("float32",))
    values = [reference(graph)[name] for name in graph.outputs]
    monkeypatch.setattr(check_clspv, "case", lambda *_, **__: graph)
    monkeypatch.setattr(clspv, "opencl_kernels", lambda *_: (None, [SimpleNamespace(source="")]))
    monkeypatch.setattr(clspv, "fault_of", lambda source: None)
    monkeypatch.setattr(clspv, "vulkan_model", lambda *_: SimpleNamespace(run=lambda inputs: values))
    assert check_clspv.check_graphs(1, seed=0) == 0
    assert "1 graphs of seed 0: 4 right" in capsys.readouterr().out
    monkeypatch.setattr(check_clspv, "DEVICES", ("mali_g76",))
    values[0] = values[0] + 1
    assert check_clspv.check_graphs(1, seed=0) == 2
    assert "1 graphs of seed 0: 2 wrong" in capsys.readouterr().out
    monkeypatch.setattr(clspv, "fault_of", lambda source: clspv.CRASH)
    assert check_clspv.check_graphs(1, seed=0) == 0
    assert "1 graphs of seed 0: 2 clspv crashed" in capsys.readouterr().out


def test_a_kernel_for_another_launch_is_refused(vulkan_device: object) -> None:
    """Launched with fewer groups it would leave a part of its output unwritten: 0.56 of ResNet-18's once."""
    compilation, _ = clspv.opencl_kernels(residual_net(), "mali_g76", "float32")
    _, larger = clspv.opencl_kernels(residual_net(size=27), "mali_g76", "float32")
    with pytest.raises(BrokenFunctionsError, match="another launch"):
        clspv.vulkan_model(compilation, larger)
