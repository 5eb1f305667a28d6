"""Sums and products become part of the row reductions that read them: one kernel a norm, and the same values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.targets import Target
from support.models.blocks import Net, NetworkBlock
from support.suite.exhaustive import in_turn

ROWS, WIDTH = 7, 37
TARGETS = ("opencl", "opencl -device=adreno640", "vulkan")


def root(net: Net, square: str) -> str:
    """Add the root of a mean of squares, as exporters write it."""
    mean = net.add("ReduceMean", square, net.const([-1]))
    return str(net.add("Sqrt", net.add("Add", mean, net.const(1e-3))))


def by_pow(net: Net, x: str) -> str:
    y = net.add("Div", x, root(net, net.add("Pow", x, net.const(2.0))))
    return str(net.add("Mul", y, net.weight(WIDTH)))


def by_mul(net: Net, x: str) -> str:
    return str(net.add("Mul", x, net.add("Reciprocal", root(net, net.add("Mul", x, x)))))


def of_differences(net: Net, x: str) -> str:
    apart = net.add("Sub", x, net.add("ReduceMean", x, net.const([-1])))
    return str(net.add("Div", apart, root(net, net.add("Mul", apart, apart))))


def layer_norm(net: Net, x: str) -> str:
    """Return a layer norm as exporters write it before opset 17."""
    return str(net.add("Add", net.add("Mul", of_differences(net, x), net.weight(WIDTH)), net.weight(WIDTH)))


def instance_norm(net: Net, x: str) -> str:
    """Its mean and its variance, which takes the mean again, are kernels before they are joined."""
    return str(net.add("InstanceNormalization", x, net.weight(ROWS), net.weight(ROWS)))


def distance(net: Net, x: str) -> str:
    """Two terms in a row, of two tensors."""
    apart = net.add("Sub", x, net.const(net.rng.standard_normal((1, ROWS, WIDTH))))
    return str(net.add("ReduceSum", net.add("Mul", net.add("Abs", apart), apart), net.const([-1])))


def network(norm: Callable[[Net, str], str], *, is_behind_a_product: bool = False, width: int = WIDTH) -> NetworkBlock:
    """Return a norm of the input, or of a residual sum of a product, which has a reshape behind it."""
    net = Net(f"{norm.__name__}_{is_behind_a_product}")
    x = net.input((1, ROWS, width))
    return net.block(norm(net, net.add("Add", x, net.linear(x, width, width)) if is_behind_a_product else x))


def families_of(block: NetworkBlock, target: str = "opencl -device=adreno640") -> list[str]:
    """Return the family of each kernel. A reshape is none."""
    lowered = Compilation.of(import_model(block.model, None), Target(target)).lowered()
    return sorted(task.family for task in lowered.tasks for _ in range(task.calls))


def assert_right(block: NetworkBlock, target: str) -> None:
    compiled = romou.compile(block.model, target=target, verify=False)
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())
    inputs = block.inputs(seed=3)
    expected = run_onnxruntime(block.model, inputs)
    assert expected is not None
    for found, right in zip(compiled.run(inputs), expected, strict=True):
        assert relative_l2_error(found, right) < 1e-5


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_behind_a_product", [False, True])
@pytest.mark.parametrize("norm", [by_pow, by_mul, of_differences, layer_norm, instance_norm, distance])
def test_a_norm_is_one_kernel(
    norm: Callable[[Net, str], str],
    is_behind_a_product: bool,
    target: str,
    opencl_device: tvm.runtime.Device,
    vulkan_device: tvm.runtime.Device,
) -> None:
    block = network(norm, is_behind_a_product=is_behind_a_product)
    assert families_of(block, target) == (["dense"] if is_behind_a_product else []) + ["row_reduction"]
    assert_right(block, target)


def softmax(net: Net, x: str) -> str:
    """Several passes read the product."""
    return str(net.add("Softmax", net.add("Mul", x, net.weight(WIDTH)), axis=-1))


def mean_of_functions(net: Net, x: str) -> str:
    """Few work-items would compute the functions."""
    return str(net.add("ReduceMean", net.add("Erf", x), net.const([-1])))


def mean_of_columns(net: Net, x: str) -> str:
    """The reduction reads other elements than the transpose writes in order."""
    return str(net.add("ReduceMean", net.add("Transpose", x, perm=[0, 2, 1]), net.const([-1])))


@pytest.mark.parametrize("norm", [softmax, mean_of_functions, mean_of_columns])
def test_others_stay_kernels(norm: Callable[[Net, str], str]) -> None:
    assert len(families_of(network(norm))) == 2


def test_a_result_that_is_an_output_stays_a_kernel() -> None:
    net = Net("output")
    x = net.input((1, ROWS, WIDTH))
    square = net.add("Mul", x, x)
    block = net.block(net.add("ReduceMean", square, net.const([-1])), square)
    assert families_of(block) == ["elementwise", "row_reduction"]
    assert_right(block, "opencl")


def test_calls_that_share_other_arguments_are_other_functions(opencl_device: tvm.runtime.Device) -> None:
    """The squares of one tensor, and the products of two, come from one function of two parameters."""
    net = Net("shared")
    x, y = net.input((1, ROWS, WIDTH)), net.input((1, ROWS, WIDTH))
    sums = [net.add("ReduceSum", net.add("Mul", *pair), net.const([-1])) for pair in ((x, x), (x, y), (y, y))]
    block = net.block(*sums)
    assert families_of(block) == ["row_reduction"] * 3
    assert_right(block, "opencl")


def test_a_reduction_with_another_reader_stays_a_kernel(opencl_device: tvm.runtime.Device) -> None:
    net = Net("read twice")
    x = net.input((1, ROWS, WIDTH))
    apart = net.add("Sub", x, net.add("ReduceMean", x, net.const([-1])))
    block = net.block(net.add("Div", apart, root(net, net.add("Mul", apart, apart))), apart)
    assert families_of(block) == ["row_reduction"] * 2
    assert_right(block, "opencl")


def test_a_chain_of_reductions_over_other_axes_is_not_joined(opencl_device: tvm.runtime.Device) -> None:
    net = Net("other axes")
    x = net.input((1, ROWS, WIDTH))
    rows = net.add("Softmax", x, axis=-1)
    block = net.block(net.add("Softmax", rows, axis=1))
    assert families_of(block) == ["row_reduction"] * 2
    assert_right(block, "opencl")
