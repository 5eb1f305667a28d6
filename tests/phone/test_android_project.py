"""The Android project of an export: its files here, and its Kotlin compiled and run on a desktop's JVM."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.devices.targets import Target
from romou.models.decoder import DecoderShape, decoder
from romou.runtime.deploy import write_project
from romou.tools.regression import Bench
from support.models.classifier import check_classes, classifier, picture
from support.models.decoding import onnxruntimes_tokens, prompt_of
from support.models.small_networks import NetworkBuilder
from support.servers.phone_servers import ROOT
from support.suite.exhaustive import exhaustive

HERE, APP = "x86_64-linux-gnu", ROOT / "tvm_patches/app_runtime"
TEMPLATE = ROOT / "romou/runtime/deploy/android"
SOURCES = "src/main/java/dev/romou"
CLASS = [TEMPLATE / "romou" / SOURCES / name for name in ("Model.kt", "Native.kt")]
LIBRARIES = ("libromou.so", "libromou_jni.so", "libtvm_runtime.so")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("saved")
    return [
        romou.compile(classifier(), target=target, verify=False).save(folder / name)
        for name, target in {"host": "opencl -device=host", "plain": "null"}.items()
    ]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the names of Android's runtime. The NDK is Debian's cross compiler."""
    compiler = tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android24-clang++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text('#!/bin/sh\nexec aarch64-linux-gnu-g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path / "ndk"))
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).write_text(name)
    (folder / "romou_bench").write_text("no library")
    (folder / "runtime.json").write_text('{"target": "android-arm64"}')
    return folder


def test_a_project_holds_all_that_an_app_needs(saved: list[Path], runtime: Path, tmp_path: Path) -> None:
    project, out = tmp_path / "sample", tmp_path / "out"
    command = ["export", *map(str, saved), "--android", str(out), "--project", str(project)]
    done = CliRunner().invoke(main, [*command, "--runtime", str(runtime), "--json"])
    assert done.exit_code == 0, done.output
    sizes = json.loads(done.stdout)["bytes"]
    variants = ("cpu", "opencl-host")
    exported = {"model.json", *(f"{variant}/{name}" for variant in variants for name in ("model.so", "weights.bin"))}
    assert sizes[str(out)].keys() == {*exported, "run_model.py"}
    expected = {str(path.relative_to(TEMPLATE)) for path in TEMPLATE.rglob("*") if path.is_file()}
    expected |= {f"romou/src/main/assets/model/{name}" for name in exported}
    expected |= {f"romou/src/main/jniLibs/arm64-v8a/{name}" for name in LIBRARIES}
    assert sizes[str(project)].keys() == expected
    library = project / "romou/src/main/assets/model/cpu/model.so"
    told = subprocess.run(
        ["aarch64-linux-gnu-readelf", "-lW", str(library)], capture_output=True, text=True, check=True
    ).stdout
    # Devices with pages of 16 KiB load no other libraries.
    assert {int(alignment, 16) % 0x4000 for alignment in re.findall(r"LOAD .* (0x\w+)$", told, re.MULTILINE)} == {0}
    # Again, with fewer variants, and with programs that a phone compiled.
    romou.load(saved[0]).export_android(out, project=project, runtime=runtime)
    assert not (project / "romou/src/main/assets/model/cpu").exists()
    (out / "opencl-host/programs").mkdir()
    (out / "opencl-host/programs/x.program").write_text("")
    write_project(project, out, runtime)
    assert (project / "romou/src/main/assets/model/opencl-host/programs/x.program").exists()


def test_what_a_project_lacks_is_said(saved: list[Path], runtime: Path, tmp_path: Path) -> None:
    model = romou.load(saved[0])
    project = tmp_path / "sample"
    with pytest.raises(UsageError, match="takes a model for aarch64-linux-android, not aarch64-linux-gnu"):
        model.export_android(tmp_path / "out", host="aarch64-linux-gnu", project=project, runtime=runtime)
    with pytest.raises(UsageError, match="needs the phone's runtime"):
        model.export_android(tmp_path / "out", project=project)
    with pytest.raises(UsageError, match=f"{tmp_path} holds no runtime for a phone"):
        model.export_android(tmp_path / "out", project=project, runtime=tmp_path)
    with pytest.raises(UsageError, match="runtime exists and is not an Android project"):
        model.export_android(tmp_path / "out", project=runtime, runtime=runtime)
    (runtime / "runtime.json").write_text('{"target": "linux-arm64"}')
    with pytest.raises(UsageError, match="was built for linux-arm64, not android-arm64"):
        model.export_android(tmp_path / "out", project=project, runtime=runtime)
    assert not (tmp_path / "out").exists()


def test_the_parts_of_the_project_fit_together() -> None:
    """The manifest names the drivers' libraries, Gradle has the runtime's API, and JNI has Kotlin's functions."""
    name = "{http://schemas.android.com/apk/res/android}"
    libraries = ElementTree.parse(TEMPLATE / "romou/src/main/AndroidManifest.xml").iter("uses-native-library")
    assert [(each.get(f"{name}name"), each.get(f"{name}required")) for each in libraries] == [
        ("libOpenCL.so", "false"),
        ("libOpenCL-pixel.so", "false"),
    ]
    (api,) = re.findall(r"^API=(\d+)", (ROOT / "tvm_patches/build_phone_runtime.sh").read_text(), re.MULTILINE)
    for module in ("romou", "app"):
        assert f"minSdk = {api} " in (TEMPLATE / module / "build.gradle.kts").read_text()
    externals = re.findall(r"external fun (\w+)\(", CLASS[1].read_text())
    jni = (APP / "jni.cc").read_text()
    natives = re.findall(r"Java_dev_romou_Native_(\w+)\(", jni)
    assert sorted(externals) == sorted(natives) != []
    # What only JNI names would be removed or renamed in a release of an app.
    assert set(re.findall(r'FindClass\("(.*)/\w+"\)', jni)) == {"dev/romou"}
    assert "-keep class dev.romou.* { *; }" in (TEMPLATE / "romou/consumer-rules.pro").read_text()
    assert 'consumerProguardFiles("consumer-rules.pro")' in (TEMPLATE / "romou/build.gradle.kts").read_text()


def test_the_class_is_short() -> None:
    assert len(CLASS[0].read_text().splitlines()) <= 35


def kotlin(folder: Path, config: pytest.Config, *sources: Path) -> Path:
    """Compile Kotlin to classes in `folder`. Without a compiler, skip the test, or fail it after scripts/test.sh."""
    if shutil.which("kotlinc") is None:
        (pytest.fail if config.getoption("--all-platforms") else pytest.skip)("no kotlinc: apt-get install kotlin")
    command = ["kotlinc", *map(str, sources), "-include-runtime", "-d", str(folder / "classes.jar")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "classes.jar"


def build_jni(host_runtime: Path, folder: Path) -> None:
    """Build the native functions of the Kotlin class for this machine."""
    java = Path(str(shutil.which("javac"))).resolve().parents[1] / "include"
    command = ["g++", "-std=c++20", "-Wall", "-fPIC", "-shared", f"-I{APP}", f"-I{java}", f"-I{java}/{sys.platform}"]
    command += [str(APP / "jni.cc"), f"-L{host_runtime}", "-lromou", f"-Wl,-rpath,{host_runtime}"]
    subprocess.run([*command, "-o", str(folder / "libromou_jni.so")], check=True)


@exhaustive
def test_kotlin_runs_several_shapes_as_python(host_runtime: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    g = NetworkBuilder({"x": ("rows", 8)})
    network = g.model(g.add("Relu", g.add("MatMul", "x", g.weight(8, 12))))
    options = {"dims": {"rows": (3, 5)}, "pad": {"x": 0}}
    model = romou.compile(network, target="opencl -device=host", verify=False, **options)
    exported = model.export_android(tmp_path / "model", host=HERE)
    own = Path(__file__).with_name("Shapes.kt")
    classes = kotlin(tmp_path, pytestconfig, *CLASS, own)
    build_jni(host_runtime, tmp_path)
    command = ["java", f"-Djava.library.path={tmp_path}", "-cp", str(classes), "ShapesKt", str(exported)]
    done = subprocess.run([*command, "3", "5", "4", "6", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("run ", "error "))]
    assert [line.split("[")[0] for line in lines[:3]] == ["run 3 ", "run 5 ", "run 4 "]
    assert lines[3].startswith("error 1 no shape of the model takes x 6x8; it was compiled for x 3x8; x 5x8")
    for rows, line in zip((3, 5, 4, 3), [*lines[:3], lines[4]], strict=True):
        x = (np.arange(rows * 8, dtype="float32") * 0.25 - rows).reshape(rows, 8)
        (expected,) = model.run({"x": x})
        assert f"[{rows}, 8] [{rows}, 12] " in line
        numbers = np.array(line.split("] ")[-1].split(), "float32").reshape(rows, 12)
        np.testing.assert_array_equal(numbers, expected)


@exhaustive
def test_kotlin_gives_pythons_classes(
    saved: list[Path], host_runtime: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """The class and the sample's code run on this machine's JVM, on PoCL."""
    sample = [TEMPLATE / "app" / SOURCES / "sample" / name for name in ("Picture.kt", "Bench.kt")]
    own = Path(__file__).with_name("Classify.kt")
    classes = kotlin(tmp_path, pytestconfig, *CLASS, *sample, own)
    build_jni(host_runtime, tmp_path)
    first, *others = map(romou.load, saved)
    exported = first.export_android(tmp_path / "model", others=others, host=HERE)
    values, file = picture(tmp_path)
    colours = np.frombuffer(file.read_bytes()[-360:], np.uint8).astype(np.int32).reshape(-1, 3)
    (colours[:, 0] << 16 | colours[:, 1] << 8 | colours[:, 2]).astype(np.int32).tofile(tmp_path / "pixels.bin")
    command = ["java", f"-Djava.library.path={tmp_path}", "-cp", str(classes), "ClassifyKt", str(exported)]
    command += [str(tmp_path / "pixels.bin"), str(tmp_path / "bench.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    timed = Bench.load(tmp_path / "bench.json")
    assert Target.from_json(timed.target).device_name == "host"
    assert [len(times) for times in timed.model_times_ms] == [2, 2, 2]
    assert timed.time_ms is not None
    assert 0 < timed.time_ms < 1e4
    assert "[picture float32 [1, 3, 12, 10] 1440]" in done.stdout
    assert '"variant":"opencl-host"' in done.stdout
    check_classes(done.stdout, saved[0], values)
    errors = re.findall("^error (.*)$", done.stdout, re.MULTILINE)
    assert errors[1].startswith("1 the model has no output nonesuch; it has ")
    assert errors[::2] + errors[3:] == [
        "1 the model has no input nonesuch; it has picture",
        "1 data is NULL",
        "2 cannot read /nonesuch/model.json: No such file or directory",
    ]


@exhaustive
def test_kotlin_generates_onnxruntimes_tokens(host_runtime: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    shape = DecoderShape(layers=1, width=64, heads=4, size=16, inner=96, words=256, longest=100)
    saved = romou.Decoder(decoder(shape), chunk=4, target="null", verify=False).save(tmp_path / "saved")
    exported = romou.load(saved).export_android(tmp_path / "model", host=HERE)
    classes = kotlin(tmp_path, pytestconfig, *CLASS, Path(__file__).with_name("Generate.kt"))
    build_jni(host_runtime, tmp_path)
    prompt = prompt_of(21, shape.words)
    command = ["java", f"-Djava.library.path={tmp_path}", "-cp", str(classes), "GenerateKt", str(exported), "64"]
    done = subprocess.run([*command, *map(str, prompt)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = ",".join(map(str, onnxruntimes_tokens(decoder(shape), prompt, 64)))
    assert done.stdout.splitlines() == [
        expected,
        expected,
        "error 1 there is no token; give at least one",
        f"error 1 the decoder has read 21 tokens, not {2**64 - 1}",
        "error 1 the model is a decoder; romou_decode runs it",
    ]


@exhaustive
def test_the_sample_app_compiles(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """It is compiled against stand-ins for Android's classes, because no Android SDK is here."""
    stubs = Path(__file__).with_name("android_classes.kt").read_text()
    files = []
    for number, part in enumerate(re.split(r"^(?=package )", stubs, flags=re.MULTILINE)[1:]):
        files.append(tmp_path / f"stubs{number}.kt")
        files[-1].write_text(part)
    kotlin(tmp_path, pytestconfig, *files, *TEMPLATE.rglob("*.kt"))
