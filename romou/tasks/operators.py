"""Single operators as tasks, without a network around them: what spaces are recorded of, and what tests tune."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import te, tirx

from romou.schedules import FAMILIES
from romou.schedules.workload import LANES, BatchMatmul, Conv2d, Conv2dTranspose, Dense
from romou.tasks.tunable import TunableTask


def conv(channels: int, size: tuple[int, int], outputs: int, kernel: tuple[int, int], dtype: str = "float32", **given: object) -> Conv2d:
    """A convolution of batch 1, stride 1, without padding, dilation and groups where they are not given (see `Conv2d`)."""
    settings: dict[str, object] = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "batch": 1, **given}
    return Conv2d(in_channels=channels, in_hw=size, out_channels=outputs, kernel=kernel, dtype=dtype, **settings)  # type: ignore[arg-type]


def conv_transpose(channels: int, size: tuple[int, int], outputs: int, kernel: tuple[int, int], dtype: str = "float32", **given: object) -> Conv2dTranspose:
    """A transposed convolution of batch 1, stride 1, without padding and groups where they are not given (see `Conv2dTranspose`)."""
    settings: dict[str, object] = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "batch": 1, "output_padding": (0, 0), **given}
    return Conv2dTranspose(in_channels=channels, in_hw=size, out_channels=outputs, kernel=kernel, dtype=dtype, **settings)  # type: ignore[arg-type]


def matmul(batch: tuple[int, ...], m: int, k: int, n: int, dtype: str = "float32", *, is_transposed: bool = False, **given: object) -> BatchMatmul:
    """Products of (*batch, m, k) and (*batch, k, n), or (*batch, n, k), of which nothing else is given (see `BatchMatmul`)."""
    axes = tuple(range(rank := len(batch) + 2))
    rhs_axes = (*axes[:-2], rank - 1, rank - 2) if is_transposed else axes
    settings: dict[str, object] = {"lhs_batch": batch, "rhs_batch": batch, "lhs_axes": axes, "rhs_axes": rhs_axes, "out_axes": axes, **given}
    return BatchMatmul(batch=batch, m=m, k=k, n=n, dtype=dtype, **settings)  # type: ignore[arg-type]


def task_of(work: Conv2d | Dense | BatchMatmul, *, has_epilogue: bool = True) -> TunableTask:
    """The operator with a bias and a ReLU behind it, or by itself."""
    zero = tirx.const(0, work.dtype)
    if isinstance(work, BatchMatmul):
        return _matmul_task(work, zero if has_epilogue else None)
    if isinstance(work, Dense):
        family, data_shape = FAMILIES["dense"], (work.m, work.k)
    else:
        names = ("conv2d_transpose",) if isinstance(work, Conv2dTranspose) else ("conv2d", "depthwise", "group_conv2d")
        family = next(FAMILIES[name] for name in names if FAMILIES[name].is_mine(work))
        data_shape = (work.batch, -(-work.in_channels // LANES), *work.in_hw, LANES)
    data = te.placeholder(data_shape, work.dtype, "data")
    weight = te.placeholder(family.weight_shape(work), work.dtype, "weight")
    total = family.define(work, data, weight)
    if not has_epilogue:
        return _made([data, weight, total])
    if isinstance(work, Dense):
        bias = te.placeholder((work.n,), work.dtype, "bias")
        out = te.compute(total.shape, lambda m, n: te.max(total[m, n] + bias[n], zero), name="relu")
    else:
        bias = te.placeholder((1, int(total.shape[1]), 1, 1, LANES), work.dtype, "bias")
        out = te.compute(total.shape, lambda n, o, y, x, c: te.max(total[n, o, y, x, c] + bias[0, o, 0, 0, c], zero), name="relu")
    return _made([data, weight, bias, out])


def _matmul_task(work: BatchMatmul, zero: tirx.Expr | None) -> TunableTask:
    lhs, rhs = te.placeholder(work.lhs_shape, work.dtype, "lhs"), te.placeholder(work.rhs_shape, work.dtype, "rhs")
    total = FAMILIES["batch_matmul"].define(work, lhs, rhs)
    if zero is None:
        return _made([lhs, rhs, total])
    bias = te.placeholder((work.n,), work.dtype, "bias")
    return _made([lhs, rhs, bias, te.compute(total.shape, lambda *i: te.max(total[i] + bias[i[work.out_axes[-1]]], zero), name="relu")])


def _made(tensors: list[te.Tensor]) -> TunableTask:
    task = TunableTask.of(te.create_prim_func(tensors))
    assert task is not None, "every workload has a family"
    return task


def workload_to_dict(work: Conv2d | Dense | BatchMatmul) -> dict[str, Any]:
    """The numbers of a workload as JSON-ready data."""
    return dataclasses.asdict(work)


def workload_from_dict(values: dict[str, Any]) -> Conv2d | Dense | BatchMatmul:
    """Inverse of `workload_to_dict`, also after a way through JSON."""
    kinds: dict[str, type[Conv2d | Dense | BatchMatmul]] = {"output_padding": Conv2dTranspose, "kernel": Conv2d, "rhs_axes": BatchMatmul, "m": Dense}
    kind = next(kind for name, kind in kinds.items() if name in values)
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
