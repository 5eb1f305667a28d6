"""A saved model, its outputs, and a separate cache of programs for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

import romou
from support.models.small_networks import prime_net
from support.servers.program_starts import outputs_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return romou.compile(prime_net(), target="opencl -device=host", verify=False).save(
        tmp_path_factory.mktemp("saved") / "m.romou"
    )


@pytest.fixture(scope="module")
def right(saved: Path) -> bytes:
    """Return the outputs without kept programs."""
    return outputs_of(romou.load(saved))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate cache for the test and return the folder of its entries, which does not exist yet.

    PoCL's programs are kept here, one for each kernel.
    """
    monkeypatch.setenv("ROMOU_QUIRKS_OFF", "pocl_headers")
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "64")
    return tmp_path / "cache" / "programs"


@pytest.fixture
def right_file(right: bytes, tmp_path: Path) -> Path:
    (tmp_path / "right").write_bytes(right)
    return tmp_path / "right"
