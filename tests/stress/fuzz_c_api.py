#!/usr/bin/env python3
"""Calls romou.h in random orders, under a sanitizer, and compares every output with the right one.

    python tests/stress/fuzz_c_api.py --minutes 10                          AddressSanitizer and UndefinedBehaviorSanitizer
    python tests/stress/fuzz_c_api.py --minutes 10 --sanitizer thread       ThreadSanitizer
    python tests/stress/fuzz_c_api.py --seed 7 --first 120 --cases 1        case 120 of seed 7 again

A case is 50 calls, or a model that four threads share: several models from folders and from memory, opened and closed
in any order, of one shape, of padded shapes and of sizes at run time, and decoders; wrong names, sizes and NULLs; reshapes between
get and run; a forged, cut or flipped model.json, kernels and weights; files that are pipes, sockets and devices;
buffers that end at a page that nobody may touch. The exit code is 1 at the first fault.
"""  # noqa: E501

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import onnx
from onnx import TensorProto, helper

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "tvm_patches/app_runtime"
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# Names that are longer than what a std::string holds in place, and beyond the 16 bits of Java's characters.
INPUTS, OUTPUTS = ("a", "b_with_a_long_name_🦙"), ("the_sum_of_both_inputs", "turned")
# The slope and the size of dimension "rows".
NETWORKS: dict[str, Any] = {
    "fixed-0.5": 4,
    "fixed-0.125": 4,
    "padded-0.25": (4, 64),
    "sized-0.0625": range(1, 17),
}
# TVM's wheel is not instrumented: accesses inside of it are not seen. None of its functions has to be suppressed.
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}


def network(slope: float) -> onnx.ModelProto:
    """Return LeakyRelu(a + b), and a + b transposed, of rows x 8 floats."""
    nodes = [
        helper.make_node("Add", INPUTS, ["sum"]),
        helper.make_node("LeakyRelu", ["sum"], [OUTPUTS[0]], alpha=slope),
        helper.make_node("Transpose", ["sum"], [OUTPUTS[1]], perm=[1, 0]),
    ]
    shapes: tuple[list[str | int | None], ...] = (["rows", 8], [8, "rows"])
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[0]) for name in INPUTS]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(OUTPUTS, shapes, strict=True)
    ]
    graph = helper.make_graph(nodes, "fuzzed", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def export_networks(folder: Path) -> Path:
    """Export the models that are called, and copies of one with files that are none."""
    import romou
    from romou.models.decoder import DecoderShape, decoder

    sys.path.append(str(HERE.parent))
    from support.models.appending_decoder import appending_decoder

    for name, rows in NETWORKS.items():
        options: dict[str, Any] = {"pad": dict.fromkeys(INPUTS, 0)} if name.startswith("padded") else {}
        model = romou.compile(
            network(float(name.partition("-")[2])), dims={"rows": rows}, target="null", verify=False, **options
        )
        model.export_android(folder / name, host="x86_64-linux-gnu")
    shape = DecoderShape(layers=1, width=32, heads=2, shared=1, size=16, inner=32, words=64, longest=24)
    decoders = {"decoder": decoder(shape), "appending": appending_decoder(layers=1, heads=2, shared=1, words=64)}
    for name, each in decoders.items():
        made = romou.Decoder(each, length=24, chunk=4, target="null", verify=False)
        romou.load(made.save(folder / "saved")).export_android(folder / name, host="x86_64-linux-gnu")
        shutil.rmtree(folder / "saved")
    for file in ("model.json", "cpu/model.so", "cpu/weights.bin"):
        for kind in ("pipe", "socket", "folder", "device", "missing"):
            copy = shutil.copytree(folder / "fixed-0.5", folder / "odd" / f"{kind}-{Path(file).name}")
            _replace(copy / file, kind)
    return folder


def _replace(file: Path, kind: str) -> None:
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{short}/socket")
            shutil.move(f"{short}/socket", file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")


def compile_options(sanitizer: str, sources: Path = SOURCES) -> list[str]:
    """Return the compiler's arguments, without the output. The text of `program_text` is its input."""
    import tvm
    import tvm_ffi

    import tvm_patches

    folders = [Path(str(module.__file__)).parent for module in (tvm, tvm_ffi)]
    runtimes = [path.parent for path in tvm_patches.RUNTIMES.values()]
    return [
        *("-std=c++20", "-O0", "-g1", "-Wall", "-Wno-tsan", "-pthread", '-DROMOU_VERSION="fuzzed"', f"-I{sources}"),
        # AddressSanitizer finds the faults of the first two, and processors load from every address: they take half of
        # the compilation.
        *(f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=undefined"),
        "-fno-sanitize=null,object-size,alignment",
        *(f"-isystem{folder}/include" for folder in folders),
        *("-x", "c++", "-"),
        *(f"-L{folder}/lib" for folder in folders),
        *(f"-Wl,-rpath,{folder}" for folder in [*(folder / "lib" for folder in folders), *runtimes]),
        *("-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-ldl"),
    ]


def program_text(sources: Path = SOURCES) -> str:
    """Return the fuzzer and the library as one file: the compiler reads TVM's headers once."""
    files = (sources / "c_api.cc", sources / "model.cc", HERE / "fuzz_c_api.cc")
    return "".join(f'#include "{file}"\n' for file in files)


def build(sanitizer: str, program: Path, sources: Path = SOURCES) -> None:
    """Compile the fuzzer with the library."""
    command = ["g++", *compile_options(sanitizer, sources), "-o", str(program)]
    subprocess.run(command, input=program_text(sources), text=True, check=True)


@dataclass(frozen=True)
class Result:
    """The end of a run of the fuzzer: its last line, and what it wrote about a fault."""

    code: int
    last: str
    fault: str


def fuzz(
    program: Path, networks: Path, *, seed: int, seconds: float, first: int = 0, cases: int | None = None
) -> Result:
    """Run cases of a seed from number `first` on, for `seconds` or until there were so many."""
    words = [str(networks), str(seed), str(first), str(round(seconds)), *([] if cases is None else [str(cases)])]
    done = subprocess.run(
        [str(program), *words], env={**os.environ, **ENVIRONMENT}, capture_output=True, errors="replace", check=False
    )
    lines = done.stdout.splitlines() or ["nothing was printed"]
    return Result(done.returncode, lines[-1], done.stderr)


@click.command()
@click.option("--sanitizer", type=click.Choice([*SANITIZERS]), default="address", show_default=True)
@click.option("--minutes", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first case.")
@click.option("--cases", type=click.IntRange(min=1), default=None, help="End after so many.")
@click.option(
    "--sources",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=SOURCES,
    help="Folder of the library's sources, for those of another commit.",
)
def main(sanitizer: str, minutes: float, seed: int, first: int, cases: int | None, sources: Path) -> None:
    """Print the number of cases and calls, by code, or the fault and how to repeat it."""
    with tempfile.TemporaryDirectory() as folder:
        build(sanitizer, Path(folder, "fuzz"), sources)
        networks = export_networks(Path(folder, "networks"))
        result = fuzz(Path(folder, "fuzz"), networks, seed=seed, seconds=60 * minutes, first=first, cases=cases)
    print(f"seed {seed}, {SANITIZERS[sanitizer]}: {result.last}")
    if result.code != 0:
        print(f"exit code {result.code}\n{result.fault}")
        number = result.last.removeprefix("case ")
        print(f"again: --sanitizer {sanitizer} --seed {seed} --first {number} --cases 1")
    sys.exit(result.code != 0)


if __name__ == "__main__":
    main()
