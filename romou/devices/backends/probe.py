"""Tiny kernels with known results, which show that a device works. They run in a separate process.

    python -m romou.devices.backends.probe KIND INDEX [ASPECT...]

prints one JSON object on the last line of stdout. The named aspects are left out. A broken driver may crash or hang, so
`usable.run_probe` runs this file as a child process and reads the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx

from romou.devices.backends import backend

_ROWS, _COLUMNS, _LANES = 4, 8, 4
_SHAPE = (1, _ROWS, _COLUMNS, _LANES)


def _build(kind: str, body_of: Any, source_scope: str, result_scope: str, dtype: str) -> Any:
    """Return f(source, result), a kernel with one work-item per texel.

    Its statement is `body_of(source, result, x, y)`.
    """
    source = tirx.decl_buffer(_SHAPE, dtype, name="source", scope=source_scope)
    result = tirx.decl_buffer(_SHAPE, dtype, name="result", scope=result_scope)
    thread = tirx.Var("thread", "int32")
    extent = _ROWS * _COLUMNS
    axis = tirx.IterVar(ir.Range(0, extent), thread, tirx.IterVar.ThreadIndex, "threadIdx.x")
    body = tirx.AttrStmt(
        axis,
        "thread_extent",
        tirx.const(extent, "int32"),
        body_of(source, result, thread % _COLUMNS, thread // _COLUMNS),
    )
    func = tirx.PrimFunc([source, result], body).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    # TVM's default pipeline: the probe tests the device, not Romou's passes.
    target = tvm.target.Target(backend(kind).tvm_config({}, {}), host={"kind": "llvm"})
    return tvm.tirx.build(tvm.IRModule({"main": func}), target=target)["main"]


def _texel(x: Any, y: Any) -> Any:
    return [tirx.const(0, "int32"), y, x, tirx.Ramp(0, 1, _LANES)]


def _in_image(buffer: Any, x: Any, y: Any) -> Any:
    bits = _LANES * np.dtype(str(buffer.dtype)).itemsize * 8
    return buffer.data, x, y, tirx.const(0, "int32"), tirx.const(bits, "int32")


def _double_plus_one(source: Any, result: Any, x: Any, y: Any) -> Any:
    two, one = (tirx.Broadcast(tirx.const(c, str(source.dtype)), _LANES) for c in (2, 1))
    return tirx.BufferStore(result, tirx.BufferLoad(source, _texel(x, y)) * two + one, _texel(x, y))


def _to_image(source: Any, result: Any, x: Any, y: Any) -> Any:
    return tirx.Evaluate(
        tirx.call_intrin(
            "int32", "tirx.texture2d_store", *_in_image(result, x, y), tirx.BufferLoad(source, _texel(x, y))
        )
    )


def _from_image(source: Any, result: Any, x: Any, y: Any) -> Any:
    texel = tirx.call_intrin(
        f"{source.dtype}x{_LANES}", "tirx.texture2d_load", *_in_image(source, x, y), tirx.Ramp(0, 1, _LANES)
    )
    return tirx.BufferStore(result, texel, _texel(x, y))


def _check_buffers(kind: str, device: Any, dtype: str) -> None:
    values = np.arange(np.prod(_SHAPE), dtype=dtype).reshape(_SHAPE)
    result = tvm.runtime.empty(_SHAPE, dtype, device)
    _build(kind, _double_plus_one, "global", "global", dtype)(tvm.runtime.tensor(values, device), result)
    _expect(result.numpy(), 2 * values + 1, f"2 * x + 1 in {dtype}")


def _check_images(kind: str, device: Any, dtype: str) -> None:
    values = np.arange(np.prod(_SHAPE), dtype=dtype).reshape(_SHAPE)
    image = tvm.runtime.empty(_SHAPE, dtype, device, mem_scope="global.texture")
    result = tvm.runtime.empty(_SHAPE, dtype, device)
    _build(kind, _to_image, "global", "global.texture", dtype)(tvm.runtime.tensor(values, device), image)
    _build(kind, _from_image, "global.texture", "global", dtype)(image, result)
    _expect(result.numpy(), values, f"copy through a {dtype} image")


def _compare_in_64_bits(source: Any, result: Any, x: Any, y: Any) -> Any:
    """Compute result = int64(source) < 5.

    The call of a nameless function prints its argument. TVM would narrow a plain comparison to 32 bits.
    """
    wide = tirx.call_pure_extern("int64", "", tirx.Cast("int64", tirx.BufferLoad(source, [0, y, x, 0])))
    is_less = tirx.LT(wide, tirx.const(5, "int64"))
    return tirx.BufferStore(result, tirx.Select(is_less, tirx.const(1, "int32"), tirx.const(0, "int32")), [0, y, x, 0])


def _check_int64(kind: str, device: Any, dtype: str) -> None:
    values = np.arange(np.prod(_SHAPE), dtype=dtype).reshape(_SHAPE) // _LANES - 8
    result = tvm.runtime.tensor(np.zeros(_SHAPE, dtype), device)
    _build(kind, _compare_in_64_bits, "global", "global", dtype)(tvm.runtime.tensor(values, device), result)
    _expect(
        result.numpy()[..., 0], (values < 5)[..., 0].astype(dtype), "int64(x) < 5, which kernels compare in 32 bits"
    )


def _expect(got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    # Small integers are exact in fp16 too, so any difference is a fault.
    wrong = np.flatnonzero(got.ravel() != wanted.ravel())
    if wrong.size:
        first = int(wrong[0])
        raise ArithmeticError(
            f"{what}: {wrong.size} of {got.size} values wrong, the first at {first}: {got.flat[first]}, not"
            f" {wanted.flat[first]}"
        )


def run(kind: str, index: int, without: Sequence[str] = ()) -> dict[str, str | None]:
    """Run every probe on device `index` of a kind. Return aspect -> None if it works, else the problem."""
    device = backend(kind).device(index)
    aspects = [
        ("buffers", _check_buffers, "float32"),
        ("fp16", _check_buffers, "float16"),
        ("int64", _check_int64, "int32"),
    ]
    if backend(kind).has_images:
        aspects += [("images", _check_images, "float32"), ("fp16_images", _check_images, "float16")]
    answers: dict[str, str | None] = {}
    for aspect, check, dtype in aspects:
        if aspect in without:
            continue
        # Any error of the driver is a result: it must not end the other probes.
        try:
            check(kind, device, dtype)
            answers[aspect] = None
        except Exception as error:
            answers[aspect] = f"{type(error).__name__}: {error}"
    return answers


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
