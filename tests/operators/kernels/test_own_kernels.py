"""romou.operators.from_te: errors in one message, candidates beyond a device's limits, types and shapes, records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

import romou
from romou.api.operators import KernelConfig
from romou.base.errors import UsageError
from romou.base.outcome import Outcome
from romou.compiler.compilation import Compilation
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.records import RecordStore

SHAPE = (3, 5, 7, 4)


def doubled(a: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *i: a[i] * te.const(2, a.dtype), name="b")


def bound(sch: s_tir.Schedule, size: int = 16) -> None:
    group, item = sch.split(sch.fuse(*sch.get_loops(sch.get_sblock("b"))[:-1]), [None, size])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")


def schedule(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
    cfg.define_knob("size", [16, 32])
    bound(sch, cfg["size"])
    sch.vectorize(sch.get_loops(sch.get_sblock("b"))[-1])


def made(schedule: Any, inputs: Any = None) -> romou.operators.OperatorModel:
    return romou.operators.from_te(doubled, {"a": SHAPE} if inputs is None else inputs, schedule=schedule)


def outcomes(operator: romou.operators.OperatorModel, target: str, folder: Path, trials: int = 8) -> dict[Any, Any]:
    """Return (value of the first knob -> outcome and error)."""
    romou.tune_operator(operator, target=target, trials=trials, work_dir=folder)
    with RecordStore(folder) as store:
        return {next(iter(r.config.values())): (r.outcome, r.error) for r in store if not r.is_again}


def declaring(*knobs: tuple[str, list[Any]], image: str | None = None, reads: str | None = None) -> Any:
    def declared(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        for name, choices in knobs:
            cfg.define_knob(name, choices)
        if image:
            cfg.set_image(image)
        if reads:
            cfg[reads]
        bound(sch)

    return declared


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (declaring(("tile", [])), r"knob 'tile': choices must be distinct .* at least one; got \[\]"),
        (declaring(("tile", [1, 1])), r"knob 'tile': choices must be distinct .* got \[1, 1\]"),
        (declaring(("tile", [0.5])), r"knob 'tile': choices must be distinct whole numbers.* got \[0.5\]"),
        (declaring(("tile", [1]), ("tile", [2])), "knob 'tile' is declared twice"),
        (declaring(("tile", [1]), reads="tiles"), "knob 'tiles' is not declared; declared: tile"),
        (declaring(image="c"), r"set_image\('c'\): there is no such parameter; there are a, b"),
        (lambda sch, cfg: None, "the schedule of 'doubled' makes no kernel: no loop is bound to work-items"),
        (
            lambda sch, cfg: sch.get_sblock("c"),
            "the schedule of 'doubled' fails with the first choice of each knob: ",
        ),
        (lambda sch, cfg: [][1], "fails with the first choice of each knob: IndexError: list index out of range"),
    ],
)
def test_an_error_of_a_schedule_is_one_message(schedule: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        made(schedule)
    assert len(str(raised.value).splitlines()) <= 2


def test_a_tensor_without_texels_is_no_image() -> None:
    with pytest.raises(
        UsageError, match=r"set_image\('a'\): 3x5 float32 cannot be an image: its last axis has to be 4"
    ):
        made(declaring(image="a"), {"a": (3, 5)})


def test_a_computation_that_cannot_be_made_is_one_message() -> None:
    with pytest.raises(UsageError, match="the computation 'broken' cannot be made: ZeroDivisionError"):
        romou.operators.from_te(lambda a: 1 // 0, {"a": SHAPE}, name="broken")
    with pytest.raises(UsageError, match="takes a function of tensors with the shapes of its inputs"):
        romou.operators.from_te(doubled)
    with pytest.raises(UsageError, match=r"inputs\['a'\]=\(3, 0\): expected a shape of positive numbers"):
        romou.operators.from_te(doubled, {"a": (3, 0)})
    with pytest.raises(UsageError, match="only convolutions of romou.operators.conv2d have gradients"):
        romou.operators.conv2d_backward_input(made(schedule))


def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute((a.shape[0], b.shape[1]), lambda m, n: te.sum(a[m, k] * b[k, n], axis=k), name="c")


def test_named_dimensions_have_one_extent() -> None:
    named = {"a": {"m": 5, "k": 7}, "b": ({"k": 7, "n": 3}, "float16")}
    operator = romou.operators.from_te(
        lambda a, b: product(a, b.astype("float32")), named, output=("m", "n"), name="product"
    )
    assert dict(operator.inputs) == {"a": ((5, 7), "float32"), "b": ((7, 3), "float16")}
    with pytest.raises(UsageError, match=r"dimension 'k' is 7 in inputs\['a'\] and 6 in inputs\['b'\]"):
        romou.operators.from_te(product, {"a": {"m": 5, "k": 7}, "b": {"k": 6, "n": 3}})
    with pytest.raises(UsageError, match=r"the output of 'product' is \(5, 3\), where its dimensions say \(n=3, m=5\)"):
        romou.operators.from_te(product, {"a": {"m": 5, "k": 7}, "b": {"k": 7, "n": 3}}, output=("n", "m"))
    with pytest.raises(UsageError, match="dimension 'l'"):
        romou.operators.from_te(product, {"a": {"m": 5, "k": 7}, "b": (7, 3)}, output=("m", "l"))
    with pytest.raises(UsageError, match=r"expected a shape of positive numbers"):
        romou.operators.from_te(product, {"a": {"m": 5, "k": 0}, "b": (7, 3)})


def test_candidates_beyond_the_device_are_left_out(tmp_path: Path, opencl_device: object) -> None:
    def wide(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        cfg.define_knob("what", ["plain", "group", "local", "refused"])
        block = sch.get_sblock("b")
        row, column = sch.get_loops(block)
        step, item = sch.split(column, [None, 2048 if cfg["what"] == "group" else 16])
        sch.bind(row, "blockIdx.x")
        sch.bind(item, "threadIdx.x")
        if cfg["what"] == "local":
            staged = sch.cache_read(block, 0, "shared")
            sch.compute_at(staged, row)
            sch.bind(sch.split(sch.get_loops(staged)[-1], [None, 16])[1], "threadIdx.x")
        if cfg["what"] == "refused":
            sch.reorder(step, step)

    result = outcomes(made(wide, {"a": (2, 9001)}), "opencl -device=adreno640", tmp_path)
    assert {what: outcome for what, (outcome, _) in result.items()} == {
        "plain": Outcome.OK,
        "group": Outcome.INVALID,
        "local": Outcome.INVALID,
        "refused": Outcome.INVALID,
    }
    assert "2048 work-items in a group, the device allows 1024" in result["group"][1]
    assert "bytes of local memory, the device allows 32768" in result["local"][1]
    assert "the schedule of 'doubled' fails in Config(what=refused)" in result["refused"][1]


def test_a_kernel_of_too_many_registers_is_pruned(tmp_path: Path, opencl_device: object) -> None:
    def tiled(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        cfg.define_knob("tile", [1, 512])
        block = sch.get_sblock("b")
        row, column = sch.get_loops(block)
        tile = sch.split(row, [None, cfg["tile"]])
        item = sch.split(column, [None, 16])
        sch.reorder(tile[0], *item, tile[1])
        sch.bind(tile[0], "blockIdx.y")
        sch.bind(item[0], "blockIdx.x")
        sch.bind(item[1], "threadIdx.x")
        copy = sch.cache_read(block, 0, "local")
        sch.compute_at(copy, item[1])

    result = outcomes(made(tiled, {"a": (1024, 32)}), "opencl -device=adreno640", tmp_path)
    assert result[1][0] == Outcome.OK
    assert result[512][0] == Outcome.INVALID
    assert re.match("InvalidConfigError: excluded before code generation: (registers|occupancy): ", result[512][1])


def test_a_bug_of_the_schedule_ends_the_search(opencl_device: object) -> None:
    def buggy(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        schedule(sch, cfg)
        assert cfg["size"] == 16, "not yet"

    with pytest.raises(UsageError, match=r"fails in Config\(size=32\): AssertionError: not yet") as raised:
        romou.tune_operator(made(buggy), target="opencl", trials=2, work_dir=False)
    assert "test_own_kernels.py" in str(raised.value)


def test_records_belong_to_the_text_of_the_schedule(tmp_path: Path, opencl_device: object) -> None:
    def other(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        schedule(sch, cfg)

    for fresh in (2, 0):
        done: list[romou.Trial] = []
        romou.tune(made(schedule), target="opencl", trials=2, work_dir=tmp_path, callback=done.append)
        assert len(done) == fresh
    keys = [task.key for operator in (made(schedule), made(schedule), made(other)) for task in tasks_of(operator)]
    assert keys[0] == keys[1] != keys[2]


def tasks_of(operator: romou.operators.OperatorModel, target: str = "opencl") -> list[TunableTask]:
    return Compilation.of(operator, Target(target)).lowered().tasks


@pytest.mark.parametrize(
    ("target", "scopes"),
    [("opencl -device=adreno640", ["global.texture"] * 2), ("opencl -device=host", ["global"] * 2)],
)
def test_fp16_images_where_the_target_has_them(
    target: str, scopes: list[str], opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")

    def images(sch: s_tir.Schedule, cfg: KernelConfig) -> None:
        schedule(sch, cfg)
        cfg.set_image("a")
        cfg.set_image("b")
        cfg.autobroadcast(sch.get_sblock("b"))

    operator = made(images, {"a": (SHAPE, "float16")})
    (task,) = tasks_of(operator, target)
    places = task.image_scopes(task.default_config(Target(target)), Target(target))
    assert [places.get(name, "global") for name in ("a", "b")] == scopes
    x = np.random.default_rng(1).standard_normal(SHAPE).astype("float16")
    compiled = romou.compile(operator, target=target, verify=False)
    np.testing.assert_array_equal(compiled.run({"a": x})[0], x * 2)


def test_a_tir_function_without_a_schedule_gets_a_template(
    opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    tensor = te.placeholder((5, 13), "float32", "a")
    func: tirx.PrimFunc = te.create_prim_func([tensor, doubled(tensor)])
    operator = romou.operators.from_te(func, name="twice")
    (task,) = tasks_of(operator)
    assert task.family == "elementwise"
    assert not task.is_small, "an operator by itself is tuned, however small"
    x = np.random.default_rng(1).standard_normal((5, 13)).astype("float32")
    np.testing.assert_array_equal(romou.compile(operator, target="opencl", verify=False).run({"a": x})[0], x * 2)
