"""A model's memory plan equals the runtime's allocations."""

from __future__ import annotations

import gc
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tvm
from click.testing import CliRunner

import romou
from romou.base.errors import ModelError, UsageError
from romou.base.inputs import random_inputs
from romou.base.model_bytes import MemoryUse
from romou.base.schema import made_of
from romou.base.space import Config
from romou.cli import main
from romou.compiler import pipeline
from romou.compiler.assembly.assemble import schedule_model
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.graph.memory.memory import MemoryPlan, plan_memory
from romou.devices.targets import Target
from romou.runtime.module import Summary
from romou.runtime.module.library import executable_of
from support.models.small_networks import NetworkBuilder, products_net, residual_net

HOST = "opencl -device=host"
IN_IMAGES = "opencl -device=adreno640"


def live_bytes() -> int:
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    return held_bytes()


def held_bytes() -> int:
    return int(json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_bytes"])


MODELS = {
    "buffers": (HOST, residual_net(channels=10, size=23)),
    "images": (IN_IMAGES, residual_net(channels=10, size=23)),
    "images of rows": (IN_IMAGES, products_net()),
}


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, opencl_device: tvm.runtime.Device) -> tuple[romou.TunedModel, MemoryPlan]:
    target, model = MODELS[request.param]
    return romou.compile(model, target=target, verify=False), romou.memory_plan(model, target=target)


def test_what_is_planned_is_what_the_runtime_allocates(made: tuple[romou.TunedModel, MemoryPlan]) -> None:
    model, plan = made
    model.capture = False
    model.release()
    before = live_bytes()
    for _ in range(3):
        model.run(random_inputs(model.inputs, seed=1))
    assert held_bytes() - before == plan.use.total
    assert model.summary().memory == plan.use


def test_a_captured_run_holds_no_second_set_of_tensors(made: tuple[romou.TunedModel, MemoryPlan]) -> None:
    """The tensors of the plain runs used for comparison are released. Outputs exist three times: of the plain run, of
    the captured one, and in the pool.
    """
    model, plan = made
    model.release()
    model.capture = True
    before = live_bytes()
    for _ in range(3):
        model.run(random_inputs(model.inputs, seed=1))
    assert "command buffer" in model.launching
    assert held_bytes() - before <= plan.use.total + 4096
    model.release()


def test_lifetimes_and_the_lower_bound(made: tuple[romou.TunedModel, MemoryPlan]) -> None:
    model, plan = made
    assert plan.live == tuple(
        sum(t.bytes for t in plan.tensors if t.first <= place <= t.last) for place in range(len(plan.calls))
    )
    assert 0 < plan.use.least == max(plan.live) <= plan.use.tensors
    assert any(tensor.scope != "global" for tensor in plan.tensors) == ("adreno640" in str(model.target))
    (output,) = (tensor for tensor in plan.tensors if tensor.last == len(plan.calls))
    assert not output.is_workspace
    assert made_of(MemoryUse, plan.to_dict()["use"]) == plan.use


def test_a_tensor_is_live_while_it_is_still_to_be_read() -> None:
    """The last convolution's kernel reads the first one's output, so three tensors of 8 x 4 x 4 floats are live at the
    same time, otherwise two.
    """
    g = NetworkBuilder({"x": (1, 8, 4, 4)})
    first = g.add("Relu", g.conv("x", 8, 8, pads=[1, 1, 1, 1]))
    second = g.add("Relu", g.conv(first, 8, 8, pads=[1, 1, 1, 1]))
    plan = romou.memory_plan(g.model(g.add("Add", g.conv(second, 8, 8, pads=[1, 1, 1, 1]), first)), target=HOST)
    assert [live // (4 * 8 * 4 * 4) for live in plan.live] == [1, 2, 2, 3, 2]


def test_what_runs_on_the_host_is_a_call() -> None:
    """A tensor that the host reads is live until then, and the nodes of all calls are named."""
    g = NetworkBuilder({"x": (4, 8, 8)})
    plan = romou.memory_plan(g.model(g.add("Exp", g.add("Det", g.add("Relu", "x")))), target=HOST)
    assert plan.calls == ("relu", "romou.host_nodes", "tir_exp")
    assert [(t.function, t.first, t.last) for t in plan.tensors] == [("relu", 0, 1), ("tir_exp", 2, 3)]
    assert [nodes[0].partition(" ")[0] for nodes in plan.nodes] == ["Relu", "Det", "Exp"]


def test_a_model_that_takes_too_much_is_refused_before_it_is_tuned() -> None:
    with pytest.raises(
        ModelError, match=r"takes \d+ bytes of the device's memory, max_memory allows 1000: \d+ bytes of weights"
    ):
        romou.tune(residual_net(channels=10, size=23), target=HOST, max_memory=1000)
    with pytest.raises(ModelError, match="max_memory allows 1000"):
        romou.compile(residual_net(channels=10, size=23), target=HOST, verify=False, max_memory=1000)
    with pytest.raises(UsageError, match="max_memory=-1: must be a whole number, at least 1"):
        romou.compile(residual_net(channels=10, size=23), target=HOST, max_memory=-1)


def default_of(compilation: Compilation, key: str, target: Target) -> Config:
    return next(task for task in compilation.tasks if task.key == key).default_config(target)


def test_configs_with_workspaces_give_way_to_the_budget() -> None:
    target = Target(HOST)
    lowered = Compilation.of(import_model(residual_net(channels=10, size=23), None), target).with_default_kernels()
    starts = {
        task.key: next((c for c in task.starts(target) if c.get("algorithm") == "winograd2"), None)
        for task in lowered.tasks
    }
    configs: dict[str, Config | None] = {key: config for key, config in starts.items() if config is not None}
    assert configs
    with_workspaces = lowered.with_configs(configs)
    large, least = with_workspaces.memory_plan().use.total, lowered.memory_plan().use.total
    assert least < large
    assert with_workspaces.within(large) is with_workspaces
    some = with_workspaces.within(large - 1).configs
    assert some != configs
    assert all(config in (configs[key], default_of(lowered, key, target)) for key, config in some.items())
    fewest = with_workspaces.within(least)
    assert fewest.memory_plan().use.total <= least
    assert all(config == default_of(lowered, key, target) for key, config in fewest.configs.items())
    with pytest.raises(ModelError, match="precision='float16' halves most of it|max_memory allows"):
        with_workspaces.within(least - 1)


def test_default_algorithms_with_workspaces_give_way_too() -> None:
    """On a phone's target the default of a wide 3x3 convolution is Winograd's, with weights of four times the size."""
    g = NetworkBuilder({"x": (1, 128, 28, 28)})
    model = g.model(g.conv("x", 128, 128, pads=[1, 1, 1, 1]))
    large = romou.memory_plan(model, target=IN_IMAGES).use
    assert large.workspaces > 0
    small = romou.compile(model, target=IN_IMAGES, verify=False, max_memory=large.total - 1).summary().memory
    assert small is not None
    assert small.workspaces == 0
    assert small.weights < large.weights


def test_the_command_shows_it() -> None:
    asked = CliRunner().invoke(main, ["inspect", "bundled:squeezenet1_0", "--memory", "--target", HOST])
    assert asked.exit_code == 0, asked.output
    assert re.search(r"weights\s.*\d\d\.\d", asked.output), asked.output
    assert re.search(r"written by", asked.output)


def test_images_of_one_width_and_height_share_whatever_their_layers() -> None:
    """Three images of 40, 24 and 8 layers hold seven tensors one after another. The plan equals the runtime's
    allocations, and outputs are right, captured too.
    """
    g = NetworkBuilder({"x": (2, 16, 9, 7)})
    tensor, channels = "x", 16
    for many in (80, 16, 48, 32, 80, 16):
        window = {"kernel": (3, 3), "pads": [1, 1, 1, 1]} if many == 48 else {"kernel": (1, 1)}
        tensor, channels = g.add("Relu", g.conv(tensor, channels, many, **window)), many
    # Pooling leaves images of another width and height.
    network = g.model(g.add("AveragePool", tensor, kernel_shape=[3, 3], strides=[2, 2]))
    model, plan = romou.compile(network, target=IN_IMAGES), romou.memory_plan(network, target=IN_IMAGES)
    images = [tensor for tensor in plan.tensors if tensor.scope != "global"]
    layers = sorted({tensor.shape[0] * tensor.shape[1] for tensor in images if tensor.shape[2:4] == (9, 7)})
    assert len(layers) >= 4
    assert plan.use.tensors < 1.6 * plan.use.least < 0.7 * sum(tensor.bytes for tensor in images)
    model.release()
    before = live_bytes()
    inputs = random_inputs(model.inputs, seed=5)
    model.capture = False
    runs = [model.run(inputs)[0] for _ in range(3)]
    assert held_bytes() - before == plan.use.total
    model.release()
    model.capture = True
    runs += [model.run(inputs)[0] for _ in range(3)]
    assert len({run.tobytes() for run in runs}) == 1


def test_workspaces_are_live_for_one_call() -> None:
    """Three convolutions by Winograd's algorithm share two workspaces, and the plan equals the
    runtime's allocations.
    """
    g = NetworkBuilder({"x": (1, 64, 56, 56)})
    tensor = "x"
    for _ in range(3):
        tensor = g.add("Relu", g.conv(tensor, 64, 64, pads=[1, 1, 1, 1]))
    network = g.model(tensor)
    model, plan = romou.compile(network, target=IN_IMAGES, verify=False), romou.memory_plan(network, target=IN_IMAGES)
    workspaces = [tensor for tensor in plan.tensors if tensor.is_workspace]
    assert len(workspaces) == 6
    images = {tensor.bytes for tensor in plan.tensors if tensor.scope != "global"}
    # The packed input, two alternating images, and the outputs of two runs.
    assert plan.use.tensors == plan.use.workspaces + 5 * max(images)
    model.capture = False
    before = live_bytes()
    for _ in range(2):
        model.run(random_inputs(model.inputs, seed=1))
    assert held_bytes() - before == plan.use.total


def test_a_loaded_model_holds_its_weights_once(made: tuple[romou.TunedModel, MemoryPlan], tmp_path: Path) -> None:
    """The host's copy is released when the device has the weights. After a release of the device, or a rewrite of the
    folder, they are read from the file again.
    """
    model, _ = made
    loaded = romou.load(model.save(tmp_path / "first"))

    def constants() -> int:
        return int(re.findall(r"Constant pool \(# (\d+)\)", str(executable_of(loaded._executable)["stats"]()))[0])

    inputs = random_inputs(loaded.inputs, seed=2)
    assert constants() > 10
    right = loaded.run(inputs)[0].tobytes()
    assert constants() == 0
    assert romou.load(loaded.save(tmp_path / "second")).run(inputs)[0].tobytes() == right
    loaded.release()
    assert loaded.run(inputs)[0].tobytes() == right
    shutil.rmtree(tmp_path / "first")
    assert loaded.run(inputs)[0].tobytes() == right
    with pytest.raises(ModelError, match="is gone: the model that was loaded from it cannot be written again"):
        loaded.save(tmp_path / "third")


def test_an_older_summary_has_no_memory() -> None:
    data: dict[str, Any] = Summary.unmeasured(target=str(Target(HOST)), rows=(), seconds=0.0).to_dict()
    del data["memory"]
    assert Summary.from_dict(data).memory is None


def test_storage_is_shared_no_worse_than_by_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small tensor does not take the storage that the next large one needs."""
    g = NetworkBuilder({"x": (1, 8, 12, 12)})
    small = g.add("Relu", g.conv("x", 8, 4))
    large = g.add("Relu", g.conv(small, 4, 96))
    middle = g.add("Relu", g.conv(large, 96, 24))
    model = g.model(g.conv(g.add("Relu", g.conv(middle, 24, 80)), 80, 8))
    models = (model, residual_net(channels=10, size=23))
    graphs = [Compilation.of(import_model(each, None), Target(HOST)).lowered().functions for each in models]

    def allocated() -> list[int]:
        return [
            plan_memory(schedule_model(graph.fused, graph.task_of, {}, Target(HOST))).use.tensors for graph in graphs
        ]

    ours = allocated()
    without = tuple(stage for stage in pipeline.MODULE if stage.name != "plan_storage")
    monkeypatch.setattr(pipeline, "MODULE", without)
    tvms = allocated()
    assert all(one <= other for one, other in zip(ours, tvms, strict=True))
    assert sum(ours) < sum(tvms)
