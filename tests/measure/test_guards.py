"""Candidates that are right but write outside their tensors are found, on each side, on every platform. Right ones are
not accused.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm.rpc
from tvm import ir, tirx

from romou.compiler import pipeline
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, Toolchain
from romou.tuner.measure.guards import guard
from support.devices import faulty_kernels
from support.devices.platforms import INTEL
from support.servers import forked
from support.servers.rpc_servers import serving

OPTIONS = MeasureOptions(build_workers=1, build_timeout_s=30, run_timeout_s=60, min_repeat_ms=1)
TOOLCHAIN = Toolchain(build="support.devices.faulty_kernels:build")


def run_on(kind: str, faults: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the outcome and error of candidates with one fault each, on the first device of a kind."""
    target, found = Target(kind), {}
    candidates = [
        Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(fault), trial=trial)
        for trial, fault in enumerate(faults)
    ]
    with contextlib.ExitStack() as stack:
        builder = stack.enter_context(contextlib.closing(LocalBuilder(target, OPTIONS, toolchain=TOOLCHAIN)))
        runner = stack.enter_context(contextlib.closing(LocalRunner(f"{kind}:0", OPTIONS, toolchain=TOOLCHAIN)))
        for fault, built in zip(faults, builder.build(candidates), strict=True):
            assert built.outcome == "ok", built.error
            (result,) = runner.run([built])
            found[fault] = (str(result.outcome), result.error or "")
    return found


# The place of three written numbers, and its description.
FAULTS = {
    "before": "wrote 12 bytes before `",
    "behind": "wrote 12 bytes after `",
    "behind_data": "wrote 12 bytes after `",
}


def assert_found(outcomes: dict[str, tuple[str, str]]) -> None:
    names = [str(parameter.name).removesuffix("_ptr") for parameter in faulty_kernels.task().func.params]
    for fault, (outcome, error) in outcomes.items():
        if fault == "none":
            assert outcome == "ok", error
        else:
            assert outcome == "wrong_result"
            assert error == f"{FAULTS[fault]}{names[0 if fault == 'behind_data' else -1]}`"


@pytest.mark.parametrize(
    ("kind", "faults"), [("opencl", [*FAULTS, "none"]), ("vulkan", ["behind", "behind_data", "none"])]
)
def test_what_is_written_beside_a_buffer_is_found(kind: str, faults: list[str]) -> None:
    assert_found(run_on(kind, faults))


def test_intels_compiler_too(pytestconfig: pytest.Config) -> None:
    INTEL.require(pytestconfig)
    code = f"import json, sys; sys.path.append({str(Path(__file__).parent)!r}); from test_guards import run_on; "
    code += f"print(json.dumps(run_on('opencl', {[*FAULTS, 'none']})))"
    done = forked.run("-c", code, env=INTEL.environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert_found(json.loads(done.stdout.splitlines()[-1]))


SHAPE = (2, 3, 5, 4)


def copy_to_image(kind: str, stores: Sequence[tuple[int, int, int]]) -> Callable[..., None]:
    """Return a kernel that copies a buffer of SHAPE to an image, and stores one more texel at each place (column, row,
    layer) of `stores`.
    """
    source, result = (
        tirx.decl_buffer(SHAPE, "float32", name="source"),
        tirx.decl_buffer(SHAPE, "float32", name="result", scope="global.texture"),
    )
    _, rows, columns, lanes = SHAPE
    thread = tirx.Var("thread", "int32")
    axis = tirx.IterVar(ir.Range(0, math.prod(SHAPE[:3])), thread, tirx.IterVar.ThreadIndex, "threadIdx.x")
    x, y, z = thread % columns, thread // columns % rows, thread // (columns * rows)
    texel = tirx.BufferLoad(source, [z, y, x, tirx.Ramp(0, 1, lanes)])

    def store(*place: tirx.Expr | int) -> tirx.Stmt:
        at = [tirx.const(each, "int32") if isinstance(each, int) else each for each in place]
        return tirx.Evaluate(
            tirx.call_intrin("int32", "tirx.texture2d_store", result.data, *at, tirx.const(128, "int32"), texel)
        )

    beside = [tirx.IfThenElse(thread == 0, store(*place), None) for place in stores]
    body = tirx.AttrStmt(
        axis,
        "thread_extent",
        tirx.const(math.prod(SHAPE[:3]), "int32"),
        tirx.SeqStmt([store(x, y, z), *beside]) if beside else store(x, y, z),
    )
    func = tirx.PrimFunc([source, result], body).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    return tvm.tirx.build(tvm.IRModule({"main": func}), target=Target(kind).tvm_target, pipeline=pipeline.NAME)["main"]  # type: ignore[no-any-return]


def written_beside(kind: str, place: tuple[int, int, int] | None) -> tuple[bool, str | None]:
    """Return whether the image is right, and the report of `guards`."""
    data = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")
    given, image = guard(
        (data, np.full(SHAPE, np.nan, "float32")),
        ("x", "y"),
        ("global", "global.texture"),
        backend(kind).device(),
        None,
    )
    copy_to_image(kind, [] if place is None else [place])(given.tensor, image.tensor)
    found, fault = image.output()
    assert given.fault() is None
    assert image.without_zones(is_output=True).shape == SHAPE
    np.testing.assert_array_equal(given.without_zones().numpy(), data)
    return bool((found == data).all()), fault


EDGES = {"column": (5, 1, 0), "row": (2, 3, 1), "layer": (0, 0, 2), "none": None}


@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
@pytest.mark.parametrize("edge", EDGES)
def test_what_is_written_beyond_an_image_is_found(kind: str, edge: str) -> None:
    fault = None if EDGES[edge] is None else "wrote 16 bytes beyond the edges of the image `y`"
    assert written_beside(kind, EDGES[edge]) == (True, fault)


@pytest.mark.parametrize(
    "scope",
    ["global.texture", "global.texture-nhwc", "global.texture-weight", "global.texture-2d", "global.texture-rows"],
)
def test_every_image_keeps_its_contents(scope: str, opencl_device: tvm.runtime.Device) -> None:
    """The tensor in the middle of the larger image is the one that was put there."""
    data = np.random.default_rng(2).standard_normal((2, 3, 5, 4)).astype("float16")
    (image,) = guard((data,), ("y",), (scope,), opencl_device, None)
    assert image.extents is not None
    found, fault = image.output()
    np.testing.assert_array_equal(found, data)
    assert fault is None


def test_a_tensor_that_leaves_no_room_for_zones_has_none(vulkan_device: tvm.runtime.Device) -> None:
    facts = backend("vulkan").facts(0)
    widest = np.zeros((1, 1, facts["max_image_width"], 4), "float32")
    (image,) = guard((widest,), ("y",), ("global.texture",), vulkan_device, None)
    assert image.extents is None
    assert image.output()[1] is None


def test_zones_of_a_connection_are_seen() -> None:
    """Copies over RPC pass over the offset of a view."""
    with serving() as server:
        (address, key) = server.address.split("/")
        host, port = address.rsplit(":", 1)
        session = tvm.rpc.connect(host, int(port), key)
        for kind in ("opencl", "vulkan"):
            (given,) = guard((np.ones(5, "float32"),), ("x",), ("global",), session.device(kind, 0), None)
            assert given.fault() is None
            found = given.whole.numpy()
            found[-3] ^= 1
            given.whole.copyfrom(found)
            assert given.fault() == "wrote 1 bytes after `x`"
