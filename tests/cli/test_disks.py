"""Full disks, read-only places, and models without any work for a device."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from romou.base.errors import UsageError
from romou.base.linking import export_library
from romou.cli import main
from romou.tuner.records import task_files
from support.devices import faulty_kernels
from support.models.small_networks import NetworkBuilder

HINT = "Free some space, or choose a folder that may be written.\n"


@pytest.fixture
def model(tmp_path: Path) -> str:
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    onnx.save(graph.model(graph.conv("x", 8, 12)), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_a_full_disk_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = importlib.import_module("romou.cli.devices")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/output_0.npy")

    monkeypatch.setattr(devices.command, "callback", full)
    result = CliRunner().invoke(main, ["devices"])
    assert result.exit_code == 2
    assert result.stderr == f"romou: out/output_0.npy: No space left on device\nhint: {HINT}"


def test_where_the_model_cannot_be_saved_is_said_before_the_search(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    records = tmp_path / "records"
    for place, text in (
        (tmp_path / "file", "exists and is not a saved model"),
        (tmp_path / "file" / "x", "a saved model cannot be written here"),
    ):
        result = CliRunner().invoke(
            main, ["tune", model, "--target", "null", "--trials", "1", "--work-dir", str(records), "-o", str(place)]
        )
        assert result.exit_code == 2
        assert text in result.stderr
    assert not records.exists()
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model.onnx"]


def test_no_room_for_objects_is_said_before_llvm_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(
        UsageError, match=r"x.so cannot be linked: .* has 3.0 MiB left, and it takes 9\nFree some space, or set TMPDIR"
    ):
        export_library(None, tmp_path / "x.so", weight_bytes=5 << 20)


def test_a_linker_without_room_is_no_fault_of_the_linker(tmp_path: Path) -> None:
    class Module:
        def export_library(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("ld: final link failed: No space left on device\ncollect2: error: ld returned 1")

    with pytest.raises(UsageError, match=r"^\S+/x.so cannot be written: No space left on device\nFree some space"):
        export_library(Module(), tmp_path / "x.so")


def test_a_task_that_cannot_be_kept_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def replace(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", replace)
    task_files.keep_tasks(tmp_path, [faulty_kernels.task()])
    assert list((tmp_path / task_files.FOLDER_NAME).iterdir()) == []


def test_a_model_without_kernels_is_tuned_and_looked_at(tmp_path: Path) -> None:
    graph = NetworkBuilder({"x": (1, 8)})
    onnx.save(graph.model(graph.add("Identity", "x")), tmp_path / "identity.onnx")
    model = str(tmp_path / "identity.onnx")
    result = CliRunner().invoke(main, ["tune", model, "--trials", "1", "-o", str(tmp_path / "saved")])
    assert result.exit_code == 0, result.output
    assert (
        CliRunner().invoke(main, ["inspect", model, "--target", "null"]).stdout
        == "No kernels: the device computes nothing of this model.\n"
    )
    assert (
        CliRunner().invoke(main, ["space", model, "--target", "null"]).stdout
        == "No tasks: no kernel of this model has knobs.\n"
    )


def _command(setup: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `romou` in a shell after `setup`. Nothing is written but to the pipes."""
    command = shlex.join([sys.executable, "-B", "-m", "romou.cli", *arguments])
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(["bash", "-c", f"{setup}; exec {command}"], env=environment, **how)


def test_a_deleted_working_folder_is_one_error(tmp_path: Path) -> None:
    done = _command(f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir ../gone", "version")
    text = "romou: the working folder was deleted\nhint: Change to another one: cd FOLDER\n"
    assert (done.returncode, done.stderr) == (2, text)


def test_a_file_size_limit_of_zero_is_one_error() -> None:
    done = _command("ulimit -f 0", "version")
    assert done.returncode == 2
    assert re.fullmatch(
        r"romou: No usable temporary directory .*\nhint: Free some space .*ulimit -f\)\.\n", done.stderr
    )


def test_a_key_file_that_is_no_file_is_one_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    (tmp_path / "long").write_text("k" * 5000)
    (tmp_path / "long").chmod(0o600)
    for name, reason in (("key", "is no regular file"), ("long", "has more than")):
        result = CliRunner().invoke(main, ["serve", "--key-file", str(tmp_path / name)])
        assert (result.exit_code, f"cannot read a key from {tmp_path / name}: {reason}" in result.stderr) == (2, True)
