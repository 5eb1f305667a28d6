"""Damaged saved models end in one error message before any of their code runs. Saving is atomic."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import romou
from romou.base.errors import BuildError, ModelError, UsageError
from romou.runtime.module import manifest, tuned_model
from support.models.small_networks import prime_net

TARGET = "opencl -device=host"


@pytest.fixture(scope="module")
def model() -> romou.TunedModel:
    return romou.compile(prime_net(), target=TARGET)


@pytest.fixture(scope="module")
def saved(model: romou.TunedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("saved") / "model.romou")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the opened libraries. A damaged model opens none."""
    paths: list[str] = []
    load_library = tuned_model.load_library

    def noted(path: Path) -> Any:
        paths.append(str(path))
        return load_library(path)

    monkeypatch.setattr(tuned_model, "load_library", noted)
    return paths


def refuses(folder: Path, opened: list[str]) -> str:
    with pytest.raises(ModelError) as caught:
        romou.load(folder)
    assert opened == []
    assert str(folder) in str(caught.value)
    return str(caught.value)


def damaged(content: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield `count` versions of `content`, each with another region flipped, cut off, overwritten, left out or doubled.
    The regions cover all of it.
    """
    for i in range(count):
        at = (len(content) - 1) * i // (count - 1)
        length = rng.choice([1, 2, 64])
        region = content[at : at + length]
        after = content[at + length :]
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in region)
        found = (
            content[:at]
            + [flipped + after, b"", bytes(byte ^ 0xFF for byte in region) + after, after, region + region + after][
                i % 5
            ]
        )
        assert found != content
        yield found


@pytest.mark.parametrize(("pattern", "count"), [("*.so", 100), ("romou.json", 100)])
def test_damage_anywhere_is_refused_before_the_library_is_opened(
    pattern: str, count: int, saved: Path, tmp_path: Path, opened: list[str]
) -> None:
    copy = shutil.copytree(saved, tmp_path / "copy")
    (path,) = copy.glob(pattern)
    content = path.read_bytes()
    for found in damaged(content, count, random.Random(0)):
        path.write_bytes(found)
        refuses(copy, opened)
    path.write_bytes(content)
    romou.load(copy)
    assert len(opened) == 1


def test_every_key_is_needed_and_has_its_type(saved: Path, tmp_path: Path, opened: list[str]) -> None:
    copy = shutil.copytree(saved, tmp_path / "copy")
    about = json.loads((copy / "romou.json").read_text())
    del about["sha256"]
    for key in about:
        for other in ({}, {key: 5}, {key: None}, {key: [1]}):
            changed = {name: value for name, value in about.items() if name != key} | other
            # The hash of its text matches, so only its content can be wrong.
            (copy / "romou.json").write_bytes(manifest._document(changed))
            refuses(copy, opened)


def test_a_model_of_an_earlier_format_is_to_be_saved_again(saved: Path, tmp_path: Path, opened: list[str]) -> None:
    copy = shutil.copytree(saved, tmp_path / "copy")
    about = json.loads((copy / "romou.json").read_text())
    (copy / "romou.json").write_text(
        json.dumps({name: value for name, value in about.items() if name not in ("sha256", "files")} | {"format": 1})
    )
    assert "saved in format 1, this Romou reads 3\nCompile or tune the model again and save it" in refuses(copy, opened)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 3}', b'{"format": {}}']
)
def test_what_is_no_description_is_refused(content: bytes, tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "romou.json").write_bytes(content)
    refuses(tmp_path, opened)


def test_a_description_that_is_no_file_is_refused(tmp_path: Path, opened: list[str]) -> None:
    os.mkfifo(tmp_path / "romou.json")
    assert "is no regular file" in refuses(tmp_path, opened)


@pytest.mark.parametrize("where", ["a file", "a file/model", "a link/model"])
def test_saving_where_no_folder_can_be_is_one_error(where: str, model: romou.TunedModel, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("mine")
    (tmp_path / "a link").symlink_to(tmp_path / "a file")
    with pytest.raises(UsageError, match="a saved model"):
        model.save(tmp_path / where)
    assert (tmp_path / "a file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "a link"]


@pytest.mark.parametrize(
    ("place", "error"), [("mkdtemp", errno.EACCES), ("write_bytes", errno.ENOSPC), ("rename", errno.EIO)]
)
def test_saving_that_fails_leaves_what_was_there(
    place: str, error: int, model: romou.TunedModel, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(saved, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    rename = Path.rename

    def failing(*given: Any, **_options: Any) -> Any:
        # The new folder cannot take its place, when the old one was moved away.
        if place == "rename" and given[0].name != "fresh":
            return rename(*given)
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile if place == "mkdtemp" else Path, place, failing)
        with pytest.raises(UsageError, match=f"cannot be written here: {os.strerror(error)}"):
            model.save(copy)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_library_that_cannot_be_linked_is_one_error(
    model: romou.TunedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match=r"module-\w+.so cannot be linked"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_another_machine_is_one_error(saved: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(saved, tmp_path / "copy")
    about = json.loads((copy / "romou.json").read_text())
    (copy / about["library"]).write_bytes(b"\x7fELF of another machine")
    (copy / "romou.json").unlink()
    manifest.write_manifest(
        copy, {name: value for name, value in about.items() if name not in ("format", "files", "sha256")}
    )
    with pytest.raises(ModelError, match="does not load here"):
        romou.load(copy)
