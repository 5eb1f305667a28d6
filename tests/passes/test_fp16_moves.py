"""A kernel that only moves fp16 keeps its bits: numbers, zeros of either sign, denormals, and NaN with its payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from romou.compiler import pipeline
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.devices.platforms import INTEL
from support.kernels.operators import built, kind_id, relax_tasks
from support.servers import forked

PHONE, CUDA = Target("opencl -device=adreno640"), Target("cuda -device=nvidia_h200")
# Half of it is negative, and a part of that no number.
EVERY_NUMBER = np.arange(65536, dtype="uint16")


def packed(x: relax.Expr) -> relax.Expr:
    n, c, h, w = (int(d) for d in x.ty.shape.values)
    return op.permute_dims(op.reshape(x, (n, c // 4, 4, h, w)), [0, 1, 3, 4, 2])


def unpacked(x: relax.Expr) -> relax.Expr:
    n, c, h, w, _ = (int(d) for d in x.ty.shape.values)
    return op.reshape(op.permute_dims(x, [0, 1, 4, 2, 3]), (n, c * 4, h, w))


def numpy_unpacked(x: np.ndarray) -> np.ndarray:
    n, c, h, w, _ = x.shape
    return x.transpose(0, 1, 4, 2, 3).reshape(n, 4 * c, h, w)


# Name -> (the moved expression, shapes of its operands, the same in NumPy). The rows of some are whole vectors, the
# rows of others are not.
MOVES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Callable[..., np.ndarray]]] = {
    "pack": (packed, ((1, 8, 64, 128),), lambda x: x.reshape(1, 2, 4, 64, 128).transpose(0, 1, 3, 4, 2)),
    "pack odd rows": (packed, ((1, 8, 65, 127),), lambda x: x.reshape(1, 2, 4, 65, 127).transpose(0, 1, 3, 4, 2)),
    "unpack": (unpacked, ((1, 2, 64, 128, 4),), numpy_unpacked),
    "unpack odd rows": (unpacked, ((1, 2, 65, 127, 4),), numpy_unpacked),
    "transpose": (lambda x: op.permute_dims(x), ((256, 260),), lambda x: x.T),
    "concat": (
        lambda x, y: op.concat([x, y], 1),
        ((2, 16, 256), (2, 240, 256)),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "slice": (lambda x: op.strided_slice(x, [1], [3], [250]), ((256, 260),), lambda x: x[:, 3:250]),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 1, 1]), ((256, 258),), lambda x: np.pad(x, ((0, 0), (1, 1)))),
    "select": (lambda x: op.tril(x), ((256, 256),), np.tril),
}


def task_of(name: str) -> TunableTask:
    build, shapes, _ = MOVES[name]
    (task,) = relax_tasks(build, *shapes, dtype="float16")
    return task


def moved(name: str, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Return (bits of the output, bits that are right)."""
    task = task_of(name)
    config = task.default_config(target)
    inputs = [np.resize(EVERY_NUMBER, shape) for shape in MOVES[name][1]]
    output = task.func.params[-1]
    arrays = [*(bits.view("float16") for bits in inputs), poison([int(d) for d in output.shape], "float16")]
    names = [f"x{i}" for i in range(len(inputs))]
    given = dict(zip(names, arrays, strict=False))
    device = tvm.device(target.kind)
    tensors = [tvm.runtime.tensor(given.get(str(p.name), arrays[-1]), device) for p in task.func.params]
    built(task, config, target)["main"](*tensors)
    return tensors[-1].numpy().view("uint16"), MOVES[name][2](*inputs)


def source_of(task: TunableTask, target: Target) -> str:
    (kernel,) = inspect_function(
        task.schedule(config := task.default_config(target), target)["main"], target, config=config
    )
    return str(kernel.source)


@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_keeps_its_bits(name: str, opencl_device: tvm.runtime.Device) -> None:
    found, expected = moved(name, PHONE)
    assert np.array_equal(found, expected)


def test_it_does_on_intel(pytestconfig: pytest.Config) -> None:
    INTEL.require(pytestconfig)
    done = forked.run(__file__, env=INTEL.environment())
    assert (done.returncode, done.stdout.split()) == (0, ["equal"] * len(MOVES)), done.stdout + done.stderr


@pytest.mark.parametrize("target", [PHONE, CUDA], ids=kind_id)
@pytest.mark.parametrize("name", MOVES)
def test_nothing_is_converted(name: str, target: Target) -> None:
    source = source_of(task_of(name), target)
    kernel = source[source.index("main_kernel(") :]
    assert not [word for word in ("half", "float") if word in kernel], kernel


@T.prim_func(s_tir=True)
def copied_and_doubled(
    a: T.Buffer((256,), "float16"), b: T.Buffer((256,), "float16"), c: T.Buffer((256,), "float16")
) -> None:
    for i in T.thread_binding(64, thread="threadIdx.x"):
        for j in T.vectorized(4):
            b[i * 4 + j] = a[i * 4 + j]
        for j in T.vectorized(4):
            c[i * 4 + j] = a[i * 4 + j] * T.float16(2)


def test_a_tensor_may_be_moved_and_computed_with(opencl_device: tvm.runtime.Device) -> None:
    """One access takes the tensor as bits, the other converts it, so its pointer is no array of vectors."""
    (kernel,) = inspect_function(copied_and_doubled, PHONE)
    assert ("LOAD_HALF4(" in kernel.source, kernel.source.count("  STORE_HALF4(")) == (True, 1), kernel.source
    module = tvm.tirx.build(copied_and_doubled, PHONE.tvm_target, pipeline=pipeline.NAME)
    bits = (np.arange(256) * 251).astype("uint16")
    a, b, c = (tvm.runtime.tensor(bits.view("float16"), opencl_device) for _ in range(3))
    module["main"](a, b, c)
    assert np.array_equal(b.numpy().view("uint16"), bits)
    with np.errstate(all="ignore"):
        doubled = bits.view("float16") * np.float16(2)
    assert np.array_equal(c.numpy(), doubled, equal_nan=True)


if __name__ == "__main__":
    for each in MOVES:
        print("equal" if np.array_equal(*moved(each, PHONE)) else each)
