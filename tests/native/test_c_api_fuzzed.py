"""Random calls of romou.h under each sanitizer (tests/stress/fuzz_c_api.py), and planted faults that they find."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm

import fuzz_c_api
from fuzz_c_api import HERE, SANITIZERS, SOURCES, export_networks, fuzz
from support.suite.compiled import compiled
from support.suite.exhaustive import exhaustive

# About ten seconds of processor time each. The compiler takes another fifteen.
CASES = {"address": 600, "thread": 200}


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_networks(tmp_path_factory.mktemp("networks"))


def program(sanitizer: str, sources: Path = SOURCES) -> Path:
    """Return the fuzzer. A cached one is returned if all that it is made from is unchanged."""
    texts = [path.read_text() for path in [HERE / "fuzz_c_api.cc", *sorted(sources.glob("*.[ch]*"))]]
    options = fuzz_c_api.compile_options(sanitizer, sources)
    return compiled("", tvm.__version__, *options, *texts, by=lambda path: fuzz_c_api.build(sanitizer, path, sources))


def seed_of_checkout() -> int:
    """Return a seed that is new with each content of the checkout."""
    words = ("git", "-C", str(HERE), "rev-parse", "HEAD^{tree}")
    tree = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return int(np.random.SeedSequence(int(tree or "0", 16)).generate_state(1)[0])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_random_calls_end_in_right_outputs_and_codes(sanitizer: str, networks: Path) -> None:
    seed, cases = seed_of_checkout(), CASES[sanitizer]
    again = f"python tests/stress/fuzz_c_api.py --sanitizer {sanitizer} --seed {seed} --cases {cases}"
    print(again)
    result = fuzz(program(sanitizer), networks, seed=seed, seconds=600, cases=cases)
    assert result.code == 0, f"{again}\n{result.last}\n{result.fault}"
    assert result.last.startswith(f"cases {cases} calls OK=")


_LOCK = "  const std::lock_guard<std::mutex> lock(mutex_);\n"
_CHECK = '  const size_t place = place_of(outputs(), "output", output, bytes);\n'
# File, text, replacement, sanitizer, and the exit code and message of the end.
FAULTS = {
    "one path for all libraries": (
        "files.h",
        '? "./" : "/"',
        '? "" : ""',
        "address",
        "a wrong output|Cannot find ffi::Function",
    ),
    "descriptions that are replaced": (
        "model.cc",
        "*described_shapes_.insert(info.shape).first",
        "info.shape",
        "address",
        "heap-use-after-free",
    ),
    "a size that is checked without the lock": ("model.cc", _LOCK + _CHECK, _CHECK + _LOCK, "thread", "data race"),
    "brackets without a limit": ("description.h", "++depth > kMostDepth", "++depth < 0", "address", "^-11 "),
}


@exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, networks: Path, tmp_path: Path) -> None:
    name, text, replacement, sanitizer, told = FAULTS[fault]
    sources = shutil.copytree(SOURCES, tmp_path / "sources")
    assert (sources / name).read_text().count(text) == 1
    (sources / name).write_text((sources / name).read_text().replace(text, replacement))
    result = fuzz(program(sanitizer, sources), networks, seed=1, seconds=300)
    assert result.code != 0
    assert re.search(told, f"{result.code} {result.fault}"), result.fault
