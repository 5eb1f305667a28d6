"""Kernels of every family under other compilers, and in Oclgrind, which checks each access to memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import check_kernels
from support.devices.platforms import INTEL, OCLGRIND, POCL, RUSTICL, Platform
from support.docs.documents import ROOT
from support.suite.exhaustive import exhaustive

# Every family's default and random configs, in buffers and images, fp32 and fp16: a few of each round through the
# families, or the first rounds.
SAMPLE, WHOLE = ("--configs", "12", "--step", "56"), ("--configs", "240")
# No long kernels among them.
SHORT = ("--configs", "9", "--step", "31")
# A convolution in each round: both types, and both kinds of memory.
ROUNDS = ("--configs", "400", "--only", "conv2d_1x8x13x11")

# Lines of a right kernel that are removed or changed, in the first config of a range that has them, and the report that
# Oclgrind must print then.
PLANTED = {
    "race": (
        r"barrier\(CLK_LOCAL_MEM_FENCE\);",
        "",
        range(29, 38),
        r"(Read-write|Write-write|Write-read) data race at local memory",
    ),
    "out of bounds": (
        r"min\(\(int\)(\w+), \(int\)\d+\)",
        r"\1",
        range(99, 139),
        r"Invalid read of size \d+ at global memory",
    ),
    "uninitialised": (r"acc_local_ptr\[0\] = \(\(float4\).*", "", range(81, 97), "depends on uninitialized value"),
    # Here the numbers stay right, because the register happens to hold zero.
    "uninitialised texel": (r"acc_local_ptr\[0\] = \(\(float4\).*", "", range(1, 2), "depends on uninitialized value"),
    "uninitialised coordinate": (r"int at = .*;", "int at;", range(1), "depends on uninitialized value"),
}


def checked(environment: dict[str, str], *options: str, script: str = "check_kernels") -> str:
    """Run the script, assert that every check passes, and return its output."""
    command = [sys.executable, str(ROOT / f"tests/stress/{script}.py"), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


# All other tests run on PoCL.
@pytest.mark.parametrize(
    ("platform", "which"),
    [
        (INTEL, SHORT),
        (RUSTICL, SHORT),
        *(pytest.param(platform, WHOLE, marks=exhaustive) for platform in (POCL, INTEL, RUSTICL)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_configs_compute_the_same_on_every_platform(
    platform: Platform, which: tuple[str, ...], pytestconfig: pytest.Config
) -> None:
    platform.require(pytestconfig)
    found = ""
    for numbers in (which, ROUNDS):
        found += checked(platform.environment(), *numbers, "--platform", platform.title, *platform.left_out)
        assert f"{numbers[1]} configs, 0 failed" in found
    for place in ("image", "buffer"):
        assert re.search(rf"float16 on .*data={place}, weight={place}, output={place}.*: ok", found)
    # Sums in fp16 run only if the device has fp16 arithmetic.
    assert ("accumulate=mixed" in found) == platform.has_fp16


@exhaustive
@pytest.mark.parametrize("networks", [("mobilenet_v2",), ("bert_2layer", "squeezenet1_0", "resnet18")], ids=", ".join)
def test_networks_are_right_on_intel(networks: tuple[str, ...], pytestconfig: pytest.Config) -> None:
    """Bundled networks in fp16, on images. tests/stress/check_models.py runs all of them."""
    INTEL.require(pytestconfig)
    found = checked(
        INTEL.environment(), *networks, "--precision", "float16", "--place", "images", script="check_models"
    )
    assert found.count("float16 images: right") == len(networks)


@pytest.mark.parametrize("which", [SAMPLE, pytest.param(WHOLE, marks=exhaustive)], ids=["sample", "whole"])
def test_oclgrind_finds_nothing(which: tuple[str, ...], pytestconfig: pytest.Config) -> None:
    """No data race, no access out of bounds, no uninitialised value in a store or a branch, no wrong use of the API."""
    OCLGRIND.require(pytestconfig)
    found = checked(dict(os.environ), "--oclgrind", *which)
    assert f"{which[1]} configs, 0 failed; logs: {which[1]}" in found


@pytest.fixture(scope="module")
def plant(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Yield a fault's name -> Oclgrind's message for a kernel with that fault."""
    OCLGRIND.require(pytestconfig)
    code = f"import test_other_compilers as t; t.serve_planted({str(tmp_path_factory.mktemp('logs'))!r})"
    environment = {**os.environ, **check_kernels.watched(check_kernels.OCLGRIND)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *map(str, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def ask(fault: str) -> str:
            print(fault, file=given, flush=True)
            return next(line for line in answers if line.startswith("found:"))

        yield ask
        given.close()


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, plant: Callable[[str], str]) -> None:
    assert re.search(PLANTED[fault][-1], plant(fault))


def serve_planted(folder: str) -> None:
    """Run a kernel for each named fault, in a new process, and print each finding of the log once."""
    edited: list[int] = []
    change = ("", "")

    def edit(code: str) -> str:
        text, count = re.subn(*change, code) if change[0] else (code, 0)
        edited.append(count)
        return text

    check_kernels.watch(edit)
    log, run = check_kernels.Log(folder), check_kernels.runner(0, "", check_kernels.facts())
    for name in map(str.strip, sys.stdin):
        pattern, replacement, numbers, _ = PLANTED[name]
        change = (pattern, replacement)
        news: list[str] = []
        for number in numbers:
            edited.clear()
            run(number, "")
            news = log.news()
            if sum(edited) and news:
                break
        print("found:", *sorted({text.partition("\n")[0] for text in news}), flush=True)
