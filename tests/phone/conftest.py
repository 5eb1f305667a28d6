"""The phone's runtime, built for this machine and for arm64."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.servers.phone_servers import ROOT, Server, build, running


@pytest.fixture(scope="session")
def host_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("host", tmp_path_factory.mktemp("host") / "phone")


@pytest.fixture(scope="session")
def arm64() -> Path:
    """Return the program that runs arm64 programs here."""
    done = subprocess.run([str(ROOT / "scripts/setup_arm64.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path.home() / ".cache/romou/arm64/run"


@pytest.fixture(scope="session")
def arm64_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("linux-arm64", tmp_path_factory.mktemp("arm64") / "phone")


@pytest.fixture
def serve(host_runtime: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts the server of this machine with the key "phone" and more options. All servers end
    with the test.
    """
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> Server:
            command = [
                str(host_runtime / "romou_rpc_server"),
                "--key",
                "phone",
                "--port",
                "0",
                "--work-dir",
                str(tmp_path),
                *options,
            ]
            return stack.enter_context(running(command))

        yield start
