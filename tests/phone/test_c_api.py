"""romou.h: an exported model gives Python's outputs from C, and every mistake is a code and a text."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import romou
from fuzz_c_api import export_networks
from romou.api.report import _evidence_in
from romou.base.errors import DeviceError, UsageError
from romou.devices.hardware import device_called, load_device
from romou.devices.hardware.files import known_devices
from romou.devices.targets import Target, misfit
from romou.runtime.deploy.export import _document
from romou.tools.regression import Bench
from romou.tools.report.page import _about
from support.docs.documents import blocks
from support.models.classifier import check_classes, classifier, picture
from support.models.open_networks import encoder
from support.models.small_networks import NetworkBuilder
from support.servers.phone_servers import APP, ARM64, HERE, compile_c
from support.suite.exhaustive import exhaustive
from tvm_patches.short_types import stored

OK, INVALID, MISSING, DAMAGED, NO_DEVICE, FAILED = range(6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the saved classifier: kernels for PoCL, kernels for a phone, and plain code for the processor."""
    folder = tmp_path_factory.mktemp("saved")
    targets = {"host": "opencl -device=host", "adreno640": "opencl -device=adreno640", "plain": "null"}
    return [
        romou.compile(classifier(), target=target, verify=False).save(folder / name) for name, target in targets.items()
    ]


@pytest.fixture(scope="module")
def exported(saved: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    first, *others = map(romou.load, saved)
    return first.export_android(tmp_path_factory.mktemp("exported") / "model", others=others, host=HERE)


@pytest.fixture(scope="module")
def use(
    host_runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs use_c_api.c with these arguments."""
    program = compile_c(Path(__file__).with_name("use_c_api.c"), host_runtime, tmp_path_factory.mktemp("c") / "use")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.mark.parametrize("target", ["opencl -device=host", "vulkan -device=host", "null"])
def test_outputs_are_pythons(use: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, target: str) -> None:
    """From the folder and from memory, waiting and not, copied and mapped: the bits of Python with the same kernels."""
    model = romou.compile(classifier(), target=target, verify=False)
    exported = model.export_android(tmp_path / "model", host=HERE)
    values, _ = picture(tmp_path)
    values.tofile(tmp_path / "picture.bin")
    done = use("run", exported, tmp_path, tmp_path / "picture.bin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "picture float32 float32 4 1440: 1 3 12 10" in done.stdout
    about = json.loads(re.findall("^about: (.*)$", done.stdout, re.MULTILINE)[0])
    assert (Target.from_json(about["target"]), about["left"]) == (model.target, [])
    (expected,) = model.run({"picture": values})
    assert np.fromfile(tmp_path / "output0.bin", "float32").tobytes() == expected.tobytes()


def sizes_of(pair: str) -> dict[str, np.ndarray]:
    shape = tuple(map(int, pair.split("x")))
    return {"ids": np.random.default_rng(shape).integers(0, 50, shape), "mask": np.ones(shape, "int64")}


def masked() -> onnx.ModelProto:
    """Return embedded ids, zero without a mask."""
    g = NetworkBuilder({})
    shape = ["batch", "tokens"]
    g.inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "mask")]
    mask = g.add("Cast", g.add("Unsqueeze", "mask", g.constant(np.array([2]))), to=TensorProto.FLOAT)
    return g.model(g.add("Mul", g.add("Gather", g.weight(50, 6), "ids"), mask))


CLASSES = [range(1, 9), range(9, 17)]
BATCHES = range(1, 4)


@pytest.mark.parametrize(
    ("network", "batch", "tokens", "is_padded", "pairs"),
    [
        pytest.param(encoder, 1, (8, 16), False, "1x8 1x16 1x8", marks=exhaustive),
        (encoder, 1, (8, 16), True, "1x16 1x8 1x5 1x16 1x13 1x8"),
        pytest.param(masked, 1, CLASSES, False, "1x16 1x8 1x5 1x1 1x13 1x9", marks=exhaustive),
        pytest.param(masked, 1, range(1, 17), False, "1x16 1x3 1x16", marks=exhaustive),
        pytest.param(encoder, 1, CLASSES, False, "1x16 1x8 1x5 1x1 1x13 1x9", marks=exhaustive),
        (masked, BATCHES, range(1, 17), False, "3x16 1x8 2x5 3x1 1x13 2x16 1x1"),
        pytest.param(encoder, BATCHES, CLASSES, False, "3x16 1x8 2x5 3x1 1x13 2x16 1x1", marks=exhaustive),
    ],
)
def test_several_shapes_run_as_in_python(
    network: Callable[[], onnx.ModelProto],
    batch: Any,
    tokens: Any,
    is_padded: bool,
    pairs: str,
    host_runtime: Path,
    tmp_path: Path,
) -> None:
    """The shape of the inputs is chosen, or the next larger one, or a class: each run has the bits of Python's."""
    options: dict[str, Any] = {"pad": {"ids": 0, "mask": 0}} if is_padded else {}
    dims = {"batch": batch, "tokens": tokens}
    model = romou.compile(network(), dims=dims, target="opencl -device=host", verify=False, **options)
    exported = romou.load(model.save(tmp_path / "saved")).export_android(tmp_path / "model", host=HERE)
    program = compile_c(Path(__file__).with_name("use_shapes.c"), host_runtime, tmp_path / "use")
    for pair in pairs.split():
        for name, array in sizes_of(pair).items():
            array.tofile(tmp_path / f"{name}-{pair}.bin")
    line = [str(program), str(exported), str(tmp_path), *pairs.split()]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = re.findall("^(?:before|after) (.*)$", done.stdout, re.MULTILINE)
    assert before == after
    assert before.startswith("mask int64 ")
    for pair in pairs.split():
        assert f"{pair}: {pair} rows" in done.stdout
        (expected,) = model.run(sizes_of(pair))
        assert np.fromfile(tmp_path / f"out-{pair}.bin", "float32").tobytes() == expected.tobytes()
    wrong = subprocess.run(line[:3], capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    codes = [(what, int(rest.split()[0])) for what, _, rest in (each.partition(": ") for each in wrong)]
    assert codes == [
        ("unknown", INVALID),
        ("negative", INVALID),
        ("null", INVALID),
        ("map", INVALID),
        ("large", OK),
        ("large", OK),
        ("not set", INVALID),
        ("set", OK),
        ("set", OK),
        ("too large", INVALID),
        ("small", OK),
        ("set", OK),
        ("different", INVALID),
    ]
    assert (
        f"no shape of the model takes ids 1x17, mask 1x17; it was compiled for ids {3 if batch == BATCHES else 1}x"
        in str(wrong)
    )


def mixed_types() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model with inputs and outputs of several types, one of them empty and one a scalar, and its inputs."""
    inputs = {
        "long": (TensorProto.INT64, np.array([1, 5, 2])),
        "flags": (TensorProto.BOOL, np.array([True, False, True])),
        "half": (TensorProto.FLOAT16, np.array([[0.5, -2]], "float16")),
        "one": (TensorProto.FLOAT, np.array(3, "float32")),
        "none": (TensorProto.FLOAT, np.zeros((0, 4), "float32")),
        "wide": (TensorProto.FLOAT, np.array([-3, 2, 7, -8], "float32")),
    }
    outputs = {
        "sum": (TensorProto.INT64, ("Add", "long", "long")),
        "inverse": (TensorProto.BOOL, ("Not", "flags")),
        "twice": (TensorProto.FLOAT16, ("Add", "half", "half")),
        "negative": (TensorProto.FLOAT, ("Neg", "one")),
        "nothing": (TensorProto.FLOAT, ("Relu", "none")),
        "narrow": (TensorProto.INT4, ("Cast", "wide")),
    }
    nodes = [
        helper.make_node(kind, names, [name], **({"to": TensorProto.INT4} if kind == "Cast" else {}))
        for name, (_, (kind, *names)) in outputs.items()
    ]
    infos = [helper.make_tensor_value_info(name, kind, array.shape) for name, (kind, array) in inputs.items()]
    shapes = {name: inputs[names[0]][1].shape for name, (_, (_, *names)) in outputs.items()}
    results = [helper.make_tensor_value_info(name, kind, shapes[name]) for name, (kind, _) in outputs.items()]
    graph = helper.make_graph(nodes, "types", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, {name: array for name, (_, array) in inputs.items()}


@pytest.mark.parametrize("target", ["opencl -device=host", "null"])
def test_every_type_arrives(host_runtime: Path, tmp_path: Path, target: str) -> None:
    onnx_model, inputs = mixed_types()
    model = romou.compile(onnx_model, target=target, verify=False)
    folder = model.export_android(tmp_path / "model", host=HERE)
    files = [tmp_path / f"{name}.bin" for name in model.inputs]
    for file, name in zip(files, model.inputs, strict=True):
        inputs[name].tofile(file)
    command = [str(host_runtime / "romou_bench"), str(folder), *map(str, files), "--repeats", "1", "--hold", "0"]
    done = subprocess.run([*command, "--outputs", str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, expected in enumerate(model.run(inputs)):
        assert (tmp_path / f"output{number}.bin").read_bytes() == stored(expected).tobytes(), model.outputs[number]


def test_the_page_shows_c_that_compiles(tmp_path: Path) -> None:
    (block,) = blocks("c")
    head = "#include <romou.h>\nint fail(const char*);\nint use(void) {\nstatic float pixels[9], scores[9];\n"
    (tmp_path / "page.c").write_text(f"{head}{block.text}return 0;\n}}\n")
    subprocess.run(["gcc", "-Wall", "-Werror", f"-I{APP}", "-fsyntax-only", str(tmp_path / "page.c")], check=True)


def test_the_sample_classifies_a_picture(exported: Path, saved: list[Path], host_runtime: Path, tmp_path: Path) -> None:
    values, file = picture(tmp_path)
    program = compile_c(APP / "classify.c", host_runtime, tmp_path / "classify")
    command = [str(program), str(exported), str(file)]
    check_classes(subprocess.run(command, capture_output=True, text=True, check=True).stdout, saved[0], values)
    for wrong in (tmp_path / "none.ppm", Path(__file__)):
        done = subprocess.run([str(program), str(exported), str(wrong)], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert re.search(r"^classify: .*: (cannot be read|is no binary PPM)", done.stderr)


def classify_on_arm64(
    saved: Sequence[Path], runtime: Path, run: Path, folder: Path, **environment: str
) -> tuple[str, np.ndarray]:
    """Export saved models for arm64, and return what the sample prints under qemu, and the network's input."""
    first, *others = map(romou.load, saved)
    first.export_android(folder / "model", others=others, host=ARM64)
    values, file = picture(folder)
    program = compile_c(APP / "classify.c", runtime, folder / "classify", "aarch64-linux-gnu-gcc")
    command = [str(run), str(program), str(folder / "model"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, values


def test_the_sample_on_arm64(saved: list[Path], arm64: Path, arm64_runtime: Path, tmp_path: Path) -> None:
    printed, values = classify_on_arm64(saved[2:], arm64_runtime, arm64, tmp_path)
    check_classes(printed, saved[2], values)


# Under qemu, a driver compiles each kernel for half a minute.
@exhaustive
def test_the_sample_with_kernels_on_arm64(saved: list[Path], arm64: Path, arm64_runtime: Path, tmp_path: Path) -> None:
    options = {"ROMOU_OPENCL_BUILD_OPTIONS": "-cl-opt-disable"}
    printed, values = classify_on_arm64(saved[1:2], arm64_runtime, arm64, tmp_path, **options)
    check_classes(printed, saved[1], values)


def test_mistakes_are_codes_and_texts(exported: Path, use: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = use("errors", exported)
    assert done.returncode == 0, done.stdout + done.stderr
    *calls, counts = done.stdout.splitlines()
    told = {what: (int(code), text) for what, code, text in (re.findall(r"^(.*): (\d) (.*)$", c)[0] for c in calls)}
    assert told == {
        "open NULL": (INVALID, "folder is NULL"),
        "open to NULL": (INVALID, "model is NULL"),
        "open unknown": (
            INVALID,
            "the model has no variant nonesuch; it has opencl-host, opencl-adreno640, cpu",
        ),
        "open nothing": (MISSING, "there is no file model.json among those in memory"),
        "open no files": (INVALID, "files is NULL"),
        "open unnamed": (INVALID, "file 0 has no name or no data"),
        "open lost": (INVALID, "file 0 has no name or no data"),
        "open": (OK, ""),
        "input 99": (INVALID, "there is no number 99 of 1"),
        "input to NULL": (INVALID, "tensor is NULL"),
        "output of NULL": (INVALID, "model is NULL"),
        "run unset": (INVALID, "input picture was never set"),
        "set unknown": (INVALID, "the model has no input nonesuch; it has picture"),
        "set NULL": (INVALID, "input is NULL"),
        "set no data": (INVALID, "data is NULL"),
        "set size": (INVALID, "input picture takes 1440 bytes, 8 were given"),
        "map early": (INVALID, "the model has not run yet"),
        "map unknown": (INVALID, "the model has no input or output nonesuch"),
        "map to NULL": (INVALID, "data is NULL"),
        "unmap unknown": (INVALID, "nonesuch is not mapped"),
        "get early": (INVALID, "the model has not run yet"),
        "get size": (INVALID, told["get size"][1]),
        "get unknown": (INVALID, told["get unknown"][1]),
        "run NULL": (INVALID, "model is NULL"),
    }
    assert re.fullmatch(r"output \w+ takes 40 bytes, 8 were given", told["get size"][1])
    assert re.fullmatch(r"the model has no output nonesuch; it has \w+", told["get unknown"][1])
    assert counts == "counts: 0 0 ''"


NAMES = ("model.json", "opencl-host/model.so", "opencl-host/weights.bin")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-7],
    "empty": lambda content: b"",
    "changed at its start": lambda content: content[:3] + b"\0" + content[4:],
    "changed inside": lambda content: content[: len(content) // 2] + b"\xff\xfe" + content[len(content) // 2 + 2 :],
    "longer": lambda content: content + b"x",
    # As a checksum, 0123 is 123.
    "a zero for a space": lambda content: b"0".join(content.rsplit(b" ", 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_refused(
    exported: Path,
    use: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    name: str,
    damage: str,
) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(DAMAGES[damage](content))
    done = use("open", copy)
    assert done.returncode == 0, f"{signal.strsignal(-done.returncode)}: {done.stdout}{done.stderr}"
    assert re.search(rf"^open: {DAMAGED} {name}", done.stdout), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(
    exported: Path, use: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, name: str
) -> None:
    copy = shutil.copytree(exported, tmp_path / "copy")
    (copy / name).unlink()
    assert use("open", copy).stdout == f"open: {MISSING} cannot read {copy}/{name}: No such file or directory\n"
    # Nobody writes to the pipe, and the device has no end.
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(copy / name)
        assert use("open", copy).stdout == f"open: {MISSING} cannot read {copy}/{name}: it is no regular file\n"
        (copy / name).rmdir() if (copy / name).is_dir() else (copy / name).unlink()


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with small models as plain code: fixed-0.5, fixed-0.125, padded-0.25 and sized-0.0625."""
    return export_networks(tmp_path_factory.mktemp("networks"))


def test_each_open_model_runs_its_own_kernels(
    networks: Path, use: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """The linker knows libraries by their paths. Models in memory have none, and two exports may have one."""
    done = use("several", tmp_path / "link", networks / "fixed-0.5", networks / "fixed-0.125")
    assert done.stdout.splitlines() == [
        "a b a: -1 -0.25 -1",
        "b b a: -0.25 -0.25 -1",
        "b a, by link a b a: -0.25 -1 -1 -0.25 -1",
    ]
    assert done.stderr == ""


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


# Model, change of its model.json, and what is said of it. The checksum is right.
FORGED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "device type": ("fixed-0.5", lambda m: m["variants"][0].update(device_type=99), "device_type of cpu is 99, not 1"),
    "kind": ("fixed-0.5", lambda m: m["variants"][0].update(kind="opencl"), "device_type of opencl is 1, not 4"),
    "scopes": (
        "fixed-0.5",
        lambda m: m["variants"][0].update(scopes=10**9),
        "scopes is 1000000000, allowed are 1 to 256",
    ),
    "variant": (
        "fixed-0.5",
        lambda m: m["variants"][0].update(name="../cpu"),
        "the variant ../cpu is no folder of the",
    ),
    "depth": ("fixed-0.5", lambda m: m.update(deep=_nested(900)), "it is nested more than 32 deep"),
    "side": ("fixed-0.5", lambda m: m["inputs"][0].update(shape=[-4, 8]), "shape is -4, allowed are 0 to 2147483647"),
    "number": ("fixed-0.5", lambda m: m["inputs"][0].update(shape=[1e9, 8]), ""),
    "bytes": ("fixed-0.5", lambda m: m["inputs"][0].update(shape=[2**31 - 1] * 3), "the shape has too many elements"),
    "elements": (
        "fixed-0.5",
        lambda m: m["inputs"][0].update(shape=[2**16] * 2),
        "a has more than 2147483647 elements",
    ),
    "type": ("fixed-0.5", lambda m: m["inputs"][0].update(stored="float32x4"), "no tensor is stored as float32x4"),
    "name": ("fixed-0.5", lambda m: m["inputs"][0].update(name="a\0b"), "name holds a NUL"),
    "value": ("fixed-0.5", lambda m: m["inputs"][0].update(value=[1, 2]), "value has 2 bytes, not 128"),
    "byte": ("fixed-0.5", lambda m: m["inputs"][0].update(value=[256] * 128), "value is 256, allowed are 0 to 255"),
    "file": ("fixed-0.5", lambda m: m["files"]["cpu/model.so"].update(bytes=-1), "bytes is -1"),
    "padding": ("padded-0.25", lambda m: m["padding"].update(a=[]), "padding has 0 bytes, not 4"),
    "group": ("padded-0.25", lambda m: m["groups"].append([0, 0, 9, 0]), "the model has no number 9"),
    "group's axis": ("padded-0.25", lambda m: m["groups"].append([0, 0, 1, 2]), "an axis has no number 2"),
    "cut": ("padded-0.25", lambda m: m["cuts"].append([0, 5, 0, 0, 1, 0, 1]), "an axis has no number 5"),
    "divisor": ("padded-0.25", lambda m: m["cuts"].append([0, 0, 0, 0, 1, 0, 0]), "a divisor is 0"),
    "shape": ("padded-0.25", lambda m: m["shapes"][0]["inputs"].pop(), "a shape has other inputs"),
    "rank": ("padded-0.25", lambda m: m["shapes"][0]["outputs"][0]["shape"].pop(), "a shape has other outputs"),
    "bounds": ("sized-0.0625", lambda m: m["shapes"][0]["sizes"].update(bounds=[[1]]), "bounds has 1 numbers, not 2"),
    "free axis": ("sized-0.0625", lambda m: m["shapes"][0]["sizes"]["outputs"][0].__setitem__(1, 7), "an axis has no"),
    "size": (
        "sized-0.0625",
        lambda m: m["shapes"][0]["sizes"]["inputs"][0].__setitem__(2, 3),
        "a size has no number 3",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_description_is_refused(
    networks: Path, use: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, what: str
) -> None:
    name, change, told = FORGED[what]
    copy = shutil.copytree(networks / name, tmp_path / "copy")
    about = json.loads((copy / "model.json").read_text())
    del about["checksum"]
    change(about)
    (copy / "model.json").write_text(_document(about))
    done = use("open", copy)
    assert done.returncode == 0, f"{signal.strsignal(-done.returncode)}: {done.stdout}{done.stderr}"
    assert re.match(f"open: {DAMAGED} model.json: .*{re.escape(told)}", done.stdout), done.stdout


def test_a_variant_of_an_unknown_kind_is_left(
    networks: Path, use: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A newer Romou may export for other kinds of devices. Only names that the library knows are loaded."""
    copy = shutil.copytree(networks / "fixed-0.5", tmp_path / "copy")
    about = json.loads((copy / "model.json").read_text())
    del about["checksum"]
    about["variants"][0]["kind"] = "../npu"
    (copy / "model.json").write_text(_document(about))
    told = "no device here runs the model; ../npu: this library has no devices of that kind"
    assert use("open", copy).stdout == f"open: {NO_DEVICE} {told}\n"


def test_java_and_c_have_the_same_texts(tmp_path: Path) -> None:
    """Texts of Java are UTF-16, those of C are UTF-8, and either may hold what is no text."""
    texts = ["", "picture", "größe", "画像 €", "🦙 \U0010ffff", "\ud7ff\ue000\x7f\x80\u07ff\u0800\uffff\U00010000"]
    broken = [
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf0\x9f\xa6",
        b"\xe2\x82x",
        b"\xf4\x90\x80\x80",
        b"\x80\xf5",
        b"a\xc3",
    ]
    halves = [b"\xd8\x3e", b"\xdd\x99\xd8\x3e", b"\xd8\x3e\0x"]
    lines = [f"8 {text.hex()}" for text in [*(text.encode() for text in texts), *broken]]
    lines += [f"16 {text.hex()}" for text in [*(text.encode("utf-16-be") for text in texts), *halves, b"\0a\0\0\0b"]]
    program, source = tmp_path / "convert", Path(__file__).with_name("java_text.cc")
    command = ["g++", "-std=c++20", "-Wall", "-Werror", "-fsanitize=address,undefined", f"-I{APP}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    wide = [text.encode("utf-16-be") for text in texts]
    wide += [text.decode("utf-8", errors="replace").encode("utf-16-be") for text in broken]
    narrow = [text.encode() for text in [*texts, "\ufffd", "\ufffd\ufffd", "\ufffdx"]] + [b"a\xc0\x80b"]
    assert [bytes.fromhex(line) for line in done.stdout.splitlines()] == [*wide, *narrow]


def test_a_bench_is_read_by_report(exported: Path, host_runtime: Path, tmp_path: Path) -> None:
    command = [str(host_runtime / "romou_bench"), str(exported), "--repeats", "3", "--hold", "5", "--json"]
    (tmp_path / "phone.json").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    bench = Bench.load(tmp_path / "phone.json")
    assert Target.from_json(bench.target).device_name == "host"
    assert [len(times) for times in bench.model_times_ms] == [3, 3, 3]
    assert bench.about is not None
    assert (bench.about.variant, set(bench.about.ms)) == ("opencl-host", {"read", "programs", "weights"})
    assert (len(bench.inputs_ms), len(bench.outputs_ms)) == (3, 3)
    assert all((bench.open_ms, bench.first_run_ms))
    evidence, _, _ = _evidence_in([tmp_path / "phone.json"])
    assert bench.device is not None
    assert f"{bench.time_ms:.3f} ms a run on {bench.device['name']} (bench)" in _about(evidence)


def test_a_model_tuned_here_wins_over_plain_loops(saved: list[Path], host_runtime: Path, tmp_path: Path) -> None:
    """The default target names no device, and its kernels are for the device that tuned them."""
    tuned = romou.tune(classifier(), trials=1, verify=False, database=False, work_dir=tmp_path / "records")
    assert tuned.target.kind == "opencl"
    for order, models in (("tuned", [tuned, romou.load(saved[2])]), ("plain", [romou.load(saved[2]), tuned])):
        folder = models[0].export_android(tmp_path / order, others=models[1:], host=HERE)
        command = [str(host_runtime / "romou_bench"), str(folder), "--repeats", "1", "--hold", "0", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["about"]["variant"].startswith("opencl"), order


def test_without_a_driver_plain_code_runs(
    exported: Path, saved: list[Path], host_runtime: Path, tmp_path: Path
) -> None:
    """A phone that has no OpenCL library still runs the model, and the reason is told."""
    command = [str(host_runtime / "romou_bench"), str(exported), "--repeats", "1", "--hold", "0", "--json"]
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "ROMOU_OPENCL_DEVICE": ""}
    environment.pop("ROMOU_OPENCL_LIBRARY", None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    about = json.loads(done.stdout)["about"]
    assert about["variant"] == "cpu"
    first = romou.load(saved[0]).export_android(tmp_path / "first", host=HERE)
    command[1] = str(first)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, "no device here runs the model" in done.stderr) == (1, True)


def test_python_chooses_as_well(saved: list[Path], tmp_path: Path) -> None:
    """A folder of saved models is loaded as the one that suits the attached device."""
    assert romou.load(saved[0].parent).target == Target("opencl -device=host")
    for name in ("adreno640", "plain"):
        shutil.copytree(saved[0].parent / name, tmp_path / name)
    assert romou.load(tmp_path).target == Target("null")
    shutil.rmtree(tmp_path / "plain")
    assert romou.load(tmp_path).target == Target("opencl -device=adreno640")
    with pytest.raises(DeviceError, match=f"no model in {tmp_path} runs here: adreno640"):
        romou.load(tmp_path, device=99)
    with pytest.raises(UsageError, match=f"{tmp_path} holds several models: adreno640"):
        romou.load(tmp_path, rpc="127.0.0.1:9/x")


@pytest.fixture(scope="module")
def misfits(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Sequence[tuple[str, str, str]]], list[tuple[int, int]]]:
    """Return a function: (variant's device, type, driver's name) of each -> how little they suit each other."""
    program = tmp_path_factory.mktemp("choose") / "choose"
    source = Path(__file__).with_name("choose.cc")
    subprocess.run(["g++", "-std=c++20", "-Wall", f"-I{APP}", str(source), "-o", str(program)], check=True)

    def run(pairs: Sequence[tuple[str, str, str]]) -> list[tuple[int, int]]:
        text = "".join("\t".join(pair) + "\n" for pair in pairs)
        lines = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
        return [(int(rank), int(distance)) for rank, distance in (line.split() for line in lines if line)]

    return run


DRIVERS = {
    "QUALCOMM Adreno(TM) 740": "adreno740",
    "Adreno (TM) 642L": "adreno642l",
    "FD630": "adreno630",
    "Mali-G715-Immortalis MC11 r1p2": "mali_g715",
    "Immortalis-G720": "mali_g720",
    "ARM Mali-G78 r0p1": "mali_g78",
}


def test_a_variant_is_chosen_by_the_drivers_name(
    misfits: Callable[[Sequence[tuple[str, str, str]]], list[tuple[int, int]]],
) -> None:
    """Each driver's name suits the variant that Python calls by that name, and no other one as well."""
    devices = [name for name in known_devices() if not load_device(name).is_cpu]
    assert {name: device_called(name) for name in DRIVERS} == DRIVERS
    for name, device in DRIVERS.items():
        found = misfits([(each, "gpu", name) for each in devices])
        assert [each for each, (rank, _) in zip(devices, found, strict=True) if rank == 0] == [device]
        facts = {"name": name, "type": "gpu"}
        assert found == [misfit(Target(f"opencl -device={each}"), facts) for each in devices], (
            "Python chooses otherwise"
        )
    # Its family by the nearest number, then any GPU, then the processor, then kernels on a processor.
    order = [("adreno730", "gpu"), ("adreno640", "gpu"), ("mali_g78", "gpu"), ("host", "gpu"), ("", "none")]
    found = misfits([(device, kind, "QUALCOMM Adreno(TM) 750") for device, kind in order])
    assert found == sorted(found)
    assert [rank for rank, _ in found] == [1, 1, 2, 2, 3]
    facts = {"name": "QUALCOMM Adreno(TM) 750", "type": "gpu"}
    targets = [Target(f"opencl -device={device}" if device else "null") for device, _ in order]
    assert [misfit(target, facts) for target in targets] == found
    order = [("host", "cpu"), ("", "cpu"), ("", "none"), ("adreno740", "cpu")]
    found = misfits([(device, kind, "pthread") for device, kind in order])
    assert [rank for rank, _ in found] == [0, 1, 3, 4]
    targets = [Target("opencl -device=host"), Target("opencl"), Target("null"), Target("opencl -device=adreno740")]
    assert [misfit(target, {"name": "pthread", "type": "cpu"}) for target in targets] == found
