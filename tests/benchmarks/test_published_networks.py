"""Networks that others timed: graphs of the right size, and estimates that are `romou check`'s sum."""

from __future__ import annotations

import math
import re

import onnx
import pytest

import classifiers
import published_networks
import romou
from published_exports import ADRENO, MALI
from published_networks import GPUS, estimates, published, spec_of
from romou import models
from support.models.small_networks import NetworkBuilder

# Millions of weights by torchvision, and of multiply-adds by the networks' papers.
_SIZES = {
    "mnasnet": (4.38, 315),
    "proxylessnas": (4.1, 320),
    "mobilenet_v3_large": (5.48, 219),
    "mobilenet_v3_small": (2.54, 56),
    "shufflenet_v2": (2.28, 146),
    "squeezenet1_1": (1.24, 349),
    "densenet121": (7.98, 2850),
    "resnet34": (21.8, 3660),
}


def multiply_adds(model: onnx.ModelProto) -> int:
    """Return the multiply-adds of convolutions and products."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.value_info}
    weights = {w.name: list(w.dims) for w in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            total += math.prod(shapes[node.output[0]]) * math.prod(weights[node.input[1]][1:])
        elif node.op_type == "Gemm":
            total += math.prod(weights[node.input[1]])
    return total


@pytest.mark.parametrize("name", _SIZES)
def test_graphs_have_the_weights_and_the_work_of_their_papers(name: str) -> None:
    model = classifiers.network(name)
    onnx.checker.check_model(model)
    weights = sum(math.prod(w.dims) for w in model.graph.initializer)
    assert (weights / 1e6, multiply_adds(model) / 1e6) == pytest.approx(_SIZES[name], rel=0.03)


def test_every_figure_has_a_network_and_a_gpu() -> None:
    figures = published()
    assert len(figures) == 80
    assert {each.network for each in figures} == {*classifiers.names(), *models.names()} - {"bert_2layer"}
    assert {each.gpu for each in figures} | {ADRENO, MALI} == set(GPUS)
    assert [each.ms for each in published(["resnet18"], ["Adreno 640"])] == [39.3235]
    assert len({(each.source, each.network, each.gpu) for each in figures}) == 80


def test_estimates_are_the_sum_of_check(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = NetworkBuilder({"x": (1, 16, 28, 28)})
    model = graph.model(graph.conv(graph.conv("x", 16, 32), 32, 32, groups=32))
    monkeypatch.setattr(models, "load", lambda name: model)
    ours = estimates("alexnet", ["Adreno 640", "Mali-G76 MP10"], "float32")
    assert ours["Adreno 640"] == pytest.approx(romou.check(model, device="adreno640").ms)
    # Twice the cores at 0.9 of the clock: kernels take 0.56 of the time, launches all of it.
    ours_of_five = romou.check(model, device="mali_g76").ms
    assert ours_of_five is not None
    assert 0.55 * ours_of_five < ours["Mali-G76 MP10"] < ours_of_five
    spec = spec_of("Mali-G76 MP10")
    assert (spec.shader_cores, spec.clock_mhz, spec.dram_bandwidth_gbps) == (10, 720, 22)
    assert spec.l2_bandwidth_gbps == pytest.approx(15.6 * 2 * 0.9)


def test_tables_count_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    factors = {"resnet18": 1.49, "resnet34": 1.51, "alexnet": 1 / 1.49}
    figures = published(list(factors), ["Adreno 640"])
    by_name = {(each.network, each.gpu): factors[each.network] * each.ms for each in figures}
    published_networks.print_figures(figures, by_name, published_networks.Console(width=200))
    printed = capsys.readouterr().out
    assert re.search(r"nn-Meter, Adreno 640 │ +3 │ +1\.15 │ +0\.67 │ +1\.51 │ +2 of 3 │ +1\.00 │", printed), printed
