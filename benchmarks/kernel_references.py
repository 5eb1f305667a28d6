"""References by onnxruntime and NumPy for benchmarks/kernel_bench.py, computed once for each operator."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm
from onnx import TensorProto, helper

from romou.compiler.assembly.kernel import build_reference
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.families.bases.convolution import convolve
from romou.compiler.operators.families.conv2d_backward_filter import Conv2dBackwardFilter, filter_gradient
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose, convolve_back
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES
from romou.tuner.measure import MeasureOptions, verify

# The folder of the references under the records.
FOLDER = "references"


def fast_reference(task: TunableTask) -> Any:
    """Return a reference by onnxruntime and NumPy.

    The plain loops of `build_reference` take minutes for a layer of AlexNet at batch 128.
    """
    work: Any = getattr(task.template, "workload", None)
    kinds = (Conv2d, Dense, Conv2dTranspose, Conv2dBackwardFilter)
    if len(task.func.params) != 3 or type(work) not in kinds or (isinstance(work, Conv2d) and work.groups > 1):
        return build_reference(task)
    assert isinstance(task.template, ContractionTemplate), "these are sums of products"
    is_training = isinstance(work, Conv2dBackwardFilter) or task.template.contracted.is_weight_computed
    if isinstance(work, Conv2dTranspose) and not is_training:
        return build_reference(task)

    def main(*tensors: tvm.runtime.Tensor) -> None:
        data, weight = (tensor.numpy().astype(np.float32) for tensor in tensors[:2])
        if is_training:
            output = _of_training(work, data, weight)
        else:
            output = (
                data[work.row(np.arange(work.m))] @ weight.reshape(work.k, -1)[:, : work.n]
                if isinstance(work, Dense)
                else _convolved(work, data, weight)
            )
        tensors[2].copyfrom(np.ascontiguousarray(output.astype(work.dtype)))

    return {"main": main}


def _of_training(work: Conv2d, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute a training pass by NumPy or onnxruntime, from packed tensors and a weight in the graph's layout."""

    def unpacked(packed: np.ndarray, channels: int) -> np.ndarray:
        n, texels, h, w, lanes = packed.shape
        return packed.transpose(0, 1, 4, 2, 3).reshape(n, texels * lanes, h, w)[:, :channels]

    plain = unpacked(data, work.in_channels)
    if isinstance(work, Conv2dBackwardFilter):
        return filter_gradient(work, plain, unpacked(weight, work.out_channels), by_onnxruntime)
    if isinstance(work, Conv2dTranspose):
        output = convolve_back(work, plain, weight, by_onnxruntime)
    else:
        output = convolve(work, plain, weight, by_onnxruntime)
    whole = np.pad(output, ((0, 0), (0, -output.shape[1] % LANES), (0, 0), (0, 0)))
    return whole.reshape(work.batch, work.out_texels, LANES, *work.out_hw).transpose(0, 1, 3, 4, 2)


def _convolved(work: Conv2d, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Convolve packed data with a packed weight. Padding lanes of the last texel take part if the weight has them."""
    (n, texels, h, w, _), lanes = data.shape, weight.shape[3]
    plain = data[..., :lanes].transpose(0, 1, 4, 2, 3).reshape(n, texels * lanes, h, w)
    kernel = weight.transpose(4, 5, 0, 3, 1, 2).reshape(work.out_texels * LANES, texels * lanes, *work.kernel)
    output = convolve(work, plain, kernel, by_onnxruntime)
    return output.reshape(n, work.out_texels, LANES, *work.out_hw).transpose(0, 1, 3, 4, 2)


def by_onnxruntime(operator: str, x: np.ndarray, weight: np.ndarray, **attributes: Any) -> np.ndarray:
    """Return the output of ONNX's `Conv` or `ConvTranspose`, of fp32 arrays, by onnxruntime."""
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("w", weight.shape), ("y", None))
    ]
    model = helper.make_model(
        helper.make_graph([node], "conv", values[:2], values[2:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    outputs = run_onnxruntime(model, {"x": x, "w": weight})
    assert outputs is not None, "onnxruntime knows convolutions"
    return outputs[0]


def reference_of(task: TunableTask, folder: Path, seed: int) -> Path:
    """Return the file of a task's inputs and output below a folder of records, computed if it is missing.

    The search looks for it there.
    """
    # A folder keeps one seed of a task.
    path = verify.reference_path(folder / (FOLDER if seed == MeasureOptions().seed else f"other_{FOLDER}"), task, seed)
    if not path.is_file():
        inputs = verify.make_inputs(task, seed)
        tensors = [tvm.runtime.tensor(array) for array in (*inputs, verify.poison(*verify.output_spec(task)))]
        fast_reference(task)["main"](*tensors)
        verify.save_reference(path, inputs, tensors[-1].numpy())
    return path


def prepare_references(tasks: Sequence[TunableTask], folder: Path, seeds: Sequence[int]) -> None:
    """Compute the references of operators in parallel.

    One after another, they would take most of a short search's time.
    """
    context = multiprocessing.get_context("spawn")
    # One core each: sixteen processes that each start a thread per core would mostly wait for each other.
    alone = patch.dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    with (
        alone,
        concurrent.futures.ProcessPoolExecutor(
            min(len(os.sched_getaffinity(0)), len(tasks)), mp_context=context
        ) as pool,
    ):
        list(pool.map(_prepare, [task.to_json() for task in tasks], itertools.repeat(folder), itertools.repeat(seeds)))


def _prepare(task_json: str, folder: Path, seeds: Sequence[int]) -> None:
    task = TunableTask.from_json(task_json)
    for seed in seeds:
        reference_of(task, folder, seed)
