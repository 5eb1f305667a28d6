"""romou.Session with a cache that is damaged, or that others wrote: outputs are right, and nothing is raised."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import romou
from romou.api import session
from romou.base import environment
from romou.compiler.frontend.reference import relative_l2_error
from romou.runtime.module.manifest import META
from support.models.small_networks import NetworkBuilder

DEVICE, SHAPE, SEED = "opencl:0", (2, 8, 7), 20261129
CASES = 60


def network(last: str = "Softmax") -> onnx.ModelProto:
    g = NetworkBuilder({"x": ("n", 8, 7)})
    return g.model(g.add(last, g.add("Relu", g.add("MatMul", "x", g.weight(7, 5)))))


class Cache:
    """A cache with one model, restored for each case. A model is compiled once; later compiles load it again."""

    def __init__(self, folder: Path) -> None:
        self.x = np.random.default_rng(SEED).standard_normal(SHAPE).astype(np.float32)
        (self.expected,) = romou.Session(network(), device=DEVICE).run(None, {"x": self.x})
        (meta,) = session._folder().glob(f"*/{META}")
        self.name, self.right, self.compiled = meta.parent.name, folder / "right", 0
        shutil.copytree(meta.parent, self.right)

    @property
    def kept(self) -> Path:
        """The folder of the model in the cache of this test."""
        return session._folder() / self.name

    def compile_again(self, model: onnx.ModelProto, **options: object) -> romou.TunedModel:
        self.compiled += 1
        return romou.load(self.right)

    def restore(self) -> None:
        """Make the model in the cache a right one again."""
        for path in (self.kept, self.kept.parent):
            if path.is_symlink() or path.is_file():
                path.unlink()
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.right, self.kept)

    def check(self, case: str) -> None:
        """Run a new session twice, as two processes would."""
        for _ in range(2):
            (output,) = romou.Session(network(), device=DEVICE).run(None, {"x": self.x})
            np.testing.assert_array_equal(output, self.expected, err_msg=case)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROMOU_CACHE_DIR", str(tmp_path_factory.mktemp("first")))
        return Cache(tmp_path_factory.mktemp("session"))


@pytest.fixture
def cache(made: Cache, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr("romou.api.compile.compile", made.compile_again)
    made.restore()
    return made


def test_the_cache_is_right_to_begin_with(cache: Cache) -> None:
    """So that the other tests do not pass by compiling all the time, or by wrong outputs in both sessions."""
    before = cache.compiled
    cache.check("nothing is damaged")
    assert cache.compiled == before
    product = np.maximum(cache.x @ onnx.numpy_helper.to_array(network().graph.initializer[0]), 0)
    powers = np.exp(product - product.max(-1, keepdims=True))
    assert relative_l2_error(cache.expected, powers / powers.sum(-1, keepdims=True)) < 1e-5


def test_damaged_files_are_compiled_again(cache: Cache) -> None:
    """Bytes are changed, cut off, doubled or lost, in any file. What is written anew serves the next process."""
    rng = np.random.default_rng(SEED)
    names = sorted(path.name for path in cache.right.iterdir())
    changed = 0
    for number in range(CASES):
        cache.restore()
        name = str(rng.choice(names))
        path, before = cache.kept / name, cache.compiled
        data = bytearray(path.read_bytes())
        kind, where = int(rng.integers(5)), int(rng.integers(len(data)))
        if kind == 0:
            data[where] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[where:]
        elif kind == 2:
            data = data + data
        elif kind == 3:
            data[where : where + 40] = rng.integers(0, 256, 40, dtype=np.uint8).tobytes()
        path.write_bytes(data)
        if kind == 4:
            path.unlink()
        cache.check(f"case {number} of seed {SEED}: {name}, kind {kind}, byte {where}")
        assert cache.compiled <= before + 1, "a damaged model is written anew"
        changed += cache.compiled - before
    # A changed digit of a time in the manifest is no damage that anyone could see.
    assert changed > 0.8 * CASES


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, right: shutil.rmtree(kept),
        lambda kept, right: (shutil.rmtree(kept), kept.write_text("a file")),
        lambda kept, right: (shutil.rmtree(kept), kept.mkdir()),
        lambda kept, right: (shutil.rmtree(kept), kept.symlink_to(right / "nothing")),
        lambda kept, right: (shutil.rmtree(kept), kept.symlink_to(kept)),
        lambda kept, right: ((kept / META).unlink(), (kept / META).symlink_to("nothing")),
        lambda kept, right: ((kept / META).unlink(), (kept / META).mkdir()),
        lambda kept, right: (kept / META).write_text("[" * 100_000),
        lambda kept, right: (kept / META).write_text("null"),
        lambda kept, right: (kept / "another file").write_text("of somebody"),
        lambda kept, right: (shutil.rmtree(kept), shutil.copytree(right, kept / "inside")),
        lambda kept, right: (shutil.rmtree(kept.parent), kept.parent.write_text("a file")),
        lambda kept, right: [shutil.copytree(right, kept.parent / str(n), dirs_exist_ok=True) for n in range(3)],
        lambda kept, right: os.symlink("nothing", kept.parent / f"link{os.urandom(4).hex()}"),
    ],
)
def test_what_others_put_there_is_no_error(cache: Cache, change: Callable[[Path, Path], object]) -> None:
    change(cache.kept, cache.right)
    cache.check("another file")


COMPILE = romou.compile  # before the fixture replaces it


def test_another_model_in_its_place_is_not_run(cache: Cache) -> None:
    """A whole model of other inputs is compiled anew instead of being run."""
    g = NetworkBuilder({"y": (3, 8)})
    other = COMPILE(g.model(g.add("Relu", "y")), target="opencl", verify=False)
    shutil.rmtree(cache.kept)
    other.save(cache.kept)
    before = cache.compiled
    cache.check("another model")
    assert cache.compiled == before + 1


def test_the_cache_that_is_shrunk_may_be_damaged(tmp_path: Path) -> None:
    kept = [tmp_path / str(n) for n in range(3)]
    for age, folder in enumerate(kept):
        folder.mkdir()
        (folder / META).write_text("x" * 100)
        os.utime(folder / META, (age, age))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / META).symlink_to("nothing")
    session._shrink(tmp_path, 150)
    session._shrink(tmp_path / "not there", 150)
    assert kept[-1].exists()
    assert environment.from_environment().session_cache_mb > 0


@pytest.mark.parametrize(
    "feed",
    [
        {"x": None},
        {"x": "text"},
        {"x": [[1.0], [2.0, 3.0]]},
        {"x": np.zeros(SHAPE, np.complex64)},
        {"x": np.zeros(SHAPE, object)},
        {"x": np.zeros(SHAPE, "U3")},
        {"x": np.zeros((0, 8, 7), np.float32)},
        {"x": np.zeros((-1 % 3, 8, 7), "datetime64[s]")},
        {"x": np.full(SHAPE, 300.5), 5: 1},
        {None: 1},
        None,
        5,
    ],
    ids=str,
)
def test_a_wrong_feed_is_one_error(cache: Cache, feed: object) -> None:
    with pytest.raises(romou.RomouError) as error:
        romou.Session(network(), device=DEVICE).run(None, feed)  # type: ignore[arg-type]
    assert len(str(error.value)) < 600
    cache.check("after a wrong feed")
