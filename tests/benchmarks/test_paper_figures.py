"""Tables of the Romou paper's figures: categories, layers in order, and shares of the device."""

from __future__ import annotations

from typing import Any

import pytest

from operator_lists import CATEGORIES, NETWORKS, category, convolutions_of, paper_operators
from paper_figures import by_category, by_layer, distribution, ratios_by_category, spread, utilization


def row(name: str, us: float, peer_us: float | None, flops: float = 1e6) -> dict[str, Any]:
    ratio = None if peer_us is None else peer_us / us
    return {"name": name, "us": us, "peer_us": peer_us, "ratio": ratio, "flops": flops, "bytes": 5e3}


def cells(table: Any, number: int) -> list[str]:
    return [list(column.cells)[number] for column in table.columns]


def test_layers_of_the_networks_are_the_papers_operators() -> None:
    """The list has one more operator than the paper counts."""
    works = paper_operators()
    assert [sum(category(work) == name for work in works) for name in CATEGORIES] == [46, 25, 9, 15, 2]
    lengths = {network: len(convolutions_of(network)) for network in NETWORKS}
    assert lengths == {"squeezenet1_0": 26, "mobilenetv1_100": 27, "resnet18": 20, "inception_v3": 94}
    layers = {work for network in NETWORKS for work in convolutions_of(network)}
    assert layers == {work for work in works if category(work) != "fully connected"}


def test_figure_13_and_14() -> None:
    first, second = convolutions_of("resnet18")[:2]
    rows = [row(second.name, 10.0, 40.0), row(first.name, 20.0, None)]
    table = by_category(rows, "TVM")
    assert cells(table, 0) == ["3x3", "1", "100.0, 100.0, 100.0", "25.0, 25.0, 25.0", "4.00x, 4.00x, 4.00x"]
    assert cells(table, 1)[0] == "other"
    assert cells(table, 1)[3:] == ["-", "-"]
    (table,) = by_layer(rows, "TVM")
    # The stem comes first; its other three 3x3 layers of the same shape count as layers, too.
    assert cells(table, 0) == [f" 1 {first.name}", "20.0", "50.0", "-", "-"]
    assert cells(table, 1) == [f" 2 {second.name}", "10.0", "100.0", "40.0", "4.00x"]
    assert cells(table, len(table.rows) - 1) == ["the 4 of both", "40.0", "", "160.0", "4.00x"]


def test_figure_2_and_3() -> None:
    work = convolutions_of("resnet18")[1]
    rows = [row(work.name, 10.0, 400.0)]
    table = distribution(rows, "TVM", 1000.0)
    assert [cells(table, number) for number in range(4)] == [
        ["0 to 5", "0", "1"],
        ["100 to 200", "1", "0"],
        ["highest", "100.0", "2.5"],
        ["highest, of peak", "10.0%", "0.2%"],
    ]
    # 4 layers of 10 us: 100 of 1000 GFLOPS, 0.5 of 10 GB/s.
    assert cells(utilization(rows, "TVM", 1000.0, 10.0), 0) == ["resnet18", "4", "10.0%", "5.0%", "0.2%", "0.1%"]
    assert cells(utilization(rows, "TVM", None, None), 0)[2:] == ["-"] * 4


@pytest.mark.parametrize(("values", "text"), [([], "-"), ([1.0, 3.0], "2.00x, 3.00x, 1.00x")])
def test_spread(values: list[float], text: str) -> None:
    assert spread(values, unit="x") == text


def test_counted_ratios_by_category() -> None:
    """Names are those of rows of paper_ops.csv and of bench_mobile_static.LAYERS."""
    names = [
        "conv1x1 16x54x54 -> 64 /1",
        "1x1 256x14x14 -> 256",
        "dense 4096 -> 1000",
        "conv7x1 8x8",
        "depthwise 3x3 9",
    ]
    table = ratios_by_category([(name, float(number)) for number, name in enumerate(names, 1)], "title")
    assert [cells(table, number) for number in range(4)] == [
        ["1x1", "2", "1.50x, 2.00x, 1.00x"],
        ["depthwise", "1", "5.00x, 5.00x, 5.00x"],
        ["other", "1", "4.00x, 4.00x, 4.00x"],
        ["fully connected", "1", "3.00x, 3.00x, 3.00x"],
    ]
