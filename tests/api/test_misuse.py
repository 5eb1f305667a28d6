"""Arguments of the wrong type or out of range: one UsageError that names the argument, from every public function."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romou
from romou.base.errors import DeviceError, RomouError, UsageError
from support.models.small_networks import prime_net

TARGET = "opencl -device=host"
_WRONG: list[Any] = [5, True, 3.5, b"x", "", [], {}, ("a",), object()]


@pytest.fixture(scope="module")
def compiled() -> romou.TunedModel:
    return romou.compile(prime_net(), target=TARGET)


def call(function: Callable[..., Any], *given: Any, **options: Any) -> Callable[[Any, romou.TunedModel], Any]:
    """Return a call with the wrong value in place of `...`."""
    return lambda value, _model: function(
        *(value if g is ... else g for g in given), **{n: value if o is ... else o for n, o in options.items()}
    )


def method(name: str, *given: Any, **options: Any) -> Callable[[Any, romou.TunedModel], Any]:
    return lambda value, model: call(getattr(model, name), *given, **options)(value, model)


# The calls, and the values that are valid for each.
CALLS: dict[str, tuple[Callable[[Any, romou.TunedModel], Any], tuple[Any, ...]]] = {
    "model": (call(romou.compile, ..., target=TARGET), ()),
    "target": (call(romou.compile, prime_net(), target=...), ()),
    "shapes": (call(romou.compile, prime_net(), target=TARGET, shapes=...), ("", [], {})),
    "device": (call(romou.compile, prime_net(), target=TARGET, device=...), ()),
    "rpc": (call(romou.tune, prime_net(), target=TARGET, trials=0, rpc=...), ()),
    "trials": (call(romou.tune, prime_net(), target=TARGET, trials=...), (5,)),
    "seconds": (call(romou.tune, prime_net(), target=TARGET, seconds=...), (5, 3.5)),
    "no_progress": (call(romou.tune, prime_net(), target=TARGET, no_progress=...), (5,)),
    "seed": (call(romou.tune, prime_net(), target=TARGET, seed=...), (5,)),
    "explorer": (call(romou.tune, prime_net(), target=TARGET, explorer=...), ()),
    "measure": (call(romou.tune, prime_net(), target=TARGET, measure=...), ({},)),
    "callback": (call(romou.tune, prime_net(), target=TARGET, callback=...), ()),
    "kernel": (call(romou.inspect, prime_net(), target=TARGET, kernel=...), ()),
    "work_dir": (call(romou.inspect, prime_net(), target=TARGET, work_dir=...), ()),
    "rules": (call(romou.pruned_spaces, prime_net(), target=TARGET, rules=...), ()),
    "repeats": (call(romou.bench, prime_net(), target=TARGET, repeats=...), ()),
    "baseline": (call(romou.compare, ..., prime_net()), ()),
    "fail_over": (call(romou.compare, "none.json", prime_net(), fail_over=...), ()),
    "load": (call(romou.load, ...), ()),
    "load_device": (call(romou.load, "none.romou", device=...), ()),
    "inputs": (method("run", ...), ()),
    "input": (method("run", {"image": ...}), ()),
    "repeat": (method("time", repeat=...), (5,)),
    "time_seed": (method("time", seed=..., repeat=1), (5,)),
    "clock": (method("times", clock=...), ()),
    "save": (method("save", ...), ()),
    "export": (method("export_android", ...), ()),
    "host": (method("export_android", "x", host=...), ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_one_error(
    name: str, compiled: romou.TunedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, right = CALLS[name]
    for value in _WRONG:
        if not any(type(value) is type(r) and value == r for r in right):
            with pytest.raises(RomouError) as caught:
                wrong(value, compiled)
            assert str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"image": [1, 31, 8.5, 8]}, r"'image' is [1, 31, 8.5, 8]; expected whole numbers"),
        ({"image": 5}, "'image' is 5; expected whole numbers"),
        ({"image": "1,31"}, "'image' is '1,31'; expected whole numbers"),
        ({"image": (1, 31, 2**31, 8)}, "no dimension can be larger than 2147483647"),
        ({"image": (1, 31, -1, 8)}, "no dimension may be negative"),
    ],
)
def test_shapes_are_whole_numbers(shapes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        romou.compile(prime_net(), target=TARGET, shapes=shapes)


def test_what_numpy_takes_for_a_whole_number_is_one(compiled: romou.TunedModel) -> None:
    shapes = {"image": np.array([1, 31, 17, 17])}
    assert romou.compile(prime_net(), target=TARGET, shapes=shapes).inputs == compiled.inputs  # type: ignore[arg-type]
    assert compiled.time(repeat=np.int64(1)) > 0  # type: ignore[arg-type]


def _run_in_child(queue: Any, model: romou.TunedModel, inputs: dict[str, np.ndarray]) -> None:
    found = []
    for call in (
        lambda: model.run(inputs),
        lambda: model.times(repeat=1),
        lambda: romou.compile(prime_net(), target=TARGET).run(inputs),
    ):
        try:
            found.append(str(call()))
        except DeviceError as error:
            found.append(error.message)
    queue.put(found)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_behind_a_fork_is_an_error_instead_of_a_wait_without_end(compiled: romou.TunedModel) -> None:
    inputs = {"image": np.zeros((1, 31, 17, 17), np.float32)}
    (before,) = compiled.run(inputs)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_run_in_child, args=(queue, compiled, inputs), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0, "the child waits for threads that a fork does not copy"
    found = queue.get()
    assert len(found) == 3
    assert all(text.startswith("this process was forked from process ") for text in found)
    np.testing.assert_array_equal(compiled.run(inputs)[0], before)
